"""TensorRT's optimisation profiles: the shapes that a model is compiled for.

An open (symbolic or unknown) dim gets the range that came with the compile (`shapes`, or one of
`profiles`), and where none came the default (`batch_range` for axis 0, `dim_range` for the
others). A range without a highest size ends where the default does, since TensorRT needs an end.
Axes of one symbol get one range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from engine.errors import InputError
from engine.types import ShapeRange, TensorSpec
from engine_gpu_trt.options import Range, Settings

Profile: TypeAlias = Mapping[str, ShapeRange]
"""Shapes for every input, by its name in the model."""


def shape_profiles(
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, ShapeRange],
    profiles: Sequence[Mapping[str, ShapeRange]],
    settings: Settings,
) -> list[Profile]:
    """Return a profile for each of `profiles`; one for `shapes` where there are none.

    inputs: as the model declares them, of known rank. shapes, profiles: of CompileOptions.
    Raises ValueError naming an input whose shapes do not fit its declared dims.
    """
    return [_profile(inputs, given, settings) for given in profiles or (shapes,)]


def _profile(
    inputs: Sequence[TensorSpec], given: Mapping[str, ShapeRange], settings: Settings
) -> Profile:
    names = [spec.name for spec in inputs]
    for name in given:
        if name not in names:
            raise ValueError(f"shapes names {name!r}, but the inputs are {names}")
    known = {spec.name: _axes(spec, given.get(spec.name)) for spec in inputs}
    symbols = _symbols(inputs, known, settings)
    profile = {}
    for spec in inputs:
        axes = [
            symbols[dim]
            if isinstance(dim, str)
            else _bounded_range(axis, _default(settings, index), spec.name, index)
            for index, (dim, axis) in enumerate(_dims(spec, known))
        ]
        columns = [tuple(axis[end] for axis in axes) for end in range(3)]
        profile[spec.name] = ShapeRange(columns[0], columns[1], columns[2])
    return profile


def _dims(
    spec: TensorSpec, known: Mapping[str, list[Range | None]]
) -> list[tuple[int | str | None, Range | None]]:
    return list(zip(spec.shape or (), known[spec.name], strict=True))


def _default(settings: Settings, axis: int) -> Range:
    return settings.batch_range if axis == 0 else settings.dim_range


def _bounded_range(axis: Range | None, default: Range, name: str, index: int) -> Range:
    """Return `axis` with the end of `default` where it has none; `default` where it is None.

    Raises ValueError naming the input where the lowest size lies above that end.
    """
    if axis is None:
        return default
    if axis[2] >= 0:
        return axis
    lowest, highest = axis[0], default[2]
    if lowest > highest:
        key = "batch_range" if index == 0 else "dim_range"
        raise ValueError(
            f"input {name!r}: dim {index} is at least {lowest}, but {key} ends at {highest}; "
            f"give the dim a highest size, or set {key}"
        )
    return lowest, max(default[1], lowest), highest


def _symbols(
    inputs: Sequence[TensorSpec], known: Mapping[str, list[Range | None]], settings: Settings
) -> dict[str, Range]:
    """Return the range of each symbol: what all of its axes allow, else the default of the first.

    TensorRT wants axes that must be equal to have equal ranges.
    """
    symbols: dict[str, Range] = {}
    first_axes: dict[str, tuple[str, int]] = {}
    for spec in inputs:
        for index, (dim, axis) in enumerate(_dims(spec, known)):
            if not isinstance(dim, str):
                continue
            first_axes.setdefault(dim, (spec.name, index))
            if axis is None:
                continue
            before = symbols.get(dim, axis)
            lowest = max(before[0], axis[0])
            highest = min((end for end in (before[2], axis[2]) if end >= 0), default=-1)
            if 0 <= highest < lowest:
                raise ValueError(
                    f"input {spec.name!r}: {dim!r} is {_words(axis)}, but {_words(before)} "
                    "in another input; equal names are equal sizes"
                )
            usual = max(before[1] if before[1] >= 0 else axis[1], lowest)
            symbols[dim] = (lowest, min(usual, highest), highest)
    return {
        dim: _bounded_range(symbols.get(dim), _default(settings, index), name, index)
        for dim, (name, index) in first_axes.items()
    }


def _words(axis: Range) -> str:
    return f"{axis[0]} to {axis[2]}" if axis[2] >= 0 else f"at least {axis[0]}"


def bounded(spec: TensorSpec, ranges: Sequence[ShapeRange]) -> TensorSpec:
    """Return `spec` with the bounds of what was compiled; a dim with one size left becomes it.

    ranges: the input's part of every profile. With several, the bounds are their hull, and a
    shape that lies between two profiles is refused by predict.
    """
    shape, bounds = [], []
    for index, dim in enumerate(spec.shape or ()):
        lowest = min(shape_range.lowest[index] for shape_range in ranges)
        highest = max(shape_range.highest[index] for shape_range in ranges)
        is_open = not isinstance(dim, int) and lowest != highest
        shape.append(dim if is_open else highest)
        bounds.append((lowest, highest) if is_open else None)
    return replace(spec, shape=tuple(shape), bounds=tuple(bounds) if any(bounds) else ())


def fits(shape: Sequence[int], allowed: ShapeRange) -> bool:
    """Tell whether `shape` lies within `allowed`, axis by axis."""
    return len(shape) == len(allowed.lowest) and all(
        low <= dim <= high
        for low, dim, high in zip(allowed.lowest, shape, allowed.highest, strict=True)
    )


def fitting_profile(
    profiles: Sequence[Profile], shapes: Mapping[str, tuple[int, ...]]
) -> int | None:
    """Return the index of the first profile that allows these shapes; None where none does.

    profiles: of an engine, by its own names of the inputs, as `shapes` are.
    """
    for index, profile in enumerate(profiles):
        if all(fits(shape, profile[name]) for name, shape in shapes.items() if name in profile):
            return index
    return None


def outside_error(
    profiles: Sequence[Profile],
    shapes: Mapping[str, tuple[int, ...]],
    originals: Mapping[str, str],
) -> InputError:
    """Build the error for shapes that no profile allows, naming the input and the ranges.

    originals: the model's name of each input by the engine's.
    """
    for name in profiles[0]:
        if name not in shapes:  # a weight, whose shape is fixed
            continue
        ranges = [profile[name] for profile in profiles]
        if not any(fits(shapes[name], allowed) for allowed in ranges):
            texts = [f"{list(ends.lowest)}..{list(ends.highest)}" for ends in ranges]
            return InputError(
                f"input {originals[name]!r}: shape {list(shapes[name])} is outside "
                f"{' and '.join(texts)}, which the model was compiled for; "
                "compile it for a wider range",
                originals[name],
            )
    return InputError(
        "the inputs' shapes fit different profiles, and one must fit them all: "
        f"{ {originals[name]: list(shape) for name, shape in shapes.items()} }"
    )


def _axes(spec: TensorSpec, asked: ShapeRange | None) -> list[Range | None]:
    """Return the range of each axis of one input; None where nothing is said of it.

    A range without a highest size ends in -1.
    """
    dims = spec.shape or ()
    if asked is not None:
        lengths = {len(asked.lowest), len(asked.usual), len(asked.highest)}
        if lengths != {len(dims)}:
            raise ValueError(
                f"shapes for input {spec.name!r}: expected {len(dims)} dims ({spec}), got {asked}"
            )
    axes: list[Range | None] = []
    for index, dim in enumerate(dims):
        axis: Range | None = None
        if asked is not None:
            axis = (asked.lowest[index], asked.usual[index], asked.highest[index])
            if axis[0] < 0 or (axis[2] >= 0 and not axis[0] <= axis[1] <= axis[2]):
                raise ValueError(
                    f"shapes for input {spec.name!r}: expected lowest <= usual <= highest in "
                    f"dim {index}, got {axis[0]}, {axis[1]}, {axis[2]}"
                )
            if axis[0] == 0 and axis[2] < 0:
                axis = None
        if isinstance(dim, int):
            if axis is not None and axis != (dim,) * 3:
                raise ValueError(
                    f"input {spec.name!r}: dim {index} is {dim} in the model, but the settings "
                    f"say {_words(axis)}"
                )
            axis = (dim,) * 3
        axes.append(axis)
    return axes
