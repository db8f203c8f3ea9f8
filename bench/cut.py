"""Measure the cost of cutting a model: 12 transformer-like layers, 24 cuts, all on cpu.

    python bench/cut.py               every table
    python bench/cut.py over-floor    our predict over the floor: raw onnxruntime sessions of the
                                      same parts, with bindings made once, handed from one to the
                                      next
    python bench/cut.py over-uncut    our predict, and the floor, over the uncut model
    python bench/cut.py two-threads   with two threads, by the clock: one thread, the uncut model,
                                      and threads that spin while their segment runs, over ours

One thread but in the last. A round runs each contender for a while, in an order drawn anew, and
takes this process's CPU time; ratios are medians over rounds, and the A/A column is the baseline
over itself.
Asked for: at most 1.15 of the floor at hidden 128 (sequence 16 and 128), 1.02 at hidden 768.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import models
import numpy as np
import onnxruntime as ort
from measure import Row, busy_neighbour, compare, parser_of, report
from onnx import TensorProto

from engine.backends import open_backend
from engine.formats import open_source
from engine.formats.onnx.inline import inlined
from engine.plan.mixed.fallback import compile_parts
from engine.plan.mixed.partitioning import Partitioning
from engine.plan.plan import Candidate
from engine.plan.segments import SegmentedExecutable, predict
from engine.types import CompileOptions, Device, ModelSource, Threads

LAYERS = 12
ROUND_S = 0.2
PAUSE_S = 0.025  # longer than ONNX Runtime's idle threads spin after a run
CASES = ((128, 1), (128, 16), (128, 128), (768, 16), (768, 128))


def model(folder: Path, hidden: int) -> Path:
    """Write 12 layers of an attention-like and a feed-forward half; open in the sequence."""
    g = models.Graph()
    scale = g.constant(np.float32(hidden**-0.5))
    x = _normalised(g, "x", hidden)
    for _ in range(LAYERS):
        q, k, v = (g.add("MatMul", [x, g.weight(hidden, hidden)]) for _ in range(3))
        scores = g.add("Mul", [g.add("MatMul", [q, g.add("Transpose", [k])]), scale])
        mixed = g.add("MatMul", [g.add("Softmax", [scores], axis=-1), v])
        x = g.add("Add", [x, g.add("MatMul", [mixed, g.weight(hidden, hidden)])])
        wide = g.add("Relu", [g.add("MatMul", [x, g.weight(hidden, 4 * hidden)])])
        x = g.add("Add", [x, g.add("MatMul", [wide, g.weight(4 * hidden, hidden)])])
        x = _normalised(g, x, hidden)
    shape: list[int | str] = ["sequence", hidden]
    return g.save(folder / f"layers{hidden}.onnx", {"x": (TensorProto.FLOAT, shape)}, {x: shape})


def _normalised(g: models.Graph, x: str, hidden: int) -> str:
    weights = [g.constant(np.full(hidden, value, np.float32)) for value in (1, 0)]
    return g.add("LayerNormalization", [x, *weights], axis=-1)


def levels_of(source: ModelSource) -> list[int]:
    """Return the level of each node so that there are 24 cuts: one before each half of a layer."""
    assert source.graph is not None
    levels, level = [], 0
    for node in source.graph.nodes:
        levels.append(level)
        # Behind the attention and behind the normalisation: one tensor crosses.
        if node.op_type == "LayerNormalization" or _ends_attention(levels, source):
            level = 1 - level
    return levels


def _ends_attention(levels: list[int], source: ModelSource) -> bool:
    assert source.graph is not None
    index = len(levels) - 1
    nodes = source.graph.nodes
    following = nodes[index + 1 : index + 3]
    return nodes[index].op_type == "Add" and any(node.op_type == "Relu" for node in following)


def cut(
    path: Path, threads: int = 1, settings: Mapping[str, str] | None = None
) -> tuple[SegmentedExecutable, list[bytes]]:
    """Compile the model in parts; returns the models of the parts too."""
    backend = open_backend("cpu")
    source = open_source(path)
    options = CompileOptions(
        device=Device("cpu"), threads=Threads(threads), plan="cut", options=settings or {}
    )
    parts: list[bytes] = []
    load = backend.load

    def noting(part: ModelSource, options: CompileOptions) -> object:
        whole = inlined(part).data  # sessions of our own read no weights out of memory
        assert whole is not None
        parts.append(whole)
        return load(part, options)

    backend.load = noting  # type: ignore[assignment,method-assign]
    try:
        first = Candidate(backend, options)
        partitioning = Partitioning(first, source, iter([Candidate(backend, options)]))
        assert partitioning.reaches(1)
        partitioning.levels[:] = levels_of(source)
        return compile_parts(partitioning), parts
    finally:
        backend.load = load  # type: ignore[method-assign]


def session(model: str | bytes, threads: int = 1) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    return ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


class Floor:
    """Sessions of the parts, with one binding each, made once; the least that cutting can cost."""

    def __init__(self, parts: list[bytes], x: np.ndarray) -> None:
        self.x = x
        self.calls = []
        value = ort.OrtValue.ortvalue_from_numpy(x)
        for part in parts:
            own = session(part)
            binding = own.io_binding()
            self.y = np.empty(x.shape, np.float32)
            result = ort.OrtValue.ortvalue_from_numpy(self.y)
            binding.bind_ortvalue_input(own.get_inputs()[0].name, value)
            binding.bind_ortvalue_output(own.get_outputs()[0].name, result)
            self.calls.append((own, own._sess.run_with_iobinding, binding._iobinding, self.y))
            value = result

    def run(self) -> np.ndarray:
        for _, call, binding, _ in self.calls:
            call(binding, None)
        return self.y


def measure(
    baseline: Callable[[], object],
    contenders: dict[str, tuple[Callable[[], object], float | None]],
    rounds: int,
) -> list[Row]:
    """Time all in turn by CPU time; see `measure.compare`, which takes the wall's."""
    functions = [baseline, baseline, *(function for function, _ in contenders.values())]
    baseline()
    begin = time.perf_counter()
    baseline()
    calls = max(1, int(ROUND_S / len(functions) / max(time.perf_counter() - begin, 1e-6)))
    order = random.Random(0)
    times: list[list[float]] = [[] for _ in functions]
    for round_ in range(-2, rounds):
        for which in order.sample(range(len(functions)), len(functions)):
            begin = time.process_time()
            for _ in range(calls):
                functions[which]()
            if round_ >= 0:
                times[which].append((time.process_time() - begin) / calls)

    def ratio(own: list[float]) -> float:
        return statistics.median(a / b for a, b in zip(own, times[0], strict=True))

    return [
        Row(what, statistics.median(times[0]), statistics.median(own), ratio(own),
            ratio(times[1]), rounds, at_most)
        for (what, (_, at_most)), own in zip(contenders.items(), times[2:], strict=True)
    ]  # fmt: skip


def two_threads(hidden: int, rounds: int, neighbour: bool) -> list[Row]:
    """Compare our predict with two threads, which sleep when idle, with what else could be done.

    neighbour: one other process is busy meanwhile, and came after the model was built.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = model(Path(folder), hidden)
        uncut = session(str(path), threads=2)
        spinning = {"spin_us": "15", "session.force_spinning_stop": "1"}
        kinds = {"ours": cut(path, 2)[0], "spinning": cut(path, 2, spinning)[0]}
        alone = cut(path, 1)[0]
        contexts = {what: executable.open_context() for what, executable in kinds.items()}
        contexts["1 thread"] = alone.open_context()
        for sequence in (sequence for width, sequence in CASES if width == hidden):
            x = np.random.default_rng(0).standard_normal((sequence, hidden)).astype(np.float32)

            def run(what: str, x: np.ndarray = x) -> Callable[[], object]:
                context = contexts[what]
                return lambda: predict(context, [x], None, None)

            begin = time.perf_counter()
            run("1 thread")()
            calls = max(1, int(ROUND_S / 4 / (time.perf_counter() - begin)))
            name = f"hidden {hidden}, sequence {sequence}"
            contenders: dict[str, tuple[Callable[[], object], float | None]] = {
                f"{name}, spinning 15 us / ours": (run("spinning"), None),
                f"{name}, 1 thread / ours": (run("1 thread"), None),
                f"{name}, uncut, 2 threads / ours": (
                    lambda x=x: uncut.run(None, {"x": x}),
                    None,
                ),
            }
            with busy_neighbour() if neighbour else nullcontext():
                rows += compare(
                    run("ours"), contenders, rounds=rounds, calls=calls, pause_s=PAUSE_S
                )
        for context in contexts.values():
            context.close()
        for executable in (*kinds.values(), alone):
            executable.close()
    return rows


def one_thread(names: list[str], rounds: int) -> list[Row]:
    """Compare our predict with one thread with the floor and the uncut model."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for hidden in sorted({hidden for hidden, _ in CASES}):
            path = model(Path(folder), hidden)
            executable, parts = cut(path)
            assert len(executable.segments) == len(parts) == 2 * LAYERS + 1, len(parts)
            whole = session(str(path))
            output = whole.get_outputs()[0].name
            for sequence in (sequence for width, sequence in CASES if width == hidden):
                x = np.random.default_rng(0).standard_normal((sequence, hidden)).astype(np.float32)
                y = np.empty_like(x)
                floor, again = Floor(parts, x), Floor(parts, x)
                context, bound = executable.open_context(), executable.open_context()
                given, filled = [x], [y]

                def own(context=context, x=x) -> object:
                    return predict(context, [x], None, None)

                def into(context=bound, given=given, filled=filled) -> object:
                    return predict(context, given, filled, None)

                [expected] = whole.run([output], {"x": x})
                for _ in range(3):
                    [result] = predict(context, [x], None, None)
                    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)
                    into()
                    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)
                np.testing.assert_allclose(floor.run(), expected, rtol=1e-3, atol=1e-4)
                what = f"hidden {hidden}, sequence {sequence}"
                limit = {(128, 16): 1.15, (128, 128): 1.15}.get(
                    (hidden, sequence), 1.02 if hidden == 768 else None
                )
                if "over-floor" in names:
                    rows += measure(
                        floor.run,
                        {
                            f"{what}, arrays / floor": (own, limit),
                            f"{what}, own outputs / floor": (into, limit),
                            # The difference of two sets of equal sessions: where their weights lie.
                            f"{what}, floor, made again / floor": (again.run, None),
                        },
                        rounds,
                    )
                if "over-uncut" in names:
                    rows += measure(
                        lambda x=x, whole=whole, output=output: whole.run([output], {"x": x}),
                        {
                            f"{what}, floor / uncut": (floor.run, None),
                            f"{what}, arrays / uncut": (own, None),
                            f"{what}, own outputs / uncut": (into, None),
                        },
                        rounds,
                    )
                context.close()
                bound.close()
            executable.close()
    return rows


def tables(names: list[str], rounds: int, neighbour: bool) -> list[Row]:
    rows = one_thread(names, rounds) if {"over-floor", "over-uncut"} & {*names} else []
    if "two-threads" in names:
        for hidden in sorted({hidden for hidden, _ in CASES}):
            rows += two_threads(hidden, rounds, neighbour)
    return rows


def main() -> None:
    parser = parser_of(__doc__, json=True)
    choices = ["over-floor", "over-uncut", "two-threads"]
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(choices)}")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--neighbour", action="store_true", help="two-threads: beside one busy process"
    )
    arguments = parser.parse_args()
    for name in arguments.tables:
        if name not in choices:
            parser.error(f"unknown table {name!r}, expected one of: {', '.join(choices)}")
    names = arguments.tables or choices
    report(tables(names, arguments.rounds, arguments.neighbour), arguments.json)


if __name__ == "__main__":
    main()
