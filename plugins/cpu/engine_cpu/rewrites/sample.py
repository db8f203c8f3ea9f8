"""Inputs to measure a model with: such as its file declares, in sizes that fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.types import CompileOptions, Dim, DType, TensorSpec, ValueKind
from engine_cpu.layout import PLAIN
from engine_cpu.tensors import Array


class _Sizes(NamedTuple):
    """Sizes of open axes but the first, which is a batch of one.

    floats, others: of axes that are no image's: signals are longer than texts.
    """

    channels: int = 3
    height: int = 224
    width: int = 224
    floats: int = 512
    others: int = 64


# Tried one after the other: photos, grey ones, lines of text.
_TRIES = (_Sizes(), _Sizes(1, 256, 256, 256, 128), _Sizes(3, 48, 320), _Sizes(1, 32, 320))
_MOST_ELEMENTS = 1 << 26


def samples(specs: Sequence[TensorSpec], options: CompileOptions) -> Iterator[dict[str, Array]]:
    """Yield arrays for all inputs, the same in each process; nothing for types that have none.

    An axis has the size that the options say is usual, else what the file says. Floats are drawn
    from a normal distribution; integers are 1, which is a token, a length and a place in most.
    """
    if not all(spec.kind is ValueKind.TENSOR and spec.dtype in PLAIN for spec in specs):
        return
    if any(spec.shape is None or spec.dtype is DType.STRING for spec in specs):
        return
    is_open = any(not isinstance(dim, int) for spec in specs for dim in spec.shape or ())
    for sizes in _TRIES if is_open else _TRIES[:1]:
        random, known = np.random.default_rng(0), dict[Dim, int]()
        arrays = {spec.name: _array(spec, sizes, options, known, random) for spec in specs}
        if any(array is None for array in arrays.values()):
            return
        yield {name: array for name, array in arrays.items() if array is not None}


def _array(
    spec: TensorSpec,
    sizes: _Sizes,
    options: CompileOptions,
    known: dict[Any, int],
    random: np.random.Generator,
) -> Array | None:
    """Return an array for an input. known: the sizes of symbols; filled."""
    declared = spec.shape or ()
    shape = []
    for axis, dim in enumerate(declared):
        size = dim if isinstance(dim, int) else _asked(options, spec.name, axis)
        if size <= 0 and not isinstance(dim, int):
            size = known.get(dim, 0) if dim else 0
            size = size or _size(spec, axis, sizes)
        if dim and not isinstance(dim, int):
            known.setdefault(dim, size)
        shape.append(size)
    if np.prod(shape, dtype=np.float64) > _MOST_ELEMENTS:
        return None
    dtype = spec.dtype.numpy
    if dtype.kind == "f":
        return random.standard_normal(shape, np.float32).astype(dtype)
    return np.ones(shape, dtype)


def _asked(options: CompileOptions, name: str, axis: int) -> int:
    """Return the size that is usual for an axis, or the lowest; 0 where nothing is said of it."""
    ranges: Mapping[str, Any] = options.shapes
    if name not in ranges or axis >= len(ranges[name].usual):
        return 0
    return int(max(ranges[name].usual[axis], ranges[name].lowest[axis], 0))


def _size(spec: TensorSpec, axis: int, sizes: _Sizes) -> int:
    rank = len(spec.shape or ())
    if axis == 0:
        return 1
    if rank < 4:
        return sizes.floats if spec.dtype.numpy.kind == "f" else sizes.others
    if axis == 1:
        return sizes.channels
    return sizes.width if axis == rank - 1 else sizes.height
