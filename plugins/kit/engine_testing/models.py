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
from onnx import TensorProto

from engine.types import DType
from engine_testing.heavy_models import SLOW_STEPS as SLOW_STEPS
from engine_testing.heavy_models import SLOW_WIDTH as SLOW_WIDTH
from engine_testing.heavy_models import heavy as heavy
from engine_testing.heavy_models import slow as slow
from engine_testing.heavy_models import truncated as truncated
from engine_testing.heavy_models import waves as waves
from engine_testing.making import IR_VERSION as IR_VERSION
from engine_testing.making import OPSET as OPSET
from engine_testing.making import floats, graph, longs, text_name

FINE: npt.NDArray[np.float32] = (1 + np.arange(128) / 128 + 3 / 8192).astype(np.float32)
"""128 values from 1 to 2, exact in float32; bfloat16, TF32 and float16 lose 3/8192 of each."""


def affine(folder: Path) -> Path:
    """y = 2x + 1, x float32[batch, 3]; nodes "scale" (Mul) and "shift" (Add)."""
    text = """(float[batch, 3] x) => (float[batch, 3] y) {
        [scale] scaled = Mul (x, two)
        [shift] y = Add (scaled, one)
    }"""
    return graph(folder, "affine", text, {"two": floats([2]), "one": floats([1])})


def scalar(folder: Path) -> Path:
    """y = 2x + 1 with x and y of rank 0, float32[]."""
    text = """(float x) => (float y) {
        scaled = Mul (x, two)
        y = Add (scaled, one)
    }"""
    return graph(folder, "scalar", text, {"two": floats(2), "one": floats(1)})


def empty(folder: Path) -> Path:
    """x float32[0, 3] has no element: y = 2x is float32[0, 3], total = sum over axis 0, 3 zeros."""
    text = """(float[0, 3] x) => (float[0, 3] y, float[3] total) {
        y = Add (x, x)
        total = ReduceSum <keepdims = 0> (x, axes)
    }"""
    return graph(folder, "empty", text, {"axes": longs([0])})


def several(folder: Path) -> Path:
    """Inputs z, a, m and outputs y, b, x, in these orders, all float32[2, 3] but m, float32[3].

    y = z - a, b = a * m, x = z + m.
    """
    text = """(float[2, 3] z, float[2, 3] a, float[3] m)
        => (float[2, 3] y, float[2, 3] b, float[2, 3] x) {
        x = Add (z, m)
        b = Mul (a, m)
        y = Sub (z, a)
    }"""
    return graph(folder, "several", text)


def unread(folder: Path) -> Path:
    """y = x - z; inputs unread, x, z, all float32[3]: no node reads the first."""
    text = "(float[3] unread, float[3] x, float[3] z) => (float[3] y) { y = Sub (x, z) }"
    return graph(folder, "unread", text)


def shared_dims(folder: Path) -> Path:
    """y = left @ right; left float32[rows, common], right float32[common, columns]."""
    text = """(float[rows, common] left, float[common, columns] right) => (float[rows, columns] y) {
        y = MatMul (left, right)
    }"""
    return graph(folder, "shared_dims", text)


def doubled(folder: Path, dtype: DType = DType.FLOAT32) -> Path:
    """y = x + x with x of `dtype`, shape [n]; float16, float32, float64, int32 or int64."""
    kind = text_name(dtype)
    return graph(folder, f"doubled_{dtype}", f"({kind}[n] x) => ({kind}[n] y) {{ y = Add (x, x) }}")


def dense(folder: Path) -> Path:
    """y = x @ FINE as [32, 4], x float32[rows, 32]."""
    text = "(float[rows, 32] x) => (float[rows, 4] y) { y = MatMul (x, weight) }"
    return graph(folder, "dense", text, {"weight": FINE.reshape(32, 4)})


def meeting(folder: Path) -> Path:
    """y = x - s, s the sum of x over its rows, x float32[rows, 3]: no row is by itself."""
    text = """(float[rows, 3] x) => (float[rows, 3] y) {
        s = ReduceSum <keepdims = 1> (x, axes)
        y = Sub (x, s)
    }"""
    return graph(folder, "meeting", text, {"axes": longs([0])})


def polynomial(folder: Path) -> Path:
    """y = (0.1 x + 0.3) x + 0.7, x float32[n]; the constants are float32's nearest."""
    text = """(float[n] x) => (float[n] y) {
        ax = Mul (x, a)
        sum = Add (ax, b)
        product = Mul (sum, x)
        y = Add (product, c)
    }"""
    return graph(
        folder, "polynomial", text, {"a": floats([0.1]), "b": floats([0.3]), "c": floats([0.7])}
    )


def squares(folder: Path, dtype: DType = DType.FLOAT32) -> Path:
    """y = x * x + x with x of `dtype`, shape [n]."""
    kind = text_name(dtype)
    text = f"""({kind}[n] x) => ({kind}[n] y) {{
        square = Mul (x, x)
        y = Add (square, x)
    }}"""
    return graph(folder, f"squares_{dtype}", text)


def moved(folder: Path, dtype: DType = DType.FLOAT32) -> Path:
    """y = transpose(x) with x of any `dtype`, shape [2, 3]: every bit must arrive."""
    kind = text_name(dtype)
    text = f"({kind}[2, 3] x) => ({kind}[3, 2] y) {{ y = Transpose <perm = [1, 0]> (x) }}"
    return graph(folder, f"moved_{dtype}", text)


def turned(folder: Path, order: tuple[int, ...] = (2, 0, 1)) -> Path:
    """y = transpose(x, order), x float32[2, 3, 4]."""
    text = f"""(float[2, 3, 4] x) => (float[a, b, c] y) {{
        y = Transpose <perm = {[*order]}> (x)
    }}"""
    return graph(folder, f"turned_{''.join(map(str, order))}", text)


def negated(folder: Path) -> Path:
    """y = not x, x bool[n]."""
    return graph(folder, "negated", "(bool[n] x) => (bool[n] y) { y = Not (x) }")


def mixed_dtypes(folder: Path) -> Path:
    """Output y float32[n] = x as float32, is_big bool[n] = x > 2; x int64[n]."""
    text = """(int64[n] x) => (float[n] y, bool[n] is_big) {
        y = Cast <to = 1> (x)
        is_big = Greater (x, limit)
    }"""
    return graph(folder, "mixed_dtypes", text, {"limit": longs([2])})


def identity(folder: Path) -> Path:
    """y = x, float32[n]: an output that is an input."""
    return graph(folder, "identity", "(float[n] x) => (float[n] y) { y = Identity (x) }")


def twins(folder: Path) -> Path:
    """first = second = x + 1, float32[n]: two outputs that are one value."""
    text = """(float[n] x) => (float[n] first, float[n] second) {
        next = Add (x, one)
        first = Identity (next)
        second = Identity (next)
    }"""
    return graph(folder, "twins", text, {"one": floats([1])})


def constant(folder: Path) -> Path:
    """No input; y = [1, 2, 3], float32[3]."""
    text = "() => (float[3] y) { y = Identity (fixed) }"
    return graph(folder, "constant", text, {"fixed": floats([1, 2, 3])})


def nonzero(folder: Path) -> Path:
    """y int64[1, found] = the indices of the elements of x, float32[n], that are not 0."""
    return graph(folder, "nonzero", "(float[n] x) => (int64[1, found] y) { y = NonZero (x) }")


def no_batch(folder: Path) -> Path:
    """y[i, j] = x[j, i] + i, x float32[2, 3]: no axis is a batch."""
    text = """(float[2, 3] x) => (float[3, 2] y) {
        turned = Transpose <perm = [1, 0]> (x)
        y = Add (turned, rows)
    }"""
    return graph(folder, "no_batch", text, {"rows": floats([[0], [1], [2]])})


def foldable(folder: Path) -> Path:
    """y = 6x, x float32[n]; 4 nodes of which a runtime may fold two and drop one.

    The nodes are "two" (Constant), "six" (Mul of constants), "" (Mul, no name), "unused" (Neg).
    """
    text = """(float[n] x) => (float[n] y) {
        [two] two = Constant <value_floats = [2.0]> ()
        [six] six = Mul (two, three)
        y = Mul (x, six)
        [unused] never_read = Neg (x)
    }"""
    return graph(folder, "foldable", text, {"three": floats([3])})


def branch(folder: Path) -> Path:
    """y = 2x if flag else x - 1; flag bool[], x float32[n]. One node in the main graph."""
    text = """(bool flag, float[n] x) => (float[n] y) {
        [choose] y = If (flag) <
            then_branch = then_branch () => (float[n] y_then) { y_then = Add (x, x) },
            else_branch = else_branch () => (float[n] y_else) { y_else = Sub (x, one) }
        >
    }"""
    return graph(folder, "branch", text, {"one": floats([1])})


def sequences(folder: Path) -> Path:
    """Sequences go in and out: one = xs[at], longer = xs with one at its end.

    xs sequence of float32[n], each of its own length; at int64[].
    """
    text = """(seq(float[n]) xs, int64 at) => (float[?] one, seq(float[n]) longer) {
        one = SequenceAt (xs, at)
        longer = SequenceInsert (xs, one)
    }"""
    return graph(folder, "sequences", text)


def optionals(folder: Path) -> Path:
    """y = x where it is there and [-1] where not, there = whether it is; x optional float32[n]."""
    text = """(optional(float[n]) x) => (float[?] y, bool there) {
        there = OptionalHasElement (x)
        y = If (there) <
            then_branch = then_branch () => (float[?] y_then) { y_then = OptionalGetElement (x) },
            else_branch = else_branch () => (float[?] y_else) { y_else = Identity (nothing) }
        >
    }"""
    return graph(folder, "optionals", text, {"nothing": floats([-1])})


def vectorised(folder: Path) -> Path:
    """y float32[1, 3] = the numbers of the map x, str -> float32, under "a", "b", "c", else 0."""
    text = """(map(string, float) x) => (float[1, 3] y) {
        y = ai.onnx.ml.DictVectorizer <string_vocabulary = ["a", "b", "c"]> (x)
    }"""
    return graph(folder, "vectorised", text, domains={"ai.onnx.ml": 1})


def external(folder: Path) -> Path:
    """y = x + [0, 1, 2, ... 255], x float32[n, 256]; the constant is in external.bin."""
    text = "(float[n, 256] x) => (float[n, 256] y) { y = Add (x, ramp) }"
    path = graph(folder, "external", text, {"ramp": np.arange(256, dtype=np.float32)})
    (folder / "external.bin").unlink(missing_ok=True)  # onnx would write behind what is there
    model = onnx.load(path)
    onnx.external_data_helper.convert_model_to_external_data(
        model, location="external.bin", size_threshold=0
    )
    onnx.save_model(model, path)
    return path


def linked(folder: Path) -> Path:
    """y = x + a - b, x float32[n, 3], a of 5, b of 3; a.bin and b.bin are links into blobs/."""
    text = """(float[n, 3] x) => (float[n, 3] y) {
        difference = Sub (a, b)
        y = Add (x, difference)
    }"""
    path = graph(folder, "linked", text, {"a": floats([5, 5, 5]), "b": floats([3, 3, 3])})
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
    text = "(float[n] x) => (float[m, 2] y) { [pair_up] y = Reshape (x, shape) }"
    return graph(folder, "pairs", text, {"shape": longs([-1, 2])})


def mismatched(folder: Path) -> Path:
    """Well-formed, but wrong: MatMul of float32[2, 3] by float32[4, 5]. Node "multiply"."""
    text = "(float[2, 3] x) => (float[2, 5] y) { [multiply] y = MatMul (x, weight) }"
    return graph(folder, "mismatched", text, {"weight": np.ones((4, 5), np.float32)}, valid=False)


def around_unknown(folder: Path) -> Path:
    """y = relu(c - 1) + 2x with c = Frobnicate(4x), node 2, of domain "example.unknown".

    x float32[n]; 6 nodes, of which three come after the unknown one.
    """
    text = """(float[n] x) => (float[n] y) {
        twice = Add (x, x)
        b = Mul (twice, two)
        [odd_one] c = example.unknown.Frobnicate (b)
        less = Sub (c, one)
        above = Relu (less)
        y = Add (above, twice)
    }"""
    constants = {"two": floats([2]), "one": floats([1])}
    path = graph(folder, "around_unknown", text, constants, domains={"example.unknown": 1})
    model = onnx.load(path)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("c", TensorProto.FLOAT, ["n"]))
    onnx.save(model, path)
    return path


def unknown_operator(folder: Path) -> Path:
    """y = Frobnicate(2x), x float32[n]: node 1, "odd_one", is of domain "example.unknown"."""
    text = """(float[n] x) => (float[n] y) {
        [twice] twice = Add (x, x)
        [odd_one] y = example.unknown.Frobnicate (twice)
    }"""
    return graph(folder, "unknown_operator", text, domains={"example.unknown": 1})
