"""The settings that --set may be given in a command line, for its completion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import click

from engine.errors import EngineError

_COMMON = "common_context"


class Setting(NamedTuple):
    """A setting. text: its values and meaning in a line, "" where nobody says. values: if few."""

    text: str = ""
    values: tuple[str, ...] = ()


def known_settings(context: click.Context, parameter: str) -> dict[str, Setting]:
    """Return what is known, by "section.key", for a command line that is being written.

    parameter: the option's own name; "settings_a" is for the target of --a alone.
    """
    if context.command.name == "convert":
        return dict(_of_converter())
    from engine.config.schema import KNOWN

    found = {f"{_COMMON}.{key}": Setting() for key in KNOWN[_COMMON]}
    names = {"settings_a": ("a",), "settings_b": ("b",)}.get(parameter, ("target", "a", "b"))
    given = (context.params.get(name) for name in names)
    for target in ",".join(text for text in given if isinstance(text, str)).split(","):
        with suppress(EngineError, ValueError):  # a line that is half written names what is not
            found |= _of_target(target.strip() or "cpu")
    return found


def _of_target(name: str) -> Iterator[tuple[str, Setting]]:
    from engine.backends import find_target, open_backend
    from engine.options import READ
    from engine.plan.options import sections_read
    from engine.types import Option

    target = find_target(name)
    section = sections_read(target)[0]
    for key, option in open_backend(target.backend).info.options.items():
        if not key.endswith("*") and isinstance(option, Option):
            values = option.choices or (("true", "false") if option.type is bool else ())
            yield f"{section}.{key}", Setting(option.text, tuple(values))
    for key in READ:
        yield f"{section}.{key}", Setting()


def _of_converter() -> Iterator[tuple[str, Setting]]:
    from engine.converter.quantize.settings import KEYS

    for section, keys in KEYS.items():
        for key in keys:
            yield f"{section}.{key}", Setting()
