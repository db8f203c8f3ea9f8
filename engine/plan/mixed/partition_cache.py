"""A partition as files: which backend takes which nodes, and the parts that were cut for it.

    partition.json    the candidates that were asked, the nodes of each, and what came of that
    part_N.onnx       the model of a part; large weights are named in it, and lie where they lay

The folder is an entry of the compile cache, which answers for its content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.formats import source_of_part
from engine.formats.code import digest_of_code
from engine.plan.mixed.part_options import plan_name
from engine.plan.mixed.partitioning import COLLECTIVES, RESULTS, Partitioning
from engine.plan.mixed.parts import Part
from engine.plan.partition import Segment
from engine.types import CompileOptions, ModelSource, ShapeRange

RECORD = "partition.json"

# The code that makes a partition; distributed/ makes that of a rank's model.
_CODE = ("plan", "distributed", "formats/onnx")


def write(partitioning: Partitioning, parts: Sequence[Part], folder: Path) -> None:
    """Write a partition into an empty folder; no parts stand for the whole on the second candidate.

    Raises OSError.
    """
    source = partitioning.source
    for number, part in enumerate(parts):
        assert part.source.data is not None, "a part is in memory"
        (folder / f"part_{number}.onnx").write_bytes(part.source.data)
    folders = {part.source.folder for part in parts} - {source.folder}
    assert len(folders) <= 1, "all parts lie in the same folder"
    record = {
        "made by": _makers(),
        "candidates": _candidates(partitioning),
        "levels": partitioning.levels,
        "reasons": {str(index): why for index, why in partitioning.fallback_reasons.items()},
        "is_relocated": bool(folders),
        "parts": [_described(part) for part in parts],
    }
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")


def read(partitioning: Partitioning, folder: Path) -> list[Part]:
    """Return the parts of a partition that was written, and set what is known of its nodes.

    Raises ValueError where it is damaged, or was made with other candidates than there are now.
    """
    try:
        return _read(partitioning, folder)
    except (OSError, LookupError, TypeError, AttributeError, ModelError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _read(partitioning: Partitioning, folder: Path) -> list[Part]:
    record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    if record["made by"] != _makers():
        raise ValueError("it was made by another version")
    count = len(record["candidates"])
    if not partitioning.reaches(count - 1) or record["candidates"] != _candidates(partitioning):
        raise ValueError("the candidates are others now")
    levels = [int(level) for level in record["levels"]]
    reasons = {int(index): str(why) for index, why in record["reasons"].items()}
    nodes = range(len(partitioning.nodes))
    if (
        len(levels) != len(nodes)
        or not set(levels) <= {*range(count), COLLECTIVES, RESULTS}
        or not {*reasons} <= {*nodes}
    ):
        raise ValueError("it is of another graph")
    whole = _whole(partitioning.source, bool(record["is_relocated"]))
    plan = plan_name()
    parts = []
    for number, said in enumerate(record["parts"]):
        segment = Segment(
            int(said["level"]), tuple(said["nodes"]), tuple(said["inputs"]), tuple(said["outputs"])
        )
        candidate = partitioning.candidate(segment.level)
        options = _options(candidate.options, said, plan)
        source = source_of_part((folder / f"part_{number}.onnx").read_bytes(), whole, whole.folder)
        _check(segment, source, nodes)
        parts.append(Part(segment, candidate, source, options))
    _check_order(partitioning.source, [part.segment for part in parts])
    partitioning.levels[:] = levels
    partitioning.fallback_reasons.update(reasons)
    return parts


def _makers() -> dict[str, str]:
    """Return what a partition is made by, beside the candidates: it may cut otherwise later."""
    try:
        onnx = version("onnx")  # infers the types of what crosses
    except PackageNotFoundError:
        onnx = ""
    return {"code": digest_of_code(_CODE), "onnx": onnx}


def _candidates(partitioning: Partitioning) -> list[str]:
    texts = (json.dumps(each.key(), sort_keys=True) for each in partitioning.candidates)
    return [hashlib.sha256(text.encode()).hexdigest() for text in texts]


def _whole(source: ModelSource, is_relocated: bool) -> ModelSource:
    """Return the model that parts name weights of: see `extract.Whole`."""
    from engine.formats.onnx.weights import with_weights_apart

    source = with_weights_apart(source)
    if not is_relocated:
        return source
    assert source.path is not None
    return replace(source, folder=source.path.resolve().parent)


def _described(part: Part) -> dict[str, Any]:
    segment, options = part.segment, part.options
    return {
        "level": segment.level,
        "nodes": segment.nodes,
        "inputs": segment.inputs,
        "outputs": segment.outputs,
        "resident": sorted(options.resident),
        "shapes": _ranges(options.shapes),
        "profiles": [_ranges(profile) for profile in options.profiles],
    }


def _ranges(shapes: Any) -> dict[str, list[Sequence[int]]]:
    return {name: [each.lowest, each.usual, each.highest] for name, each in shapes.items()}


def _options(options: CompileOptions, said: dict[str, Any], plan: str) -> CompileOptions:
    """Return what `part_options` gave."""
    shapes, *profiles = (
        {
            str(name): ShapeRange(tuple(lowest), tuple(usual), tuple(highest))
            for name, (lowest, usual, highest) in ranges.items()
        }
        for ranges in (said["shapes"], *said["profiles"])
    )
    return replace(
        options,
        shapes=shapes,
        profiles=tuple(profiles),
        resident=frozenset(said["resident"]),
        plan=plan,
        variable_weights=(),
        save_to=None,
    )


def _check(segment: Segment, source: ModelSource, nodes: range) -> None:
    """Raise ValueError for a part whose model is not what its segment says."""
    graph = source.graph
    assert graph is not None
    inputs = tuple(spec.name for spec in graph.inputs)
    outputs = tuple(spec.name for spec in graph.outputs)
    if (inputs, outputs) != (segment.inputs, segment.outputs):
        raise ValueError("a part takes or gives other tensors than its segment")
    if len(graph.nodes) != len(segment.nodes) or not {*segment.nodes} <= {*nodes}:
        raise ValueError("a part has other nodes than its segment")


def _check_order(source: ModelSource, segments: Sequence[Segment]) -> None:
    """Raise ValueError for segments of which one reads what none before it makes."""
    assert source.graph is not None
    known = {spec.name for spec in source.graph.inputs}
    for segment in segments:
        if not known.issuperset(segment.inputs):
            raise ValueError("a part reads what none before it makes")
        known.update(segment.outputs)
    if segments and not known.issuperset(spec.name for spec in source.graph.outputs):
        raise ValueError("no part makes an output of the model")
