"""The compiled form: ONNX Runtime's optimised graph with its packed weights, in a folder.

    model.onnx     the optimised graph
    weights.bin    weights, raw and as the kernels of this machine want them packed; mapped, so
                   that all processes share one copy of them
    shared_N.bin   links to such files of other models, for the weights in common with them
  ranks.onnx     the model without weights, where its inputs' ranks are to be checked (ranks.py)
  record.json    digests of the graphs, sizes of the others, what of them the graph names, and
                 the state of each node

ONNX Runtime writes it while it makes a session, and takes that graph's offsets on trust: a flipped
one ends the process. So the graph's digest is compared before ONNX Runtime sees it, and the size
of the weights, which a mapping must not exceed. Their content is the core's to verify.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import CompiledFormError
from engine.host import processor
from engine.options import is_declared
from engine.types import CompileOptions, GraphInfo, NodeState
from engine_cpu.fields import is_of_run
from engine_cpu.mapped import Named
from engine_cpu.options import RUN_OPTIONS, measures_rewrites, rewrites_mode
from engine_cpu.rewrites import key as rewrites_key

if TYPE_CHECKING:
    from engine_cpu.node_states import NodeStates
    from engine_cpu.runtime import ort

GRAPH, WEIGHTS, RECORD = "model.onnx", "weights.bin", "record.json"
RANKS = "ranks.onnx"
LAYOUT = "8"

# Smaller weights stand in the graph file: to map them costs more than to read them, and they are
# those of odd sizes, behind which others would not be aligned (see common_weights).
_EXTERNAL_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class CompiledForm:
    """A compiled form that has been checked.

    named: what of its mapped files the graph names. states: None for a model whose nodes are not
    those that ONNX Runtime has optimised. ranks: the model by which inputs of no declared rank are
    checked, b"" for none. rewritten, leads, notes: see CpuModel.
    """

    graph: Path
    named: Named
    states: NodeStates | None
    rewritten: Mapping[int, str] = field(default_factory=dict)
    ranks: bytes = b""
    leads: Mapping[int, int] = field(default_factory=dict)
    notes: Mapping[int, str] = field(default_factory=dict)


def write_into(settings: ort.SessionOptions, folder: Path) -> None:
    """Make a session with `settings` write its compiled form into `folder`."""
    settings.optimized_model_filepath = str(folder / GRAPH)
    for key, value in {
        "session.optimized_model_external_initializers_file_name": WEIGHTS,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(_EXTERNAL_BYTES),
        "session.save_external_prepacked_constant_initializers": "1",
    }.items():
        settings.add_session_config_entry(key, value)


def finish(
    folder: Path,
    graph: GraphInfo,
    rewritten: Mapping[int, str] | None = None,
    ranks: bytes = b"",
    leads: Mapping[int, int] | None = None,
    notes: Mapping[int, str] | None = None,
) -> CompiledForm:
    """Record what a session has written. Raises OSError or ValueError where it is not whole."""
    from engine_cpu.node_states import node_states, read_optimised  # once a form

    path = folder / GRAPH
    sizes = _sizes(folder)
    rewritten, leads, notes = rewritten or {}, leads or {}, notes or {}
    is_told = bool(leads) or not rewritten
    states = node_states(graph, read_optimised(path), leads) if is_told else None
    if ranks:
        (folder / RANKS).write_bytes(ranks)
    model = path.read_bytes()
    named = Named.by(model, sizes)
    digests = {GRAPH: hashlib.sha256(model).hexdigest()}
    if ranks:
        digests[RANKS] = hashlib.sha256(ranks).hexdigest()
    record = {
        "layout": LAYOUT,
        "sha256": digests,
        "weights": sizes,
        "spans": dict(named.spans),
        "inside_bytes": named.inside_bytes,
        "states": None if states is None else [[str(state), into] for state, into in states],
        "rewritten": {str(index): how for index, how in rewritten.items()},
        "leads": {str(index): lead for index, lead in leads.items()},
        "notes": {str(index): note for index, note in notes.items()},
    }
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")
    return CompiledForm(path, named, states, rewritten, ranks, leads, notes)


def check(folder: Path, graph: GraphInfo) -> CompiledForm:
    """Return a compiled form that may be read; CompiledFormError says what is wrong with it."""
    count = len(graph.nodes)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["layout"] != LAYOUT:
            layout = record["layout"]
            raise _unusable(folder, f"its layout is {layout!r}, but this version reads {LAYOUT!r}")
        written, listed = dict(record["weights"]), record["states"]
        spans = {
            name: [(int(begin), int(end)) for begin, end in record["spans"][name]]
            for name in written
        }
        named = Named(spans, int(record["inside_bytes"]))
        states = None if listed is None else [_state(entry, count) for entry in listed]
        rewritten, notes = (
            {_index(number, count): str(how) for number, how in record[name].items()}
            for name in ("rewritten", "notes")
        )
        leads = {
            _index(number, count): _index(lead, count) for number, lead in record["leads"].items()
        }
        graphs = {GRAPH: record["sha256"][GRAPH], **record["sha256"]}
        contents = {name: (folder / name).read_bytes() for name in (GRAPH, RANKS) if name in graphs}
        sizes = _sizes(folder)
    except CompiledFormError:
        raise
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _unusable(folder, f"it cannot be read: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _unusable(folder, f"{RECORD} is damaged: {error!r}") from error
    for name, content in contents.items():
        digest = hashlib.sha256(content).hexdigest()
        if digest != graphs[name]:
            raise _unusable(folder, f"{name} is not what was written: its SHA-256 is {digest}")
    for name in (*written, *sizes):
        size, expected = sizes.get(name, 0), written.get(name)
        if size != expected:
            raise _unusable(folder, f"{name} has {size:,} bytes instead of {expected}")
    if states is not None and len(states) != count:
        raise _unusable(folder, f"it records {len(states)} nodes, but the model has {count}")
    ranks = contents.get(RANKS, b"")
    return CompiledForm(folder / GRAPH, named, states, rewritten, ranks, leads, notes)


def discard(folder: Path) -> None:
    """Remove what a session that failed has left."""
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            path.unlink()


def compiled_key(options: CompileOptions, plugin_version: str) -> dict[str, str]:
    """Return what the graph file and the packing depend on beside the model."""
    from engine_cpu.runtime import ort as onnxruntime

    settings: Mapping[str, str] = options.options
    given = {
        key: value
        for key, value in settings.items()
        if not (is_declared(key, RUN_OPTIONS) or is_of_run(key))
    }
    given.setdefault("graph_optimization", "all")
    given.pop("rewrites", None)  # its patterns are below
    given.pop("measure_rewrites", None)
    patterns = rewrites_key(rewrites_mode(options))
    if patterns and measures_rewrites(options):
        patterns += ", measured"
    return {
        **({"rewrites": patterns} if patterns else {}),
        "engine_cpu": plugin_version,
        "layout": LAYOUT,
        "onnxruntime": onnxruntime.__version__,
        "processor": processor.features(),
        "options": json.dumps(given, sort_keys=True),
    }


def _sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of the mapped files; a model without large weights has none."""
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*.bin"))}


def _index(text: str | int, count: int) -> int:
    if not 0 <= int(text) < count:
        raise ValueError(f"node {text} is not one of {count}")
    return int(text)


def _state(entry: Any, count: int) -> tuple[NodeState, int | None]:
    state, into = entry
    if into is not None and not (isinstance(into, int) and 0 <= into < count):
        raise ValueError(f"node {into!r} is not one of {count}")
    return NodeState(state), into


def _unusable(folder: Path, text: str) -> CompiledFormError:
    return CompiledFormError(f"compiled form {str(folder)!r}: {text}", str(folder))
