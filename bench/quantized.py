"""Measure quantized models: this package beside ONNX Runtime, one thread, and beside floats.

    python bench/quantized.py                   every model, 60 rounds
    python bench/quantized.py mlp -n 20         one model, less rounds

Each of a CNN (MobileNetV2), an MLP (a bias of 2,048, one output) and a small transformer is
quantized by onnxruntime's `quantize_static` (activations uint8 and int8, one scale for each tensor
and one for each channel) and by the converter's FULL_QUANT. Baseline: `InferenceSession.run` of the
quantized model, one thread. "this": `Model.predict` of it, one thread, whose results must have the
same bits. "of floats": `Model.predict` of it over that of the float model. CPU time. Random weights
and samples. Needs the cpu backend and the extra `quantize`. `--json` for programs.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import models
import numpy as np
import onnx
import onnxruntime as ort
from measure import Row, bar, compare, parser_of, report
from onnx import TensorProto
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

import engine

AT_MOST = 1.05
SAMPLES = 8


def mlp(folder: Path) -> Path:
    """Layers of 2,048, 256 and one output."""
    g, x = models.Graph(), "x"
    for inside, out in ((256, 2048), (2048, 256), (256, 1)):
        x = g.add("Gemm", [x, g.weight(inside, out), g.constant(np.zeros(out, "f"))])
        x = g.add("Relu", [x]) if out > 1 else x
    return g.save(folder / "mlp.onnx", {"x": (TensorProto.FLOAT, [8, 256])}, {x: [8, 1]})


MODELS: dict[str, Callable[[Path], Path]] = {
    "mobilenet_v2": models.mobilenet_v2,
    "mlp": mlp,
    "transformer": lambda f: models.bert_like(f, layers=2, hidden=256, heads=4, length=64),
}


class Reader(CalibrationDataReader):
    """Gives the samples to onnxruntime's calibration."""

    def __init__(self, samples: np.ndarray) -> None:
        self._rest = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        sample = next(self._rest, None)
        return None if sample is None else {"x": sample}


def quantized(path: Path, samples: np.ndarray) -> Iterator[tuple[str, Path]]:
    """Yield the model's quantized forms, with what they are."""
    logging.disable(logging.WARNING)  # onnxruntime's advice
    for per_channel in (False, True):
        scales = "per channel" if per_channel else "per tensor"
        for kind in (QuantType.QUInt8, QuantType.QInt8):
            file = path.with_name(f"{path.stem}_{per_channel}_{kind.name}.onnx")
            quantize_static(
                path, file, Reader(samples), per_channel=per_channel, activation_type=kind
            )
            yield f"quantize_static, {kind.name[1:].lower()}, {scales}", file
        folder = path.with_suffix("")
        folder.mkdir(exist_ok=True)
        for index, sample in enumerate(samples):
            np.save(folder / f"{index}.npy", sample)
        converter = engine.Converter()
        for section, settings in {
            "common_quant_param": {"quant_type": "FULL_QUANT"},
            "data_preprocess_param": {"calibrate_path": f"x:{folder}", "input_type": "BIN"},
            "full_quant_param": {"per_channel": str(per_channel).lower()},
        }.items():
            converter.set_config_info(section, settings)
        file = path.with_name(f"{path.stem}_{per_channel}_full.onnx")
        with redirect_stdout(StringIO()):
            converter.convert(engine.FmkType.ONNX, str(path), str(file.with_suffix("")))
        yield f"FULL_QUANT, {scales}", next(path.parent.glob(f"{file.stem}.*"))


def measured(name: str, folder: Path, rounds: int) -> tuple[list[Row], list[Row]]:
    """Return rows over ONNX Runtime on the same file, and over the float model."""
    path = MODELS[name](folder)
    shape = [dim.dim_value for dim in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
    samples = np.random.default_rng(0).standard_normal((SAMPLES, *shape)).astype(np.float32)
    x = samples[0]
    floats = engine.load(path, target="cpu", threads=1)
    rows, over_floats = [], []
    for what, file in quantized(path, samples):
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        model = engine.load(file, target="cpu", threads=1)
        title = f"{name}, {what}"
        np.testing.assert_array_equal(
            model.predict([x])[0].get_data_to_numpy(), session.run(None, {"x": x})[0], title
        )
        own = lambda m=model: m.predict([x])  # noqa: E731 - bound where it is made
        begin = time.perf_counter()
        own()
        calls = max(1, int(0.005 / (time.perf_counter() - begin)))
        for baseline, given, limit, made in (
            (lambda s=session: s.run(None, {"x": x}), "", AT_MOST, rows),
            (lambda: floats.predict([x]), ", of floats", 1.0, over_floats),
        ):
            made += compare(
                baseline,
                {f"{title}{given}": (own, limit)},
                rounds=rounds,
                calls=calls,
                is_warm=True,
                clock=time.process_time,
                progress=bar(title[:24]),
            )
        model.close()
    floats.close()
    return rows, over_floats


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(MODELS)}")
    parser.add_argument("-n", "--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args()
    for name in arguments.models:
        if name not in MODELS:
            parser.error(f"unknown model {name!r}, expected one of: {', '.join(MODELS)}")
    tables: tuple[list[Row], list[Row]] = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models or MODELS:
            for table, rows in zip(tables, measured(name, Path(folder), arguments.rounds)):
                table.extend(rows)
    if arguments.json:
        titles = ("over onnxruntime", "over floats")
        print(json.dumps(dict(zip(titles, ([asdict(row) for row in t] for t in tables)))))
        return
    print(f"onnxruntime {ort.__version__}, engine {engine.__version__}")
    for table in tables:
        report(table, as_json=False)


if __name__ == "__main__":
    main()
