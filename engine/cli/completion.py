"""`engine completion`: the script that lets a shell complete commands, options and names."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import (  # type: ignore[attr-defined]  # there, but not in an __all__
    completion_init,
    get_completion_script,
)

from engine.cli.output import line

EPILOG = """[bold]Examples[/bold]

  engine completion bash >> ~/.bashrc

  engine completion zsh >> ~/.zshrc

  engine completion fish > ~/.config/fish/completions/engine.fish

[bold]Note[/bold]

  A shell reads it when it starts: open a new one. In .zshrc it comes after the line that calls
  compinit."""

# Teaches the command to answer the scripts' questions; Typer does it only for an app with its
# own two options, which would stand in every help.
completion_init()


class Shell(StrEnum):
    """The shells that can be taught."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[
        Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)
    ],
) -> None:
    """Print the script that completes commands, options, targets and files in your shell.

    It is to be read by the shell when it starts; the examples say how.
    """
    line(
        get_completion_script(
            prog_name="engine", complete_var="_ENGINE_COMPLETE", shell=shell.value
        )
    )


def files() -> list[str]:
    """What completes the name of a file: nothing, because then the shell does, and knows how.

    A model is known by its content, so no ending is asked for.
    """
    return []


def one_of(*names: str) -> Callable[[], list[str]]:
    """What completes a value that must be one of `names`."""
    return lambda: list(names)


def targets(incomplete: str) -> list[tuple[str, str]]:
    """The targets that `incomplete` may become, each with a word on it; several with commas."""
    from engine.backends import OFFICIAL, installed

    listed, comma, _ = incomplete.rpartition(",")
    known = dict.fromkeys(OFFICIAL, "device type")
    for name in installed():
        known.setdefault(name, "backend")
    return [
        (f"{listed}{comma}{name}", what)
        for name, what in known.items()
        if name not in listed.split(",")
    ]
