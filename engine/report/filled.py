"""Inputs that are made up, for a run without files: their shapes and what they are filled with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias, TypeVar

import numpy as np

from engine.errors import InputError
from engine.plan.open_sizes import described, first_that_runs, fitting_shapes
from engine.tensor.description import Array
from engine.types import DType, TensorSpec, ValueKind

Shape: TypeAlias = tuple[int, ...]
R = TypeVar("R")


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


def run_filled(
    specs: Sequence[TensorSpec],
    fill: Fill,
    run: Callable[[list[Any]], R],
    seed: int = 0,
    advice: str = "pass inputs",
    most: int | None = None,
    first: Sequence[Mapping[str, Shape]] = (),
) -> tuple[list[Any], R]:
    """Run a model on generated inputs; returns these, as predict takes them, and its result.

    Sizes of open axes are chosen so that it runs; most: how many choices to try at most, after
    those of `first`. Raises InputError as `stand_in`, and what `run` raises.
    """
    done: list[list[Any]] = []

    def made(chosen: Mapping[str, Shape]) -> R:
        generator = np.random.default_rng(seed)
        values = [
            stand_in(
                spec,
                None if spec.kind is ValueKind.OPTIONAL else chosen.get(spec.name),
                fill,
                generator,
                advice,
            )
            for spec in specs
        ]
        result = run(values)
        done.append(values)
        return result

    candidates = chain(first, islice(fitting_shapes(specs, advice=advice), most))
    _, result = first_that_runs(candidates, made, partial(described, specs), advice)
    return done[0], result


def shapes_of(values: Sequence[Any]) -> list[Shape]:
    """Return the shapes of values as `stand_in` makes them; () for what has none."""
    tensors = [value[0] if isinstance(value, list) and value else value for value in values]
    return [getattr(tensor, "shape", ()) for tensor in tensors]


def stand_in(
    spec: TensorSpec, shape: Shape | None, fill: Fill, generator: np.random.Generator, advice: str
) -> Any:
    """Return what stands for one input: an array, a list of one for a sequence, None if it may.

    shape: None for an optional that is left out, and where the number of axes is open. advice: what
    to do where nothing can stand for the input. Raises InputError there.
    """
    if spec.kind is ValueKind.OPTIONAL and shape is None:
        return None
    if spec.kind is ValueKind.MAP:
        raise InputError(
            f"input {spec.name!r}: expected {spec}, which nothing can stand for; {advice}",
            spec.name,
        )
    if shape is None:
        raise InputError(
            f"input {spec.name!r}: the model leaves its shape open; {advice}", spec.name
        )
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
