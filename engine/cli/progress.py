"""Progress bars on standard error, where that is a terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import click
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from engine.cli.output import Talk, is_terminal, note, plain, styles, talk
from engine.types import Progress

_MOMENT_S = 0.3


class _Console(Console):
    """A console that leaves the cursor alone: whoever stops or kills the command has it still."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


@contextmanager
def progress(refresh_per_second: float = 10) -> Iterator[Progress]:
    """Show the phases of some work while the block lasts, a bar a phase; then they are gone.

    Yields show(phase, done, total), which any thread may call, also too late. With --verbose each
    phase is a line that stays, with the time when it began, counted from the command's first work.
    """
    console = _Console(stderr=True, color_system=styles())
    bars = Bars(
        TextColumn("{task.description}", markup=False),
        # Short enough for a "^C" beside it: a line that breaks cannot be taken back.
        BarColumn(bar_width=max(1, min(40, console.width // 2 - 10))),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        refresh_per_second=refresh_per_second,
    )
    tasks: dict[str, TaskID] = {}
    is_shown = is_terminal("stderr") and console.is_interactive and talk() is Talk.NORMAL
    is_told = talk() is Talk.VERBOSE
    told: set[str] = set()
    begin = _begin()

    lock = threading.Lock()

    def show(phase: str, done: int, total: int | None) -> None:
        with lock:
            if is_told and phase not in told:
                told.add(phase)
                note(f"{perf_counter() - begin:.3f} s: {plain(phase)}")
            if not is_shown:
                return
            if phase not in tasks:
                tasks[phase] = bars.add_task(plain(phase), total=total)
                bars.start()  # once: there is no bar where nothing takes time
            bars.update(tasks[phase], completed=done, total=total)

    try:
        yield show
    finally:
        with lock:
            is_shown = is_told = False
            if tasks:
                bars.stop()


def _begin() -> float:
    """Return when the first work of this command began: all its times count from there."""
    now = perf_counter()
    command = click.get_current_context(silent=True)
    return now if command is None else command.meta.setdefault(f"{__name__}.begin", now)


@contextmanager
def waiting(phase: str) -> Iterator[None]:
    """Show that work of unknown length goes on while the block lasts, after a moment."""
    with progress() as show:
        if talk() is Talk.VERBOSE:
            show(phase, 0, None)
        timer = threading.Timer(_MOMENT_S, show, (phase, 0, None))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
