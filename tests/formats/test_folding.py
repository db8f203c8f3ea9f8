"""The cost of folding constants is estimated from the file: bombs are told from real models.

Three verdicts: a model's constants are folded, or left to predict, or it is refused.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine import formats
from engine.errors import ModelError
from engine.formats.onnx import folding
from engine.formats.onnx.growth import Growth
from engine.types import DType, NodeInfo
from engine_testing.encode import (
    INT64,
    attribute,
    chain,
    field,
    function,
    graph,
    ints,
    model,
    node,
    opset,
    tensor,
    type_of,
    value,
)

ONNX_DATA = Path(onnx.__file__).parent / "backend/test/data"


def folds_too_much(data: bytes) -> bool:
    return formats.source_from_bytes(data).folds_too_much


def verdict(data: bytes) -> str:
    try:
        return "left" if folds_too_much(data) else "folded"
    except ModelError as error:
        return "refused" if "are allowed" in str(error) else f"damaged: {error}"


def filled(*shape: int) -> tuple[bytes, bytes]:
    """A node that makes the constant "a" of this shape, and its initializer."""
    return node("ConstantOfShape", ["s"], ["a"]), ints("s", *shape)


def products(count: int, size: int) -> bytes:
    """A chain of matrix products of a square constant: 60 of 3,000 take minutes to fold."""
    fill, shape = filled(size, size)
    steps = [node("MatMul", [f"p{i}" if i else "a", "a"], [f"p{i + 1}"]) for i in range(count)]
    return chain(fill, *steps, node("Add", ["x", f"p{count}"], ["y"]), initializers=[shape])


def constants(count: int, elements: int) -> bytes:
    """Constants of many bytes from a shape: 40 of 100 million are 16 GB in 2 kB of file."""
    names = [f"c{i}" for i in range(count)]
    return chain(
        *[node("ConstantOfShape", ["s"], [name]) for name in names],
        node("Sum", ["x", *names], ["y"]),
        initializers=[ints("s", elements)],
    )


def outer(size: int) -> bytes:
    """An outer product: a square of `size` from two vectors."""
    column = tensor("c", [size, 1], bytes(4 * size))
    row = tensor("r", [1, size], bytes(4 * size))
    return chain(
        node("Mul", ["c", "r"], ["o"]), node("Add", ["x", "o"], ["y"]), initializers=[column, row]
    )


def in_function(calls: int) -> bytes:
    """A function with one product inside, called many times."""
    fill = node("Constant", [], ["s"], [attribute("value", 5, ints("", 600, 600), 4)])
    steps = [fill, node("ConstantOfShape", ["s"], ["a"]), node("MatMul", ["a", "a"], ["b"])]
    names = [f"c{i}" for i in range(calls)]
    return model(
        graph(
            [*[node("f0", [], [name], domain="f") for name in names],
             node("Sum", ["x", *names], ["y"])],
            [value("x")],
            [value("y")],
        ),
        opsets=[opset(17), opset(1, "f")],
        extra=field(25, function("f0", steps, [], ["b"])),
    )  # fmt: skip


def convolved(size: int, pad: int) -> bytes:
    """An image convolved with a kernel of its own size."""
    return constant_table(
        [onnx.helper.make_node("Conv", ["i", "k"], ["table"], pads=[pad] * 4)],
        i=np.zeros((1, 1, size, size), np.float32),
        k=np.zeros((1, 1, size, size), np.float32),
    )


def positions(size: int) -> bytes:
    """A table of positions as exporters leave it: sines and cosines, then a Conv."""
    make = onnx.helper.make_node
    return constant_table(
        [
            make("Sin", ["angles"], ["sin"]),
            make("Unsqueeze", ["sin", "last"], ["sines"]),
            make("Cos", ["angles"], ["cos"]),
            make("Unsqueeze", ["cos", "last"], ["cosines"]),
            make("Concat", ["sines", "cosines"], ["pairs"], axis=-1),
            make("Reshape", ["pairs", "flat"], ["channels"]),
            make("Transpose", ["channels"], ["t"], perm=[0, 3, 1, 2]),
            make("Conv", ["t", "k"], ["c"]),
            make("Reshape", ["c", "rows"], ["table"]),
        ],
        angles=np.zeros((1, size, size, 32), np.float32),
        last=np.array([4]),
        flat=np.array([0, 0, 0, -1]),
        k=np.zeros((96, 64, 1, 1), np.float32),
        rows=np.array([1, 96, -1]),
    )


def constant_table(nodes: list[onnx.NodeProto], **constants: np.ndarray[Any, Any]) -> bytes:
    """A model that adds "table", which these nodes compute, to its input."""
    add = onnx.helper.make_node("Add", ["x", "table"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in "xy"]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    whole = onnx.helper.make_graph([*nodes, add], "g", ends[:1], ends[1:], weights)
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(whole, opset_imports=[opset]).SerializeToString()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (products(60, 3000), "refused"),
        (products(10, 800), "left"),
        (products(2, 300), "folded"),
        (constants(40, 100_000_000), "refused"),
        (constants(40, 10_000_000), "refused"),
        (constants(8, 20_000_000), "left"),  # as the networks of ONNX's suite have their weights
        (constants(1, 19_000_000), "folded"),
        (constants(2, 1_000_000), "folded"),
        (outer(100_000), "refused"),
        (outer(1000), "folded"),
        (in_function(10), "left"),
        (in_function(1), "folded"),
        (in_function(1000), "refused"),
        (chain(node("Tile", ["w", "k"], ["t"]), node("Add", ["x", "t"], ["y"]),
               initializers=[tensor("w", [10], bytes(40)), ints("k", 100_000_000)]), "refused"),
        (convolved(400, 0), "folded"),  # to one number
        (convolved(400, 100), "left"),
        (convolved(400, 10_000), "refused"),
        (positions(28), "folded"),
    ],
)  # fmt: skip
def test_a_bomb_is_told_from_what_models_fold(data: bytes, expected: str) -> None:
    assert verdict(data) == expected


AXIS = [attribute("axis", 3, 0, 2)]


def doubled(first: str, times: int, end: bytes) -> list[bytes]:
    """A tensor that is joined with itself again and again, to "h"."""
    names = [first, *[f"d{i}" for i in range(times - 1)], "h"]
    steps = [node("Concat", [a] * 2, [b], AXIS) for a, b in pairwise(names)]
    return [*steps, end]


SUM = node("ReduceSum", ["h"], ["r"], [attribute("keepdims", 3, 0, 2)])
USED, UNUSED = node("Add", ["x", "r"], ["y"]), node("Neg", ["x"], ["y"])
SQUARE = node("Mul", ["k", "k"], ["k2"])


ABSURD = {
        "constants joined": chain(
            *doubled("w", 26, SUM), USED, initializers=[tensor("w", [1], bytes(4))]
        ),
        "a shape joined": chain(node("Shape", ["x"], ["s"]), *doubled("s", 17, node(
            "Cast", ["h"], ["f"], [attribute("to", 3, 1, 2)])),
            node("ReduceSum", ["f"], ["r"], [attribute("keepdims", 3, 0, 2)]), USED),
        "sixteen times each": chain(
            node("Shape", ["x"], ["s0"]),
            *[node("Concat", [f"s{i}"] * 16, [f"s{i + 1}"], AXIS) for i in range(5)],
            node("Gather", ["s5", "k"], ["i"]),
            node("Cast", ["i"], ["f"], [attribute("to", 3, 1, 2)]),
            node("Add", ["x", "f"], ["y"]), initializers=[ints("k", 0)],
        ),
        "a fixed shape joined": model(graph(
            [node("Shape", ["x"], ["s"]), *doubled("s", 17, node(
                "Cast", ["h"], ["y"], [attribute("to", 3, 1, 2)]))],
            [value("x", type_of([4]))], [value("y")],
        )),
        "a table of 120 MB, in memory twice": chain(
            node("ConstantOfShape", ["k"], ["w"]), node("Cos", ["w"], ["h"]), SUM, USED,
            initializers=[ints("k", 30_000_000)],
        ),
        "a size that is computed": chain(
            SQUARE, node("ConstantOfShape", ["k2"], ["h"]), SUM, USED,
            initializers=[ints("k", 30_000)],
        ),
        "a size that is computed of a fixed shape": model(graph(
            [node("Shape", ["x"], ["k"]), SQUARE, node("ConstantOfShape", ["k2"], ["h"]), SUM,
             USED], [value("x", type_of([30_000]))], [value("y")],
        )),
        "a range": chain(
            node("Range", ["a", "b", "c"], ["h"]), SUM, USED,
            initializers=[tensor(n, [], struct.pack("<f", v))
                          for n, v in (("a", 0), ("b", 5e8), ("c", 1))],
        ),
        "padding": chain(
            node("Pad", ["w", "k"], ["h"]), SUM, USED,
            initializers=[tensor("w", [1], bytes(4)), ints("k", 0, 500_000_000)],
        ),
        "random numbers": chain(
            node("RandomNormal", [], ["h"], [attribute("shape", 8, 500_000_000, 7)]), SUM, USED
        ),
        "unused, of constants": chain(
            node("ConstantOfShape", ["k"], ["h"]), UNUSED, initializers=[ints("k", 500_000_000)]
        ),
        "unused, of the input": chain(
            node("Expand", ["x", "k"], ["d"]), *doubled("d", 3, SUM), UNUSED,
            initializers=[ints("k", 10_000_000)],
        ),
        "unused, of the input, doubled": chain(*doubled("x", 28, SUM), UNUSED),
        "more than any machine holds": chain(*doubled("x", 50, SUM), USED),
        "a size from outside of a branch": chain(
            node("Cast", ["x"], ["c"], [attribute("to", 3, 9, 2)]),
            node("If", ["c"], ["y"], [
                attribute(name, 6, graph([node("ConstantOfShape", ["k"], ["h"]), node(
                    "ReduceSum", ["h"], ["z"], [attribute("keepdims", 3, 0, 2)])], (),
                    [value("z")]), 5)
                for name in ("then_branch", "else_branch")
            ]), initializers=[ints("k", 500_000_000)],
        ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "data"), ABSURD.items())
def test_a_small_file_that_asks_for_absurd_amounts_by_itself_is_refused(
    name: str, data: bytes
) -> None:
    assert len(data) < 5000
    assert verdict(data) == "refused", name


READ = """
import resource, sys
from pathlib import Path
from engine import formats
from engine.errors import ModelError
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 100_000_000,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for path in sys.argv[1:]:
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    try:
        formats.open_source(path)
    except ModelError as error:
        assert "are allowed" in str(error), (path, error)
    else:
        sys.exit(f"{path} was read")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - begin < 2, path
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limits of a process")
def test_refusing_them_takes_neither_memory_nor_time(tmp_path: Path) -> None:
    paths = []
    for number, data in enumerate(ABSURD.values()):
        paths.append(tmp_path / f"{number}.onnx")
        paths[-1].write_bytes(data)
    done = subprocess.run([sys.executable, "-c", READ, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_a_caller_asks_for_by_its_inputs_is_not_refused() -> None:
    assert verdict(chain(*doubled("x", 28, SUM), USED)) == "folded"
    step = node("Expand", ["x", "k"], ["h"])
    assert verdict(chain(step, SUM, USED, initializers=[ints("k", 200_000_000)])) == "folded"


def test_the_tables_of_real_models_are_folded() -> None:
    """A rotary cache of 16,384 positions, and a mask of 4,096 by 4,096 as a filled triangle."""
    positions, half = 16_384, 64
    rotary = chain(
        node("Range", ["a", "b", "c"], ["p"]),
        node("Unsqueeze", ["p", "one"], ["q"]),
        node("Mul", ["q", "f"], ["angles"]),
        node("Concat", ["angles", "angles"], ["both"], [attribute("axis", 3, 1, 2)]),
        node("Cos", ["both"], ["cos"]),
        node("Sin", ["both"], ["sin"]),
        node("Add", ["cos", "sin"], ["table"]),
        node("Gather", ["table", "i"], ["row"]),
        node("Add", ["x", "row"], ["y"]),
        initializers=[
            *[tensor(n, [], struct.pack("<f", v))
              for n, v in (("a", 0), ("b", positions), ("c", 1))],
            ints("one", 1), ints("i", 7), tensor("f", [1, half], bytes(4 * half)),
        ],
    )  # fmt: skip
    assert verdict(rotary) == "folded"
    mask = chain(
        node("ConstantOfShape", ["k"], ["ones"]),
        node("Trilu", ["ones"], ["low"]),
        node("Gather", ["low", "i"], ["row"]),
        node("Add", ["x", "row"], ["y"]),
        initializers=[ints("k", 2048, 2048), ints("i", 7)],
    )
    assert verdict(mask) == "folded"


def test_names_that_subgraphs_read_are_used() -> None:
    body = graph([node("ReduceSum", ["h"], ["z"], [attribute("keepdims", 3, 0, 2)])], (),
                 [value("z")])  # fmt: skip
    both = [attribute("then_branch", 6, body, 5), attribute("else_branch", 6, body, 5)]
    data = chain(
        *doubled("x", 28, node("Cast", ["x"], ["c"], [attribute("to", 3, 9, 2)])),
        node("If", ["c"], ["y"], both),
    )
    assert verdict(data) == "folded"


BODIES = {"in the body's result": [], "for nothing": [node("Neg", ["x"], ["z"])]}


@pytest.mark.parametrize(("use", "nodes"), BODIES.items())
@pytest.mark.parametrize("depth", [1, 2])
def test_large_results_in_a_subgraph_are_used_where_its_own_result_needs_them(
    use: str, nodes: list[bytes], depth: int
) -> None:
    total = node("ReduceSum", ["h"], ["r" if nodes else "z"], [attribute("keepdims", 3, 0, 2)])
    steps = [*doubled("x", 28, total), *nodes]
    for _ in range(depth):
        body = graph(steps, (), [value("z")])
        both = [attribute("then_branch", 6, body, 5), attribute("else_branch", 6, body, 5)]
        steps = [node("If", ["c"], ["z"], both)]
    cast = node("Cast", ["x"], ["c"], [attribute("to", 3, 9, 2)])
    data = chain(cast, *steps, node("Neg", ["z"], ["y"]))
    assert verdict(data) == ("refused" if nodes else "folded"), use


def test_what_an_input_decides_is_not_folded() -> None:
    fill, shape = filled(3000, 3000)
    steps = [node("Add", ["a", "x"], ["b"])]
    steps += [node("MatMul", [f"p{i}" if i else "b", "a"], [f"p{i + 1}"]) for i in range(60)]
    data = chain(fill, *steps, node("Neg", ["p60"], ["y"]), initializers=[shape])
    assert not folds_too_much(data)


def test_weights_may_be_widened_and_transposed_as_exporters_leave_them() -> None:
    weight = tensor("w", [1000, 4000], bytes(4_000_000), 3)  # int8
    steps = [
        node("Cast", ["w"], ["f"], [attribute("to", 3, 1, 2)]),
        node("Mul", ["f", "scale"], ["m"]),
        node("Transpose", ["m"], ["t"]),
        node("MatMul", ["x", "t"], ["y"]),
    ]
    scale = tensor("scale", [], bytes(4))
    assert not folds_too_much(chain(*steps, initializers=[weight, scale]))


def answer(data: bytes) -> str:
    """Say how reading a model ends: nothing but a ModelError may come out."""
    try:
        formats.source_from_bytes(data)
    except ModelError:
        return "refused"
    return "read"


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_a_small_constant_may_be_cast_to_any_type_that_there_is(dtype: DType) -> None:
    there = node("Cast", ["k"], ["c"], [attribute("to", 3, dtype.onnx, 2)])
    back = node("Cast", ["c"], ["f"], [attribute("to", 3, 1, 2)])
    data = chain(there, back, node("Add", ["x", "f"], ["y"]), initializers=[ints("k", 1)])
    assert answer(data) == "read"


FOLLOWED = sorted(
    Growth.followed
    | {"ConstantOfShape", "Expand", "OneHot", "Pad", "RandomNormal", "Range", "ReduceProd"}
    | {"Resize", "Tile", "Upsample"}
)
KINDS = [(3, 99, 2), (4, b"a", 3), (8, -5, 7), (9, b"a", 8)]
ATTRIBUTES = [
    attribute(name, *kind) for name in ("to", "shape", "pads", "axis", "perm") for kind in KINDS
]


@pytest.mark.parametrize("op_type", FOLLOWED)
def test_attributes_and_constants_of_any_kind_end_in_a_model_or_a_model_error(op_type: str) -> None:
    """Reading is no check of operators: a runtime that has them says what is wrong with one."""
    floats = [struct.pack("<f", number) for number in (float("nan"), float("inf"))]
    constants = [*[tensor(f"f{i}", [1], data) for i, data in enumerate(floats)], ints("k", -1, 3)]
    names = ("f0", "f1", "k", "x")
    steps = [node(op_type, [a, b, a], ["r"]) for a in names for b in names]
    for content in ATTRIBUTES:
        steps += [node(op_type, given, ["r"], [content]) for given in ([], [""], ["k", "f0", "k"])]
    for step in steps:
        answer(chain(step, node("Neg", ["x"], ["y"]), initializers=constants))


def test_a_negative_size_hides_no_work_of_others() -> None:
    fill, shape = filled(2_500_000)
    steps = [node("Exp", [f"e{i}" if i else "a"], [f"e{i + 1}"]) for i in range(60)]
    less = node("RandomNormal", [], ["n"], [attribute("shape", 8, -(10**15), 7)])
    for others in ([], [less]):
        data = chain(*others, fill, *steps, UNUSED, initializers=[shape])
        assert verdict(data) == "refused"


@pytest.mark.parametrize(
    ("op_type", "others"),
    [
        ("DequantizeLinear", [(1280,)]),
        ("DequantizeLinear", [(1280,), (1280,)]),
        ("BatchNormalization", [(1280,)] * 4),
        ("ScatterElements", [(1280, 1, 1, 1)] * 2),
        ("ScatterND", [(1280, 1), (1280, 320, 1, 1)]),
    ],
)
def test_what_lies_along_one_axis_is_not_broadcast_over_the_others(
    op_type: str, others: list[tuple[int, ...]]
) -> None:
    weight = ((1280, 320, 1, 1), 32)  # broadcast with 1,280 along the last axis: 2 gigabytes
    names = ("w", *map(str, range(len(others))))
    found = folding.folded(
        NodeInfo(index=0, name="n", op_type=op_type, domain="", inputs=names, outputs=("y",)),
        [weight, *((shape, 32) for shape in others)],
        lambda name: None,
    )
    assert found.constant == weight
    assert found.nbytes == 1280 * 320 * 4


@pytest.mark.parametrize(
    ("op_type", "attributes", "shapes", "expected"),
    [
        ("Concat", {"axis": -1}, [(2, 3), (2, 5)], (2, 8)),
        ("Concat", {"axis": 0}, [(2, 3), (2, 5)], (16,)),  # does not fit: all elements
        ("Concat", {}, [(2, 3), (2, 5)], (16,)),
        ("Unsqueeze", {"axes": (0, -1)}, [(2, 3)], (1, 2, 3, 1)),
        ("Unsqueeze", {"axes": (0, 0)}, [(2, 3)], (2, 3)),  # not valid: as it was
        ("Conv", {"pads": (1, 1, 1, 1)}, [(2, 3, 8, 8), (4, 3, 3, 3)], (2, 4, 8, 8)),
        ("Conv", {"pads": (1,)}, [(2, 3, 8, 8), (4, 3, 3, 3)], (2, 4, 6, 6)),
        ("Conv", {"auto_pad": "SAME_UPPER"}, [(2, 3, 8, 8), (4, 3, 3, 3)], (2, 4, 8, 8)),
        ("Conv", {}, [(384,), (4, 3, 1, 1)], (512,)),  # 128 places, 4 channels
    ],
)
def test_shapes_of_computed_constants_are_those_of_the_operators(
    op_type: str,
    attributes: dict[str, Any],
    shapes: list[tuple[int, ...]],
    expected: tuple[int, ...],
) -> None:
    names = tuple(map(str, range(len(shapes))))
    made = NodeInfo(
        index=0, name="n", op_type=op_type, domain="", inputs=names, outputs=("y",),
        attributes=attributes,
    )  # fmt: skip
    found = folding.folded(made, [(shape, 32) for shape in shapes], lambda name: None)
    assert found.constant == (expected, 32)


def test_no_model_of_onnx_itself_folds_too_much() -> None:
    for path in sorted(ONNX_DATA.glob("*/*/*.onnx"))[::10]:
        assert not formats.open_source(path).folds_too_much, path


def test_ranges_of_unknown_length_and_empty_tensors_are_no_error() -> None:
    scalars = [tensor(name, [], bytes(8), INT64) for name in ("a", "b")]
    steps = [
        node("Range", ["a", "b", "b"], ["r"]),
        node("Gather", ["e", "r"], ["g"]),
        node("MatMul", ["a", "b"], ["m"]),
        node("Transpose", ["e"], ["t"], [attribute("perm", 8, 7, 7)]),
        node("Concat", ["e", "g"], ["c"]),
        node("Add", ["x", "c"], ["y"]),
    ]
    data = chain(*steps, initializers=[*scalars, tensor("e", [0, 3], b"")])
    assert not folds_too_much(data)
