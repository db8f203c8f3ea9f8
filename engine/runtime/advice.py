"""Advice for what does not fit an input: how to make it fit, where that can be told."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.tensor.protocols import is_array
from engine.types import Dim, TensorSpec

Shape = tuple[int, ...]

_MOST_SIZES = 60  # of a line's characters


def for_shape(
    spec: TensorSpec,
    shape: Shape,
    declared: TensorSpec | None = None,
    given: Any = None,
    shapes: Sequence[Shape] = (),
) -> str:
    """Return what to do about an array of another shape than the input has.

    declared: the input as the model has it, where Model.resize has fixed its axes since. given:
    what the array was made of; a list has no axes that advice could be about. shapes: those of all
    inputs, where Model.resize may change what the file fixes.
    """
    wanted = spec.shape
    if wanted is None:
        return "pass that shape"
    name = spec.name if spec.name.isidentifier() else "array"
    if not isinstance(given, list | tuple):
        return _for_array(name, shape, wanted, declared, shapes)
    made = f"numpy.asarray(..., {str(spec.dtype)!r})"
    if not given or not is_array(given[0]):
        return _for_array(made, shape, wanted, declared, shapes)
    if len(given) > 1:
        todo = _for_array(made, shape, wanted, declared, shapes)
        return f"the list was taken as the batch: {todo}"
    todo = _for_array(f"{name}[None]", shape, wanted, declared, shapes)
    if _fit(shape[1:], wanted):
        todo = f"pass {name} without the list"
    if is_of_torch(given[0]):
        todo = in_torch_words(todo)
    return f"the list [{name}] was taken as the batch: {todo}"


def for_axes(name: str, shape: Shape, wanted: Sequence[Dim]) -> str:
    """Return how to move, add or remove axes so that an array fits; "" for no way.

    name: an expression for the array.
    """
    if len(shape) != len(wanted):
        return _of_another_rank(name, shape, wanted)
    if order := _order(shape, wanted):
        return f"{name}.transpose({', '.join(map(str, order))}) has the axes in that order"
    return ""


def _for_array(
    name: str,
    shape: Shape,
    wanted: Sequence[Dim],
    declared: TensorSpec | None,
    shapes: Sequence[Shape],
) -> str:
    """Return what to do about an array of a shape. name: an expression for it."""
    moved = for_axes(name, shape, wanted)
    if len(shape) != len(wanted):
        counts = f"the model wants {_axes(len(wanted))}, got {len(shape)}"
        return f"{counts}: {moved or 'pass that shape'}"
    if moved:
        return moved
    axis = next(axis for axis, (size, dim) in enumerate(zip(shape, wanted)) if not _is(size, dim))
    if declared is not None:
        was = None if declared.shape is None else declared.shape[axis]
        if was != wanted[axis]:
            again = "" if isinstance(was, int) else ", to -1 for any size"
            return f"axis {axis} has that size by Model.resize: resize again{again}"
    pieces = f"pass {wanted[axis]} at a time" if axis == 0 else "pass that size"
    return (
        f"axis {axis} is fixed to {wanted[axis]} in the model's file: {pieces}, "
        f"{_resizing(shapes)}or export the model with that axis open"
    )


def _resizing(shapes: Sequence[Shape]) -> str:
    """Return the advice to resize a model to shapes that its file does not have; "" for none."""
    if not shapes or not all(map(all, shapes)):  # what the file fixes cannot be 0
        return ""
    sizes = str([[*map(int, shape)] for shape in shapes])
    if len(sizes) > _MOST_SIZES:
        return "try Model.resize, "
    return f"try model.resize(model.get_inputs(), {sizes}), "


def _is(size: int, dim: Dim) -> bool:
    return not isinstance(dim, int) or size == dim


def _fit(shape: Sequence[int], wanted: Sequence[Dim]) -> bool:
    return len(shape) == len(wanted) and all(map(_is, shape, wanted))


def _axes(count: int) -> str:
    return f"{count} {'axis' if count == 1 else 'axes'}"


def _of_another_rank(name: str, shape: Shape, wanted: Sequence[Dim]) -> str:
    """Return how to add or remove one axis of size 1 so that the shape fits; "" for no way."""
    if len(shape) > len(wanted):
        if shape[0] == 1 and _fit(shape[1:], wanted):
            return f"{name}[0] removes the first"
        if shape[-1] == 1 and _fit(shape[:-1], wanted):
            return f"{name}[..., 0] removes the last"
    elif _fit((1, *shape), wanted):
        return f"{name}[None] adds the first"
    elif _fit((1, 1, *shape), wanted):
        return f"{name}[None, None] adds the first two"
    elif _fit((*shape, 1), wanted):
        return f"{name}[..., None] adds the last"
    elif order := _order((1, *shape), wanted):
        return f"{name}[None].transpose({', '.join(map(str, order))}) has the axes in that order"
    return ""


def _order(shape: Shape, wanted: Sequence[Dim]) -> Shape:
    """Return the order of axes that makes channels first of channels last, or the other way.

    () where neither fits. A matrix is transposed.
    """
    rank = len(shape)
    orders: list[Shape] = []
    if rank == 2:
        orders = [(1, 0)]
    elif rank > 2:
        middle = range(1, rank)
        orders = [(0, rank - 1, *middle[:-1]), (0, *middle[1:], 1)]
        if rank == 3:
            orders += [(2, 0, 1), (1, 2, 0)]  # an image without a batch
    for order in orders:
        if _fit([shape[axis] for axis in order], wanted):
            return order
    return ()


def for_kind(item: Any, dtype: str) -> str:
    """Return what to do about something that is no array."""
    if item is None:
        return "pass an array"
    if isinstance(item, str | bytes | os.PathLike):
        return "pass the array itself: numpy.load(path) gives that of an .npy file"
    if isinstance(item, Mapping):
        keys = [*item][:1]
        shown = repr(keys[0])[:40] if keys else '"name"'
        return f"pass one of its arrays, as x[{shown}]"
    if isinstance(item, list | tuple):
        return "pass a list of numbers, or of arrays of one shape"
    if _is_array_like(item):
        return f"convert it with numpy.asarray(..., {dtype!r})"
    return "pass an array, or what has __array__ or __dlpack__"


def for_memory(item: Any, dtype: str) -> str:
    """Return what to do about another library's tensor that does not give its memory."""
    for is_so, call in (
        ("requires_grad", "detach"),
        ("is_sparse", "to_dense"),
        ("is_quantized", "dequantize"),
        ("is_conj", "resolve_conj"),
        ("is_neg", "resolve_neg"),
    ):
        found = getattr(item, is_so, False)
        if (found() if callable(found) else found) is True and hasattr(item, call):
            return f"pass what its {call}() gives"
    if _is_array_like(item):
        return f"convert it with numpy.asarray(..., {dtype!r})"
    return "pass a numpy array"


def _is_array_like(item: Any) -> bool:
    """Return whether numpy makes an array of numbers of an object."""
    try:
        return np.asarray(item).dtype.kind in "biufc"
    except Exception:  # whatever another library raises
        return False


def is_of_torch(item: Any) -> bool:
    """Return whether an object is one of torch's tensors."""
    return type(item).__module__.partition(".")[0] == "torch"


def in_torch_words(text: str) -> str:
    """Return an advice given in numpy's words in those of torch."""
    text = re.sub(r"astype\('(\w+)'\)", r"to(torch.\1)", text)
    return text.replace(".transpose(", ".permute(")
