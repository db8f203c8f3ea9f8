"""The kinds of command, argument and value that this command line is made of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any

import click

from engine.cli.help import HelpContext

Function = Callable[..., Any]


class Command(click.Command):
    """A command with this project's help page."""

    context_class = HelpContext


class Group(click.Group):
    """A command that has others below it, each with this project's help page."""

    context_class = HelpContext
    command_class = Command


class Argument(click.Argument):
    """A positional argument with a line in the help page, which click knows since 8.5."""

    def __init__(self, declarations: Sequence[str], help: str = "", **settings: Any) -> None:
        super().__init__(declarations, **settings)
        self.help = help


class EnumChoice(click.Choice[Any]):
    """A choice between an enumeration's values; click would take its members' names."""

    def __init__(self, choices: type[StrEnum]) -> None:
        super().__init__(choices)

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Return the word that stands for `choice` on the command line."""
        return str(choice)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the words as the help page shows them."""
        return f"<{'|'.join(map(str, self.choices))}>"


class Integer(click.IntRange):
    """An integer of `least` or more, and `most` or less where that is given."""

    name = "integer"

    def __init__(self, least: int, most: int | None = None) -> None:
        super().__init__(least, most)
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the integer; a usage error, in words, for what is none or out of range."""
        number: int = click.INT.convert(value, param, ctx)
        if number < self._least:
            self.fail(f"must be greater than or equal to {self._least}", param, ctx)
        if self._most is not None and number > self._most:
            self.fail(f"must be less than or equal to {self._most}", param, ctx)
        return number


def bundle(name: str, kind: type[Any], *parameters: Function) -> Function:
    """Return a decorator that adds `parameters` to a command as one argument `name`, a `kind`.

    kind: a dataclass; a parameter goes to the field that has its name.
    """
    names = [field.name for field in fields(kind)]

    def decorate(function: Function) -> Function:
        @functools.wraps(function)  # its parameters too: click keeps them as an attribute
        def command(**values: Any) -> Any:
            own = {field: values.pop(field) for field in names if field in values}
            return function(**values, **{name: kind(**own)})

        decorated: Function = command
        for parameter in reversed(parameters):  # click prepends each
            decorated = parameter(decorated)
        return decorated

    return decorate
