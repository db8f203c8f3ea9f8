"""Small ONNX models with known answers, for a backend's tests and the core's.

Each function writes one model into `folder`, which must exist, and returns its path. All are IR
version 8, opset 17 unless they say otherwise: every runtime here reads that. The docstrings give
the closed forms; `x`, `y` are the names in the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from engine.types import DType
from engine_testing.heavy_models import SLOW_STEPS as SLOW_STEPS
from engine_testing.heavy_models import SLOW_WIDTH as SLOW_WIDTH
from engine_testing.heavy_models import heavy as heavy
from engine_testing.heavy_models import slow as slow
from engine_testing.heavy_models import truncated as truncated
from engine_testing.making import IR_VERSION as IR_VERSION
from engine_testing.making import OPSET as OPSET
from engine_testing.making import floats, longs, tensor, write

FINE: npt.NDArray[np.float32] = (1 + np.arange(128) / 128 + 3 / 8192).astype(np.float32)
"""128 values from 1 to 2, exact in float32; bfloat16, TF32 and float16 lose 3/8192 of each."""


def affine(folder: Path) -> Path:
    """y = 2x + 1, x float32[batch, 3]; nodes "scale" (Mul) and "shift" (Add)."""
    return write(
        folder,
        "affine",
        [tensor("x", ["batch", 3])],
        [tensor("y", ["batch", 3])],
        [
            helper.make_node("Mul", ["x", "two"], ["scaled"], name="scale"),
            helper.make_node("Add", ["scaled", "one"], ["y"], name="shift"),
        ],
        {"two": floats([2]), "one": floats([1])},
    )


def scalar(folder: Path) -> Path:
    """y = 2x + 1 with x and y of rank 0, float32[]."""
    return write(
        folder,
        "scalar",
        [tensor("x", [])],
        [tensor("y", [])],
        [
            helper.make_node("Mul", ["x", "two"], ["scaled"]),
            helper.make_node("Add", ["scaled", "one"], ["y"]),
        ],
        {"two": floats(2), "one": floats(1)},
    )


def empty(folder: Path) -> Path:
    """x float32[0, 3] has no element: y = 2x is float32[0, 3], total = sum over axis 0, 3 zeros."""
    return write(
        folder,
        "empty",
        [tensor("x", [0, 3])],
        [tensor("y", [0, 3]), tensor("total", [3])],
        [
            helper.make_node("Add", ["x", "x"], ["y"]),
            helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
        ],
        {"axes": longs([0])},
    )


def several(folder: Path) -> Path:
    """Inputs z, a, m and outputs y, b, x, in these orders, all float32[2, 3] but m, float32[3].

    y = z - a, b = a * m, x = z + m.
    """
    return write(
        folder,
        "several",
        [tensor("z", [2, 3]), tensor("a", [2, 3]), tensor("m", [3])],
        [tensor("y", [2, 3]), tensor("b", [2, 3]), tensor("x", [2, 3])],
        [
            helper.make_node("Add", ["z", "m"], ["x"]),
            helper.make_node("Mul", ["a", "m"], ["b"]),
            helper.make_node("Sub", ["z", "a"], ["y"]),
        ],
    )


def unread(folder: Path) -> Path:
    """y = x - z; inputs unread, x, z, all float32[3]: no node reads the first."""
    return write(
        folder,
        "unread",
        [tensor("unread", [3]), tensor("x", [3]), tensor("z", [3])],
        [tensor("y", [3])],
        [helper.make_node("Sub", ["x", "z"], ["y"])],
    )


def shared_dims(folder: Path) -> Path:
    """y = left @ right; left float32[rows, common], right float32[common, columns]."""
    return write(
        folder,
        "shared_dims",
        [tensor("left", ["rows", "common"]), tensor("right", ["common", "columns"])],
        [tensor("y", ["rows", "columns"])],
        [helper.make_node("MatMul", ["left", "right"], ["y"])],
    )


def doubled(folder: Path, dtype: DType = DType.FLOAT32) -> Path:
    """y = x + x with x of `dtype`, shape [n]; float16, float32, float64, int32 or int64."""
    return write(
        folder,
        f"doubled_{dtype}",
        [tensor("x", ["n"], dtype)],
        [tensor("y", ["n"], dtype)],
        [helper.make_node("Add", ["x", "x"], ["y"])],
    )


def dense(folder: Path) -> Path:
    """y = x @ FINE as [32, 4], x float32[rows, 32]."""
    return write(
        folder,
        "dense",
        [tensor("x", ["rows", 32])],
        [tensor("y", ["rows", 4])],
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        {"weight": FINE.reshape(32, 4)},
    )


def polynomial(folder: Path) -> Path:
    """y = (0.1 x + 0.3) x + 0.7, x float32[n]; the constants are float32's nearest."""
    return write(
        folder,
        "polynomial",
        [tensor("x", ["n"])],
        [tensor("y", ["n"])],
        [
            helper.make_node("Mul", ["x", "a"], ["ax"]),
            helper.make_node("Add", ["ax", "b"], ["sum"]),
            helper.make_node("Mul", ["sum", "x"], ["product"]),
            helper.make_node("Add", ["product", "c"], ["y"]),
        ],
        {"a": floats([0.1]), "b": floats([0.3]), "c": floats([0.7])},
    )


def squares(folder: Path, dtype: DType = DType.FLOAT32) -> Path:
    """y = x * x + x with x of `dtype`, shape [n]."""
    return write(
        folder,
        f"squares_{dtype}",
        [tensor("x", ["n"], dtype)],
        [tensor("y", ["n"], dtype)],
        [
            helper.make_node("Mul", ["x", "x"], ["square"]),
            helper.make_node("Add", ["square", "x"], ["y"]),
        ],
    )


def moved(folder: Path, dtype: DType = DType.FLOAT32) -> Path:
    """y = transpose(x) with x of any `dtype`, shape [2, 3]: every bit must arrive."""
    return write(
        folder,
        f"moved_{dtype}",
        [tensor("x", [2, 3], dtype)],
        [tensor("y", [3, 2], dtype)],
        [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])],
    )


def negated(folder: Path) -> Path:
    """y = not x, x bool[n]."""
    return write(
        folder,
        "negated",
        [tensor("x", ["n"], DType.BOOL)],
        [tensor("y", ["n"], DType.BOOL)],
        [helper.make_node("Not", ["x"], ["y"])],
    )


def mixed_dtypes(folder: Path) -> Path:
    """Output y float32[n] = x as float32, is_big bool[n] = x > 2; x int64[n]."""
    return write(
        folder,
        "mixed_dtypes",
        [tensor("x", ["n"], DType.INT64)],
        [tensor("y", ["n"]), tensor("is_big", ["n"], DType.BOOL)],
        [
            helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT),
            helper.make_node("Greater", ["x", "limit"], ["is_big"]),
        ],
        {"limit": longs([2])},
    )


def identity(folder: Path) -> Path:
    """y = x, float32[n]: an output that is an input."""
    return write(
        folder,
        "identity",
        [tensor("x", ["n"])],
        [tensor("y", ["n"])],
        [helper.make_node("Identity", ["x"], ["y"])],
    )


def twins(folder: Path) -> Path:
    """first = second = x + 1, float32[n]: two outputs that are one value."""
    return write(
        folder,
        "twins",
        [tensor("x", ["n"])],
        [tensor("first", ["n"]), tensor("second", ["n"])],
        [
            helper.make_node("Add", ["x", "one"], ["next"]),
            helper.make_node("Identity", ["next"], ["first"]),
            helper.make_node("Identity", ["next"], ["second"]),
        ],
        {"one": floats([1])},
    )


def constant(folder: Path) -> Path:
    """No input; y = [1, 2, 3], float32[3]."""
    return write(
        folder,
        "constant",
        [],
        [tensor("y", [3])],
        [helper.make_node("Identity", ["fixed"], ["y"])],
        {"fixed": floats([1, 2, 3])},
    )


def nonzero(folder: Path) -> Path:
    """y int64[1, found] = the indices of the elements of x, float32[n], that are not 0."""
    return write(
        folder,
        "nonzero",
        [tensor("x", ["n"])],
        [tensor("y", [1, "found"], DType.INT64)],
        [helper.make_node("NonZero", ["x"], ["y"])],
    )


def no_batch(folder: Path) -> Path:
    """y[i, j] = x[j, i] + i, x float32[2, 3]: no axis is a batch."""
    return write(
        folder,
        "no_batch",
        [tensor("x", [2, 3])],
        [tensor("y", [3, 2])],
        [
            helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
            helper.make_node("Add", ["turned", "rows"], ["y"]),
        ],
        {"rows": floats([[0], [1], [2]])},
    )


def foldable(folder: Path) -> Path:
    """y = 6x, x float32[n]; 4 nodes of which a runtime may fold two and drop one.

    The nodes are "two" (Constant), "six" (Mul of constants), "" (Mul, no name), "unused" (Neg).
    """
    return write(
        folder,
        "foldable",
        [tensor("x", ["n"])],
        [tensor("y", ["n"])],
        [
            helper.make_node("Constant", [], ["two"], name="two", value_floats=[2.0]),
            helper.make_node("Mul", ["two", "three"], ["six"], name="six"),
            helper.make_node("Mul", ["x", "six"], ["y"]),
            helper.make_node("Neg", ["x"], ["never_read"], name="unused"),
        ],
        {"three": floats([3])},
    )


def branch(folder: Path) -> Path:
    """y = 2x if flag else x - 1; flag bool[], x float32[n]. One node in the main graph."""
    branches = {
        "then_branch": [helper.make_node("Add", ["x", "x"], ["y_then"])],
        "else_branch": [helper.make_node("Sub", ["x", "one"], ["y_else"])],
    }
    graphs = {
        key: helper.make_graph(nodes, key, [], [tensor(nodes[-1].output[0], ["n"])])
        for key, nodes in branches.items()
    }
    return write(
        folder,
        "branch",
        [tensor("flag", [], DType.BOOL), tensor("x", ["n"])],
        [tensor("y", ["n"])],
        [helper.make_node("If", ["flag"], ["y"], name="choose", **graphs)],
        {"one": floats([1])},
    )


def sequences(folder: Path) -> Path:
    """Sequences go in and out: one = xs[at], longer = xs with one at its end.

    xs sequence of float32[n], each of its own length; at int64[].
    """
    xs = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    return write(
        folder,
        "sequences",
        [helper.make_value_info("xs", xs), tensor("at", [], DType.INT64)],
        [tensor("one", [None]), helper.make_value_info("longer", xs)],
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
        key: helper.make_graph(nodes, key, [], [tensor(nodes[-1].output[0], [None])])
        for key, nodes in branches.items()
    }
    return write(
        folder,
        "optionals",
        [helper.make_value_info("x", kind)],
        [tensor("y", [None]), tensor("there", [], DType.BOOL)],
        [
            helper.make_node("OptionalHasElement", ["x"], ["there"]),
            helper.make_node("If", ["there"], ["y"], **graphs),
        ],
        {"nothing": floats([-1])},
    )


def vectorised(folder: Path) -> Path:
    """y float32[1, 3] = the numbers of the map x, str -> float32, under "a", "b", "c", else 0."""
    kind = onnx.TypeProto()
    kind.map_type.key_type = TensorProto.STRING
    kind.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    return write(
        folder,
        "vectorised",
        [helper.make_value_info("x", kind)],
        [tensor("y", [1, 3])],
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
    path = write(
        folder,
        "external",
        [tensor("x", ["n", 256])],
        [tensor("y", ["n", 256])],
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
    path = write(
        folder,
        "linked",
        [tensor("x", ["n", 3])],
        [tensor("y", ["n", 3])],
        [
            helper.make_node("Sub", ["a", "b"], ["difference"]),
            helper.make_node("Add", ["x", "difference"], ["y"]),
        ],
        {"a": np.full(3, 5, np.float32), "b": np.full(3, 3, np.float32)},
    )
    model = onnx.load(path)
    (folder / "blobs").mkdir()
    for weight in model.graph.initializer:
        (folder / "blobs" / weight.name).write_bytes(weight.raw_data)
        (folder / f"{weight.name}.bin").symlink_to(f"blobs/{weight.name}")
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=f"{weight.name}.bin")
    onnx.save(model, path)
    return path


def pairs(folder: Path) -> Path:
    """y float32[m, 2] = x, float32[n], as pairs: fails while it runs if n is odd."""
    return write(
        folder,
        "pairs",
        [tensor("x", ["n"])],
        [tensor("y", ["m", 2])],
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="pair_up")],
        {"shape": longs([-1, 2])},
    )


def mismatched(folder: Path) -> Path:
    """Well-formed, but wrong: MatMul of float32[2, 3] by float32[4, 5]. Node "multiply"."""
    return write(
        folder,
        "mismatched",
        [tensor("x", [2, 3])],
        [tensor("y", [2, 5])],
        [helper.make_node("MatMul", ["x", "weight"], ["y"], name="multiply")],
        {"weight": np.ones((4, 5), np.float32)},
        valid=False,
    )


def unknown_operator(folder: Path) -> Path:
    """y = Frobnicate(2x), x float32[n]: node 1, "odd_one", is of domain "example.unknown"."""
    return write(
        folder,
        "unknown_operator",
        [tensor("x", ["n"])],
        [tensor("y", ["n"])],
        [
            helper.make_node("Add", ["x", "x"], ["twice"], name="twice"),
            helper.make_node(
                "Frobnicate", ["twice"], ["y"], name="odd_one", domain="example.unknown"
            ),
        ],
        domains={"example.unknown": 1},
    )
