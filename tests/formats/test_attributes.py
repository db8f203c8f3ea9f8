"""NodeInfo.attributes: values as onnx's own reader has them, bounded, and shared where equal."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from graphs import of_nodes
from onnx import AttributeProto, TensorProto, helper

from engine.errors import ModelError
from engine.formats import source_from_bytes
from engine.formats.onnx import limits
from engine.types import Attribute, GraphInfo, NodeInfo
from engine_testing import encode

INT_ARRAY = TensorProto(data_type=TensorProto.INT64, dims=[1], int64_data=[3], name="t")


def nodes_of(*nodes: onnx.NodeProto) -> tuple[NodeInfo, ...]:
    model = of_nodes(nodes, {"x": [3]}, {"y": [3]})
    info = source_from_bytes(model.SerializeToString()).graph
    assert info is not None
    return info.nodes


def odd(**attributes: object) -> onnx.NodeProto:
    return helper.make_node("Odd", ["x"], ["y"], domain="own", **attributes)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (7, 7),
        (-1, -1),
        (2**63 - 1, 2**63 - 1),
        (0.5, 0.5),
        (0.1, 0.10000000149011612),  # the nearest float32
        ("text", "text"),
        ("häßlich", "häßlich"),
        (b"\xff\x00a", "\\xff\x00a"),
        ([1, -2, 300], (1, -2, 300)),
        ([0.5, -0.25], (0.5, -0.25)),
        (["a", "b"], ("a", "b")),
        (INT_ARRAY, None),
        ([INT_ARRAY, INT_ARRAY], None),
    ],
    ids=repr,
)
def test_a_value_is_that_of_the_file(given: object, expected: Attribute) -> None:
    [node] = nodes_of(odd(value=given))
    assert node.attributes == {"value": expected}
    assert type(node.attributes["value"]) is type(expected)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (AttributeProto.INT, 0),
        (AttributeProto.FLOAT, 0.0),
        (AttributeProto.STRING, ""),
        (AttributeProto.INTS, ()),
        (AttributeProto.FLOATS, ()),
        (AttributeProto.STRINGS, ()),
    ],
)
def test_what_is_not_written_is_the_types_default(kind: int, expected: Attribute) -> None:
    node = odd()
    node.attribute.add(name="value", type=kind)
    assert nodes_of(node)[0].attributes == {"value": expected}


def test_a_value_of_another_type_than_the_attributes_is_not_taken() -> None:
    node = odd(number=3, numbers=[1, 2])
    node.attribute[0].type = AttributeProto.FLOAT
    node.attribute[1].type = AttributeProto.FLOATS
    assert nodes_of(node)[0].attributes == {"number": 0.0, "numbers": ()}


def test_packed_numbers_are_read_as_single_ones() -> None:
    packed = encode.field(8, b"\x01\x02\xac\x02") + encode.field(7, b"\0\0\0\x3f")
    for numbers, kind, expected in (
        (packed[:6], AttributeProto.INTS, (1, 2, 300)),
        (packed[6:], AttributeProto.FLOATS, (0.5,)),
    ):
        attribute = encode.field(1, "value") + numbers + encode.field(20, kind)
        node = encode.node("Relu", ["x"], ["y"]) + encode.field(5, attribute)
        graph = source_from_bytes(encode.chain(node)).graph
        assert graph is not None
        assert graph.nodes[0].attributes == {"value": expected}


def test_a_value_without_a_type_is_not_guessed() -> None:
    node = odd(number=3, numbers=[1, 2])
    for attribute in node.attribute:
        attribute.ClearField("type")
    assert nodes_of(node)[0].attributes == {"number": None, "numbers": None}


def test_large_values_are_named_and_left_in_the_file() -> None:
    count = limits.PLAIN_BYTES  # two bytes each, so above the limit together
    node = odd(ids=list(range(count)), text="x" * count, small=[1])
    assert nodes_of(node)[0].attributes == {"ids": None, "text": None, "small": (1,)}


def test_a_subgraph_is_named_and_its_neighbours_keep_their_values() -> None:
    y = helper.make_tensor_value_info("z", TensorProto.FLOAT, [3])
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "b", [], [y])
    [node] = nodes_of(odd(before=1, body=body, after=[2]))
    assert node.attributes == {"before": 1, "body": None, "after": (2,)}


def test_equal_attributes_of_many_nodes_are_kept_once() -> None:
    first = helper.make_node("Odd", ["x"], ["a"], domain="own", pads=[1, 1, 300, 300])
    second = helper.make_node("Odd", ["a"], ["y"], domain="own", pads=[1, 1, 300, 300])
    one, two = nodes_of(first, second)
    assert one.attributes["pads"] is two.attributes["pads"]


def test_a_node_of_long_documentation_reads_like_any_other(
    read_with_onnx: Callable[[onnx.ModelProto], GraphInfo],
) -> None:
    nodes = [odd(alpha=0.5, axis=-1) for _ in range(3)]
    nodes[0].doc_string = "short"
    nodes[1].doc_string = "x" * 10_000
    nodes[2].metadata_props.add(key="namespace", value="a.b.c")
    for index, node in enumerate(nodes):
        node.input[:], node.output[:] = [f"v{index}"], [f"v{index + 1}"]
    model = of_nodes(nodes, {"v0": [3]}, {"v3": [3]}, ir_version=10)
    assert source_from_bytes(model.SerializeToString()).graph == read_with_onnx(model)


@pytest.mark.parametrize("size", [3, 5_000])
def test_an_attribute_with_two_tensors_in_one_place_names_its_node(size: int) -> None:
    attribute = encode.field(1, "value") + 2 * encode.field(5, encode.tensor("t", [0]))
    node = encode.node("Constant", [], ["y"]) + encode.field(
        5, attribute + encode.field(13, "d" * size)
    )
    with pytest.raises(ModelError, match=r"an attribute of node 0 \(Constant\) has two values"):
        source_from_bytes(encode.chain(node))


def test_a_functions_attribute_has_no_value_of_its_own() -> None:
    node = odd(value=7)
    node.attribute[0].ref_attr_name = "of_the_caller"
    assert nodes_of(node)[0].attributes == {"value": None}
