"""Arithmetic on Python's numbers and tuples, which graphs with open shapes compute sizes with."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.arithmetic import floor_div, floor_mod
from engine_mindir.primitives.casts import common, type_of
from engine_mindir.values import FLOATS, DType, Value, leaves


def _scalar(
    exact: Callable[[Any, Any], Any], op_type: str, *names: str, is_bool: bool = False
) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Any, y: Any) -> Any:
        x, y = _plain(x), _plain(y)
        if not isinstance(x, Value) and not isinstance(y, Value):
            return _computed(exact, x, y)
        left, right = common(g, x, y)
        if op_type == "FloorDiv":
            return floor_div(g, left, right)
        if op_type == "Mod":
            return floor_mod(g, left, right)
        if op_type == "TrueDiv":
            kind = left.dtype if left.dtype in FLOATS else DType.FLOAT32
            return g.node("Div", g.cast(left, kind), g.cast(right, kind), shape=())
        return g.node(op_type, left, right, dtype=DType.BOOL if is_bool else None, shape=())


def _computed(exact: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """Compute on two Python values. Raises Unsupported beyond MindSpore's int64."""
    numbers = isinstance(x, int | float) and isinstance(y, int | float)
    if exact in _ARITHMETIC and not numbers:  # a text times a million is one, too
        raise Unsupported(f"{type(x).__name__} and {type(y).__name__} to calculate with")
    try:
        if exact is operator.pow and isinstance(x, int) and abs(x) > 1 and y > 63:
            raise OverflowError("a power beyond int64")
        result = exact(x, y)
    except (ZeroDivisionError, TypeError, OverflowError) as error:
        raise Unsupported(f"{x!r} and {y!r}: {error}") from error
    if isinstance(result, int) and result.bit_length() > 64:
        raise Unsupported(f"{x!r} and {y!r}: beyond int64")
    return result


_ARITHMETIC = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow,
)  # fmt: skip


def _plain(value: Any) -> Any:
    """Return a constant tensor without axes as the number it is."""
    if isinstance(value, Value) and value.rank == 0:
        array = value.array()
        if array is not None:
            return array.item()
    return value


_scalar(operator.add, "Add", "ScalarAdd", "scalar_add")
_scalar(operator.sub, "Sub", "ScalarSub", "scalar_sub")
_scalar(operator.mul, "Mul", "ScalarMul", "scalar_mul")
_scalar(operator.truediv, "TrueDiv", "ScalarDiv", "scalar_div")
_scalar(operator.floordiv, "FloorDiv", "ScalarFloorDiv", "scalar_floordiv")
_scalar(operator.mod, "Mod", "ScalarMod", "scalar_mod")
_scalar(operator.pow, "Pow", "ScalarPow", "scalar_pow")
_scalar(max, "Max", "ScalarMax", "scalar_max")
_scalar(min, "Min", "ScalarMin", "scalar_min")
_scalar(operator.eq, "Equal", "ScalarEq", "scalar_eq", "string_eq", is_bool=True)
_scalar(operator.gt, "Greater", "ScalarGt", "scalar_gt", is_bool=True)
_scalar(operator.ge, "GreaterOrEqual", "ScalarGe", "scalar_ge", is_bool=True)
_scalar(operator.lt, "Less", "ScalarLt", "scalar_lt", is_bool=True)
_scalar(operator.le, "LessOrEqual", "ScalarLe", "scalar_le", is_bool=True)
_scalar(lambda a, b: bool(a and b), "And", "BoolAnd", "bool_and", is_bool=True)
_scalar(lambda a, b: bool(a or b), "Or", "BoolOr", "bool_or", is_bool=True)


@primitive("BoolNot", "bool_not")
def bool_not(g: Emitter, x: Any) -> Any:
    return g.node("Not", g.cast(x, DType.BOOL), shape=()) if isinstance(x, Value) else not x


@primitive("ScalarBool", "bool", "BoolCast")
def to_bool(g: Emitter, x: Any) -> Any:
    return g.cast(x, DType.BOOL) if isinstance(x, Value) else bool(x)


@primitive("ScalarUsub", "scalar_usub")
def negative(g: Emitter, x: Any) -> Any:
    return g.node("Neg", x, shape=()) if isinstance(x, Value) else -x


@primitive("ScalarUadd", "scalar_uadd")
def positive(g: Emitter, x: Any) -> Any:
    return x


@primitive("ScalarLog")
def scalar_log(g: Emitter, x: Any) -> Any:
    return g.node("Log", x, shape=()) if isinstance(x, Value) else math.log(x)


@primitive("ScalarCast")
def scalar_cast(g: Emitter, x: Any, dtype: Any = None) -> Any:
    kind = type_of(g, dtype)
    if isinstance(x, Value):
        return g.cast(x, kind)
    return float(x) if kind in FLOATS else bool(x) if kind is DType.BOOL else int(x)


@primitive("ScalarToTensor", "scalar_to_tensor", "ScalarToArray")
def scalar_to_tensor(g: Emitter, x: Any, dtype: Any = None) -> Value:
    return g.cast(g.constant(x), type_of(g, dtype)) if dtype is not None else g.constant(x)


@primitive("TensorToScalar", "ArrayToScalar", "array_to_scalar", "Item")
def tensor_to_scalar(g: Emitter, x: Any) -> Any:
    x = _plain(x)
    return g.reshape(x, ()) if isinstance(x, Value) and x.rank != 0 else x


@primitive("TupleToTensor", "ListToTensor", "SequenceToTensor", "TupleToArray", "tuple_to_array")
def tuple_to_tensor(g: Emitter, x: Any, dtype: Any = None) -> Value:
    if not isinstance(x, tuple):
        x = (x,)
    if not any(isinstance(leaf, Value) for leaf in leaves(x)):
        value = g.constant(x if x else ())
        return value if dtype is None else g.cast(value, type_of(g, dtype))
    tensors = common(g, *x)
    value = g.node("Concat", *(g.unsqueeze(tensor, (0,)) for tensor in tensors), axis=0)
    return value if dtype is None else g.cast(value, type_of(g, dtype))


@primitive("TensorToTuple", "TensorToList", "TensorToSequence")
def tensor_to_tuple(g: Emitter, x: Value) -> tuple[Any, ...]:
    array = x.array()
    if array is not None:
        g.bounded(array.size)
        return tuple(array.reshape(-1).tolist())
    if x.shape is None or len(x.shape) != 1 or x.shape[0] is None:
        raise Unsupported("a tuple of unknown length")
    return tuple(g.node("Gather", x, g.constant(at), axis=0, shape=()) for at in range(x.shape[0]))


@primitive("sequence_len", "SequenceLen", "tuple_len", "list_len", "Len", "array_len")
def length(g: Emitter, x: Any) -> Any:
    return len(x) if isinstance(x, tuple) else g.dim(x, 0)


@primitive("SequenceAdd", "tuple_add")
def sequence_add(g: Emitter, x: Any, y: Any) -> Any:
    return (*x, *y)


@primitive("SequenceMul")
def sequence_mul(g: Emitter, x: Any, y: Any) -> Any:
    if not isinstance(x, tuple) or not isinstance(y, int) or len(x) * y > 100_000:
        raise Unsupported("a tuple repeated a computed number of times")
    return x * y


@primitive("SequenceSlice", "sequence_slice")
def sequence_slice(g: Emitter, x: Any, start: Any, stop: Any, step: Any = 1) -> Any:
    if any(isinstance(item, Value) for item in (start, stop, step)) or not isinstance(x, tuple):
        raise Unsupported("a tuple cut at computed places")
    return x[start:stop:step]


@primitive("tuple_setitem", "TupleSetItem", "list_setitem", "SequenceSetItem")
def set_item(g: Emitter, x: Any, place: Any, value: Any) -> Any:
    if not isinstance(x, tuple) or not isinstance(place, int) or not -len(x) <= place < len(x):
        raise Unsupported("a computed place in a tuple")
    items = list(x)
    items[place] = value
    return tuple(items)


@primitive("ListAppend", "list_append")
def append(g: Emitter, x: Any, value: Any) -> Any:
    return (*x, value)


@primitive("InSequence", "in_sequence")
def in_sequence(g: Emitter, item: Any, items: Any) -> Any:
    if not isinstance(items, tuple):
        raise Unsupported("whether something is in what is no tuple")
    item, parts = _plain(item), [_plain(item) for item in items]
    known_ = [part for part in parts if not isinstance(part, Value)]
    if not isinstance(item, Value):
        if item in known_:
            return True
        # Numbers that are computed are sizes of axes, and none of those is below zero.
        if len(known_) == len(parts) or (isinstance(item, int) and item < 0):
            return False
    result: Any = None
    for part in parts:
        hit = g.node("Equal", *common(g, part, item), dtype=DType.BOOL, shape=())
        result = hit if result is None else g.node("Or", result, hit, shape=())
    return result


@primitive("not_in_sequence", "NotInSequence")
def not_in_sequence(g: Emitter, item: Any, items: Any) -> Any:
    return bool_not(g, in_sequence(g, item, items))


@primitive("is_", "Is")
def is_same(g: Emitter, x: Any, y: Any) -> Any:
    """Evaluate Python's `is`, for None and booleans."""
    x, y = _plain(x), _plain(y)
    if isinstance(x, Value) and isinstance(y, bool) and x.dtype is DType.BOOL:
        return g.node("Identity", x, shape=()) if y else g.node("Not", x, shape=())
    return x is y


@primitive("is_not", "IsNot")
def is_not(g: Emitter, x: Any, y: Any) -> Any:
    return bool_not(g, is_same(g, x, y))


@primitive("tuple_equal", "list_equal")
def tuple_equal(g: Emitter, x: Any, y: Any) -> Any:
    if len(x) != len(y):
        return False
    result: Any = True
    for left, right in zip(map(_plain, x), map(_plain, y), strict=True):
        if not isinstance(left, Value) and not isinstance(right, Value):
            if left != right:
                return False
            continue
        hit = g.node("Equal", *common(g, left, right), dtype=DType.BOOL, shape=())
        result = hit if result is True else g.node("And", result, hit, shape=())
    return result


_TEXT = 10_000  # characters of a text; joined with itself again and again it has no end


@primitive("JoinedStr")
def joined_text(g: Emitter, *parts: Any) -> str:
    """Return the text of an error that the source raises."""
    text = "".join(str(part) for part in parts if not isinstance(part, Value))
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} ..."


@primitive("make_range", "MakeRange")
def make_range(g: Emitter, *ends: Any) -> tuple[int, ...]:
    """Evaluate Python's range, of numbers that are known when the model is read."""
    plain = [_plain(end) for end in ends]
    if any(isinstance(end, Value) for end in plain):
        raise Unsupported("a range of a computed number of places")
    numbers = range(*plain)
    g.bounded(len(numbers))
    return tuple(numbers)
