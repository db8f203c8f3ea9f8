"""The kinds of command, argument and value that this command line is made of."""

from __future__ import annotations

import functools
import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import click

from engine.backends import BackendState, PluginRecord, doors
from engine.backends.doors import COMMANDS
from engine.cli.hints import hint
from engine.cli.output import Talk, set_talk
from engine.errors import ModelError, ModelStateError

OWN_DISTRIBUTION = "inference-engine"
_EXTRAS = {"serve": "serve"}
"""The extras that bring commands of this project's other distributions."""

Function = Callable[..., Any]


def _set_talk(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    if is_given:
        is_quiet = parameter.name == "quiet"
        set_talk(Talk.QUIET if is_quiet else Talk.VERBOSE)
        if not is_quiet:
            logging.getLogger("engine").setLevel(logging.DEBUG)


_TALK = [
    click.Option(names, is_flag=True, expose_value=False, callback=_set_talk, help=text)
    for names, text in (
        (
            ("--verbose", "-v"),
            "Also print what is being done, all that is logged, and the traceback of an error.",
        ),
        (
            ("--quiet", "-q"),
            "Print the result alone: no notes, warnings and progress; errors still.",
        ),
    )
]


@contextmanager
def _mistakes_of(context: click.Context) -> Iterator[None]:
    """Say of a usage error whose it is: click does not for an option that lacks its value."""
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or context
        raise


class Command(click.Command):
    """A command with the options that all have."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its arguments and options, those that all commands have before --help."""
        *own, help_option = super().get_params(ctx)
        return [*own, *_TALK, help_option]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; where words are left over, say how files are given."""
        try:
            with _mistakes_of(ctx):
                return super().parse_args(ctx, args)
        except click.UsageError as error:
            takes_inputs = any("--input" in parameter.opts for parameter in self.params)
            # Click has a class of its own for every mistake but this one.
            if type(error) is not click.UsageError or not takes_inputs:
                raise
            advice = "inputs go behind --input, several with commas between, or their folder"
            raise click.UsageError(f"{error.message}; {advice}", ctx) from None


class Group(click.Group):
    """A command that has others below it."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options before the name of a command below it."""
        with _mistakes_of(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names, and the words behind it.

        Raises a usage error with the nearest command for a word that names none.
        """
        word = args[0]
        is_known = word.startswith("-") or self.get_command(ctx, word) is not None
        if not is_known and not ctx.resilient_parsing:
            near = hint(word, self.list_commands(ctx))
            if ctx.parent is None and word in _EXTRAS:
                near = f'; run: pip install "{OWN_DISTRIBUTION}[{_EXTRAS[word]}]"'
            elif ctx.parent is None and not near and os.path.exists(word):
                near = f"; did you mean: {ctx.command_path} run {shlex.quote(word)}?"
            raise click.UsageError(f"no such command {word!r}{near}", ctx)
        return super().resolve_command(ctx, args)


class LateGroup(Group):
    """A group whose commands are imported when one is asked for: each takes what it needs.

    late: "module:name" of each command, by the word that it is called by. has_entries: others are
    entries of group `engine.commands.v1`, of the core's wings or of anybody; they replace none of
    `late`.
    """

    def __init__(
        self,
        *arguments: Any,
        late: Mapping[str, str],
        has_entries: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self._late = dict(late)
        self._has_entries = has_entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' words."""
        entries = doors.names(COMMANDS) if self._has_entries else ()
        return sorted({*self._late, *self.commands, *entries})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported; None for a word that is none.

        Of an entry that cannot be used it is one that says why.
        """
        if cmd_name in self._late and cmd_name not in self.commands:
            module, _, name = self._late[cmd_name].partition(":")
            self.add_command(getattr(import_module(module), name), cmd_name)
        if cmd_name not in self.commands and self._has_entries:
            found, command = doors.resolve(COMMANDS, cmd_name)
            if found.state is BackendState.NOT_INSTALLED:
                return None
            if found.state is not BackendState.READY:
                return _unusable(found, command)
            if found.distribution != OWN_DISTRIBUTION:  # the list of commands names its package
                command = copy(command)
                help = command.get_short_help_str(limit=200)
                command.short_help = f"{help} ({found.distribution})"
                return cast("click.Command", command)
            self.add_command(command, cmd_name)
        return super().get_command(ctx, cmd_name)


def _unusable(found: PluginRecord, cause: BaseException | None) -> click.Command:
    """Return a command that stands for one that cannot be used, and raises why."""

    def fail() -> None:
        raise ModelStateError(str(found)) from cause

    state = found.state.replace("_", " ")
    return Command(
        found.name,
        callback=fail,
        short_help=f"({state}, of {found.distribution or 'an unknown package'}: engine plugins)",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


class Argument(click.Argument):
    """A positional argument with a line in the help page, which click knows since 8.5."""

    def __init__(self, declarations: Sequence[str], help: str = "", **settings: Any) -> None:
        super().__init__(declarations, **settings)
        self.help = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return the argument's row of the help page."""
        return self.make_metavar(ctx), self.help or ""


class ModelPath(click.Path):
    """The path of a model's file, which may be given as a folder's that holds one model.

    of_folder: the path of a folder with several models is one too.
    """

    def __init__(self, of_folder: bool = False) -> None:
        super().__init__(readable=False, path_type=Path)
        self._of_folder = of_folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; among several ranks that of this rank's part, as engine.load does.

        Raises ModelError for an address and a folder without one model.
        """
        from engine.formats.given import found, models_in  # not for every command: slow

        if not os.fspath(value):  # a script's variable that is not set; Path would make it "."
            self.fail("expected the path of a model, got ''", param, ctx)
        try:
            path = os.fspath(found(os.fspath(value)))
        except ModelError:
            if not self._of_folder or len(models_in(Path(value).expanduser())[1]) < 2:
                raise
            path = os.path.expanduser(value)
        if not os.path.exists(path):
            from engine.distributed.job import this_job

            job, (stem, suffix) = this_job(), os.path.splitext(path)
            if job.world_size > 1 and os.path.isfile(own := f"{stem}{job.rank}{suffix}"):
                path = own
        return super().convert(path, param, ctx)


class Choice(click.Choice[Any]):
    """A choice between words, of which a misspelt one is told the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the text on a word that is none of them."""
        words = [self.normalize_choice(choice, ctx) for choice in self.choices]
        text = super().get_invalid_choice_message(value, ctx).rstrip(".")
        return f"{text}{hint(str(value), words)}"


class EnumChoice(Choice):
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
