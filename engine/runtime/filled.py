"""Inputs that are made up, for a run without files: their shapes and what they are filled with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.errors import InputError
from engine.types import DType, TensorSpec, ValueKind

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


class Fill(StrEnum):
    """The ways to generate an input."""

    ONES = "ones"
    ZEROS = "zeros"
    RANDOM = "random"


HOW: Mapping[Fill, str] = {
    Fill.ONES: "all ones",
    Fill.ZEROS: "all zeros",
    # Integers are often indexes or masks: only 0 and 1 are safe in nearly every model.
    Fill.RANDOM: "random, numbers uniform in [0, 1), integers and booleans 0 or 1",
}


def symbolic_sizes(
    specs: Mapping[str, TensorSpec], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Return the sizes that inputs of known shapes give to symbolic axes: one name has one size."""
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if specs[name].kind is ValueKind.TENSOR:
            for dim, known in zip(specs[name].shape or (), shape, strict=False):
                if isinstance(dim, str):
                    sizes.setdefault(dim, known)
    return sizes


def default_shape(spec: TensorSpec, sizes: dict[str, int], advice: str) -> Shape:
    """Return the declared shape, an open axis with the size of other inputs or the lowest.

    sizes: of symbolic axes; gains those that this input has first. advice: what to do where the
    number of axes is open too. Raises InputError there.
    """
    if spec.shape is None:
        raise InputError(
            f"input {spec.name!r}: the model leaves its shape open; {advice}", spec.name
        )
    bounds = spec.bounds or (None,) * len(spec.shape)
    shape = []
    for dim, bound in zip(spec.shape, bounds, strict=True):
        lowest = max(1, bound[0]) if bound is not None else 1
        if isinstance(dim, str):
            shape.append(sizes.setdefault(dim, lowest))
        else:
            shape.append(lowest if dim is None else dim)
    return tuple(shape)


def filled(
    specs: Sequence[TensorSpec], fill: Fill, seed: int = 0, advice: str = "pass inputs"
) -> list[Any]:
    """Return a value for each input, as predict takes them. Raises InputError as `stand_in`."""
    generator, sizes = np.random.default_rng(seed), symbolic_sizes({}, {})
    return [stand_in(spec, None, sizes, fill, generator, advice) for spec in specs]


def stand_in(
    spec: TensorSpec,
    shape: Shape | None,
    sizes: dict[str, int],
    fill: Fill,
    generator: np.random.Generator,
    advice: str,
) -> Any:
    """Return what stands for one input: an array, a list of one for a sequence, None if it may.

    shape: None for the default one, with `sizes` of symbolic axes. advice: what to do where nothing
    can stand for the input. Raises InputError there.
    """
    if spec.kind is ValueKind.OPTIONAL and shape is None:
        return None
    if spec.kind is ValueKind.MAP:
        raise InputError(
            f"input {spec.name!r}: expected {spec}, which nothing can stand for; {advice}",
            spec.name,
        )
    if shape is None:
        shape = default_shape(spec, sizes, advice)
    array = generate(spec.dtype, shape, fill, generator)
    return [array] if spec.kind is ValueKind.SEQUENCE else array


def generate(dtype: DType, shape: Shape, fill: Fill, generator: np.random.Generator) -> Array:
    """Return an array of that type and shape, filled so; text is "1", "0" or either of them."""
    if fill is not Fill.RANDOM:
        if dtype is DType.STRING:
            return np.full(shape, "1" if fill is Fill.ONES else "0", object)
        return np.full(shape, fill is Fill.ONES, np.bool_).astype(dtype.numpy)
    if dtype is DType.STRING:
        return generator.integers(0, 2, shape).astype(str).astype(object)
    is_whole = dtype is DType.BOOL or "int" in dtype
    drawn = generator.integers(0, 2, shape) if is_whole else generator.random(shape)
    return np.asarray(drawn).astype(dtype.numpy)
