"""Files that break a rule of ONNX and say clearly what they mean are read as what they mean."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import formats
from engine.errors import ModelError
from engine.types import DType, ModelSource, TensorSpec
from engine_testing import encode


def read(model: onnx.ModelProto) -> ModelSource:
    source = formats.source_from_bytes(model.SerializeToString())
    assert source.data is not None
    onnx.checker.check_model(source.data, full_check=True)  # what a backend gets breaks no rule
    return source


def model(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto] | None = None,
    initializers: list[TensorProto] | None = None,
    **more: object,
) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])]
    outputs = outputs or [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    graph = helper.make_graph(nodes, "g", values, outputs, initializers or [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, **more)


def names(source: ModelSource) -> list[str]:
    assert source.graph is not None
    return [node.name for node in source.graph.nodes]


def evaluate(source: ModelSource, x: np.ndarray) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    [y] = ReferenceEvaluator(onnx.load_model_from_string(source.data)).run(None, {"x": x})
    return y


# --------------------------------------------------------------------------- outputs without a type


@pytest.mark.parametrize("kind", ["no type", "no element type"])
def test_the_type_of_an_output_follows_from_the_nodes(kind: str) -> None:
    output = onnx.ValueInfoProto(name="y")
    if kind == "no element type":
        output.type.tensor_type.SetInParent()
    shape = numpy_helper.from_array(np.array([1], np.int64), "axes")
    weights = numpy_helper.from_array(np.ones((3, 5000), np.float32), "w")  # no inference reads it
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Unsqueeze", ["product", "axes"], ["y"]),
    ]
    source = read(model(nodes, [output], [shape, weights]))
    assert source.graph is not None
    assert source.graph.outputs == (TensorSpec("y", DType.FLOAT32, ("n", 1, 5000)),)


def test_an_output_that_is_a_sequence_is_told_too() -> None:
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])]
    source = read(model(nodes, [onnx.ValueInfoProto(name="y")]))
    assert source.graph is not None
    assert str(source.graph.outputs[0]) == "sequence(float32[n, 3])"


def test_an_output_of_an_operator_that_onnx_does_not_know_is_refused() -> None:
    nodes = [helper.make_node("Odd", ["x"], ["y"], domain="own")]
    with pytest.raises(ModelError, match=r"output 'y' has no type; .*infer_shapes"):
        read(model(nodes, [onnx.ValueInfoProto(name="y")]))


def test_a_file_without_types_is_passed_on_with_them(tmp_path: Path) -> None:
    path = tmp_path / "untyped.onnx"
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [onnx.ValueInfoProto(name="y")])
    path.write_bytes(proto.SerializeToString())
    source = formats.open_source(path)
    assert source.path == path
    assert source.data != path.read_bytes()
    assert onnx.load_model_from_string(source.data).graph.output[0].type.HasField("tensor_type")


# ------------------------------------------------------------------------------- nodes out of order


def test_nodes_are_put_in_order_and_numbered_so() -> None:
    nodes = [
        helper.make_node("Add", ["b", "a"], ["y"], name="last"),
        helper.make_node("Neg", ["x"], ["a"], name="first"),
        helper.make_node("Abs", ["a"], ["b"], name="second"),
    ]
    source = read(model(nodes))
    assert names(source) == ["first", "second", "last"]
    x = np.array([[1, -2, 3]], np.float32)
    np.testing.assert_array_equal(evaluate(source, x), np.abs(x) - x)


def test_nodes_that_wait_for_nobody_stay_where_they_are() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["n0"], name="free0"),
        helper.make_node("Neg", ["late"], ["y"], name="early"),
        helper.make_node("Neg", ["x"], ["n1"], name="free1"),
        helper.make_node("Abs", ["x"], ["late"], name="late"),
        helper.make_node("Neg", ["x"], ["n2"], name="free2"),
    ]
    assert names(read(model(nodes))) == ["free0", "free1", "late", "early", "free2"]


def test_nodes_of_branches_and_functions_are_put_in_order_too() -> None:
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    inner = [
        helper.make_node("Neg", ["m"], ["z"]),
        helper.make_node("Abs", ["x"], ["m"]),
    ]
    branch = helper.make_graph(inner, "branch", [], [value])
    body = [helper.make_node("Neg", ["m"], ["b"]), helper.make_node("Abs", ["a"], ["m"])]
    function = helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("If", ["flag"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("F", ["i"], ["y"], domain="own"),
    ]
    flag = numpy_helper.from_array(np.array(True), "flag")
    x = np.array([[1, -2, 3]], np.float32)
    source = read(model(nodes, None, [flag], functions=[function]))
    np.testing.assert_array_equal(evaluate(source, x), -np.abs(x))


def test_order_is_not_looked_for_through_branches() -> None:
    """The branch reads what comes later: nobody writes that, and the message stays what it was."""
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Neg", ["late"], ["z"])], "branch", [], [value])
    nodes = [
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("Abs", ["x"], ["late"]),
    ]
    flag = numpy_helper.from_array(np.array(True), "flag")
    with pytest.raises(ModelError, match="reads 'late', which no input"):
        read(model(nodes, None, [flag]))


# ------------------------------------------------------------------------------ initializers twice


def test_an_initializer_given_twice_with_the_same_value_counts_once() -> None:
    weight = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    source = read(model([helper.make_node("Add", ["x", "w"], ["y"])], None, [weight, weight]))
    assert source.graph is not None
    assert [parameter.name for parameter in source.graph.parameters] == ["w"]
    x = np.zeros((1, 3), np.float32)
    np.testing.assert_array_equal(evaluate(source, x), [[1, 2, 3]])


def test_two_values_for_one_initializer_are_refused() -> None:
    weights = [numpy_helper.from_array(np.full(3, v, np.float32), "w") for v in (1, 2)]
    with pytest.raises(ModelError, match="two initializers 'w' that differ"):
        read(model([helper.make_node("Add", ["x", "w"], ["y"])], None, weights))


# ------------------------------------------------------------------------------------ what it takes


def test_without_the_onnx_package_the_message_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "engine.formats.onnx.repair", raising=False)
    monkeypatch.delitem(sys.modules, "engine.formats.onnx.infer", raising=False)
    monkeypatch.delitem(sys.modules, "engine.formats.onnx.graphs", raising=False)
    nodes = [encode.node("Neg", ["x"], ["y"])]
    untyped = encode.model(encode.graph(nodes, [encode.value("x")], [encode.field(1, "y")]))
    with pytest.raises(ModelError, match=r"has no type; .*pip install onnx"):
        formats.source_from_bytes(untyped)


def test_a_file_that_only_protobuf_refuses_keeps_its_message() -> None:
    node = encode.node("Neg", ["x"], ["y"])
    body = encode.graph([node], [encode.value("x")], [encode.field(1, "y")])
    training = encode.field(20, b"\x0a\x7f")  # cut off, and passed over by the reader here
    with pytest.raises(ModelError, match="output 'y' has no type"):
        formats.source_from_bytes(encode.model(body) + training)
