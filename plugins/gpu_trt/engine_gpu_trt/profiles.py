"""Which shapes a model is compiled for: TensorRT's optimisation profiles.

For an open (symbolic or unknown) dim the first of these counts: `dynamic_dims` of the
configuration, the ranges that came with the compile, and last the default ranges (`batch_range`
for axis 0, `dim_range` for the others). Axes of one symbol get one range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from engine.types import ShapeRange, TensorSpec
from engine_gpu_trt.options import Range, Settings

Profile: TypeAlias = Mapping[str, ShapeRange]
"""Shapes for every input, by its name in the model."""


def shape_profiles(
    inputs: Sequence[TensorSpec], given: Mapping[str, ShapeRange], settings: Settings
) -> list[Profile]:
    """One profile for each of `dynamic_dims`' entries; one otherwise, also for fixed shapes.

    inputs: as the model declares them, of known rank. given: `CompileOptions.shapes`.
    Raises ValueError naming an input whose settings do not fit its declared dims.
    """
    _check_names(inputs, given, settings)
    profiles: list[Profile] = []
    for ranges in settings.ranges or ({},):
        known = {spec.name: _axes(spec, given, settings, ranges) for spec in inputs}
        symbols = _symbols(inputs, known, settings)
        profile = {}
        for spec in inputs:
            axes = [
                symbols[dim] if isinstance(dim, str) else axis or _default(settings, place)
                for place, (dim, axis) in enumerate(_pairs(spec, known))
            ]
            columns = [tuple(axis[end] for axis in axes) for end in range(3)]
            profile[spec.name] = ShapeRange(columns[0], columns[1], columns[2])
        profiles.append(profile)
    return profiles


def _pairs(
    spec: TensorSpec, known: Mapping[str, list[Range | None]]
) -> list[tuple[int | str | None, Range | None]]:
    return list(zip(spec.shape or (), known[spec.name], strict=True))


def _default(settings: Settings, place: int) -> Range:
    return settings.batch_range if place == 0 else settings.dim_range


def _symbols(
    inputs: Sequence[TensorSpec], known: Mapping[str, list[Range | None]], settings: Settings
) -> dict[str, Range]:
    """The range of each symbol: what all of its axes allow, else the default of the first.

    TensorRT wants axes that must be equal to have equal ranges.
    """
    symbols: dict[str, Range] = {}
    defaults: dict[str, Range] = {}
    for spec in inputs:
        for place, (dim, axis) in enumerate(_pairs(spec, known)):
            if not isinstance(dim, str):
                continue
            defaults.setdefault(dim, _default(settings, place))
            if axis is None:
                continue
            before = symbols.get(dim, axis)
            lowest, highest = max(before[0], axis[0]), min(before[2], axis[2])
            if lowest > highest:
                raise ValueError(
                    f"input {spec.name!r}: {dim!r} is {axis[0]} to {axis[2]}, but {before[0]} to "
                    f"{before[2]} in another input; equal names are equal sizes"
                )
            symbols[dim] = (lowest, min(max(before[1], lowest), highest), highest)
    return defaults | symbols


def bounded(spec: TensorSpec, ranges: Sequence[ShapeRange]) -> TensorSpec:
    """`spec` with the bounds of what was compiled; a dim that has one size left becomes it.

    ranges: the input's part of every profile. With several, the bounds are their hull, and a
    shape that lies between two profiles is refused by predict.
    """
    shape, bounds = [], []
    for place, dim in enumerate(spec.shape or ()):
        lowest = min(each.lowest[place] for each in ranges)
        highest = max(each.highest[place] for each in ranges)
        is_open = not isinstance(dim, int) and lowest != highest
        shape.append(dim if is_open else highest)
        bounds.append((lowest, highest) if is_open else None)
    return replace(spec, shape=tuple(shape), bounds=tuple(bounds) if any(bounds) else ())


def fits(shape: Sequence[int], allowed: ShapeRange) -> bool:
    """Whether `shape` lies within `allowed`, axis by axis."""
    return len(shape) == len(allowed.lowest) and all(
        low <= dim <= high
        for low, dim, high in zip(allowed.lowest, shape, allowed.highest, strict=True)
    )


def _axes(
    spec: TensorSpec,
    given: Mapping[str, ShapeRange],
    settings: Settings,
    ranges: Mapping[str, tuple[Range, ...]],
) -> list[Range | None]:
    """What is said of each axis of one input; None where nothing is."""
    dims = spec.shape or ()
    written = (settings.shapes or {}).get(spec.name)
    if written is not None and len(written) != len(dims):
        raise ValueError(
            f"input_shape gives {len(written)} dims for input {spec.name!r}, expected {spec}"
        )
    asked = given.get(spec.name)
    if asked is not None:
        lengths = {len(asked.lowest), len(asked.usual), len(asked.highest)}
        if lengths != {len(dims)}:
            raise ValueError(
                f"shapes for input {spec.name!r}: expected {len(dims)} dims ({spec}), got {asked}"
            )
    dynamic = iter(ranges.get(spec.name, ()))
    axes: list[Range | None] = []
    for place, dim in enumerate(dims):
        axis: Range | None = None
        if asked is not None:
            axis = (asked.lowest[place], asked.usual[place], asked.highest[place])
            if not 0 <= axis[0] <= axis[1] <= axis[2]:
                raise ValueError(
                    f"shapes for input {spec.name!r}: expected lowest <= usual <= highest in "
                    f"dim {place}, got {axis[0]}, {axis[1]}, {axis[2]}"
                )
        if written is not None:
            axis = next(dynamic, axis) if written[place] == -1 else (written[place],) * 3
        if isinstance(dim, int):
            if axis is not None and axis != (dim,) * 3:
                raise ValueError(
                    f"input {spec.name!r}: dim {place} is {dim} in the model, but the settings "
                    f"say {axis[0]} to {axis[2]}"
                )
            axis = (dim,) * 3
        axes.append(axis)
    return axes


def _check_names(
    inputs: Sequence[TensorSpec], given: Mapping[str, ShapeRange], settings: Settings
) -> None:
    names = [spec.name for spec in inputs]
    for source, found in (("input_shape", settings.shapes or {}), ("shapes", given)):
        for name in found:
            if name not in names:
                raise ValueError(f"{source} names {name!r}, but the inputs are {names}")
