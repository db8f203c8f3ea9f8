"""`engine launch`: runs a script once for each rank of a job."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import click

from engine.cli import options
from engine.cli.commands import Argument, Command, Integer
from engine.cli.hints import misuse
from engine.cli.output import note, plain
from engine.distributed.hosts import ranks_here
from engine.distributed.launch import launch as run
from engine.distributed.mpiexec import mpiexec_command
from engine.distributed.rank_output import Files, Prefixed
from engine.distributed.rank_table import RankTable, read

EPILOG = """\b
Examples:
  engine launch -n 2 main.py --model_path=Matmul.onnx
  engine launch -n 4 --log-dir logs -m mypackage.serve
  engine launch --rank-table ranks.json main.py

A rank finds its number in context.gpu.rank_id and context.ascend.rank_id, and how many there are in
context.gpu.group_size; the variables are ENGINE_RANK and ENGINE_WORLD_SIZE. The CPUs are divided
among the ranks, OMP_NUM_THREADS too unless it is set.

When a rank fails, the others end too, those that wait for it with an error that names it. The exit
status is that of the rank that failed first, 128 and the number of the signal for one that
crashed."""

_MOST_RANKS = 1024


@click.command(
    "launch",
    cls=Command,
    epilog=EPILOG,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
@click.option(
    "--ranks",
    "-n",
    "-np",
    "count",
    type=Integer(1, _MOST_RANKS),
    metavar="N",
    help="How many ranks.",
)
@click.option(
    "--module", "-m", "is_module", is_flag=True, help="The program is a module, as for python -m."
)
@click.option(
    "--rank-table",
    type=options.PATH,
    metavar="FILE",
    help="Start the ranks of a rank table, by mpiexec those that it has on other hosts.",
)
@click.option(
    "--log-dir",
    type=options.PATH,
    metavar="DIR",
    help="Write what ranks print to DIR/rank0.out, DIR/rank0.err and so on. Without it each line "
    "is printed with its rank before it.",
)
@click.argument(
    "program",
    cls=Argument,
    metavar="PROGRAM",
    help="A Python script, another program, or with -m a module.",
)
@click.argument(
    "arguments", cls=Argument, metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED,
    help="The program's own.",
)  # fmt: skip
@click.pass_context
def launch(
    context: click.Context,
    count: int | None,
    is_module: bool,
    rank_table: Path | None,
    log_dir: Path | None,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a script as the ranks of one job, and end them together."""
    table = None if rank_table is None else read(rank_table)
    if table is not None and count not in (None, table.world_size):
        raise click.UsageError(
            f"-n {count}, but {rank_table} has {table.world_size} ranks; leave -n out"
        )
    if table is None and count is None:
        raise click.UsageError("how many ranks? give -n N or --rank-table FILE")
    world_size = table.world_size if table is not None else count or 1
    command = [*_program(program, is_module), *arguments]
    env = {} if table is None else {"RANK_TABLE_FILE": str(Path(table.path).absolute())}
    if table is not None and len(ranks_here(table)) < world_size:
        _by_mpiexec(table, command, env, log_dir)
    with ExitStack() as closing:
        output: Files | Prefixed = Prefixed()
        if log_dir is not None:
            output = Files(log_dir)
            closing.callback(output.close)
        failure = run(command, range(world_size), world_size, output, env)
    if failure is not None:
        where = f"; {plain(str(log_dir))} has what it printed" if log_dir is not None else ""
        note(f"error: {plain(failure.text)}{where}")
        context.exit(failure.status)


def _program(program: str, is_module: bool) -> list[str]:
    if is_module:
        return [sys.executable, "-m", program]
    if program.endswith(".py"):
        with open(program, "rb"):  # an error here, not one of each rank
            return [sys.executable, program]
    found = shutil.which(program)
    if found is None:
        raise misuse(
            "PROGRAM",
            f"no program {program!r}; expected a Python script NAME.py, a program, or -m and a "
            "module",
        )
    return [found]


def _by_mpiexec(
    table: RankTable, command: list[str], env: Mapping[str, str], log_dir: Path | None
) -> NoReturn:
    """Go on as the launcher of MPI, which starts ranks on other machines and ends them together."""
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    words = mpiexec_command(table, command, log_dir)
    sys.stdout.flush()
    os.execve(words[0], words, {**os.environ, **env})
