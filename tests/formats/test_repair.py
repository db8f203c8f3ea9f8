"""Files that break a rule of ONNX and say clearly what they mean are read as what they mean."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

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
    nodes: str,
    output: str = "float[n,3] y",
    initializers: Sequence[TensorProto] = (),
    functions: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model of x; a name before a node in brackets is the node's. output "": it has no type."""
    graph = parser.parse_graph(f"g (float[n,3] x) => ({output or 'float y'}) {{ {nodes} }}")
    if not output:
        graph.output[0].ClearField("type")
    graph.initializer.extend(initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    head = '<domain: "own", opset_import: ["" : 17]>'
    bodies = [parser.parse_function(f"{head} {text}") for text in functions]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=bodies)


def names(source: ModelSource) -> list[str]:
    assert source.graph is not None
    return [node.name for node in source.graph.nodes]


def evaluate(source: ModelSource, x: np.ndarray) -> np.ndarray:
    [y] = ReferenceEvaluator(onnx.load_model_from_string(source.data)).run(None, {"x": x})
    return y


@pytest.mark.parametrize("kind", ["no type", "no element type"])
def test_the_type_of_an_output_follows_from_the_nodes(kind: str) -> None:
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    weights = numpy_helper.from_array(np.ones((3, 5000), np.float32), "w")  # no inference reads it
    proto = model("product = MatMul(x, w)\n y = Unsqueeze(product, axes)", "", [axes, weights])
    if kind == "no element type":
        proto.graph.output[0].type.tensor_type.SetInParent()
    source = read(proto)
    assert source.graph is not None
    assert source.graph.outputs == (TensorSpec("y", DType.FLOAT32, ("n", 1, 5000)),)


def test_an_output_that_is_a_sequence_is_told_too() -> None:
    source = read(model("y = SequenceConstruct(x, x)", ""))
    assert source.graph is not None
    assert str(source.graph.outputs[0]) == "sequence(float32[n, 3])"


def test_an_output_of_an_operator_that_onnx_does_not_know_is_refused() -> None:
    with pytest.raises(ModelError, match=r"output 'y' has no type; .*infer_shapes"):
        read(model("y = own.Odd(x)", ""))


def test_a_file_without_types_is_passed_on_with_them(tmp_path: Path) -> None:
    path = tmp_path / "untyped.onnx"
    path.write_bytes(model("y = Neg(x)", "").SerializeToString())
    source = formats.open_source(path)
    assert source.path == path
    assert source.data != path.read_bytes()
    assert onnx.load_model_from_string(source.data).graph.output[0].type.HasField("tensor_type")


X = np.array([[1, -2, 3]], np.float32)


def test_nodes_are_put_in_order_and_numbered_so() -> None:
    nodes = "[last] y = Add(b, a)\n [first] a = Neg(x)\n [second] b = Abs(a)"
    source = read(model(nodes))
    assert names(source) == ["first", "second", "last"]
    np.testing.assert_array_equal(evaluate(source, X), np.abs(X) - X)


def test_nodes_that_wait_for_nobody_stay_where_they_are() -> None:
    nodes = """[free0] n0 = Neg(x) [early] y = Neg(late) [free1] n1 = Neg(x)
               [late] late = Abs(x) [free2] n2 = Neg(x)"""
    assert names(read(model(nodes))) == ["free0", "free1", "late", "early", "free2"]


IF = """{made} = If (flag) <then_branch = one () => (float[] z) {{ {body} }},
                            else_branch = two () => (float[] z) {{ {body} }}>\n"""
FLAG = numpy_helper.from_array(np.array(True), "flag")


def test_nodes_of_branches_and_functions_are_put_in_order_too() -> None:
    nodes = IF.format(made="i", body="z = Neg(m)\n m = Abs(x)") + "y = own.F(i)"
    function = "F (a) => (b) { b = Neg(m)\n m = Abs(a) }"
    source = read(model(nodes, initializers=[FLAG], functions=[function]))
    np.testing.assert_array_equal(evaluate(source, X), -np.abs(X))


def test_order_is_not_looked_for_through_branches() -> None:
    """The branch reads what comes later: nobody writes that, and the message stays what it was."""
    nodes = IF.format(made="y", body="z = Neg(late)") + "late = Abs(x)"
    with pytest.raises(ModelError, match="reads 'late', which no input"):
        read(model(nodes, initializers=[FLAG]))


def test_an_initializer_given_twice_with_the_same_value_counts_once() -> None:
    weight = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    source = read(model("y = Add(x, w)", initializers=[weight, weight]))
    assert source.graph is not None
    assert [parameter.name for parameter in source.graph.parameters] == ["w"]
    np.testing.assert_array_equal(evaluate(source, np.zeros((1, 3), np.float32)), [[1, 2, 3]])


def test_two_values_for_one_initializer_are_refused() -> None:
    weights = [numpy_helper.from_array(np.full(3, v, np.float32), "w") for v in (1, 2)]
    with pytest.raises(ModelError, match="two initializers 'w' that differ"):
        read(model("y = Add(x, w)", initializers=weights))


def test_without_the_onnx_package_the_message_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    for name in ("repair", "infer", "graphs"):
        monkeypatch.delitem(sys.modules, f"engine.formats.onnx.{name}", raising=False)
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
