"""Live updates of weights: an update by swapping over one by rebuilding, and what predicts pay.

    python bench/update.py                      all tables
    python bench/update.py predict -n 40        one, with more rounds

update: one weight of 16 MB in 24 of them, 400 MB. predict: one updatable weight of 64 MB in six,
over the model without any, batches 1, 8 and 64. held: weights that the null backend holds itself,
and weights that the core holds as inputs: the core's own cost. One thread, CPU time, taken in
turns; see `measure`. Random weights; 3 GB of memory while this runs. Needs the cpu backend, the
onnx package and the kit. `--json` for programs.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from measure import Row, bar, compare, parser_of, report
from models import Graph
from onnx import TensorProto

import engine

UPDATE_AT_MOST = 1 / 50
PREDICT_AT_MOST = {1: 1.10, 8: 1.40, 64: 1.10}
REBUILT_AT_MOST = 1.01  # it is the same plan: what the control may be off too
MODES = ("swap", "rebuild")


def chain(path: Path, width: int, layers: int) -> Path:
    """Write x @ w_0 @ w_1 ..., each weight width by width."""
    graph = Graph()
    value = "x"
    for _ in range(layers):
        value = graph.add("MatMul", [value, graph.weight(width, width)])
    return graph.save(path, {"x": (TensorProto.FLOAT, ["batch", width])}, {value: ["batch", width]})


def load(path: Path, mode: str, weight: str) -> engine.Model:
    common = {"variable_weights_mode": mode, "variable_weights_list": weight}
    return engine.load(path, threads=1, config={"common_context": common})


def update(folder: Path, rounds: int) -> list[Row]:
    width = 2048
    path = chain(folder / "update.onnx", width, 24)
    models = {mode: load(path, mode, "w_12") for mode in MODES}
    random = np.random.default_rng(0)
    values = [random.standard_normal((width, width), np.float32) / 45 for _ in range(2)]
    x = random.standard_normal((1, width), np.float32)
    for value in values:
        for model in models.values():
            model.update_weights({"w_12": value})
        one, other = (next(iter(model(x=x).values())) for model in models.values())
        if np.abs(one - other).max() > 1e-3 * np.abs(one).max():
            raise SystemExit("an update by swapping and one by rebuilding give other results")
    count = iter(range(10**9))

    def exchange(mode: str) -> None:
        models[mode].update_weights({"w_12": values[next(count) % 2]})

    return compare(
        lambda: exchange("rebuild"),
        {
            "update of 16 MB in 400 MB, swap over rebuild": (
                lambda: exchange("swap"),
                UPDATE_AT_MOST,
            )
        },
        rounds=rounds,
        calls=1,
        clock=time.process_time,
        progress=bar("update"),
    )


def predict(folder: Path, rounds: int) -> list[Row]:
    width = 4096
    path = chain(folder / "predict.onnx", width, 6)
    plain = engine.load(path, threads=1)
    models = {mode: load(path, mode, "w_3") for mode in MODES}
    random = np.random.default_rng(0)
    weight = random.standard_normal((width, width), np.float32) / 64
    rows: list[Row] = []
    for batch, at_most in PREDICT_AT_MOST.items():
        x = random.standard_normal((batch, width), np.float32)
        limits = {"swap": at_most, "rebuild": REBUILT_AT_MOST}
        rows += compare(
            lambda x=x: plain.predict([x]),
            {
                f"predict, batch {batch}, {mode}": (
                    lambda model=model, x=x: model.predict([x]),
                    limits[mode],
                )
                for mode, model in models.items()
            },
            rounds=rounds,
            calls=max(1, 8 // batch),
            clock=time.process_time,
            progress=bar(f"predict, batch {batch}"),
        )
        for model in models.values():  # and go on with weights that were exchanged
            model.update_weights({"w_3": weight})
    return rows


def held(folder: Path, rounds: int) -> list[Row]:
    from engine_testing import models, plugins

    with plugins.installed(folder):
        plugins.install(folder, "null", "engine_testing.null_device")
        path = models.affine(folder)

        def load(mode: str) -> engine.Model:
            config = {"common_context": {"variable_weights_mode": mode}}
            return engine.load(path, "null", variable_weights=["two", "one"], config=config)

        core, backend, plain = load("swap"), load("auto"), engine.load(path, "null")
        x, two = np.ones((1, 3), np.float32), {"two": np.ones(1, np.float32)}
        predicts = {
            "predict, weights in the backend, over a model without": (
                lambda: backend.predict([x]),
                REBUILT_AT_MOST,
            ),
            "predict, weights in the core, over a model without": (lambda: core.predict([x]), None),
        }
        updates = {
            "update in the backend, over one in the core": (
                lambda: backend.update_weights(two),
                None,
            )
        }
        clock = time.process_time
        return [
            *compare(lambda: plain.predict([x]), predicts, rounds=rounds, calls=500, clock=clock),
            *compare(
                lambda: core.update_weights(two), updates, rounds=rounds, calls=500, clock=clock
            ),
        ]


TABLES = {"update": (update, 8), "predict": (predict, 20), "held": (held, 20)}


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], metavar="update|predict|held")
    parser.add_argument("-n", "--rounds", type=int, metavar="N")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        for table in arguments.tables or TABLES:
            measure, rounds = TABLES[table]
            rows += measure(Path(name), arguments.rounds or rounds)
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
