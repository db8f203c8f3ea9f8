"""Shape inference refuses what would crash it, and does not write gigabytes for a few nodes.

Each refused model ended the process, or took gigabytes, when onnx 1.23 was given it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")

from onnx import ModelProto, NodeProto, TensorProto, helper  # noqa: E402

from engine import formats  # noqa: E402
from engine.errors import ModelError  # noqa: E402
from engine.formats.onnx.safe_inference import UnsafeModelError, check, infer_shapes  # noqa: E402

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model_of(*nodes: NodeProto, output: str = "y", version: int = 17) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", FLOAT, [2, 3]),
            helper.make_tensor_value_info("s", FLOAT, [3]),
        ],
        [onnx.ValueInfoProto(name=output)],
        [helper.make_tensor("c0", INT64, [1], [1])],
    )
    opsets = [helper.make_opsetid("", version), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


UNSAFE = {
    "huge axis": helper.make_node("LayerNormalization", ["x", "s"], ["y", "m"], axis=1 << 62),
    "negative axis": helper.make_node("LayerNormalization", ["x", "s"], ["y"], axis=-(1 << 40)),
    "negative count": helper.make_node("GatherND", ["x", "c0"], ["y"], batch_dims=-5),
    "huge number": helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=1 << 40),
    "required input left out": helper.make_node("EyeLike", [""], ["y"], dtype=1),
    "required input of another domain": helper.make_node(
        "LabelEncoder", [""], ["y"], domain="ai.onnx.ml", default_int64=1
    ),
    "input of a list left out": helper.make_node("Max", ["x", ""], ["y"]),
    "no inputs": helper.make_node("Neg", [], ["y"]),
    "many inputs": helper.make_node("Neg", ["x", "s"], ["y"]),
    "many outputs": helper.make_node("Neg", ["x"], ["y", "z"]),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSAFE)
def test_a_node_that_would_crash_inference_is_refused(name: str) -> None:
    with pytest.raises(UnsafeModelError, match=UNSAFE[name].op_type):
        infer_shapes(model_of(UNSAFE[name]))


def test_such_a_node_is_found_inside_subgraphs_and_functions() -> None:
    bad = helper.make_node("EyeLike", [""], ["y"])
    branch = helper.make_graph([bad], "b", [], [onnx.ValueInfoProto(name="y")])
    inner = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    with pytest.raises(UnsafeModelError, match="EyeLike"):
        check(model_of(inner))
    whole = model_of(helper.make_node("F", ["x"], ["y"], domain="f"))
    opsets = [helper.make_opsetid("", 17)]
    whole.functions.append(helper.make_function("f", "F", ["a"], ["y"], [bad], opsets))
    with pytest.raises(UnsafeModelError, match="EyeLike"):
        check(whole)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Slice", ["x"], ["y"], starts=[0], ends=[(1 << 63) - 1]),
        helper.make_node("Constant", [], ["y"], value_int=(1 << 63) - 1),
        helper.make_node("Clip", ["x", "", "x"], ["y"]),
        helper.make_node("Unknown", ["x", ""], ["y"], axis=1 << 62, domain="com.example"),
        helper.make_node("LayerNormalization", ["x", "s"], ["y", "m"], axis=-1),
        helper.make_node("Split", ["x"], ["", "y"]),
    ],
    ids=lambda node: node.op_type,
)
def test_what_is_legal_or_unknown_is_not_refused(node: NodeProto) -> None:
    check(model_of(node, version=9 if node.op_type == "Slice" else 17))


def doubling(levels: int) -> list[NodeProto]:
    return [
        helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(levels)
    ]


LEVELS = 23
"""Written out, the result takes more than a gigabyte."""


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Fail where the test takes more than 100 MB."""
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        pytest.skip("needs Linux's /proc")
    reset.write_text("5")
    before = resident()
    yield
    assert resident() < before + 100_000_000


def resident() -> int:
    """Return the most memory of this process since the last reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.usefixtures("little_memory")
def test_data_propagation_is_left_out_where_it_would_write_out_gigabytes() -> None:
    model = model_of(*doubling(LEVELS), output=f"c{LEVELS}")
    [output] = infer_shapes(model, data_prop=True).graph.output
    assert output.type.tensor_type.shape.dim[0].dim_value == 1 << LEVELS


def test_data_propagation_sees_through_shapes() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Concat", ["shape", "c0"], ["longer"], axis=0),
        helper.make_node("ConstantOfShape", ["longer"], ["y"]),
    ]
    [output] = infer_shapes(model_of(*nodes), data_prop=True).graph.output
    assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == [2, 3, 1]


@pytest.mark.usefixtures("little_memory")
def test_a_constant_that_doubles_itself_is_refused_before_it_is_computed() -> None:
    data = model_of(*doubling(LEVELS), output=f"c{LEVELS}").SerializeToString()
    with pytest.raises(ModelError, match=r"take [\d,]+ bytes of memory at one time"):
        formats.source_from_bytes(data)
