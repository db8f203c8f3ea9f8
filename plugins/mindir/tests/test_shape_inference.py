"""Shapes that are worked out here, against those of ONNX's own inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine.formats import ModelFile, open_source
from engine.formats.onnx.inline import inlined
from engine.types import DType
from engine_mindir.shape_inference import shape_of
from engine_mindir.values import Shape, Value

N = None


def _by_onnx(op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> list[int | None]:
    names, given, constants = [], [], []
    for place, item in enumerate(inputs):
        names.append(f"in{place}")
        if isinstance(item, np.ndarray):
            constants.append(onnx.numpy_helper.from_array(item, names[-1]))
        else:
            shape = [f"d{place}_{axis}" if dim is None else dim for axis, dim in enumerate(item)]
            kind = TensorProto.INT64 if op_type == "Gather" and place else TensorProto.FLOAT
            given.append(helper.make_tensor_value_info(names[-1], kind, shape))
    node = helper.make_node(op_type, names, ["y"], **attributes)
    result = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "g", given, [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output[0]
    return [
        dim.dim_value if dim.HasField("dim_value") else None
        for dim in found.type.tensor_type.shape.dim
    ]


def _constant(item: np.ndarray[Any, Any]) -> Value:
    return Value("c", DType.from_numpy(item.dtype), item.shape, item.tobytes())


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Relu", [(N, 3)], {}),
        ("Add", [(N, 3, 1), (4, 1, 5)], {}),
        ("Mul", [(2, 3), ()], {}),
        ("Conv", [(N, 3, 8, 8), (6, 3, 3, 3)], {}),
        ("MaxPool", [(N, 3, 8, 8)], {"kernel_shape": [2, 2]}),
        ("MatMul", [(N, 2, 3), (3, 4)], {}),
        ("MatMul", [(2, 1, 4, 3), (5, 3, 6)], {}),
        ("MatMul", [(2, 3), (3,)], {}),
        ("MatMul", [(3,), (3, 4)], {}),
        ("Gemm", [(3, N), (5, 3)], {"transA": 1, "transB": 1}),
        ("ReduceMean", [(N, 3, 4), np.array([-1])], {"keepdims": 0}),
        ("ReduceSum", [(N, 3, 4), np.array([0, 2])], {}),
        ("ReduceMax", [(N, 3, 4)], {"keepdims": 0}),
        ("ArgMax", [(N, 3, 4)], {"axis": 1, "keepdims": 0}),
        ("Concat", [(N, 3, 4), (N, 2, 4)], {"axis": 1}),
        ("Gather", [(N, 3, 4), (2, 5)], {"axis": 1}),
        ("Gather", [(N, 3, 4), ()], {"axis": 0}),
        ("Slice", [(N, 3, 4), np.array([1]), np.array([2]), np.array([1])], {}),
        ("Reshape", [(N, 3, 4), np.array([-1, 12])], {}),
        ("Expand", [(N, 1, 4), np.array([5, 1, 3, 1])], {}),
        ("Transpose", [(N, 3, 4)], {"perm": [2, 0, 1]}),
        ("Einsum", [(2, 3), (3, 4)], {"equation": "ij,jk->ki"}),
        ("Flatten", [(N, 3, 4)], {"axis": 1}),
        ("Tile", [(N, 3), np.array([2, 2])], {}),
    ],
)
def test_a_shape_is_that_of_onnx_as_far_as_it_goes(
    op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    wanted = _by_onnx(op_type, inputs, attributes)
    values = [
        _constant(item) if isinstance(item, np.ndarray) else Value("x", DType.FLOAT32, item)
        for item in inputs
    ]
    found = shape_of(op_type, values, attributes)
    assert found is not None
    assert len(found) == len(wanted)
    assert all(dim in (None, told) for dim, told in zip(found, wanted, strict=True))


@pytest.mark.parametrize("shapes", [(None, (2,)), ((2,), None)])
def test_what_is_unknown_stays_unknown(shapes: tuple[Shape, Shape]) -> None:
    values = [Value("x", DType.FLOAT32, shape) for shape in shapes]
    assert shape_of("Add", values, {}) is None


def test_inputs_that_do_not_fit_have_no_shape() -> None:
    assert shape_of("Transpose", [Value("x", DType.FLOAT32, (2,))], {"perm": [1, 0]}) is None
    assert shape_of("Concat", [], {"axis": 0}) is None


def test_a_convolution_has_the_rank_of_its_weight() -> None:
    x, weight = Value("x", DType.FLOAT32, None), Value("w", DType.FLOAT32, (6, 3, 3, 3))
    assert shape_of("Conv", [x, weight], {}) == (None, 6, None, None)


DATA = Path(__file__).parents[3] / "tests" / "data" / "mindir"
# Results of these depend on the numbers in their inputs.
BY_DATA = {"op_nonzero": 0, "unique": 0, "masked_select": 0}
OPEN_FILES = (
    "dyn_conv", "dyn_mlp", "dyn_shape", "gpt_dyn", "op_arange_dyn", "adaptive", *BY_DATA,
)  # fmt: skip


def _calls(arrays: Mapping[str, Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    for prefix in ("", *(f"case{number}_" for number in range(1, 9))):
        ins = [arrays[key] for key in map(f"{prefix}in_{{}}".format, range(9)) if key in arrays]
        outs = [arrays[key] for key in map(f"{prefix}out_{{}}".format, range(9)) if key in arrays]
        if outs:
            yield ins, outs


@pytest.mark.parametrize("name", OPEN_FILES)
def test_a_file_lowered_for_shapes_tells_those_of_its_outputs(name: str) -> None:
    [path] = DATA.rglob(f"{name}.mindir")
    titles = [spec.name for spec in open_source(path).graph.inputs]  # type: ignore[union-attr]
    with np.load(path.with_suffix(".npz")) as arrays:
        calls = list(_calls(dict(arrays)))
    assert calls
    for inputs, expected in calls:
        shapes = {title: array.shape for title, array in zip(titles, inputs, strict=True)}
        source = ModelFile(path, input_shapes=shapes)()
        model = onnx.load_from_string(inlined(source).data or b"")
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output
        for position, (output, array) in enumerate(zip(inferred, expected, strict=True)):
            dims = output.type.tensor_type.shape.dim
            found = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
            if BY_DATA.get(name) == position:
                assert found == [None, *array.shape[1:]]
            else:
                assert found == list(array.shape)


def test_sizes_of_the_file_do_not_hold_for_inputs_of_other_sizes(mindir: SimpleNamespace) -> None:
    nodes = [
        mindir.node("ReLU", ["G:x"], "G:a", mindir.typed(2, 3)),
        mindir.node("Add", ["G:a", "G:a"], "G:y", mindir.typed(2, 3)),
    ]
    file = ModelFile.of_bytes(
        mindir.net(nodes, {"G:x": (2, 3)}, {"G:y": (2, 3)}), input_shapes={"x": (5, 3)}
    )
    [output] = file().graph.outputs  # type: ignore[union-attr]
    assert output.shape == (5, 3)
