"""Checks of sections of options, as users pass them in a dict."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Real

from engine.config.checks import require


def require_sections(name: str, value: object) -> dict[str, dict[str, str]]:
    """Return a copy of `value` if it is a dict of str to dict of str to str, else TypeError."""
    sections: dict[str, dict[str, str]] = {}
    for section, keys in require(name, value, dict).items():
        copy = sections[require(f"{name}_key", section, str)] = {}
        try:
            for key, text in require(f"{name}_value", keys, dict).items():
                require(f"{name}_value_key", key, str)
                copy[key] = require(f"{name}_value_value", text, str)
        except TypeError as error:
            raise TypeError(f"{error} In section {section!r}; write every value as text") from None
    return sections


def sections_of(name: str, value: object) -> dict[str, dict[str, str]]:
    """Return sections of options as texts; a value may be a number, a bool or a path too.

    Raises TypeError that names the argument, the section and the key.
    """
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} must be a path or a dict of sections, as {{'cpu_context': {{'spin_us': 0}}}}, "
            f"but got {type(value)}."
        )
    sections: dict[str, dict[str, str]] = {}
    for section, keys in value.items():
        if not isinstance(section, str) or not isinstance(keys, Mapping):
            raise TypeError(
                f"{name} must be a dict of sections, as {{'cpu_context': {{'spin_us': 0}}}}, but "
                f"got {section!r}: {keys!r}; put it into the section of what reads it"
            )
        texts = sections[section] = {}
        for key, item in keys.items():
            if not isinstance(key, str) or not isinstance(item, str | Real | os.PathLike):
                raise TypeError(
                    f"{name}: key {key!r} in section {section!r} must be text with a text, number, "
                    f"bool or path as its value, but got {type(item)}."
                )
            texts[key] = str(int(item)) if isinstance(item, bool) else str(item)
    return sections
