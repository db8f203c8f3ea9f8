"""Models, jobs and checks that the tests of quantization share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from graphs import parsed
from onnx import ModelProto, TensorProto, helper, numpy_helper

from engine.converter.job import Job
from engine.tensor.enums import FmkType

Array: TypeAlias = np.ndarray[Any, Any]
Run: TypeAlias = Callable[..., dict[str, Array]]
Config: TypeAlias = dict[str, dict[str, str]]

ROOT = Path(__file__).parents[3]
CALIBRATING = 100  # of the 360 held-back images; the other 260 judge

WEIGHT: Config = {"common_quant_param": {"quant_type": "WEIGHT_QUANT"}}
DYNAMIC: Config = {"common_quant_param": {"quant_type": "DYNAMIC_QUANT"}}


def job(config: Mapping[str, Mapping[str, str]], **fields: Any) -> Job:
    return Job(
        framework=FmkType.ONNX, model_file=Path("m"), output_file=Path("o"), config=config, **fields
    )


def weights(model: ModelProto) -> dict[str, Array]:
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def operators(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def node(model: ModelProto, name: str) -> onnx.NodeProto:
    [found] = [each for each in model.graph.node if each.name == name]
    return found


def maker(model: ModelProto, value: str) -> onnx.NodeProto:
    [found] = [each for each in model.graph.node if value in each.output]
    return found


def graph(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    constants: dict[str, Array],
    opset: int = 17,
) -> ModelProto:
    """A model of float32 inputs and outputs."""
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


def product(random: np.random.Generator, inside: int = 8, out: int = 20) -> ModelProto:
    """y = x @ w."""
    return parsed(
        f"""g (float[?, {inside}] x) => (float[?, {out}] y) {{
            [product] y = MatMul(x, w)
        }}""",
        w=random.standard_normal((inside, out)).astype(np.float32),
    )


def samples_of(array: Array, folder: Path) -> Config:
    """Full quantization of input x, calibrated with the rows of `array`."""
    folder.mkdir()
    for place, row in enumerate(array):
        np.save(folder / f"{place:03}.npy", row[None])
    return {
        "common_quant_param": {"quant_type": "FULL_QUANT"},
        "data_preprocess_param": {"calibrate_path": f"x:{folder}", "input_type": "BIN"},
    }


def share_right(model: ModelProto, images: tuple[Array, Array], run: Run) -> float:
    """Of the images that did not calibrate, by their true labels."""
    pixels, labels = (each[CALIBRATING:] for each in images)
    return float((run(model, image=pixels)["label"] == labels).mean())
