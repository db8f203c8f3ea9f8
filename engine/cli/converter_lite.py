"""Understands the flags of MindSpore Lite's `converter_lite`: "--inputShape=x:1,3" and the like."""

from __future__ import annotations

from collections.abc import Iterator

import click

from engine.cli.commands import Command

OUTPUT_IS_LITERAL = "engine: output is --outputFile's"
"""In the click context's meta: the output's name was given as converter_lite takes it."""

_OPTIONS = {
    "weightFile": "--weight-file",
    "configFile": "--config",
    "inputShape": "--input-shape",
    "inputDataFormat": "--input-format",
    "outputDataFormat": "--output-format",
    "inputDataType": "--input-type",
    "outputDataType": "--output-type",
    "saveType": "--save-type",
    "encryptKey": "--encrypt-key",
    "decryptKey": "--decrypt-key",
    "decryptMode": "--decrypt-mode",
}
_OTHERS = ("device", "fmk", "optimize")  # with the same name here
_SWITCHES = {
    "fp16": "--fp16",
    "infer": "--infer",
    "encryption": "--encryption",
    "trainModel": "--train-model",
    "optimizeTransformer": "--optimize-transformer",
}
_PLACES = ("modelFile", "outputFile")
_TRUTH = {"on": True, "true": True, "off": False, "false": False}


class ConverterLiteCommand(Command):
    """A command whose arguments and options go by those names too."""

    aliases = tuple(f"--{name}" for name in (*_PLACES, *_OPTIONS, *_SWITCHES))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command's arguments, each under the name that this project has for it."""
        places: dict[str, list[str]] = {f"--{name}": [] for name in _PLACES}
        rest: list[str] = []
        words = iter(_given(args))
        for argument in words:
            name, equals, value = argument.partition("=")
            if name in places:
                places[name].append(value if equals else next(words, ""))
            else:
                rest += _modern(argument, ctx)
        model, output = places.values()
        ctx.meta[OUTPUT_IS_LITERAL] = bool(output)
        if output and not model and all(word.startswith("-") for word in rest):
            known = {name for option in self.get_params(ctx) for name in option.opts}
            for flag in (word.partition("=")[0] for word in rest):
                if flag not in known:  # it may be what was to say the model
                    raise click.NoSuchOption(flag, ctx=ctx)
            raise click.BadParameter("missing argument 'MODEL' (--modelFile)", ctx=ctx)
        return super().parse_args(ctx, [*model, *output, *rest] if model else [*rest, *output])


def _given(args: list[str]) -> Iterator[str]:
    """Yield the words of a command line without flags whose value is "", which is their default."""
    words = iter(args)
    for word in words:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--")
        has_value = flag != name and name in (*_OPTIONS, *_OTHERS)
        if flag != name and equals and not value and (has_value or name in _SWITCHES):
            continue
        if has_value and not equals:
            following = next(words, None)
            if following == "":
                continue
            yield from (word,) if following is None else (word, following)
        else:
            yield word


def _modern(argument: str, ctx: click.Context) -> list[str]:
    """Return "--fp16=on" as "--fp16", "--saveType=a" as "--save-type=a", another as it is."""
    flag, equals, value = argument.partition("=")
    name = flag.removeprefix("--")
    if name in _OPTIONS and flag != name:
        return [_OPTIONS[name] + equals + value]  # without "=" the value comes next
    if name not in _SWITCHES or flag == name or not equals:
        return [argument]
    if value.lower() not in _TRUTH:
        raise click.BadParameter(
            f"expected on, off, true or false, got {value!r}", ctx=ctx, param_hint=flag
        )
    if _TRUTH[value.lower()]:
        return [_SWITCHES[name]]
    # A key alone asks for encryption; the others are off unless they are switched on.
    return ["--no-encryption"] if name == "encryption" else []
