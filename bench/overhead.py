"""Measure the costs and gains of this package beside plain ONNX Runtime.

    python bench/overhead.py              every table
    python bench/overhead.py calls        the cost of a call: tiny models
    python bench/overhead.py values       a classifier whose result is a map for each row
    python bench/overhead.py models       MobileNetV2 and a 6-layer BERT-like model, idle machine
    python bench/overhead.py neighbours   the same with one other busy process, there before the
                                          model was built, and come after
    python bench/overhead.py import       CPU time of `import engine` over `import numpy`
    python bench/overhead.py build        building a model beside creating a session
    python bench/overhead.py mindir       MobileNetV2 as MindSpore wrote it beside its ONNX; for
                                          memory see bench/mindir_memory.py
    python bench/overhead.py divisions    integers divided by what only the caller knows, kept from
                                          -1, which ends the process in ONNX Runtime

The baseline is `InferenceSession(path).run(None, feeds)` with ONNX Runtime's defaults. Ratios
below 1 are faster than that. Needs the cpu backend and onnx. `--json` for programs.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import models
import numpy as np
import onnx
import onnxruntime as ort
from fresh import cpu_s, in_turns
from measure import Row, bar, busy_neighbour, compare, parser_of, report
from onnx import TensorProto, helper

import engine

# Longer than ONNX Runtime's idle threads spin after a run (up to 20 ms): else the baseline's
# spinning would be timed as its neighbour's.
PAUSE_S = 0.05


def calls(folder: Path, rounds: int) -> list[Row]:
    rows = []
    for name, arrays_limit, tensors_limit in (("tiny", 0.95, 0.76), ("many", 0.75, 0.42)):
        path = models.MODELS[name](folder)
        raw, feeds = _raw(path)
        model = engine.load(path)
        arrays = list(feeds.values())
        tensors = model.get_inputs()
        for tensor, array in zip(tensors, arrays, strict=True):
            tensor.set_data_from_numpy(array.copy())
        outputs = [
            engine.Tensor(shape=meta.shape, dtype=meta.dtype) for meta in model.get_outputs()
        ]
        for output in outputs:
            output.get_data_to_numpy()
        _check(raw, lambda m=model, a=arrays: m.predict(a))
        _check(raw, lambda m=model, t=tensors, o=outputs: m.predict(t, o))
        count = len(arrays)
        rows += compare(
            raw,
            {
                f"predict, arrays, {count} in, {count} out": (
                    lambda m=model, a=arrays: m.predict(a),
                    arrays_limit,
                ),
                f"predict, own tensors and outputs, {count} in, {count} out": (
                    lambda m=model, t=tensors, o=outputs: m.predict(t, o),
                    tensors_limit,
                ),
                f"model(name=array), {count} in, {count} out": (
                    lambda m=model, f=feeds: m(**f),
                    None,
                ),
            },
            rounds=rounds,
            calls=200,
            progress=bar(f"calls, {name}"),
        )
        model.close()
    return rows


def values(folder: Path, rounds: int) -> list[Row]:
    path = models.classifier(folder)
    raw, feeds = _raw(path)
    model = engine.load(path)
    arrays = list(feeds.values())
    (label, maps), (own_label, own_maps) = raw(), model.predict(arrays)
    assert own_label.get_data_to_numpy().tolist() == label.tolist()
    assert own_maps == maps
    rows = compare(
        raw,
        {
            "classifier with maps, predict": (lambda: model.predict(arrays), 1.3),
            "classifier with maps, model(name=array)": (lambda: model(**feeds), None),
        },
        rounds=rounds,
        calls=200,
        progress=bar("values"),
    )
    model.close()
    return rows


def big(
    folder: Path,
    rounds: int,
    title: str,
    at_most: float | None,
    after_building: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Row]:
    rows = []
    for name in ("mobilenet_v2", "bert_like"):
        path = models.MODELS[name](folder)
        raw, feeds = _raw(path)
        model = engine.load(path)
        arrays = list(feeds.values())
        run = lambda m=model, a=arrays: m.predict(a)  # noqa: E731 - bound now, for this model
        _check(raw, run)
        with after_building():
            rows += compare(
                raw,
                {f"{name}, {title}": (run, at_most)},
                rounds=rounds,
                calls=5,
                pause_s=PAUSE_S,
                progress=bar(f"{name}, {title}"),
            )
        model.close()
    return rows


def neighbours(folder: Path, rounds: int) -> list[Row]:
    with busy_neighbour():
        rows = big(folder, rounds, "one busy neighbour", 0.7)
    # The time that threads spin is decided when a model is built; this is the price of that.
    return rows + big(folder, rounds, "neighbour comes after building", None, busy_neighbour)


def importing(_: Path, rounds: int) -> list[Row]:
    what = "import engine / import numpy, CPU time"
    return [_processes(what, "import numpy", "import engine", rounds, 1.3)]


def building(folder: Path, rounds: int) -> list[Row]:
    rows = []
    for name in ("tiny", "mobilenet_v2", "bert_like"):
        path = models.MODELS[name](folder)
        rows += compare(
            lambda p=path: ort.InferenceSession(str(p), providers=["CPUExecutionProvider"]),
            {f"engine.load({name})": (lambda p=path: engine.load(p).close(), None)},
            rounds=rounds,
            calls=1,
            progress=bar(f"build, {name}"),
        )
    return rows


def mindir(folder: Path, rounds: int) -> list[Row]:
    """The file is not in the repository: it is looked for where the tests look for such files.

    "file to first predict" is of a process that has loaded a model of its kind before: modules are
    imported and memory is warm. "a process" is all of one that imports, loads and predicts once,
    in CPU time; its baseline is one that does so with ONNX Runtime alone.
    """
    file = Path(__file__).parents[2] / "shared" / "data" / "mindir" / "mobilenetv2.mindir"
    if not file.is_file():
        print(f"mindir: skipped, there is no {file.name} of MindSpore here", file=sys.stderr)
        return []
    path = models.mobilenet_v2(folder)
    raw, feeds = _raw(path)
    arrays = list(feeds.values())
    model = engine.load(file)

    def first_predict() -> None:
        with engine.load(file) as fresh:
            fresh.predict(arrays)

    def first_predict_of_onnx() -> None:
        with engine.load(path) as fresh:
            fresh.predict(arrays)

    def first_run() -> None:
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        session.run(None, feeds)

    rows = compare(
        raw,
        {"mobilenetv2.mindir, predict": (lambda: model.predict(arrays), 1.03)},
        rounds=rounds,
        calls=5,
        pause_s=PAUSE_S,
        progress=bar("mindir, predict"),
    )
    model.close()
    rows += compare(
        first_run,
        {
            "mobilenetv2.mindir, file to first predict": (first_predict, 1.5),
            "the same net as ONNX, with this package": (first_predict_of_onnx, None),
        },
        rounds=max(20, rounds // 4),
        calls=1,
        pause_s=PAUSE_S,
        progress=bar("mindir, load"),
    )
    x = "import numpy as np; x = np.zeros((1, 3, 224, 224), np.float32); "
    plain = f"{x}import onnxruntime as ort; s = ort.InferenceSession({str(path)!r}, providers="
    plain += "['CPUExecutionProvider']); s.run(None, {'x': x})"
    own = f"{x}import engine; engine.load({str(file)!r}).predict([x])"
    return [*rows, _processes("mindir, a process", plain, own, max(5, rounds // 8))]


def divisions(folder: Path, rounds: int) -> list[Row]:
    rows = []
    for operator, size in (("Div", 1), ("Div", 4096), ("Div", 1 << 20), ("Mod", 1 << 20)):
        values = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n"]) for name in "xyz"]
        node = helper.make_node(operator, ["x", "y"], ["z"])
        graph = helper.make_graph([node], "division", values[:2], values[2:])
        imports = [helper.make_opsetid("", 17)]
        path = folder / f"{operator}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
        random = np.random.default_rng(0)
        x, y = random.integers(-(2**40), 2**40, size), random.integers(1, 1000, size)
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        model = engine.load(path)
        raw = lambda s=session, x=x, y=y: s.run(None, {"x": x, "y": y})  # noqa: E731 - as in big
        run = lambda m=model, x=x, y=y: m.predict([x, y])  # noqa: E731
        np.testing.assert_array_equal(run()[0].get_data_to_numpy(), raw()[0])
        rows += compare(
            raw,
            {f"{operator}, int64[{size}]": (run, None)},
            rounds=rounds,
            calls=max(1, 20_000 // size),
            progress=bar(f"{operator} {size}"),
        )
        model.close()
    return rows


TABLES: dict[str, tuple[Callable[[Path, int], list[Row]], int]] = {
    "calls": (calls, 400),
    "values": (values, 400),
    "models": (lambda folder, rounds: big(folder, rounds, "idle machine", 1.02), 200),
    "neighbours": (neighbours, 200),
    "import": (importing, 15),
    "build": (building, 20),
    "mindir": (mindir, 100),
    "divisions": (divisions, 40),
}


def _raw(path: Path) -> tuple[Callable[[], list[np.ndarray]], dict[str, np.ndarray]]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    feeds = {
        i.name: random.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()
    }
    return lambda: session.run(None, feeds), feeds


def _check(raw: Callable[[], list[np.ndarray]], run: Callable[[], list[engine.Tensor]]) -> None:
    for expected, tensor in zip(raw(), run(), strict=True):
        np.testing.assert_allclose(tensor.get_data_to_numpy(), expected, rtol=1e-4, atol=1e-4)


def _processes(
    what: str, baseline: str, contender: str, rounds: int, at_most: float | None = None
) -> Row:
    """CPU time of processes that run this code, less that of one that runs none."""
    empty = statistics.median(cpu_s("pass") for _ in range(rounds))
    codes = {"base": baseline, "control": baseline, "own": contender}
    times = in_turns({way: partial(cpu_s, code) for way, code in codes.items()}, rounds)
    net = {way: [taken - empty for taken in all_taken] for way, all_taken in times.items()}

    def over_base(way: str) -> float:
        pairs = zip(net[way], net["base"], strict=True)
        return statistics.median(own / base for own, base in pairs)

    base, own = statistics.median(net["base"]), statistics.median(net["own"])
    return Row(what, base, own, over_base("own"), over_base("control"), rounds, at_most)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--rounds", type=int, help="rounds of each table instead of its own number")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args()
    for name in arguments.tables:
        if name not in TABLES:
            parser.error(f"unknown table {name!r}, expected one of: {', '.join(TABLES)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.tables or TABLES:
            table, rounds = TABLES[name]
            rows += table(Path(folder), arguments.rounds or rounds)
    if not arguments.json:
        load = os.getloadavg()[0]
        print(f"onnxruntime {ort.__version__}, engine {engine.__version__}, load {load:.1f}")
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
