"""The shapes a model is compiled for: fixed sizes, ranges, or gears.

ATC knows three kinds. *Fixed* sizes give the fastest code. *Gears* are a list of 2 to 100
combinations of the open sizes; each becomes fixed code and predict picks one. *Ranges* leave sizes
open, with or without a highest; predict takes what comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.errors import ModelError
from engine.types import ShapeRange, TensorSpec

Axis: TypeAlias = "int | tuple[int, int | None]"
"""A fixed size, or its lowest and highest; None where there is no highest."""

OPEN: Axis = (0, None)  # -1 of ATC; an open size may be 0
FEWEST_GEARS, MOST_GEARS = 2, 100  # ATC's limits


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sizes that each input is compiled for, in the model's order.

    gears: each gives a size to every axis that is not fixed, first input first; () for ranges.
        The axes' lowest and highest are then those of the gears.
    is_given: ATC must be told, because the model file alone does not say it.
    """

    axes: Mapping[str, tuple[Axis, ...]]
    gears: tuple[tuple[int, ...], ...] = ()
    is_given: bool = True

    def input_shape(self) -> str:
        """Return ATC's --input_shape, e.g. "x:-1,64;y:1~8,3"; a scalar is "z:"."""
        return ";".join(
            f"{name}:{','.join(self._text(axis) for axis in axes)}"
            for name, axes in self.axes.items()
        )

    def dynamic_dims(self) -> str:
        """Return ATC's --dynamic_dims, e.g. "1,8;2,16"."""
        return ";".join(",".join(map(str, gear)) for gear in self.gears)

    def _text(self, axis: Axis) -> str:
        if isinstance(axis, int):
            return str(axis)
        lowest, highest = axis
        return "-1" if highest is None or self.gears else f"{lowest}~{highest}"


def resolve(
    inputs: Sequence[TensorSpec],
    ranges: Mapping[str, ShapeRange],
    profiles: Sequence[Mapping[str, ShapeRange]],
    path: str,
) -> Shapes:
    """Put together what the model declares and what the user wants compiled.

    ranges, profiles: `CompileOptions.shapes` and `.profiles`, which the core has checked against
        the model. Profiles that fix every axis are gears; of others only what encloses them,
        `ranges`, is of use here.
    Raises ModelError for an input whose rank nobody gives, ValueError for gears that ATC refuses.
    """
    shapes: dict[str, tuple[Axis, ...]] = {}
    for spec in inputs:
        given = ranges.get(spec.name)
        if given is not None:
            shapes[spec.name] = tuple(map(_axis, given.lowest, given.highest))
        elif spec.shape is None:
            raise ModelError(
                f"{path}: input {spec.name!r} does not say how many dims it has, and ATC must "
                f"know; set option input_shape, for example '{spec.name}:[1,3]'",
                path,
            )
        else:
            shapes[spec.name] = tuple(dim if isinstance(dim, int) else OPEN for dim in spec.shape)
    gears = _gears(profiles, shapes) if _are_gears(profiles) else ()
    is_static = all(
        spec.shape is not None and all(isinstance(dim, int) for dim in spec.shape)
        for spec in inputs
    )
    if gears or not is_static:
        _check_names(shapes, path)
    return Shapes(shapes, gears, is_given=not is_static)


def _axis(lowest: int, highest: int) -> Axis:
    if lowest == highest:
        return lowest
    return (lowest, highest if highest >= 0 else None)


def _are_gears(profiles: Sequence[Mapping[str, ShapeRange]]) -> bool:
    return len(profiles) > 0 and all(
        given.lowest == given.highest for profile in profiles for given in profile.values()
    )


def _gears(
    profiles: Sequence[Mapping[str, ShapeRange]], shapes: Mapping[str, tuple[Axis, ...]]
) -> tuple[tuple[int, ...], ...]:
    """Return the sizes that each profile gives to the axes that are not fixed, checked."""
    places = [
        (name, index)
        for name, axes in shapes.items()
        for index, axis in enumerate(axes)
        if not isinstance(axis, int)
    ]
    for name, index in places:
        if name not in profiles[0]:
            raise ValueError(
                f"option 'dynamic_dims': dim {index} of input {name!r} is open and no gear gives "
                "its size; name the input in 'input_shape'"
            )
    gears = tuple(
        tuple(profile[name].lowest[index] for name, index in places) for profile in profiles
    )
    if not FEWEST_GEARS <= len(set(gears)) == len(gears) <= MOST_GEARS:
        raise ValueError(
            f"option 'dynamic_dims': expected {FEWEST_GEARS} to {MOST_GEARS} gears, all different, "
            f"got {len(gears)}, of which {len(set(gears))} differ"
        )
    return gears


def _check_names(shapes: Mapping[str, tuple[Axis, ...]], path: str) -> None:
    for name in shapes:
        if ";" in name:
            raise ModelError(
                f"{path}: ATC cannot be told the shape of an input named {name!r}, because of "
                "the ';'; rename it, or export the model with fixed shapes",
                path,
            )
