"""Small ONNX models with known answers, for a backend's tests and the core's.

Each function writes one model into `folder`, which must exist, and returns its path. All are IR
version 8, opset 17 unless they say otherwise: every runtime here reads that. The docstrings give
the closed forms; `x`, `y` are the names in the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from engine.types import Dim, DType

IR_VERSION = 8
OPSET = 17
SLOW_STEPS = 32
SLOW_WIDTH = 256
FINE: npt.NDArray[np.float32] = (1 + np.arange(128) / 128 + 3 / 8192).astype(np.float32)
"""128 values from 1 to 2, exact in float32; bfloat16, TF32 and float16 lose 3/8192 of each."""

Shape = Sequence[Dim]


def affine(folder: Path) -> Path:
    """y = 2x + 1, x float32[batch, 3]; nodes "scale" (Mul) and "shift" (Add)."""
    return _write(
        folder,
        "affine",
        [_value("x", ["batch", 3])],
        [_value("y", ["batch", 3])],
        [
            helper.make_node("Mul", ["x", "two"], ["scaled"], name="scale"),
            helper.make_node("Add", ["scaled", "one"], ["y"], name="shift"),
        ],
        {"two": _floats([2]), "one": _floats([1])},
    )


def scalar(folder: Path) -> Path:
    """y = 2x + 1 with x and y of rank 0, float32[]."""
    return _write(
        folder,
        "scalar",
        [_value("x", [])],
        [_value("y", [])],
        [
            helper.make_node("Mul", ["x", "two"], ["scaled"]),
            helper.make_node("Add", ["scaled", "one"], ["y"]),
        ],
        {"two": _floats(2), "one": _floats(1)},
    )


def empty(folder: Path) -> Path:
    """x float32[0, 3] has no element: y = 2x is float32[0, 3], total = sum over axis 0, 3 zeros."""
    return _write(
        folder,
        "empty",
        [_value("x", [0, 3])],
        [_value("y", [0, 3]), _value("total", [3])],
        [
            helper.make_node("Add", ["x", "x"], ["y"]),
            helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
        ],
        {"axes": _longs([0])},
    )


def several(folder: Path) -> Path:
    """Inputs z, a, m and outputs y, b, x, in these orders, all float32[2, 3] but m, float32[3].

    y = z - a, b = a * m, x = z + m.
    """
    return _write(
        folder,
        "several",
        [_value("z", [2, 3]), _value("a", [2, 3]), _value("m", [3])],
        [_value("y", [2, 3]), _value("b", [2, 3]), _value("x", [2, 3])],
        [
            helper.make_node("Add", ["z", "m"], ["x"]),
            helper.make_node("Mul", ["a", "m"], ["b"]),
            helper.make_node("Sub", ["z", "a"], ["y"]),
        ],
    )


def unread(folder: Path) -> Path:
    """y = x - z; inputs unread, x, z, all float32[3]: no node reads the first."""
    return _write(
        folder,
        "unread",
        [_value("unread", [3]), _value("x", [3]), _value("z", [3])],
        [_value("y", [3])],
        [helper.make_node("Sub", ["x", "z"], ["y"])],
    )


def shared_dims(folder: Path) -> Path:
    """y = left @ right; left float32[rows, common], right float32[common, columns]."""
    return _write(
        folder,
        "shared_dims",
        [_value("left", ["rows", "common"]), _value("right", ["common", "columns"])],
        [_value("y", ["rows", "columns"])],
        [helper.make_node("MatMul", ["left", "right"], ["y"])],
    )


def doubled(folder: Path, dtype: DType = DType.FLOAT32) -> Path:
    """y = x + x with x of `dtype`, shape [n]; float16, float32, float64, int32 or int64."""
    return _write(
        folder,
        f"doubled_{dtype}",
        [_value("x", ["n"], dtype)],
        [_value("y", ["n"], dtype)],
        [helper.make_node("Add", ["x", "x"], ["y"])],
    )


def dense(folder: Path) -> Path:
    """y = x @ FINE as [32, 4], x float32[rows, 32]."""
    return _write(
        folder,
        "dense",
        [_value("x", ["rows", 32])],
        [_value("y", ["rows", 4])],
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        {"weight": FINE.reshape(32, 4)},
    )


def polynomial(folder: Path) -> Path:
    """y = (0.1 x + 0.3) x + 0.7, x float32[n]; the constants are float32's nearest."""
    return _write(
        folder,
        "polynomial",
        [_value("x", ["n"])],
        [_value("y", ["n"])],
        [
            helper.make_node("Mul", ["x", "a"], ["ax"]),
            helper.make_node("Add", ["ax", "b"], ["sum"]),
            helper.make_node("Mul", ["sum", "x"], ["product"]),
            helper.make_node("Add", ["product", "c"], ["y"]),
        ],
        {"a": _floats([0.1]), "b": _floats([0.3]), "c": _floats([0.7])},
    )


def squares(folder: Path, dtype: DType = DType.FLOAT32) -> Path:
    """y = x * x + x with x of `dtype`, shape [n]."""
    return _write(
        folder,
        f"squares_{dtype}",
        [_value("x", ["n"], dtype)],
        [_value("y", ["n"], dtype)],
        [
            helper.make_node("Mul", ["x", "x"], ["square"]),
            helper.make_node("Add", ["square", "x"], ["y"]),
        ],
    )


def moved(folder: Path, dtype: DType = DType.FLOAT32) -> Path:
    """y = transpose(x) with x of any `dtype`, shape [2, 3]: every bit must arrive."""
    return _write(
        folder,
        f"moved_{dtype}",
        [_value("x", [2, 3], dtype)],
        [_value("y", [3, 2], dtype)],
        [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])],
    )


def negated(folder: Path) -> Path:
    """y = not x, x bool[n]."""
    return _write(
        folder,
        "negated",
        [_value("x", ["n"], DType.BOOL)],
        [_value("y", ["n"], DType.BOOL)],
        [helper.make_node("Not", ["x"], ["y"])],
    )


def mixed_dtypes(folder: Path) -> Path:
    """Output y float32[n] = x as float32, is_big bool[n] = x > 2; x int64[n]."""
    return _write(
        folder,
        "mixed_dtypes",
        [_value("x", ["n"], DType.INT64)],
        [_value("y", ["n"]), _value("is_big", ["n"], DType.BOOL)],
        [
            helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT),
            helper.make_node("Greater", ["x", "limit"], ["is_big"]),
        ],
        {"limit": _longs([2])},
    )


def identity(folder: Path) -> Path:
    """y = x, float32[n]: an output that is an input."""
    return _write(
        folder,
        "identity",
        [_value("x", ["n"])],
        [_value("y", ["n"])],
        [helper.make_node("Identity", ["x"], ["y"])],
    )


def twins(folder: Path) -> Path:
    """first = second = x + 1, float32[n]: two outputs that are one value."""
    return _write(
        folder,
        "twins",
        [_value("x", ["n"])],
        [_value("first", ["n"]), _value("second", ["n"])],
        [
            helper.make_node("Add", ["x", "one"], ["next"]),
            helper.make_node("Identity", ["next"], ["first"]),
            helper.make_node("Identity", ["next"], ["second"]),
        ],
        {"one": _floats([1])},
    )


def constant(folder: Path) -> Path:
    """No input; y = [1, 2, 3], float32[3]."""
    return _write(
        folder,
        "constant",
        [],
        [_value("y", [3])],
        [helper.make_node("Identity", ["fixed"], ["y"])],
        {"fixed": _floats([1, 2, 3])},
    )


def nonzero(folder: Path) -> Path:
    """y int64[1, found] = the indices of the elements of x, float32[n], that are not 0."""
    return _write(
        folder,
        "nonzero",
        [_value("x", ["n"])],
        [_value("y", [1, "found"], DType.INT64)],
        [helper.make_node("NonZero", ["x"], ["y"])],
    )


def no_batch(folder: Path) -> Path:
    """y[i, j] = x[j, i] + i, x float32[2, 3]: no axis is a batch."""
    return _write(
        folder,
        "no_batch",
        [_value("x", [2, 3])],
        [_value("y", [3, 2])],
        [
            helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
            helper.make_node("Add", ["turned", "rows"], ["y"]),
        ],
        {"rows": _floats([[0], [1], [2]])},
    )


def foldable(folder: Path) -> Path:
    """y = 6x, x float32[n]; 4 nodes of which a runtime may fold two and drop one.

    The nodes are "two" (Constant), "six" (Mul of constants), "" (Mul, no name), "unused" (Neg).
    """
    return _write(
        folder,
        "foldable",
        [_value("x", ["n"])],
        [_value("y", ["n"])],
        [
            helper.make_node("Constant", [], ["two"], name="two", value_floats=[2.0]),
            helper.make_node("Mul", ["two", "three"], ["six"], name="six"),
            helper.make_node("Mul", ["x", "six"], ["y"]),
            helper.make_node("Neg", ["x"], ["never_read"], name="unused"),
        ],
        {"three": _floats([3])},
    )


def branch(folder: Path) -> Path:
    """y = 2x if flag else x - 1; flag bool[], x float32[n]. One node in the main graph."""
    branches = {
        "then_branch": [helper.make_node("Add", ["x", "x"], ["y_then"])],
        "else_branch": [helper.make_node("Sub", ["x", "one"], ["y_else"])],
    }
    graphs = {
        key: helper.make_graph(nodes, key, [], [_value(nodes[-1].output[0], ["n"])])
        for key, nodes in branches.items()
    }
    return _write(
        folder,
        "branch",
        [_value("flag", [], DType.BOOL), _value("x", ["n"])],
        [_value("y", ["n"])],
        [helper.make_node("If", ["flag"], ["y"], name="choose", **graphs)],
        {"one": _floats([1])},
    )


def sequences(folder: Path) -> Path:
    """Sequences go in and out: one = xs[at], longer = xs with one at its end.

    xs sequence of float32[n], each of its own length; at int64[].
    """
    xs = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    return _write(
        folder,
        "sequences",
        [helper.make_value_info("xs", xs), _value("at", [], DType.INT64)],
        [_value("one", [None]), helper.make_value_info("longer", xs)],
        [
            helper.make_node("SequenceAt", ["xs", "at"], ["one"]),
            helper.make_node("SequenceInsert", ["xs", "one"], ["longer"]),
        ],
    )


def optionals(folder: Path) -> Path:
    """y = x where it is there and [-1] where not, there = whether it is; x optional float32[n]."""
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    branches = {
        "then_branch": [helper.make_node("OptionalGetElement", ["x"], ["y_then"])],
        "else_branch": [helper.make_node("Identity", ["nothing"], ["y_else"])],
    }
    graphs = {
        key: helper.make_graph(nodes, key, [], [_value(nodes[-1].output[0], [None])])
        for key, nodes in branches.items()
    }
    return _write(
        folder,
        "optionals",
        [helper.make_value_info("x", kind)],
        [_value("y", [None]), _value("there", [], DType.BOOL)],
        [
            helper.make_node("OptionalHasElement", ["x"], ["there"]),
            helper.make_node("If", ["there"], ["y"], **graphs),
        ],
        {"nothing": _floats([-1])},
    )


def vectorised(folder: Path) -> Path:
    """y float32[1, 3] = the numbers of the map x, str -> float32, under "a", "b", "c", else 0."""
    kind = onnx.TypeProto()
    kind.map_type.key_type = TensorProto.STRING
    kind.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    return _write(
        folder,
        "vectorised",
        [helper.make_value_info("x", kind)],
        [_value("y", [1, 3])],
        [
            helper.make_node(
                "DictVectorizer",
                ["x"],
                ["y"],
                domain="ai.onnx.ml",
                string_vocabulary=["a", "b", "c"],
            )
        ],
        domains={"ai.onnx.ml": 1},
    )


def external(folder: Path) -> Path:
    """y = x + [0, 1, 2, ... 255], x float32[n, 256]; the constant is in external.bin."""
    path = _write(
        folder,
        "external",
        [_value("x", ["n", 256])],
        [_value("y", ["n", 256])],
        [helper.make_node("Add", ["x", "ramp"], ["y"])],
        {"ramp": np.arange(256, dtype=np.float32)},
    )
    (folder / "external.bin").unlink(missing_ok=True)  # onnx would write behind what is there
    onnx.save_model(
        onnx.load(path),
        path,
        save_as_external_data=True,
        location="external.bin",
        size_threshold=0,
    )
    return path


def linked(folder: Path) -> Path:
    """y = x + a - b, x float32[n, 3], a of 5, b of 3; a.bin and b.bin are links into blobs/."""
    path = _write(
        folder,
        "linked",
        [_value("x", ["n", 3])],
        [_value("y", ["n", 3])],
        [
            helper.make_node("Sub", ["a", "b"], ["difference"]),
            helper.make_node("Add", ["x", "difference"], ["y"]),
        ],
        {"a": np.full(3, 5, np.float32), "b": np.full(3, 3, np.float32)},
    )
    model = onnx.load(path)
    (folder / "blobs").mkdir()
    for tensor in model.graph.initializer:
        (folder / "blobs" / tensor.name).write_bytes(tensor.raw_data)
        (folder / f"{tensor.name}.bin").symlink_to(f"blobs/{tensor.name}")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"{tensor.name}.bin")
    onnx.save(model, path)
    return path


def heavy(folder: Path) -> Path:
    """y = x @ identity, x float32[n, 1024]: 4 MiB of weights."""
    return _write(
        folder,
        "heavy",
        [_value("x", ["n", 1024])],
        [_value("y", ["n", 1024])],
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        {"weight": np.eye(1024, dtype=np.float32)},
    )


def slow(folder: Path) -> Path:
    """y = relu(x) rolled by SLOW_STEPS along axis 1, x float32[rows, SLOW_WIDTH].

    SLOW_STEPS pairs of MatMul and Relu, each 2 * rows * SLOW_WIDTH ** 2 operations: `rows` sets
    how long a predict takes, and between two nodes there is always a place to stop.
    """
    names = ["x", *(f"step_{step}" for step in range(1, SLOW_STEPS)), "y"]
    nodes: list[NodeProto] = []
    for before, after in itertools.pairwise(names):
        nodes.append(helper.make_node("MatMul", [before, "roll"], [f"{after}_moved"]))
        nodes.append(helper.make_node("Relu", [f"{after}_moved"], [after]))
    return _write(
        folder,
        "slow",
        [_value("x", ["rows", SLOW_WIDTH])],
        [_value("y", ["rows", SLOW_WIDTH])],
        nodes,
        {"roll": np.roll(np.eye(SLOW_WIDTH, dtype=np.float32), 1, axis=1)},
    )


def pairs(folder: Path) -> Path:
    """y float32[m, 2] = x, float32[n], as pairs: fails while it runs if n is odd."""
    return _write(
        folder,
        "pairs",
        [_value("x", ["n"])],
        [_value("y", ["m", 2])],
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="pair_up")],
        {"shape": _longs([-1, 2])},
    )


def truncated(folder: Path) -> Path:
    """The first half of `heavy`'s bytes: no runtime can read it."""
    path = heavy(folder)
    whole = path.read_bytes()
    broken = folder / "truncated.onnx"
    broken.write_bytes(whole[: len(whole) // 2])
    return broken


def mismatched(folder: Path) -> Path:
    """Well-formed, but wrong: MatMul of float32[2, 3] by float32[4, 5]. Node "multiply"."""
    return _write(
        folder,
        "mismatched",
        [_value("x", [2, 3])],
        [_value("y", [2, 5])],
        [helper.make_node("MatMul", ["x", "weight"], ["y"], name="multiply")],
        {"weight": np.ones((4, 5), np.float32)},
        valid=False,
    )


def unknown_operator(folder: Path) -> Path:
    """y = Frobnicate(2x), x float32[n]: node 1, "odd_one", is of domain "example.unknown"."""
    return _write(
        folder,
        "unknown_operator",
        [_value("x", ["n"])],
        [_value("y", ["n"])],
        [
            helper.make_node("Add", ["x", "x"], ["twice"], name="twice"),
            helper.make_node(
                "Frobnicate", ["twice"], ["y"], name="odd_one", domain="example.unknown"
            ),
        ],
        domains={"example.unknown": 1},
    )


# ---------------------------------------------------------------------------------------- making


def _value(name: str, shape: Shape, dtype: DType = DType.FLOAT32) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype.onnx, list(shape))


def _floats(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def _longs(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def _write(
    folder: Path,
    name: str,
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    nodes: Sequence[NodeProto],
    constants: dict[str, npt.NDArray[Any]] | None = None,
    *,
    domains: dict[str, int] | None = None,
    valid: bool = True,
) -> Path:
    initializers = [numpy_helper.from_array(value, key) for key, value in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), initializers)
    opsets = [helper.make_opsetid(key, number) for key, number in (domains or {}).items()]
    model = helper.make_model(
        graph,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET), *opsets],
        producer_name="engine_testing",
    )
    if valid:
        onnx.checker.check_model(model, full_check=True)
    path = folder / f"{name}.onnx"
    onnx.save_model(model, path)
    return path
