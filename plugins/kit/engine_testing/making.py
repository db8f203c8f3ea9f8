"""Make and write the small models of the kit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

from engine.types import Dim, DType

IR_VERSION = 8
OPSET = 17

Shape = Sequence[Dim]


def tensor(name: str, shape: Shape, dtype: DType = DType.FLOAT32) -> ValueInfoProto:
    """Return an input or output that is a tensor."""
    return helper.make_tensor_value_info(name, dtype.onnx, list(shape))


def floats(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return an array of float32."""
    return np.array(values, np.float32)


def longs(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return an array of int64."""
    return np.array(values, np.int64)


def write(
    folder: Path,
    name: str,
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    nodes: Sequence[NodeProto],
    constants: dict[str, npt.NDArray[Any]] | None = None,
    *,
    domains: dict[str, int] | None = None,
    valid: bool = True,
    opset: int = OPSET,
    ir_version: int = IR_VERSION,
) -> Path:
    """Write a model of these nodes and constants as `<name>.onnx`; return its path.

    domains: opset versions beside ONNX's own. valid: onnx's checker must accept it. opset: ONNX's.
    """
    initializers = [numpy_helper.from_array(value, key) for key, value in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), initializers)
    opsets = [helper.make_opsetid(key, number) for key, number in (domains or {}).items()]
    model = helper.make_model(
        graph,
        ir_version=ir_version,
        opset_imports=[helper.make_opsetid("", opset), *opsets],
        producer_name="engine_testing",
    )
    if valid:
        onnx.checker.check_model(model, full_check=True)
    path = folder / f"{name}.onnx"
    onnx.save_model(model, path)
    return path


def graph(
    folder: Path,
    name: str,
    text: str,
    constants: dict[str, npt.NDArray[Any]] | None = None,
    **options: Any,
) -> Path:
    """Write a model whose graph is in ONNX's textual form, as `write` does.

    text: "(float[n] x) => (float[n] y) { [name] y = Add (x, one) }".
    """
    parsed = onnx.parser.parse_graph(f"{name} {text}")
    for node in parsed.node:
        if not node.domain:
            node.ClearField("domain")  # as onnx.helper leaves it
    return write(folder, name, parsed.input, parsed.output, parsed.node, constants, **options)


def text_name(dtype: DType) -> str:
    """Return an element type's name in that form: "float" for float32."""
    return str(onnx.TensorProto.DataType.Name(dtype.onnx)).lower()
