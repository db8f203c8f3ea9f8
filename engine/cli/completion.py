"""`engine completion`: the script that lets a shell complete commands, options and names."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
)

from engine.cli.commands import Argument, Command, EnumChoice
from engine.cli.output import line

EPILOG = """[bold]Examples[/bold]

  engine completion bash >> ~/.bashrc

  engine completion zsh >> ~/.zshrc

  engine completion fish > ~/.config/fish/completions/engine.fish

[bold]Note[/bold]

  A shell reads it when it starts: open a new one. In .zshrc it comes after the line that calls
  compinit."""

VARIABLE = "_ENGINE_COMPLETE"
"""Set by the scripts, to SHELL_complete, when they ask the command what may come next."""

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


class _Bash(BashComplete):
    """Bash's completion, which leaves to bash itself whatever the command has no word for.

    So a file's name is completed also after "image=", which bash takes for a word of its own.
    """

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' type value
    COMPREPLY=()
    while IFS=',' read -r type value; do
        if [[ $type == plain ]]; then
            COMPREPLY+=("$value")
            [[ $value == *= ]] && compopt -o nospace
        fi
    done < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
%(complete_var)s=bash_complete "$1")
}
complete -o default -o nosort -F %(complete_func)s %(prog_name)s
"""

    def source(self) -> str:
        """Return the script; click would ask the installed bash for its version first."""
        return self.source_template % self.source_vars()


class Shell(StrEnum):
    """The shells that can be taught."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_KINDS: dict[str, type[ShellComplete]] = {
    Shell.BASH: _Bash,
    Shell.ZSH: ZshComplete,
    Shell.FISH: FishComplete,
}


@click.command("completion", cls=Command, epilog=EPILOG)
@click.argument(
    "shell",
    cls=Argument,
    metavar="SHELL",
    type=EnumChoice(Shell),
    help="bash, zsh or fish.",
)
@click.pass_context
def completion(context: click.Context, shell: Shell) -> None:
    """Print the script that completes commands, options, targets and files in your shell.

    It is to be read by the shell when it starts; the examples say how.
    """
    line(_KINDS[shell](context.find_root().command, {}, "engine", VARIABLE).source().rstrip())


def answer(command: click.Command) -> bool:
    """Print what may come next in a shell's line, and return whether a shell asked."""
    shell, _, instruction = os.environ.get(VARIABLE, "").partition("_")
    if shell not in _KINDS or instruction != "complete":
        return False
    line(_KINDS[shell](command, {}, "engine", VARIABLE).complete())
    return True


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> Any:
    """Leave the name of a file to the shell, which knows how.

    A model is known by its content, so no ending is asked for.
    """
    return [CompletionItem(incomplete, type="file")]


def one_of(choices: Callable[[], Any]) -> Completer:
    """Return what completes a value that must be one of the `choices` then."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        return [CompletionItem(name) for name in choices() if name.startswith(incomplete)]

    return complete


def targets(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return the targets that `incomplete` may become, each described; several have commas."""
    from engine.backends import OFFICIAL, installed

    listed, comma, begun = incomplete.rpartition(",")
    known = dict.fromkeys(OFFICIAL, "device type")
    for name in installed():
        known.setdefault(name, "backend")
    return [
        CompletionItem(f"{listed}{comma}{name}", help=what)
        for name, what in known.items()
        if name not in listed.split(",") and name.startswith(begun)
    ]


def set_keys(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return the settings that `incomplete` may become, as SECTION.KEY=, or their values."""
    from engine.cli.known_settings import known_settings  # opens the backends that are meant

    key, equals, begun = incomplete.partition("=")
    settings = known_settings(context, parameter.name or "")
    if equals:
        values = settings[key].values if key in settings else ()
        return [CompletionItem(f"{key}={value}") for value in values if value.startswith(begun)]
    return [
        CompletionItem(f"{name}=", help=setting.text)
        for name, setting in settings.items()
        if name.startswith(incomplete)
    ]
