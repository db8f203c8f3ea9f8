"""The nearest known word for a misspelt one, as the end of an error's text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from engine.options import nearest

_OPTIONS_ELSEWHERE = {
    name: words.split()
    for name, words in {
        "target": "provider providers execution-provider ep backend device",
        "a": "target provider device",
        "batches": "batch-size batch-sizes batch",
        "shape": "batch-size batch-sizes batch input-shape shapes",
        "runs": "iterations iters repeat count n",
        "clients": "concurrency streams nstreams",
        "threads": "num-threads nthreads intra-op-num-threads",
        "nodes": "layers ops operators",
        "input": "image images data feed load-inputs",
        "rtol": "tolerance tol rel",
        "atol": "abs",
        "tp": "ranks world-size tensor-parallel",
        "fp16": "precision half float16",
        "quantize": "int8",
        "max-size": "all",
        "output": "save save-outputs out",
    }.items()
}
"""Options, each with those of other tools that do there what it does here."""

_COMMANDS_ELSEWHERE = {
    "info": "inspect",
    "show": "inspect",
    "summary": "inspect",
    "list": "plugins",
    "devices": "plugins",
    "backends": "plugins",
    "quantize": "convert --quantize FILE",
    "export": "convert",
    "diff": "compare",
    "split": "slice",
    "profile": "run --profile",
    "predict": "run",
    "infer": "run",
    "help": "--help",
    "version": "--version",
    "cache list": "ls",
    "cache size": "ls",
    **dict.fromkeys(("cache clear", "cache clean", "cache purge"), "prune --max-size 0"),
}
"""Commands of other tools, each with the one that does here what it does there."""

_MODEL = ("model", "onnx", "model-path", "model-file")


def hint(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean 'x'?"; "" where none of the words is like it."""
    near = nearest(word, words)
    return f"; did you mean {near!r}?" if near else ""


def command_elsewhere(path: str) -> str:
    """Return the command that does here what one of another tool does there; "" for none.

    path: its words behind "engine", as "cache clear"; the command is what replaces the last.
    """
    return _COMMANDS_ELSEWHERE.get(path, "")


def unknown_option(error: click.NoSuchOption) -> str:
    """Return the text on an option that its command does not have, with what it has for that."""
    names = {option.lstrip("-"): option for option in _options(error.ctx)}
    word = error.option_name.lstrip("-")
    text = f"no such option {error.option_name!r}"
    if word in _MODEL and _takes_model(error.ctx):
        return f"{text}; the model goes without an option"
    meant = [
        names[name] for name, words in _OPTIONS_ELSEWHERE.items() if name in names and word in words
    ]
    if not meant and (elsewhere := _command_with(error.option_name, error.ctx)):
        return f"{text}; did you mean: {elsewhere}?"
    near = meant[0] if meant else names.get(nearest(word, names), "")
    if not near and word in _OPTIONS_ELSEWHERE["runs"]:  # of a command that runs once
        return f"{text}; did you mean: engine bench --runs N?"
    return text + (f"; did you mean {near!r}?" if near else "")


_ASKED = ("run", "bench", "compare", "inspect", "convert", "slice")


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
