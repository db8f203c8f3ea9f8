"""Operators that treat every element alike, with broadcasting."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from engine.layouts.batch.node import Node, only_data, require
from engine.layouts.batch.sizes import Dim, Size, Symbols, lowest, quotient
from engine.layouts.batch.values import (
    MOST_ELEMENTS,
    TAINTED,
    UNKNOWN,
    Elements,
    Kind,
    Mixes,
    Shape,
    Value,
    computed,
    divided,
    is_dim,
    is_tainted,
    whole,
)

_INTEGERS = frozenset(
    (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8,
     TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
)  # fmt: skip
_WIDE = frozenset((TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64))
_UNSIGNED = frozenset(
    (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
)
_BITS: dict[int, int] = {
    TensorProto.INT8: 7, TensorProto.INT16: 15, TensorProto.INT32: 31, TensorProto.INT64: 63,
    TensorProto.UINT8: 8, TensorProto.UINT16: 16, TensorProto.UINT32: 32, TensorProto.UINT64: 64,
}  # fmt: skip


def elementwise(node: Node) -> list[Value]:
    """All inputs divided along the same axis of the result; others have size 1 there."""
    values = node.given
    if node.op_type == "CastLike":
        values = values[:1]
    known = _computed(node, values)
    if known is not None:
        return [known]
    if all(value.kind in (Kind.WHOLE, Kind.DIVIDED) for value in values):
        return [broadcast(values, node.symbols)] * node.count
    if any(value.is_divided for value in values):
        only_data(values)
    if node.op_type == "Identity":
        return [values[0]]
    if node.op_type in ("Cast", "CastLike") and values[0].kind is not Kind.SIZES:
        to = int(node.attributes.get("to", 0))
        if to in _WIDE:  # narrower ones do not count every batch
            return [values[0]]
    # Nothing is known of its elements but how many there are.
    return [Value(Kind.SIZES, joint_shape([value.dims for value in values], node.symbols))]


def broadcast(values: Sequence[Value], symbols: Symbols) -> Value:
    """Return the form of what data of several tensors is combined to, element by element."""
    if not any(value.is_divided for value in values):
        if any(value.shape is None for value in values):
            return whole()
        return whole(joint_shape([value.dims for value in values], symbols))
    rank = max(value.rank for value in values)
    axes = {value.axis + rank - value.rank for value in values if value.is_divided}
    require(len(axes) == 1, "the samples lie along different axes of its inputs")
    [axis] = axes
    sizes = {value.size for value in values if value.is_divided}
    require(len(sizes) == 1, "its inputs have different sizes along the batch")
    for value in values:
        place = axis - (rank - value.rank)
        if value.is_whole and place >= 0 and value.dims[place] != 1:
            raise Mixes("an input that is the same for every sample has the batch's axis")
    return divided(axis, joint_shape([value.dims for value in values], symbols))


def joint_shape(shapes: Sequence[Shape], symbols: Symbols) -> Shape:
    """Return the shape of what tensors are broadcast to. Raises Mixes where none is."""
    rank = max(map(len, shapes), default=0)
    made: list[Dim] = []
    for place in range(rank, 0, -1):
        size: Dim = 1
        for shape in shapes:
            if place <= len(shape):
                size = joint(size, shape[-place], symbols)
        made.append(size)
    return tuple(made)


def joint(one: Dim, other: Dim, symbols: Symbols) -> Dim:
    """Return the size that two sizes of one axis are broadcast to."""
    if one == other or other == 1:
        return one
    if one == 1:
        return other
    if isinstance(one, int):
        one, other = other, one
    if isinstance(one, int):
        raise Mixes(f"sizes {one} and {other} do not go together")
    if isinstance(other, int):
        require(not one.depends, "the batch meets another axis")
        return other
    require(not one.depends and not other.depends, "the batch meets another axis")
    return symbols.broadcast(one, other)


# ------------------------------------------------------------------------------ known elements


def _computed(node: Node, values: Sequence[Value]) -> Value | None:
    """Return the result where the elements of all inputs are known one by one."""
    function = _FUNCTIONS.get(node.op_type)
    if function is None or any(value.elements is None for value in values):
        return None
    arrays = [value.elements for value in values if value.elements is not None]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if int(np.prod(shape)) > MOST_ELEMENTS:
        return None
    made = np.empty(shape, object)
    broadcasts = [np.broadcast_to(array, shape) for array in arrays]
    to = values[0].dtype if node.op_type not in ("Cast", "Where") else values[-1].dtype
    if node.op_type == "Cast":
        to = int(node.attributes["to"])
    elif node.op_type in _COMPARISONS:
        to = TensorProto.BOOL
    for place in np.ndindex(shape):
        made[place] = _element(node, function, [array[place] for array in broadcasts], to)
    return computed(made, to)


def _element(node: Node, function: Callable[..., Any], items: list[Any], to: int) -> Any:
    if node.op_type == "Where":
        condition, *choices = items
        if isinstance(condition, bool):
            return choices[0] if condition else choices[1]
        if all(map(is_dim, choices)) and choices[0] == choices[1]:
            return choices[0]
        return TAINTED if any(map(is_tainted, items)) else UNKNOWN
    tainted = any(map(is_tainted, items))
    if any(item is UNKNOWN or item is TAINTED for item in items):
        return TAINTED if tainted else UNKNOWN
    found = function(*items, to) if node.op_type == "Cast" else function(*items)
    is_counted = to in _WIDE and node.op_type != "Cast" and not tainted
    # A symbol is 0 or more, and so are these where what they are made of is.
    if found is None and is_counted and all(_is_less(item, 0) is False for item in items):
        found = node.symbols.of(node.op_type, *items)
    if found is None or not _fits(found, to):
        return TAINTED if tainted else UNKNOWN
    return found


def _fits(element: Any, to: int) -> bool:
    """Return whether a result is the one that arithmetic in its type gives, and does not wrap."""
    if not is_dim(element):
        return True
    bits = _BITS.get(to)
    if bits is None:
        return False
    is_signed = to not in _UNSIGNED
    if not isinstance(element, Size):
        return bool((-(1 << bits) if is_signed else 0) <= element < 1 << bits)
    if to not in _WIDE or not (is_signed or _is_less(element, 0) is False):
        return False
    # A quarter of the bits is for the sizes that the factors are multiplied by.
    return all(abs(factor) < 1 << bits * 3 // 4 for factor in element.terms.values())


def _of_integers(function: Callable[..., Any]) -> Callable[..., Any]:
    def applied(*items: Any) -> Any:
        return function(*items) if all(map(is_dim, items)) else None

    return applied


def _divided(one: Dim, other: Dim) -> Dim | None:
    if isinstance(one, int) and isinstance(other, int):
        if not other:
            return None
        whole_part = abs(one) // abs(other)
        return whole_part if (one < 0) == (other < 0) else -whole_part
    return quotient(one, other)


def _remainder(one: Dim, other: Dim) -> Dim | None:
    if isinstance(one, int) and isinstance(other, int):
        return one % other if other > 0 and one >= 0 else None
    return 0 if quotient(one, other) is not None else None


def _is_less(one: Any, other: Any) -> bool | None:
    """Return whether one is less whatever the sizes are; None where that depends on them."""
    if not (is_dim(one) and is_dim(other)):
        return None
    more = lowest(other - one)
    if more is not None and more > 0:
        return True
    less = lowest(one - other)
    return False if less is not None and less >= 0 else None


def _is_equal(one: Any, other: Any) -> bool | None:
    if isinstance(one, bool) and isinstance(other, bool):
        return one == other
    if not (is_dim(one) and is_dim(other)):
        return None
    if one == other:
        return True
    apart = [lowest(one - other), lowest(other - one)]
    return False if any(bound is not None and bound > 0 for bound in apart) else None


def _not(item: Any) -> bool | None:
    return not item if isinstance(item, bool) else None


def _chosen(is_first: bool | None, one: Any, other: Any) -> Any:
    return None if is_first is None else one if is_first else other


def _and(one: Any, other: Any) -> bool | None:
    if one is False or other is False:
        return False
    return True if one is True and other is True else None


def _or(one: Any, other: Any) -> bool | None:
    if one is True or other is True:
        return True
    return False if one is False and other is False else None


def _cast(item: Any, to: int) -> Any:
    if to == TensorProto.BOOL:
        if isinstance(item, bool):
            return item
        return _not(_is_equal(item, 0)) if is_dim(item) else None
    if to in _INTEGERS:
        if isinstance(item, bool):
            return int(item)
        if is_dim(item):
            return item
        return int(item) if isinstance(item, float) and abs(item) < 2**31 else None
    if isinstance(item, bool | float | int) and to in (TensorProto.FLOAT, TensorProto.DOUBLE):
        found = float(np.float32(item))
        return found if found == item else None  # else it is rounded
    return None


_COMPARISONS = frozenset(
    ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Not")
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Identity": lambda item: item,
    "Cast": _cast,
    "Add": _of_integers(operator.add),
    "Sub": _of_integers(operator.sub),
    "Mul": _of_integers(operator.mul),
    "Div": _of_integers(_divided),
    "Mod": _of_integers(_remainder),
    "Neg": _of_integers(operator.neg),
    "Min": lambda *items: (
        _chosen(_is_less(items[0], items[1]), *items) if len(items) == 2 else None
    ),
    "Max": lambda *items: (
        _chosen(_is_less(items[1], items[0]), *items) if len(items) == 2 else None
    ),
    "Equal": _is_equal,
    "Less": _is_less,
    "Greater": lambda one, other: _is_less(other, one),
    "LessOrEqual": lambda one, other: _not(_is_less(other, one)),
    "GreaterOrEqual": lambda one, other: _not(_is_less(one, other)),
    "Not": _not,
    "And": _and,
    "Or": _or,
    "Where": lambda *items: None,
}
"""Functions of elements; None where the result is not known."""


def elements_like(value: Value, move: Callable[[Elements], Elements]) -> Value | None:
    """Return a tensor of known elements with these moved about; None for any other tensor."""
    if value.elements is None:
        return None
    return computed(np.asarray(move(value.elements), object), value.dtype)
