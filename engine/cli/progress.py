"""Progress bars on standard error, where that is a terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from engine.cli.output import is_terminal, plain
from engine.types import Progress


class _Console(Console):
    """A console that leaves the cursor alone: whoever stops or kills the command has it still."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


@contextmanager
def progress(refresh_per_second: float = 10) -> Iterator[Progress]:
    """Show the phases of some work while the block lasts, a bar a phase; then they are gone.

    Yields show(phase, done, total), which any thread may call, also too late.
    """
    console = _Console(stderr=True)
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
    is_shown = is_terminal("stderr") and console.is_interactive

    lock = threading.Lock()

    def show(phase: str, done: int, total: int | None) -> None:
        with lock:
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
            is_shown = False
            if tasks:
                bars.stop()
