"""`engine plugins new`: a repository for a new backend."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from engine.cli import options
from engine.cli.commands import Argument, Command
from engine.cli.output import as_json, line, plain
from engine_testing.new import distribution, render, require_name, write

EPILOG = """\b
Examples:
  engine plugins new my_runtime
  engine plugins new my_runtime --out backends/my_runtime
  engine plugins new my_runtime --json

\b
The repository has a backend that passes the conformance kit, and:
  pyproject.toml, the conformance test and tests of its own, tox.ini,
  a workflow file, README.md, and the documentation for authors of backends

\b
Exit status:
  0  the repository is written
  1  it cannot be written there; nothing is left of it
  2  no backend can have this name"""


@click.command("new", cls=Command, epilog=EPILOG)
@click.argument(
    "name",
    cls=Argument,
    metavar="NAME",
    help="The backend's name, by which it will be a target: lower-case letters, digits and "
    "underscores.",
)
@click.option(
    "--out",
    type=options.PATH,
    metavar="DIR",
    help="The folder of the repository, new or empty; inference-engine-NAME if not given.",
)
@options.json
@click.pass_context
def new_backend(context: click.Context, name: str, out: Path | None, json: bool) -> None:
    """Write a repository for a new backend, ready to build and test.

    Its backend passes the conformance kit. It runs models on onnx's reference evaluator: put your
    runtime in its place, step by step, as the repository's README.md says.
    """
    try:
        require_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from error
    folder = out or Path(distribution(name))
    files = render(name)
    write(folder, files)
    commands = [
        f"cd {shlex.quote(str(folder))}",
        'pip install -e ".[tests]"',
        f"engine plugins check {name}",
    ]
    if json or bool(context.obj):  # of `engine plugins --json new`
        as_json(
            {
                "backend": name,
                "distribution": distribution(name),
                "module": f"engine_{name}",
                "folder": str(folder),
                "files": sorted(files),
                "next": commands,
            }
        )
        return
    line(f"wrote {plain(str(folder))}: a backend {name!r} and its tests, {len(files)} files")
    line()
    line("next:")
    for command in commands:
        line(f"  {plain(command)}")
