"""Mistakes that `mypy --strict` finds; each marked line is one, since a mark too many is an error.

Nothing here is run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import engine
from engine import sharding

array = np.zeros((1, 3), np.float32)


def inputs_of_predict(model: engine.Model) -> None:
    model.predict("net.npy")  # type: ignore[arg-type]
    model.predict(b"\0")  # type: ignore[arg-type]
    model.predict(1.0)  # type: ignore[arg-type]
    model.predict(None)  # type: ignore[arg-type]
    model.predict(object())  # type: ignore[arg-type]
    model.predict([object()])  # type: ignore[list-item]
    model.predict([Path("x.npy")])  # type: ignore[list-item]
    model.predict({0: array})  # type: ignore[arg-type]
    model.predict({"x": Path("x.npy")})  # type: ignore[arg-type]
    model.predict([array], timeout_s="1")  # type: ignore[arg-type]
    model.predict([array], cancel=True)  # type: ignore[arg-type]
    model.predict([array], [array])  # type: ignore[list-item]
    model.predict(x=array)  # type: ignore[call-arg]


def calls(model: engine.Model) -> None:
    model(Path("x.npy"))  # type: ignore[arg-type]
    model(x=object())  # type: ignore[arg-type]
    model(array, lambda: 0)  # type: ignore[arg-type]
    model(array)[0]  # type: ignore[index]


async def runners(model: engine.Model) -> None:
    runner = engine.ModelParallelRunner()
    runner.build_from_file("net.onnx", when_full="rise")  # type: ignore[arg-type]
    runner.build_from_file("net.onnx", dec_mode="AES")  # type: ignore[arg-type]
    runner.build_from_file("net.onnx", max_batch_size="4")  # type: ignore[arg-type]
    runner.predict("x")  # type: ignore[arg-type]
    runner.submit(1)  # type: ignore[arg-type]
    await runner.predict_async([object()])  # type: ignore[list-item]
    runner.map([1])  # type: ignore[list-item]
    engine.MultiDeviceRunner("net.onnx", [0], when_full="drop")  # type: ignore[arg-type]
    engine.MultiDeviceRunner("net.onnx", [0], workers="thread")  # type: ignore[arg-type]
    engine.MultiDeviceRunner("net.onnx", 0)  # type: ignore[arg-type]
    engine.MultiDeviceRunner("net.onnx", [0]).predict(1)  # type: ignore[arg-type]
    await model.predict_async(object())  # type: ignore[arg-type]


def measured(model: engine.Model) -> None:
    model.profile(object())  # type: ignore[arg-type]
    engine.bench("net.onnx", object())  # type: ignore[arg-type]
    engine.bench("net.onnx", duration_s="1")  # type: ignore[arg-type]
    engine.compare("net.onnx", inputs=1)  # type: ignore[arg-type]
    engine.diff("net.onnx", targets="cpu")  # type: ignore[arg-type]
    model.update_weights([array])  # type: ignore[list-item]


def settings(context: engine.Context) -> None:
    context.target = "cpu"  # type: ignore[assignment]
    context.cpu.precision_mode = "fp16"  # type: ignore[assignment]
    context.cpu.thread_num = "4"  # type: ignore[assignment]
    context.gpu.precision_mode = "enforce_fp16"  # type: ignore[assignment]
    context.gpu.device_id = None  # type: ignore[assignment]
    context.ascend.precision_mode = ""  # type: ignore[assignment]
    context.ascend.precision_mode = "preferred_fp16"  # type: ignore[assignment]
    context.parallel.device_ids = 0  # type: ignore[assignment]


def conversion(converter: engine.Converter) -> None:
    converter.decrypt_mode = "GCM"  # type: ignore[assignment]
    converter.device = "gpu"  # type: ignore[assignment]
    converter.optimize = "ascend"  # type: ignore[assignment]
    converter.optimize = "ascend_oriented:310"  # type: ignore[assignment]
    converter.input_format = "NHWC"  # type: ignore[assignment]
    converter.weight_fp16 = "yes"  # type: ignore[assignment]
    converter.convert(2, "net.onnx", "net")  # type: ignore[arg-type]


def models() -> None:
    engine.load(1)  # type: ignore[arg-type]
    engine.load("net.onnx", dec_mode="gcm")  # type: ignore[arg-type]
    engine.load("net.onnx", provider="cuda")  # type: ignore[call-arg]
    engine.inspect("net.onnx", dec_mode="gcm")  # type: ignore[arg-type]
    engine.explain("net.onnx", roof=1e9)  # type: ignore[arg-type]
    engine.InferenceSession("net.onnx")  # type: ignore[attr-defined]
    model = engine.Model()
    model.build_from_file("net.onnx", "mindir")  # type: ignore[arg-type]
    model.build_from_file("a", engine.ModelType.MINDIR, dec_mode="ECB")  # type: ignore[arg-type]
    model.build_from_buffer(b"", dec_mode="ECB")  # type: ignore[arg-type]


def weights() -> None:
    sharding.save_checkpoint({}, "w", format="onnx")  # type: ignore[arg-type]
    sharding.load_checkpoint("w", dec_mode="ECB")  # type: ignore[arg-type]
    sharding.transform_checkpoints("a", "b", "n", output_format="npz")  # type: ignore[arg-type]
    sharding.load_distributed_checkpoint(None, format="onnx")  # type: ignore[arg-type]
