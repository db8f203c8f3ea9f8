"""The argument MODEL, and the options that stand for it.

`engine run --example` takes the model that comes with the command, which is
examples/digits/digits.onnx, a network trained on handwritten digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engine.cli.commands import Argument, Function, ModelPath

FILE = Path(__file__).with_name("example.onnx")
_EXAMPLE = "--example"


def model_or_example(function: Function) -> Function:
    """Add the argument MODEL, and the option --example that stands for it."""
    return _added(function, ModelPath(), "a folder with one model")


def folder_or_example(function: Function) -> Function:
    """Add the same for a command that takes a folder of several models too."""
    return _added(function, ModelPath(of_folder=True), "a folder")


def file_or_example(function: Function) -> Function:
    """Add the same for a command that opens the model again and again: no standard input."""
    return _added(function, ModelPath(), "or a folder with one model", standard_input="")


def _added(
    function: Function,
    path: ModelPath,
    folder: str,
    standard_input: str = ", or - for standard input",
) -> Function:
    argument = click.argument(
        "model",
        cls=Argument,
        metavar="[MODEL]",
        type=path,
        required=False,
        callback=_chosen,
        help=f"The model's file, {folder}{standard_input}.",
    )
    option = click.option(
        _EXAMPLE,
        is_flag=True,
        is_eager=True,  # before the argument is looked at
        expose_value=False,
        callback=instead_of_model,
        help="Take the small model that comes along, which reads handwritten digits.",
    )
    return argument(option(function))


def instead_of_model(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Note that an option is given that stands for MODEL; the callback of such an option."""
    if value:
        ctx.meta.setdefault(__name__, []).append(parameter.opts[0])
    return value


def _chosen(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    instead = ctx.meta.get(__name__, [])
    if value is None and not instead:
        wanted = f"'MODEL'; give a model's file, or {_EXAMPLE}"
        raise click.MissingParameter(ctx=ctx, param=parameter, param_hint=wanted)
    given = [*([] if value is None else [f"the model {str(value)!r}"]), *instead]
    if len(given) > 1:
        text = f"got {' and '.join(given)}; expected one of the two"
        raise click.UsageError(text, ctx)
    return FILE if instead == [_EXAMPLE] else value
