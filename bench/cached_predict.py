"""Predict of a model whose weights are mapped from the compile cache over a plain session's.

    python bench/cached_predict.py              batches 1, 8 and 64
    python bench/cached_predict.py -n 100       more rounds

100 MB of weights in a chain of MatMul and Relu, one thread, both warm. Ratios of wall time, taken
in turns; see `measure`. Random weights; 300 MB of disk while this runs. Needs the cpu backend and
the onnx package. `--json` for programs.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
from measure import Row, bar, compare, parser_of, report
from memory import LAYER_BYTES, WIDTH, chain

import engine

AT_MOST = 1.03


def measure(model: engine.Model, session: ort.InferenceSession, batch: int, rounds: int) -> Row:
    x = np.random.default_rng(0).standard_normal((batch, WIDTH)).astype(np.float32)
    [expected], [y] = session.run(None, {"x": x}), model(x=x).values()
    if y.tobytes() != expected.tobytes():
        raise SystemExit(f"batch {batch}: results differ")
    what = f"batch {batch}"
    [row] = compare(
        lambda: session.run(None, {"x": x}),
        {what: (lambda: model.predict([x]), AT_MOST)},
        rounds=rounds,
        calls=max(1, 16 // batch),
        progress=bar(what),
    )
    return row


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("-n", "--rounds", type=int, default=40, metavar="N")
    arguments = parser.parse_args()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = chain(folder / "model.onnx", 10**8 // LAYER_BYTES, 1)
        os.environ.update(ENGINE_CACHE="wait", ENGINE_CACHE_DIR=str(folder / "cache"))
        engine.load(path, threads=1).close()
        model, session = engine.load(path, threads=1), ort.InferenceSession(path, options)
        rows = [measure(model, session, batch, arguments.rounds) for batch in (1, 8, 64)]
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
