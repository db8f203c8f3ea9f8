"""Element types: promotion of operands, types that the file gives, casts."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.values import FLOATS, Abstract, DType, TypeId, Value

_ORDER = (
    DType.BOOL, DType.UINT8, DType.INT8, DType.INT16, DType.UINT16, DType.INT32, DType.UINT32,
    DType.INT64, DType.UINT64, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64,
)  # fmt: skip


def common(g: Emitter, *operands: Any) -> list[Value]:
    """Promote operands to tensors of one dtype: numbers take that of the tensors beside them."""
    tensors = [operand for operand in operands if isinstance(operand, Value)]
    types = {operand.dtype for operand in tensors}
    if len(types) > 1:
        # A scalar tensor counts as a number: it does not widen a tensor that has axes.
        wide = {operand.dtype for operand in tensors if operand.rank != 0} or types
        floats = {dtype for dtype in types if dtype in FLOATS}
        if floats and not wide & FLOATS:
            wide = floats
        dtype = max(wide, key=lambda kind: _ORDER.index(kind) if kind in _ORDER else 99)
    elif types:
        (dtype,) = types
        if dtype not in FLOATS and any(isinstance(operand, float) for operand in operands):
            dtype = DType.FLOAT32
    else:
        dtype = DType.FLOAT32 if any(isinstance(i, float) for i in operands) else DType.INT64
    return [g.cast(operand, dtype) for operand in operands]


def result_type(g: Emitter, default: DType) -> DType:
    """Return the element type that the file gives for this node's result."""
    return g.result.dtype if isinstance(g.result, Abstract) else default


_SMALL = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})


def via_int32(g: Emitter, op_type: str, *inputs: Value, **attributes: Any) -> Value:
    """Emit an operator, in int32 for small integers: runtimes lack kernels for those."""
    dtype = inputs[0].dtype
    if dtype not in _SMALL:
        return g.node(op_type, *inputs, **attributes)
    wide = g.node(op_type, *(g.cast(value, DType.INT32) for value in inputs), **attributes)
    return g.cast(wide, dtype)


@primitive("Cast", "cast", "Cast_")
def cast(g: Emitter, x: Any, dst_type: Any = None) -> Value:
    dtype = type_of(g, dst_type)
    value = g.constant(x)
    if dtype is DType.BOOL and value.dtype in FLOATS:
        return g.node("Cast", value, dtype=dtype, to=dtype.onnx)
    if value.dtype in FLOATS and dtype in (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16):
        # As C does on the way of a CPU: through a wide integer, whose low bits stay.
        value = g.node("Cast", value, dtype=DType.INT32, to=DType.INT32.onnx)
    return g.cast(value, dtype)


def type_of(g: Emitter, given: Any) -> DType:
    """Return an element type given as an argument: MindSpore's number for it, or a type."""
    from engine_mindir.values import TYPE_IDS

    if isinstance(given, TypeId):
        return given.dtype
    if isinstance(given, Value):
        array = given.array()
        given = int(array) if array is not None and array.size == 1 else given
    if isinstance(given, int) and given in TYPE_IDS:
        return TYPE_IDS[given]
    if isinstance(g.result, Abstract):
        return g.result.dtype
    raise Unsupported(f"the element type {given!r} is not known")


@primitive("ToDtype")
def to_dtype(g: Emitter, x: Value, dtype: Any = None, *rest: Any) -> Value:
    return g.cast(x, type_of(g, dtype)) if dtype is not None else g.node("Identity", x)


@primitive("ToOther")
def to_other(g: Emitter, x: Value, other: Value, *rest: Any) -> Value:
    return g.cast(x, other.dtype)
