"""Primitives that pad."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_static
from engine_mindir.primitives.shapes import slice_axis
from engine_mindir.values import DType, Value


@primitive("Pad")
def pad(g: Emitter, x: Value, paddings: Any) -> Value:
    return pad_with(g, x, [tuple(map(int, pair)) for pair in pairs_of(paddings)], "constant", 0)


def pairs_of(paddings: Any) -> list[Any]:
    """Return paddings as a pair for each axis, whatever way they are given."""
    if isinstance(paddings, Value):
        array = paddings.array()
        if array is None:
            raise Unsupported("computed paddings")
        return array.reshape(-1, 2).tolist()
    if paddings and not isinstance(paddings[0], tuple):
        return [paddings[start : start + 2] for start in range(0, len(paddings), 2)]
    return list(paddings)


def pad_with(g: Emitter, x: Value, pairs: Any, mode: str, value: Any) -> Value:
    """Emit Pad in one of ONNX's modes."""
    starts, ends = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    fill = g.scalar(value, x.dtype) if mode == "constant" else None
    work = g.cast(x, DType.UINT8) if x.dtype is DType.BOOL else x
    if fill is not None:
        fill = g.cast(fill, work.dtype)
    shape = None
    if x.shape is not None and all(isinstance(start, int) for start in (*starts, *ends)):
        sides = zip(x.shape, starts, ends, strict=True)
        shape = tuple(None if d is None else d + before + after for d, before, after in sides)
    y = g.node("Pad", work, g.ints((*starts, *ends)), fill, mode=mode, shape=shape)
    return g.cast(y, x.dtype)


@primitive("PadV2")
def pad_v2(g: Emitter, x: Value, paddings: Any, constant_values: Any = 0) -> Value:
    return pad_with(g, x, pairs_of(paddings), "constant", constant_values)


@primitive("MirrorPad")
def mirror_pad(g: Emitter, x: Value, paddings: Any, *, mode: str = "REFLECT") -> Value:
    pairs = pairs_of(paddings)
    if mode.upper() == "REFLECT":
        return pad_with(g, x, pairs, "reflect", None)
    for axis, (before, after) in enumerate(pairs):  # the edge itself is mirrored too
        parts = []
        if before:
            parts.append(slice_axis(g, x, before - 1, None, axis, -1))
        parts.append(x)
        if after:
            parts.append(slice_axis(g, x, -1, -after - 1, axis, -1))
        if len(parts) > 1:
            x = g.node("Concat", *parts, axis=axis)
    return x


@primitive("PadV3")
def pad_v3(
    g: Emitter,
    x: Value,
    paddings: Any,
    constant_value: Any = None,
    *,
    mode: str = "constant",
    paddings_contiguous: bool = True,
) -> Value:
    """Pad. paddings: pairs, the last axis first; not contiguous: all starts and then all ends."""
    rank = g.rank(x)
    flat = as_static(paddings)
    if isinstance(flat, Value):
        if flat.shape is None or len(flat.shape) != 1 or flat.shape[0] is None:
            raise Unsupported("paddings of unknown number")
        flat = tuple(
            g.node("Gather", flat, g.constant(position), axis=0, shape=())
            for position in range(flat.shape[0])
        )
    count = len(flat) // 2
    pairs: list[Any] = [(flat[2 * position], flat[2 * position + 1]) for position in range(count)]
    if not paddings_contiguous:
        pairs = [(flat[position], flat[position + count]) for position in range(count)]
    full: list[Any] = [(0, 0)] * (rank - count) + pairs[::-1]
    names = {"constant": "constant", "reflect": "reflect", "edge": "edge", "circular": "wrap"}
    return pad_with(g, x, full, names[mode], 0 if constant_value is None else constant_value)


def _pad_mode(mode: str, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Value, padding: Any) -> Value:
        return pad_v3(g, x, padding, None, mode=mode)


_pad_mode("reflect", "ReflectionPad1D", "ReflectionPad2D", "ReflectionPad3D")


_pad_mode("edge", "ReplicationPad1D", "ReplicationPad2D", "ReplicationPad3D")


@primitive("ConstantPadND")
def constant_pad(g: Emitter, x: Value, padding: Any, value: Any = 0) -> Value:
    return pad_v3(g, x, padding, value)
