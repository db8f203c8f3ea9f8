"""Usage errors, and the nearest known word for a misspelt one as the end of their texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from engine.config.text import did_you_mean
from engine.options import nearest


def misuse(option: str, text: str) -> click.BadParameter:
    """Return the usage error for an option's value."""
    return click.BadParameter(text, param_hint=option)


def hint(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean 'x'?"; "" where none of the words is like it."""
    return did_you_mean(word, words, "; ")


def unknown_option(error: click.NoSuchOption) -> str:
    """Return the text on an option that its command does not have, with what it has for that."""
    text = f"no such option {error.option_name!r}"
    own = {*_options(error.ctx)}
    if own.issuperset(instead := _INSTEAD.get(error.option_name, (error.option_name,))):
        return f"{text}; this command has {' and '.join(instead)}"
    if other := _command_with(error.option_name, error.ctx):
        return f"{text}; did you mean: {other}?"
    names = {option.lstrip("-"): option for option in _options(error.ctx)}
    near = names.get(nearest(error.option_name.lstrip("-"), names), "")
    return text + (f"; did you mean {near!r}?" if near else "")


_INSTEAD = {"--target": ("--a", "--b")}
"""Options that some commands have in the place of another one."""

_ASKED = ("run", "bench", "compare", "diff", "inspect", "convert", "slice")


def _command_with(option: str, context: click.Context | None) -> str:
    """Return the first command that takes a model and has that very option; "" for none.

    Where the command at hand takes a model too: its user has taken one for another.
    """
    if context is None or not _takes_model(context):
        return ""
    group = context.find_root().command
    if not option.startswith("--") or not isinstance(group, click.Group):
        return ""
    for name in _ASKED:
        command = group.get_command(context.find_root(), name)
        if command is None or command is context.command:
            continue
        for parameter in command.params:
            if option in (*parameter.opts, *parameter.secondary_opts):
                is_flag = isinstance(parameter, click.Option) and parameter.is_flag
                value = "" if is_flag else f" {parameter.make_metavar(context)}"
                return f"engine {name} {option}{value}"
    return ""


def _takes_model(context: click.Context | None) -> bool:
    parameters = context.command.params if context is not None else ()
    return any(isinstance(each, click.Argument) and each.name == "model" for each in parameters)


def _options(context: click.Context | None) -> Iterator[str]:
    if context is None:
        return
    for parameter in context.command.get_params(context):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield from (*parameter.opts, *parameter.secondary_opts)
    yield from getattr(context.command, "aliases", ())
