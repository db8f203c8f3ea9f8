"""A backend's manifest: its fields checked, its options all of one kind, as JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from engine.options import describe, value_of
from engine.types import BackendInfo, Option

_TYPES: Mapping[str, type] = {kind.__name__: kind for kind in (int, float, bool, str)}


def checked(info: object) -> BackendInfo:
    """Return the manifest with every option as an `Option`.

    Raises TypeError naming the field of which the value is of another kind than the contract says.
    """
    if not isinstance(info, BackendInfo):
        raise TypeError(f"engine_backend returned {info!r}, expected a BackendInfo")
    for field in ("name", "version"):
        if not isinstance(getattr(info, field), str):
            raise TypeError(f"BackendInfo.{field} is {getattr(info, field)!r}, expected a str")
    for field in ("device_types", "providers", "formats", "completed_by"):
        values = getattr(info, field)
        if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
            raise TypeError(f"BackendInfo.{field} is {values!r}, expected a tuple of str")
    if type(info.level) is not int:
        raise TypeError(f"BackendInfo.level is {info.level!r}, expected an int")
    _require_dict("suffixes", info.suffixes, str, "str")
    _require_dict("options", info.options, (Option, str), "Option or str")
    if not info.device_types:
        raise TypeError("BackendInfo.device_types is empty, expected what it serves")
    if not isinstance(info.capabilities, frozenset | set):
        raise TypeError(f"BackendInfo.capabilities is {info.capabilities!r}, expected a frozenset")
    options = {
        name: option if isinstance(option, Option) else Option(text=option)
        for name, option in info.options.items()
    }
    for name, option in options.items():
        _require_consistent(name, option)
    return replace(info, options=options)


def _require_dict(
    field: str, values: object, kinds: type | tuple[type, ...], expected: str
) -> None:
    if not isinstance(values, Mapping) or not all(
        isinstance(key, str) and isinstance(value, kinds) for key, value in values.items()
    ):
        raise TypeError(f"BackendInfo.{field} is {values!r}, expected a dict of str to {expected}")


def _require_consistent(name: str, option: Option) -> None:
    """Raise TypeError for an option whose fields contradict each other: no tool could try it."""
    where = f"BackendInfo.options[{name!r}]"
    if option.type not in _TYPES.values():
        raise TypeError(f"{where}.type is {option.type!r}, expected int, float, bool or str")
    limits = [limit for limit in (option.lowest, option.highest) if limit is not None]
    if limits and option.type not in (int, float):
        raise TypeError(f"{where} has limits, but its type is {option.type.__name__}")
    if len(limits) == 2 and limits[0] > limits[1]:
        raise TypeError(f"{where}.lowest is {limits[0]:g}, above its highest, {limits[1]:g}")
    for value in (*option.choices, *((option.default,) if option.default else ())):
        if value_of(replace(option, choices=()), value) is None:
            raise TypeError(f"{where} names {value!r}, which is no {describe(option)}")
    if option.default and option.choices and option.default not in option.choices:
        raise TypeError(f"{where}.default is {option.default!r}, none of its choices")


# ------------------------------------------------------------------------------------------- JSON


def to_json(info: BackendInfo) -> dict[str, Any]:
    """Return a checked manifest as plain JSON values."""
    options = {name: option_values(option) for name, option in info.options.items()}
    plain = replace(info, suffixes=dict(info.suffixes), options={}, capabilities=frozenset())
    return {
        **asdict(plain),
        "options": options,
        "capabilities": sorted(str(flag) for flag in info.capabilities),
    }


def option_values(option: Option | str) -> dict[str, Any]:
    """Return an option as plain JSON values."""
    if isinstance(option, str):
        option = Option(text=option)
    return {**asdict(option), "type": option.type.__name__, "choices": list(option.choices)}


def from_json(values: Mapping[str, Any]) -> BackendInfo:
    """Return the manifest that `to_json` wrote."""
    values = dict(values)
    for field in ("device_types", "providers", "formats", "completed_by"):
        values[field] = tuple(values[field])
    values["capabilities"] = frozenset(values["capabilities"])
    values["options"] = {
        name: Option(
            **{**option, "type": _TYPES[option["type"]], "choices": tuple(option["choices"])}
        )
        for name, option in values["options"].items()
    }
    return BackendInfo(**values)
