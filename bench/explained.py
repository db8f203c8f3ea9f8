"""What engine.explain says, against what ONNX Runtime did and against second counts, over a corpus.

    python bench/explained.py DIR [NAME ...] [--most 20]

Placement: ONNX Runtime's own profile and optimised graph of the session that the backend runs say
which kernels ran, what they make, and by which provider. See `places` for what counts as wrong.
Shapes: of each tensor, against those of the same profile without optimisations.
Operations: of each node that is a sum of products, against a count by those shapes, written apart
from the formulas, and the totals against onnx-tool (pip install onnx-tool tabulate), if it is
installed and reads the model.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnxruntime as ort

import engine
from engine.report.explanation.explanation import Explanation
from engine.report.explanation.node import ExplainedNode

sys.path.insert(0, str(Path(__file__).parent / "real_models"))
from corpus import Entry, entries

Shape = tuple[int, ...]
PRODUCTS = ("Conv", "ConvTranspose", "ConvInteger", "Gemm", "MatMul", "MatMulInteger")
KERNEL = "_kernel_time"


def main() -> None:
    """Compare each model, and print a row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--most", type=int, default=20)
    asked = parser.parse_args()
    chosen = [one for one in entries(asked.folder) if not asked.names or one.name in asked.names]
    print("| model | nodes | wrong places | wrong shapes of known "
          "| wrong counts of products | FLOP | unknown | by onnx-tool |")  # fmt: skip
    print("|---" * 8 + "|")
    totals: Counter[str] = Counter()
    for entry in chosen[: asked.most]:
        row = compared(entry)
        totals.update({name: value for name, value in row.items() if isinstance(value, int)})
        print(
            f"| {entry.name} | {row['nodes']} | {row['wrong']} "
            f"| {row['wrong shapes']} of {row['shapes']} "
            f"| {row['wrong counts']} of {row['counts']} "
            f"| {row['flops'] / 1e9:.4g} G | {row['unknown']} | {row['onnx-tool']} |",
            flush=True,
        )
        for line in row["lines"]:
            print(f"    {line}", flush=True)
    print(f"all: {dict(totals)}")


def compared(entry: Entry) -> dict[str, Any]:
    """Compare one model."""
    feeds = entry.feeds()
    with tempfile.TemporaryDirectory() as folder:
        sessions = Sessions(Path(folder))
        config = {"common_context": {"compile_cache": "off"}}
        with sessions, engine.load(entry.path, "cpu", config=config) as model:
            model.predict(feeds)
            truth = sessions.last()
            sessions.end()
            found = model.explain(feeds)
    assert isinstance(found, Explanation)
    lines = places(found, truth)
    real = observed(entry.path, feeds)
    row: dict[str, Any] = {"nodes": len(found.nodes), "wrong": len(lines)}
    wrong, known = shapes(found, real)
    bad, counted = counts(found, real)
    row |= {"wrong shapes": len(wrong), "shapes": known, "wrong counts": len(bad)}
    row |= {"counts": counted, "flops": found.flops, "unknown": len(found.unknown)}
    row["onnx-tool"] = by_onnx_tool(entry, feeds, found)
    return {**row, "lines": [*lines, *wrong, *bad][:12]}


class Ran(NamedTuple):
    """What ONNX Runtime ran. kernels: the type of each by name, of those that its profile has.

    makers: the type and the name of the kernel that makes a tensor. constants: its initializers.
    """

    kernels: dict[str, str]
    providers: set[str]
    makers: dict[str, tuple[str, str]]
    constants: set[str]


class Sessions:
    """The sessions that the backend makes, which also write their optimised graph and profile."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, list[Any]()
        self._plain = ort.InferenceSession

    def __enter__(self) -> Sessions:
        ort.InferenceSession = self._session
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Let sessions be plain again."""
        ort.InferenceSession = self._plain

    def _session(self, model: Any, options: ort.SessionOptions, *more: Any, **named: Any) -> Any:
        number = len(self._made)
        options.optimized_model_filepath = str(self._folder / f"{number}.onnx")
        options.enable_profiling = True
        options.profile_file_prefix = str(self._folder / f"{number}")
        self._made.append(self._plain(model, options, *more, **named))
        return self._made[-1]

    def last(self) -> Ran:
        """Return what the session that was made last has run."""
        events = kernel_events(self._made[-1])
        graph = onnx.load(self._folder / f"{len(self._made) - 1}.onnx").graph
        return Ran(
            {event["name"].removesuffix(KERNEL): event["args"]["op_name"] for event in events},
            {event["args"]["provider"] for event in events},
            {
                name: (node.op_type, node.name)
                for node in graph.node
                for name in node.output
                if name
            },
            {tensor.name for tensor in graph.initializer},
        )


def kernel_events(session: Any) -> list[Any]:
    """Return the events of the kernels that a session has run; it is measured no longer."""
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return [one for one in events if one["cat"] == "Node" and one["name"].endswith(KERNEL)]


def places(found: Explanation, truth: Ran) -> list[str]:
    """Return the nodes that are said to be elsewhere, or otherwise, than they were.

    A node runs if a kernel that the profile has makes its result, or bears the name of the node or
    of its result; one that is fused into another has none, and that other runs.
    """

    def kernel_of(node: ExplainedNode) -> str:
        for spec in node.outputs:
            op_type, name = truth.makers.get(spec.name, ("", ""))
            if op_type and (name in truth.kernels or not name):
                return op_type
        words = (node.node, *(spec.name for spec in node.outputs))
        for word in filter(None, words):
            if word in truth.kernels:
                return truth.kernels[word]
        derived = tuple(f"{word}{sign}" for word in words if word for sign in "_/")
        return next((kind for name, kind in others.items() if name.startswith(derived)), "")

    named = {node.node for node in found.nodes}
    others = {name: kind for name, kind in truth.kernels.items() if name not in named}
    lines = []
    for node in found.nodes:
        state, kernel = str(node.state), kernel_of(node)
        if node.provider.rpartition(":")[2] not in truth.providers:
            lines.append(f"{node.title}: said to run in {node.provider}")
        elif state == "runs" and not kernel and node.reads:
            lines.append(f"{node.title}: said to run, and no kernel makes its result")
        elif state == "fused":
            into = node.fused_into
            if kernel == node.op_type and truth.kernels.get(node.node) == kernel:
                lines.append(f"{node.title}: ran, and is said to be fused")
            elif into is not None and not kernel_of(found.nodes[into]):
                lines.append(f"{node.title}: said to be fused into {into}, which has no kernel")
        elif state == "folded" and kernel:
            lines.append(f"{node.title}: ran, and is said to be folded")
    return lines


def observed(path: Path, feeds: dict[str, Any]) -> dict[str, Shape]:
    """Return the shapes of tensors: the file's, the inputs', and those of a run.

    By ONNX Runtime's profile without optimisations, which has the outputs of a node by its name.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "profile")
        session = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        session.run(None, feeds)
        events = kernel_events(session)
    made = {
        event["name"].removesuffix(KERNEL): event["args"].get("output_type_shape", ())
        for event in events
    }
    graph = onnx.load(path, load_external_data=False).graph
    names = Counter(node.name for node in graph.node)
    real: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    real |= {name: value.shape for name, value in feeds.items()}
    for node in graph.node:
        told = made.get(node.name, ()) if names[node.name] == 1 else ()
        if len(told) == len(node.output):
            shapes = (tuple(next(iter(one.values()))) for one in told)
            real.update(zip(node.output, shapes, strict=True))
    return real


def shapes(found: Explanation, real: dict[str, Shape]) -> tuple[list[str], int]:
    """Return the tensors of which another shape was said, and of how many one was."""
    lines, known = [], 0
    for node in found.nodes:
        for spec in node.outputs:
            shape = real.get(spec.name)
            if shape is None or spec.shape is None or None in spec.shape:
                continue
            known += 1
            if spec.shape != shape:
                lines.append(f"{node.title}: {spec.name} was {shape}, and is said to be {spec}")
    return lines, known


def counts(found: Explanation, real: dict[str, Shape]) -> tuple[list[str], int]:
    """Return the sums of products of which another number of operations was said."""
    lines, counted = [], 0
    for node in found.nodes:
        names = [*node.reads[:2], *(spec.name for spec in node.outputs[:1])]
        told = [real[name] for name in names if name in real]
        is_gone = str(node.state) in ("folded", "unused")
        if node.op_type not in PRODUCTS or is_gone or len(told) < 3:
            continue
        counted += 1
        own = products(node.op_type, *told)
        has_bias = len(node.reads) > 2 and not node.op_type.endswith("Integer")
        own += prod(told[2]) * has_bias
        if node.flops is None or abs(node.flops - own) > 0.01 * own:
            lines.append(f"{node.title}: {own:,} operations, said to be {node.flops}")
    return lines, counted


def products(op_type: str, first: Shape, second: Shape, made: Shape) -> int:
    """Count a product and a sum for each pair of elements that meet."""
    if op_type == "ConvTranspose":
        return 2 * prod(first) * prod(second[1:])
    if op_type in ("Conv", "ConvInteger"):
        return 2 * prod(made) * prod(second) // second[0]
    if op_type == "Gemm":  # whichever way the sides are turned: rows x inner x columns
        return 2 * prod(first) * prod(second) // (prod(first) // made[0])
    return 2 * prod(made) * first[-1]


def by_onnx_tool(entry: Entry, feeds: dict[str, Any], found: Explanation) -> str:
    """Return the ratio of the operations of all products to twice onnx-tool's MACs of them."""
    try:
        import onnx_tool
    except ImportError:
        return "not installed"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            graph = onnx_tool.Model(str(entry.path)).graph
            graph.shape_infer(feeds)
            graph.profile()
    except Exception as error:  # it reads fewer operators than ONNX has
        return f"fails: {type(error).__name__}"
    theirs = ours = 0
    for node in found.nodes:
        other = graph.nodemap.get(node.node)
        # It counts a ConvTranspose by its output, as if no stride were there; and a bias as two.
        is_other = node.op_type == "ConvTranspose"
        if node.op_type in PRODUCTS and not is_other and other is not None and node.flops:
            theirs += 2 * int(other.macs[0] if isinstance(other.macs, list) else other.macs)
            theirs -= prod(node.outputs[0].shape or ()) * (len(node.reads) > 2)
            ours += node.flops
    return f"{ours / theirs:.4f}" if theirs else "no names"


if __name__ == "__main__":
    main()
