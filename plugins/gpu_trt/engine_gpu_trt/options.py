"""The user's settings -> what this backend does.

They are in section [gpu_context] (MindSpore Lite's own) and, over it, [gpu_trt_context].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from engine.options import refuse_unknown
from engine.types import CompileOptions

PROVIDERS = ("tensorrt",)

OPTIONS: Mapping[str, str] = {
    "input_shape": "'x:[1,3,96,96];ids:[-1,128]': fixes dims; -1 leaves one open",
    "dynamic_dims": "'[1~8];[1~8,16~512]': lowest~highest of each -1 in input_shape, one entry an "
    "input in its order; '[1~8],[9~64]' gives two optimisation profiles",
    "opt_dims": "as dynamic_dims, one number a dim: the size to tune for (default: highest)",
    "precision_mode": "enforce_fp32 (default), preferred_fp16; wins over context.gpu's",
    "batch_range": "1~1~32: lowest~usual~highest of an open axis 0 that nothing else fixes",
    "dim_range": "1~64~512: the same for an open axis that is not the first",
    "workspace_bytes": "the most scratch memory a layer may use: 64MiB, 2GiB; default: all",
    "optimization_level": "0..5 (default 3): how long TensorRT searches for fast kernels",
    "tf32": "off (default), on: let float32 products round to TensorFloat-32's 10 bits",
}

_PRECISIONS = ("enforce_fp32", "preferred_fp16")
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

Range: TypeAlias = tuple[int, int, int]
"""Lowest, usual and highest size of one axis."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What OPTIONS lists, read and checked.

    shapes: dims by input name, -1 where open, in the order of `input_shape`.
    ranges: for each profile, by input name, one range for each -1 of its shape.
    """

    fp16: bool = False
    tf32: bool = False
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    batch_range: Range = (1, 1, 32)
    dim_range: Range = (1, 64, 512)
    shapes: Mapping[str, tuple[int, ...]] | None = None
    ranges: tuple[Mapping[str, tuple[Range, ...]], ...] = ()


def read_settings(options: CompileOptions) -> Settings:
    """The settings of one compile; ValueError naming the key and what it takes."""
    given = options.options
    refuse_unknown(given, OPTIONS)
    if options.provider not in ("", *PROVIDERS):
        raise ValueError(
            f"provider of gpu_trt must be in {list(PROVIDERS)} or '', but got {options.provider!r}"
        )
    precision = given.get("precision_mode", "").strip() or options.precision or _PRECISIONS[0]
    if precision not in _PRECISIONS:
        raise ValueError(
            f"gpu_precision_mode must be in [{', '.join(_PRECISIONS)}], but got {precision}."
        )
    shapes = _input_shape(given.get("input_shape", ""))
    defaults = Settings()
    return Settings(
        fp16=precision == "preferred_fp16",
        tf32=_switch(given, "tf32"),
        workspace_bytes=_size(given, "workspace_bytes"),
        optimization_level=_level(given, "optimization_level"),
        batch_range=_default_range(given, "batch_range", defaults.batch_range),
        dim_range=_default_range(given, "dim_range", defaults.dim_range),
        shapes=shapes,
        ranges=_profiles(shapes, given.get("dynamic_dims", ""), given.get("opt_dims", "")),
    )


# ----------------------------------------------------------------------------- shapes and ranges


def _input_shape(text: str) -> dict[str, tuple[int, ...]] | None:
    if not text.strip():
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    for part in text.strip().strip(";").split(";"):
        name, colon, dims = part.rpartition(":")  # a name may hold a colon, a shape cannot
        found = re.fullmatch(r"\s*\[([-\d,\s]*)\]\s*", dims)
        if not colon or not found:
            raise ValueError(f"input_shape must be 'name:[1,3,96,96];...', but got {part!r}")
        shape = tuple(_number("input_shape", dim, -1) for dim in _items(found[1]))
        if shapes.setdefault(name.strip(), shape) is not shape:
            raise ValueError(f"input_shape names {name.strip()!r} twice")
    return shapes


def _profiles(
    shapes: Mapping[str, tuple[int, ...]] | None, dynamic: str, usual: str
) -> tuple[dict[str, tuple[Range, ...]], ...]:
    """One dict a profile, from dynamic_dims and opt_dims."""
    if not dynamic.strip() and not usual.strip():
        return ()
    if shapes is None or not dynamic.strip():
        missing = "input_shape" if shapes is None else "dynamic_dims"
        raise ValueError(f"{missing} must be given with dynamic_dims and opt_dims")
    ranges = _groups("dynamic_dims", shapes, dynamic)
    tuned = _groups("opt_dims", shapes, usual) if usual.strip() else None
    if tuned is not None and len(tuned) != len(ranges):
        raise ValueError(
            f"opt_dims has {len(tuned)} entries an input, but dynamic_dims {len(ranges)}"
        )
    profiles = []
    for place, group in enumerate(ranges):
        profile: dict[str, tuple[Range, ...]] = {}
        for name, dims in group.items():
            opts = tuned[place][name] if tuned is not None else [""] * len(dims)
            profile[name] = tuple(map(_dynamic_dim, dims, opts))
        profiles.append(profile)
    return tuple(profiles)


def _groups(
    key: str, shapes: Mapping[str, tuple[int, ...]], text: str
) -> list[dict[str, list[str]]]:
    """The bracketed lists of `text`, by profile and input: each as long as the input's open dims.

    An input without open dims may have an empty entry, or one "[]" a profile.
    """
    inputs = text.strip().split(";")
    if len(inputs) == len(shapes) + 1 and not inputs[-1].strip():
        inputs.pop()
    if len(inputs) != len(shapes):
        raise ValueError(f"{key} has {len(inputs)} inputs, but input_shape has {len(shapes)}")
    found: dict[str, list[list[str]]] = {}
    for (name, shape), part in zip(shapes.items(), inputs, strict=True):
        if part.strip() and not re.fullmatch(r"\s*\[[^][]*\](\s*,\s*\[[^][]*\])*\s*", part):
            raise ValueError(f"{key} must be '[1~8,16~512],[...];...', but got {part!r}")
        groups = [_items(group) for group in re.findall(r"\[([^][]*)\]", part)]
        wanted = shape.count(-1)
        for group in groups:
            if len(group) != wanted:
                raise ValueError(
                    f"{key} gives {len(group)} dims for input {name!r}, but input_shape leaves "
                    f"{wanted} open"
                )
        if wanted and not groups:
            raise ValueError(f"{key} gives nothing for input {name!r}, which has open dims")
        found[name] = groups
    counts = {name: len(groups) for name, groups in found.items() if shapes[name].count(-1)}
    if len(set(counts.values())) > 1:
        raise ValueError(f"{key} must give every input as many entries, but got {counts}")
    count = max(counts.values(), default=1)
    return [
        {name: groups[place] if name in counts else [] for name, groups in found.items()}
        for place in range(count)
    ]


def _dynamic_dim(text: str, usual: str) -> Range:
    ends = text.split("~")
    if len(ends) > 2:
        raise ValueError(f"dynamic_dims must give 'lowest~highest' or a number, but got {text!r}")
    lowest, highest = (_number("dynamic_dims", end, 0) for end in (ends[0], ends[-1]))
    tuned = _number("opt_dims", usual, 0) if usual else highest
    if not lowest <= tuned <= highest:
        what = f"opt_dims {tuned} is outside" if lowest <= highest else "the ends are swapped in"
        raise ValueError(f"{what} dynamic_dims {text!r}")
    return lowest, tuned, highest


def _default_range(given: Mapping[str, str], key: str, default: Range) -> Range:
    text = given.get(key, "")
    if not text.strip():
        return default
    parts = text.split("~")
    if len(parts) not in (2, 3):
        raise ValueError(f"{key} must be 'lowest~usual~highest', but got {text!r}")
    numbers = [_number(key, part, 0) for part in parts]
    result = (numbers[0], numbers[len(numbers) // 2], numbers[-1])
    if sorted(result) != list(result):
        raise ValueError(f"{key} must rise from lowest to highest, but got {text!r}")
    return result


# --------------------------------------------------------------------------------- single values


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _number(key: str, text: str, lowest: int) -> int:
    if not re.fullmatch(r"\s*-?\d{1,10}\s*", text) or int(text) < lowest:
        raise ValueError(f"{key}: expected a whole number of at least {lowest}, but got {text!r}")
    if int(text) >= 2**31:  # TensorRT's dims have 64 bits, its strides and extents 31
        raise ValueError(f"{key}: {text.strip()} is more than {2**31 - 1}")
    return int(text)


def _switch(given: Mapping[str, str], key: str) -> bool:
    text = given.get(key, "off").strip().lower()
    if text not in _SWITCH:
        raise ValueError(f"{key} must be 'on' or 'off', but got {text!r}")
    return _SWITCH[text]


def _size(given: Mapping[str, str], key: str) -> int | None:
    text = given.get(key, "").strip()
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,18})\s*(KiB|MiB|GiB|)", text)
    if not found:
        raise ValueError(f"{key} must be a size in bytes, '64MiB' or '2GiB', but got {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def _level(given: Mapping[str, str], key: str) -> int | None:
    text = given.get(key, "").strip()
    if not text:
        return None
    if text not in ("0", "1", "2", "3", "4", "5"):
        raise ValueError(f"{key} must be in 0..5, but got {text!r}")
    return int(text)
