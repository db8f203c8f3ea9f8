"""Shape inference refuses what would crash it, and does not write gigabytes for a few nodes.

Each refused model ended the process, or took gigabytes, when onnx 1.23 was given it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")

from onnx import ModelProto, helper, parser  # noqa: E402

from engine import formats  # noqa: E402
from engine.errors import ModelError  # noqa: E402
from engine.formats.onnx.safe_inference import UnsafeModelError, check, infer_shapes  # noqa: E402


def model_of(nodes: str, output: str = "y", version: int = 17) -> ModelProto:
    """A model of x, s and c0; its nodes are in ONNX's text form."""
    text = f"g (float[2,3] x, float[3] s) => (float {output}) <int64[1] c0 = {{1}}> {{ {nodes} }}"
    graph = parser.parse_graph(text)
    graph.output[0].ClearField("type")
    opsets = [helper.make_opsetid("", version), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


HUGE = (1 << 63) - 1
UNSAFE = {
    "huge axis": f"y, m = LayerNormalization <axis = {1 << 62}> (x, s)",
    "negative axis": f"y = LayerNormalization <axis = {-(1 << 40)}> (x, s)",
    "negative count": "y = GatherND <batch_dims = -5> (x, c0)",
    "huge number": f"y = DepthToSpace <blocksize = {1 << 40}> (x)",
    "required input left out": 'y = EyeLike <dtype = 1> ("")',
    "required input of another domain": 'y = ai.onnx.ml.LabelEncoder <default_int64 = 1> ("")',
    "input of a list left out": 'y = Max (x, "")',
    "no inputs": "y = Neg ()",
    "many inputs": "y = Neg (x, s)",
    "many outputs": "y, z = Neg (x)",
}


@pytest.mark.parametrize("name", UNSAFE)
def test_a_node_that_would_crash_inference_is_refused(name: str) -> None:
    model = model_of(UNSAFE[name])
    with pytest.raises(UnsafeModelError, match=model.graph.node[0].op_type):
        infer_shapes(model)


def test_such_a_node_is_found_inside_subgraphs_and_functions() -> None:
    branches = 'then_branch = b () => (float z) { z = EyeLike("") }, ' + (
        'else_branch = c () => (float z) { z = EyeLike("") }'
    )
    with pytest.raises(UnsafeModelError, match="EyeLike"):
        check(model_of(f"y = If <{branches}> (x)"))
    whole = model_of("y = f.F(x)")
    function = parser.parse_function(
        '<domain: "f", opset_import: ["" : 17]> F (a) => (y) { y = Neg(a) }'
    )
    function.node[0].CopyFrom(helper.make_node("EyeLike", [""], ["y"]))
    whole.functions.append(function)
    with pytest.raises(UnsafeModelError, match="EyeLike"):
        check(whole)


@pytest.mark.parametrize(
    ("node", "version"),
    [
        (f"y = Slice <starts = [0], ends = [{HUGE}]> (x)", 9),
        (f"y = Constant <value_int = {HUGE}> ()", 17),
        ('y = Clip (x, "", x)', 17),
        (f'y = com.example.Unknown <axis = {1 << 62}> (x, "")', 17),
        ("y, m = LayerNormalization <axis = -1> (x, s)", 17),
        ('"", y = Split (x)', 17),
    ],
)
def test_what_is_legal_or_unknown_is_not_refused(node: str, version: int) -> None:
    check(model_of(node, version=version))


def doubling(levels: int) -> str:
    return "\n".join(f"c{i + 1} = Concat <axis = 0> (c{i}, c{i})" for i in range(levels))


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
    model = model_of(doubling(LEVELS), output=f"c{LEVELS}")
    [output] = infer_shapes(model, data_prop=True).graph.output
    assert output.type.tensor_type.shape.dim[0].dim_value == 1 << LEVELS


def test_data_propagation_sees_through_shapes() -> None:
    nodes = """shape = Shape(x)
               longer = Concat <axis = 0> (shape, c0)
               y = ConstantOfShape(longer)"""
    [output] = infer_shapes(model_of(nodes), data_prop=True).graph.output
    assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == [2, 3, 1]


@pytest.mark.usefixtures("little_memory")
def test_a_constant_that_doubles_itself_is_refused_before_it_is_computed() -> None:
    data = model_of(doubling(LEVELS), output=f"c{LEVELS}").SerializeToString()
    with pytest.raises(ModelError, match=r"take [\d,]+ bytes of memory at one time"):
        formats.source_from_bytes(data)
