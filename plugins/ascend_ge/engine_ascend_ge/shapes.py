"""The shapes a model is compiled for: fixed sizes, ranges, or gears.

ATC knows three kinds. *Fixed* sizes give the fastest code. *Gears* are a list of 2 to 100
combinations of the open sizes; each becomes fixed code and predict picks one. *Ranges* leave sizes
open, with or without a highest; predict takes what comes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.errors import ModelError
from engine.types import ShapeRange, TensorSpec

Axis: TypeAlias = "int | tuple[int, int | None]"
"""A fixed size, or its lowest and highest; None where there is no highest."""

OPEN: Axis = (0, None)  # what -1 means to ATC; an open size may be 0
FEWEST_GEARS, MOST_GEARS = 2, 100  # ATC's limits


@dataclass(frozen=True, slots=True)
class Shapes:
    """What each input is compiled for, in the model's order.

    gears: each gives a size to every axis that is not fixed, first input first; () for ranges.
    is_given: whether ATC must be told, because the model file alone does not say it.
    """

    axes: Mapping[str, tuple[Axis, ...]]
    gears: tuple[tuple[int, ...], ...] = ()
    is_given: bool = True

    def input_shape(self) -> str:
        """ATC's --input_shape, e.g. "x:-1,64;y:1~8,3"; a scalar is "z:"."""
        return ";".join(
            f"{name}:{','.join(self._text(axis) for axis in axes)}"
            for name, axes in self.axes.items()
        )

    def dynamic_dims(self) -> str:
        """ATC's --dynamic_dims, e.g. "1,8;2,16"."""
        return ";".join(",".join(map(str, gear)) for gear in self.gears)

    def _text(self, axis: Axis) -> str:
        if isinstance(axis, int):
            return str(axis)
        lowest, highest = axis
        return "-1" if highest is None or self.gears else f"{lowest}~{highest}"


def resolve(
    inputs: Sequence[TensorSpec],
    ranges: Mapping[str, ShapeRange],
    input_shape: str,
    dynamic_dims: str,
    path: str,
) -> Shapes:
    """Put together what the model declares, `CompileOptions.shapes` and the user's options.

    A symbolic size that one input fixes is fixed wherever it stands. Raises ValueError naming
    the option that does not fit, ModelError for an input whose rank nobody gives.
    """
    given: dict[str, tuple[Axis, ...]] = {
        name: tuple(
            low if low == high else (low, high)
            for low, high in zip(each.lowest, each.highest, strict=True)
        )
        for name, each in ranges.items()
    }
    given |= parse_input_shape(input_shape)
    specs = {spec.name: spec for spec in inputs}
    for name in given:
        if name not in specs:
            raise ValueError(
                f"option 'input_shape': the model has no input {name!r}; "
                f"it has: {', '.join(map(repr, specs)) or 'none'}"
            )
    fixed: dict[str, Axis] = {}
    for name, axes in given.items():
        declared = specs[name].shape
        if declared is not None and len(declared) != len(axes):
            raise ValueError(
                f"option 'input_shape': input {name!r} has {len(declared)} dims "
                f"({specs[name]}), got {len(axes)}"
            )
        for dim, axis in zip(declared or (), axes, strict=False):
            if isinstance(dim, int) and axis != dim:
                raise ValueError(
                    f"option 'input_shape': input {name!r} is {specs[name]}, so a dim must "
                    f"stay {dim}, got {axis}"
                )
            if isinstance(dim, str):
                fixed.setdefault(dim, axis)
    shapes: dict[str, tuple[Axis, ...]] = {}
    for spec in inputs:
        if spec.name in given:
            shapes[spec.name] = given[spec.name]
        elif spec.shape is None:
            raise ModelError(
                f"{path}: input {spec.name!r} does not say how many dims it has, and ATC must "
                f"know; set option input_shape, for example '{spec.name}:[1,3]'",
                path,
            )
        else:
            shapes[spec.name] = tuple(
                dim if isinstance(dim, int) else fixed.get(dim, OPEN) if dim else OPEN
                for dim in spec.shape
            )
    gears = _gears(dynamic_dims, shapes, list(parse_input_shape(input_shape)))
    is_static = all(
        spec.shape is not None and all(isinstance(dim, int) for dim in spec.shape)
        for spec in inputs
    )
    if gears or not is_static:
        _check_names(shapes, path)
    if gears:
        shapes = _bounded(shapes, gears)
    return Shapes(shapes, gears, is_given=not is_static)


def parse_input_shape(text: str) -> dict[str, tuple[Axis, ...]]:
    """Read "x:[1,3];y:-1,1~8", MindSpore Lite's form with brackets or ATC's without."""
    shapes: dict[str, tuple[Axis, ...]] = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        name, colon, dims = part.rpartition(":")
        if not colon or not name.strip():
            raise ValueError(
                f"option 'input_shape': expected 'name:[size,...]' separated by ';', got {part!r}"
            )
        items = [item.strip() for item in dims.strip().strip("[]").split(",") if item.strip()]
        shapes[name.strip()] = tuple(_axis(item, part) for item in items)
    return shapes


def _axis(item: str, part: str) -> Axis:
    if item == "-1":
        return OPEN
    if re.fullmatch(r"\d+", item) and int(item) > 0:
        return int(item)
    ends = re.fullmatch(r"(\d+)\s*~\s*(\d+|-1)", item)
    if ends:
        lowest = int(ends[1])
        highest = None if ends[2] == "-1" else int(ends[2])
        if highest is None or lowest <= highest:
            return lowest if lowest == highest else (lowest, highest)
    raise ValueError(
        f"option 'input_shape': expected a size above 0, a range 'lowest~highest' or -1, "
        f"got {item!r} in {part!r}"
    )


def parse_gears(text: str) -> list[tuple[int, ...]]:
    """Read "[1~4],[8,2]", MindSpore Lite's form in which 1~4 is four gears, or ATC's "1;2;4"."""
    rows = re.findall(r"\[([^\[\]]*)\]", text) if "[" in text else text.strip(" ;").split(";")
    gears: list[tuple[int, ...]] = []
    for row in rows:
        choices: list[range] = []
        for item in row.split(","):
            ends = re.fullmatch(r"(\d+)(?:\s*~\s*(\d+))?", item.strip())
            if not ends or int(ends[1]) < 1 or int(ends[2] or ends[1]) < int(ends[1]):
                raise ValueError(
                    f"option 'dynamic_dims': expected sizes above 0 as '[1],[2],[4]', '[1~4],[8]' "
                    f"or '1;2;4', got {item.strip()!r} in {text!r}"
                )
            first, last = int(ends[1]), int(ends[2] or ends[1])
            choices.append(range(first, min(last, first + MOST_GEARS) + 1))  # one too many shows
        gears += itertools.islice(itertools.product(*choices), MOST_GEARS + 1)
        if len(gears) > MOST_GEARS:
            break  # the caller refuses it; the rest could be long
    return gears


def _gears(
    text: str, shapes: Mapping[str, tuple[Axis, ...]], said_order: list[str]
) -> tuple[tuple[int, ...], ...]:
    """The gears with their sizes in the model's order of inputs, checked."""
    if not text.strip():
        return ()
    gears = parse_gears(text)
    # The user's sizes follow the order in which input_shape names the inputs.
    order = said_order + [name for name in shapes if name not in said_order]
    places = [
        (name, place)
        for name in order
        for place, axis in enumerate(shapes[name])
        if not isinstance(axis, int)
    ]
    if not places:
        raise ValueError("option 'dynamic_dims': no size is open; set it to -1 in 'input_shape'")
    for name, place in places:
        if shapes[name][place] != OPEN:
            raise ValueError(
                f"option 'dynamic_dims' excludes ranges: write dim {place} of {name!r} as -1 in "
                f"'input_shape', got {shapes[name][place]}"
            )
    if not FEWEST_GEARS <= len(gears) <= MOST_GEARS:
        more = "more than " if len(gears) > MOST_GEARS else ""
        raise ValueError(
            f"option 'dynamic_dims': expected {FEWEST_GEARS} to {MOST_GEARS} gears, got "
            f"{more}{min(len(gears), MOST_GEARS)}"
        )
    for gear in gears:
        if len(gear) != len(places):
            raise ValueError(
                f"option 'dynamic_dims': expected {len(places)} sizes in each gear, one for each "
                f"-1 ({', '.join(f'{name}[{place}]' for name, place in places)}), got {list(gear)}"
            )
    if len(set(gears)) != len(gears):
        raise ValueError(f"option 'dynamic_dims': a gear comes twice in {text!r}")
    ordered = sorted(range(len(places)), key=lambda at: list(shapes).index(places[at][0]))
    return tuple(tuple(gear[at] for at in ordered) for gear in gears)


def _bounded(
    shapes: Mapping[str, tuple[Axis, ...]], gears: tuple[tuple[int, ...], ...]
) -> dict[str, tuple[Axis, ...]]:
    """The shapes with each open axis bounded by its lowest and highest gear."""
    columns = iter(zip(*gears, strict=True))
    bounded: dict[str, tuple[Axis, ...]] = {}
    for name, axes in shapes.items():
        bounded[name] = tuple(
            axis if isinstance(axis, int) else _ends(next(columns)) for axis in axes
        )
    return bounded


def _ends(column: Sequence[int]) -> Axis:
    return (min(column), max(column))


def _check_names(shapes: Mapping[str, tuple[Axis, ...]], path: str) -> None:
    for name in shapes:
        if ";" in name:
            raise ModelError(
                f"{path}: ATC cannot be told the shape of an input named {name!r}, because of "
                "the ';'; rename it, or export the model with fixed shapes",
                path,
            )
