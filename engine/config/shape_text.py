"""The two spellings of `input_shape`, `dynamic_dims` and `opt_dims`: MindSpore Lite's own.

[gpu_context] means optimisation profiles: "[1~8,16~512],[9~64,16~512];[1~4],[5~8]" gives every
input (";") a range for each of its -1, and does so once a profile (","). [ascend_context] means
gears: "[1~4],[8],[16]" gives one size for each -1 of all inputs together, six times here, since
1~4 counts as four. Errors are worded as the two backends always have worded them.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Axis: TypeAlias = tuple[int, int, int]
"""Lowest, usual and highest size of one axis; usual and highest are -1 where there is none."""

Inputs: TypeAlias = Mapping[str, tuple[Axis, ...]]
"""The axes of inputs, by name, in the order in which the user names them."""

OPEN: Axis = (0, -1, -1)
FEWEST_GEARS, MOST_GEARS = 2, 100  # ATC's limits


class Spelling(ABC):
    """One section's spelling of shapes, and its words for what does not fit the model."""

    unknown_input: str
    """The text on a `name` that the model does not have, with its `inputs`."""
    wrong_rank: str
    """The text on `count` dims for the input `spec`, of which the model has another number."""
    wrong_dim: str
    """The text on an `axis` that contradicts the model's `dim`, number `index` of `spec`."""

    @abstractmethod
    def input_shape(self, text: str) -> Inputs:
        """Read `input_shape`; {} where it is empty."""

    @abstractmethod
    def profiles(self, named: Inputs, known: Inputs, dynamic: str, usual: str) -> list[Inputs]:
        """Read `dynamic_dims` and `opt_dims`: the axes of each profile, [] where there is none.

        named: what `input_shape` says. known: the same, and all other inputs of the model.
        """

    @abstractmethod
    def leaves(self, dim: int, axis: Axis) -> bool:
        """Return whether `axis` may be said of one that the model fixes to `dim`."""


def spelling_of(device_type: str) -> Spelling:
    """Return the spelling that counts in the section of a device of this type."""
    return _Gears() if device_type == "ascend" else _Profiles()


# ------------------------------------------------------------------------------ [gpu_context]


class _Profiles(Spelling):
    """[gpu_context]: "x:[1,3,96,96];ids:[-1,128]", "[1~8,16~512],[9~64,16~512];[1~4],[5~8]"."""

    unknown_input = "input_shape names {name!r}, but the inputs are {inputs}"
    wrong_rank = "input_shape gives {count} dims for input {spec.name!r}, expected {spec}"
    wrong_dim = (
        "input {spec.name!r}: dim {index} is {dim} in the model, but the settings say {axis[0]} to "
        "{axis[2]}"
    )

    def input_shape(self, text: str) -> Inputs:
        shapes: dict[str, tuple[Axis, ...]] = {}
        if not text.strip():
            return shapes
        for part in text.strip().strip(";").split(";"):
            name, colon, dims = part.rpartition(":")  # a name may hold a colon, a shape cannot
            match = re.fullmatch(r"\s*\[([-\d,\s]*)\]\s*", dims)
            if not colon or not match:
                raise ValueError(f"input_shape must be 'name:[1,3,96,96];...', but got {part!r}")
            sizes = [_number("input_shape", dim, -1) for dim in _items(match[1])]
            shape = tuple(OPEN if size < 0 else (size, size, size) for size in sizes)
            if name.strip() in shapes:
                raise ValueError(f"input_shape names {name.strip()!r} twice")
            shapes[name.strip()] = shape
        return shapes

    def profiles(self, named: Inputs, known: Inputs, dynamic: str, usual: str) -> list[Inputs]:
        if not dynamic.strip() and not usual.strip():
            return []
        if not named or not dynamic.strip():
            missing = "dynamic_dims" if named else "input_shape"
            raise ValueError(f"{missing} must be given with dynamic_dims and opt_dims")
        ranges = _groups("dynamic_dims", named, dynamic)
        tuned = _groups("opt_dims", named, usual) if usual.strip() else None
        if tuned is not None and len(tuned) != len(ranges):
            raise ValueError(
                f"opt_dims has {len(tuned)} entries an input, but dynamic_dims {len(ranges)}"
            )
        profiles: list[Inputs] = []
        for index, group in enumerate(ranges):
            profile: dict[str, tuple[Axis, ...]] = {}
            for name, dims in group.items():
                sizes = tuned[index][name] if tuned is not None else [""] * len(dims)
                filled = iter(list(map(_dynamic_dim, dims, sizes)))
                profile[name] = tuple(
                    next(filled) if axis == OPEN else axis for axis in named[name]
                )
            profiles.append(profile)
        return profiles

    def leaves(self, dim: int, axis: Axis) -> bool:
        return axis in (OPEN, (dim, dim, dim))


def _groups(key: str, named: Inputs, text: str) -> list[dict[str, list[str]]]:
    """Parse the bracketed lists of `text`, by profile and input: as long as its open dims.

    An input without open dims may have an empty entry, or one "[]" a profile.
    """
    parts = text.strip().split(";")
    if len(parts) == len(named) + 1 and not parts[-1].strip():
        parts.pop()
    if len(parts) != len(named):
        raise ValueError(f"{key} has {len(parts)} inputs, but input_shape has {len(named)}")
    by_input: dict[str, list[list[str]]] = {}
    counts: dict[str, int] = {}
    for (name, axes), part in zip(named.items(), parts, strict=True):
        if part.strip() and not re.fullmatch(r"\s*\[[^][]*\](\s*,\s*\[[^][]*\])*\s*", part):
            raise ValueError(f"{key} must be '[1~8,16~512],[...];...', but got {part!r}")
        groups = [_items(group) for group in re.findall(r"\[([^][]*)\]", part)]
        wanted = axes.count(OPEN)
        for group in groups:
            if len(group) != wanted:
                raise ValueError(
                    f"{key} gives {len(group)} dims for input {name!r}, but input_shape leaves "
                    f"{wanted} open"
                )
        if wanted and not groups:
            raise ValueError(f"{key} gives nothing for input {name!r}, which has open dims")
        by_input[name] = groups
        if wanted:
            counts[name] = len(groups)
    if len(set(counts.values())) > 1:
        raise ValueError(f"{key} must give every input as many entries, but got {counts}")
    return [
        {name: groups[index] if name in counts else [] for name, groups in by_input.items()}
        for index in range(max(counts.values(), default=1))
    ]


def _dynamic_dim(text: str, usual: str) -> Axis:
    ends = text.split("~")
    if len(ends) > 2:
        raise ValueError(f"dynamic_dims must give 'lowest~highest' or a number, but got {text!r}")
    lowest, highest = (_number("dynamic_dims", end, 0) for end in (ends[0], ends[-1]))
    tuned = _number("opt_dims", usual, 0) if usual else highest
    if not lowest <= tuned <= highest:
        what = f"opt_dims {tuned} is outside" if lowest <= highest else "the ends are swapped in"
        raise ValueError(f"{what} dynamic_dims {text!r}")
    return lowest, tuned, highest


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _number(key: str, text: str, lowest: int) -> int:
    if not re.fullmatch(r"\s*-?\d{1,10}\s*", text) or int(text) < lowest:
        raise ValueError(f"{key}: expected a whole number of at least {lowest}, but got {text!r}")
    if int(text) >= 2**31:  # TensorRT's dims have 64 bits, its strides and extents 31
        raise ValueError(f"{key}: {text.strip()} is more than {2**31 - 1}")
    return int(text)


# --------------------------------------------------------------------------- [ascend_context]


class _Gears(Spelling):
    """[ascend_context]: "x:[1,3];y:-1,1~8", "[1~4],[8,2]"; ATC leaves brackets out: "1;2;4"."""

    unknown_input = "option 'input_shape': the model has no input {name!r}; it has: {listed}"
    wrong_rank = "option 'input_shape': input {spec.name!r} has {rank} dims ({spec}), got {count}"
    wrong_dim = (
        "option 'input_shape': input {spec.name!r} is {spec}, so a dim must stay {dim}, got {text}"
    )

    def input_shape(self, text: str) -> Inputs:
        shapes: dict[str, tuple[Axis, ...]] = {}
        for part in filter(None, (part.strip() for part in text.split(";"))):
            name, colon, dims = part.rpartition(":")
            if not colon or not name.strip():
                raise ValueError(
                    "option 'input_shape': expected 'name:[size,...]' separated by ';', "
                    f"got {part!r}"
                )
            items = [item.strip() for item in dims.strip().strip("[]").split(",") if item.strip()]
            shapes[name.strip()] = tuple(_size_or_range(item, part) for item in items)
        return shapes

    def profiles(self, named: Inputs, known: Inputs, dynamic: str, usual: str) -> list[Inputs]:
        if usual.strip():
            raise ValueError("option 'opt_dims': gears have no usual size; remove it")
        if not dynamic.strip():
            return []
        gears = _parse_gears(dynamic)
        # The user's sizes follow the order in which input_shape names the inputs.
        rest = (name for name in known if name not in named)
        order = [*named, *rest]
        positions = [
            (name, index)
            for name in order
            for index, axis in enumerate(known[name])
            if axis[0] != axis[2]
        ]
        _check_gears(gears, positions, known, dynamic)
        filled: list[Inputs] = []
        for gear in gears:
            sizes = dict(zip(positions, gear, strict=True))
            filled.append(
                {
                    name: tuple(
                        (sizes[name, index],) * 3 if (name, index) in sizes else axis
                        for index, axis in enumerate(axes)
                    )
                    for name, axes in known.items()
                }
            )
        return filled

    def leaves(self, dim: int, axis: Axis) -> bool:
        return axis == (dim, dim, dim)


def _size_or_range(size: str, part: str) -> Axis:
    if size == "-1":
        return OPEN
    if re.fullmatch(r"\d+", size) and int(size) > 0:
        return int(size), int(size), int(size)
    ends = re.fullmatch(r"(\d+)\s*~\s*(\d+|-1)", size)
    if ends:
        lowest, highest = int(ends[1]), int(ends[2])
        if highest < 0 or lowest <= highest:
            return lowest, highest, highest
    raise ValueError(
        f"option 'input_shape': expected a size above 0, a range 'lowest~highest' or -1, "
        f"got {size!r} in {part!r}"
    )


def _parse_gears(text: str) -> list[tuple[int, ...]]:
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
            break  # refused anyway; the rest could be long
    return gears


def _check_gears(
    gears: Sequence[tuple[int, ...]], positions: Sequence[tuple[str, int]], known: Inputs, text: str
) -> None:
    """Raise ValueError unless there are 2 to 100 gears, each with a size for every open axis."""
    if not positions:
        raise ValueError("option 'dynamic_dims': no size is open; set it to -1 in 'input_shape'")
    for name, index in positions:
        if known[name][index] != OPEN:
            raise ValueError(
                f"option 'dynamic_dims' excludes ranges: write dim {index} of {name!r} as -1 in "
                f"'input_shape', got {axis_text(known[name][index])}"
            )
    if not FEWEST_GEARS <= len(gears) <= MOST_GEARS:
        more = "more than " if len(gears) > MOST_GEARS else ""
        raise ValueError(
            f"option 'dynamic_dims': expected {FEWEST_GEARS} to {MOST_GEARS} gears, got "
            f"{more}{min(len(gears), MOST_GEARS)}"
        )
    for gear in gears:
        if len(gear) != len(positions):
            raise ValueError(
                f"option 'dynamic_dims': expected {len(positions)} sizes in each gear, one for "
                f"each -1 ({', '.join(f'{name}[{index}]' for name, index in positions)}), "
                f"got {list(gear)}"
            )
    if len(set(gears)) != len(gears):
        raise ValueError(f"option 'dynamic_dims': a gear comes twice in {text!r}")


def axis_text(axis: Axis) -> str:
    """Return an axis as a user writes it."""
    if axis[0] == axis[2]:
        return str(axis[0])
    return "-1" if axis == OPEN else f"{axis[0]}~{axis[2]}"
