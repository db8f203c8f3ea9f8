"""The model that comes with the command: `engine run --example` needs no file of one's own.

It is examples/digits/digits.onnx, a network trained on handwritten digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engine.cli.commands import Argument, Function, ModelPath

FILE = Path(__file__).with_name("example.onnx")


def model_or_example(function: Function) -> Function:
    """Add the argument MODEL, and the option --example that stands for it."""
    argument = click.argument(
        "model",
        cls=Argument,
        metavar="[MODEL]",
        type=ModelPath(),
        required=False,
        callback=_chosen,
        help="The model's file, a folder with one model, or - for standard input.",
    )
    option = click.option(
        "--example",
        is_flag=True,
        is_eager=True,  # before the argument is looked at
        expose_value=False,
        callback=_noted,
        help="Take the small model that comes along, which reads handwritten digits.",
    )
    return argument(option(function))


def _noted(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    ctx.meta[__name__] = value
    return value


def _chosen(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    is_example = ctx.meta.get(__name__, False)
    if value is None and not is_example:
        raise click.MissingParameter(ctx=ctx, param=parameter, param_hint="'MODEL'")
    if value is not None and is_example:
        text = f"got the model {str(value)!r} and --example; expected one of the two"
        raise click.UsageError(text, ctx)
    return FILE if is_example else value
