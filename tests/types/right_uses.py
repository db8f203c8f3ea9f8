"""Scripts as users write them; `mypy --strict` finds nothing wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import engine
from engine import sharding
from engine.typing import ArrayLike, Inputs


class TorchTensor:
    """The signatures of torch.Tensor, which is not in every environment."""

    def __array__(self, dtype: Any = None) -> npt.NDArray[Any]:
        return np.zeros(1, dtype)

    def __dlpack__(
        self,
        *,
        stream: Any | None = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        return None

    def __dlpack_device__(self) -> tuple[Any, int]:
        return 1, 0


class OnDevice:
    """Memory of a device that only DLPack reaches."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return None

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class CudaArray:
    """As of numba and of cupy's older releases."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


class Frame:
    """As pandas' DataFrame."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[np.float64]:
        return np.zeros(1)


array = np.zeros((1, 3), np.float32)
tensor = TorchTensor()
either: npt.NDArray[np.float32] | TorchTensor = array
texts: Sequence[str] = ["a", "b"]


def inputs_of_predict(model: engine.Model) -> list[engine.Tensor]:
    model.predict(array)
    model.predict(tensor)
    model.predict(either)
    model.predict(OnDevice())
    model.predict(CudaArray())
    model.predict(Frame())
    model.predict(engine.Tensor(array))
    model.predict([array])
    model.predict((array, tensor))
    model.predict([tensor])
    model.predict([tensor, tensor])
    model.predict([engine.Tensor(array), array, tensor])
    model.predict(model.get_inputs())
    model.predict([[1, 2, 3], [[0.5, True]], 4, "text", None])
    model.predict([["a", "b"], texts])
    model.predict([[array, array], {"map": 1.0}])
    model.predict({"x": array})
    model.predict({"x": tensor, "y": array, "z": [1, 2], "text": "t", "absent": None})
    named: dict[str, TorchTensor] = {"x": tensor}
    model.predict(named)
    mapping: Mapping[str, npt.NDArray[np.int64]] = {"x": np.arange(3)}
    model.predict(mapping, timeout_s=1, cancel=engine.CancelToken())
    outputs = model.predict(model.predict([array]), [engine.Tensor()], timeout_s=0.5)
    return model.predict(outputs)


def calls(model: engine.Model) -> npt.NDArray[Any]:
    model(array)
    model(tensor)
    model(array, tensor)
    model([[1.0, 2.0]])
    model({"x": tensor})
    model(x=tensor, y=array, z=[1, 2, 3], text="t", absent=None)
    model(x=array, outputs=["label"], timeout_s=0.5, cancel=engine.CancelToken())
    return model(array)["label"]


def through(model: engine.Model, inputs: Inputs, one: ArrayLike) -> list[engine.Tensor]:
    model(one)
    return model.predict(inputs)


async def runners(model: engine.Model, requests: list[dict[str, TorchTensor]]) -> None:
    with engine.ModelParallelRunner() as runner:
        runner.build_from_file("net.onnx", queue_limit=8, when_full="raise", max_batch_size=4)
        runner.build_from_file("net.onnx", when_full="wait", dec_key=b"", dec_mode="AES-CBC")
        runner.predict([tensor])
        runner.submit({"x": tensor}, timeout_s=1).result()
        await runner.predict_async(tensor)
        for outputs in runner.map(requests):
            outputs[0].numpy()
        async for outputs in runner.stream([[tensor], [tensor]]):
            outputs[0].numpy()
    with engine.MultiDeviceRunner("net.onnx", [0, 1], when_full="raise", workers="ray") as many:
        many.predict(tensor)
        many.submit([tensor])
    with engine.MultiDeviceRunner("net.onnx", range(2), workers="process", dec_mode="SM4-CBC"):
        pass
    await model.predict_async({"x": tensor}, timeout_s=1)


def measured(model: engine.Model) -> None:
    print(model.profile(tensor, 5, warmup=1).kernels[0].share)
    engine.bench(model, tensor, runs=10).latency_s["p50"]
    engine.bench("net.onnx", {"x": tensor}, target=["gpu", "cpu"], clients=4)
    engine.compare("net.onnx", inputs=[tensor], targets=("cpu", "reference"))
    engine.diff("a.onnx", "b.onnx", {"x": tensor}, configs=({"a": {"b": 1}}, None), inside=True)
    model.update_weights({"w": array, "v": tensor})
    model.update_weights([[engine.Tensor(array)]])


def settings() -> engine.Context:
    context = engine.Context()
    context.target = ["gpu", "cpu"]
    context.target = None
    context.cpu.precision_mode = "enforce_fp32"
    context.cpu.precision_mode = "preferred_fp16"
    context.cpu.thread_num = 4
    context.cpu.thread_affinity_core_list = [0, 1]
    context.gpu.precision_mode = "preferred_fp16"
    context.gpu.provider = "tensorrt"
    context.ascend.precision_mode = "enforce_fp32"
    context.ascend.precision_mode = "preferred_fp32"
    context.ascend.precision_mode = "enforce_fp16"
    context.ascend.precision_mode = "enforce_origin"
    context.ascend.precision_mode = "preferred_optimal"
    context.parallel.config_info = {"cpu_context": {"spin_us": "0"}}
    context.parallel.device_ids = [0]
    said: str = context.cpu.precision_mode
    print(said)
    return context


def conversion() -> None:
    converter = engine.Converter()
    converter.decrypt_mode = "AES-GCM"
    converter.decrypt_mode = "AES-CBC"
    converter.decrypt_mode = "SM4-CBC"
    converter.device = "Ascend"
    converter.optimize = "none"
    converter.optimize = "general"
    converter.optimize = "gpu_oriented"
    converter.optimize = "ascend_oriented"
    converter.optimize = "ascend_oriented:910b"
    converter.input_shape = {"x": [1, 3]}
    converter.input_format = engine.Format.NHWC
    converter.convert(engine.FmkType.ONNX, "net.onnx", "net")
    if converter.report is not None:
        print(converter.report)


def models() -> None:
    model = engine.load("net.onnx", config={"cpu_context": {"spin_us": 0}}, dec_mode="AES-GCM")
    built = engine.Model()
    built.build_from_file("net.onnx", engine.ModelType.MINDIR, settings(), dec_mode="AES-CBC")
    built.build_from_buffer(b"", dec_key=b"", dec_mode="SM4-CBC")
    print(engine.inspect("net.mindir", dec_key=b"", dec_mode="AES-GCM").node_count)
    explained = engine.explain("net.onnx", ["gpu", "cpu"], inputs={"x": [1.0]}, profile=True)
    print(explained.flops, explained.nodes[0].moved_bytes, explained.to_json())
    explained.save_html("net.html")
    model.resize(model.get_inputs(), [[1, 3]])
    print(model.inputs[0].name, len(model.placement), engine.devices(), engine.doctor("cpu"))


def weights() -> None:
    sharding.save_checkpoint({"w": array}, "w.ckpt", format="ckpt")
    sharding.save_checkpoint({"w": array}, "w.safetensors", format="safetensors")
    sharding.load_checkpoint("w.ckpt", dec_key=b"", dec_mode="AES-GCM")
    sharding.transform_checkpoints("a", "b", "net", output_format="safetensors")
    sharding.load_distributed_checkpoint(None, ["a.ckpt"], format="ckpt", output_format="ckpt")


if __name__ == "__main__":
    with engine.load("net.onnx") as loaded:
        asyncio.run(runners(loaded, []))
