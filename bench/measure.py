"""Interleaved measurement: these machines are noisy, so only ratios of neighbours in time count.

A round times the baseline, the baseline again, and each contender, one after the other; a ratio
is the median over rounds of contender over baseline. The baseline against itself, measured in
the same way, is the A/A control: where it is not within 1.01, the run is not to be quoted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

CONTROL_LIMIT = 1.01


@dataclass(frozen=True)
class Row:
    """One line of a table. ratio: median contender / baseline; seconds: median of one call."""

    what: str
    baseline_s: float
    seconds: float
    ratio: float
    control: float
    rounds: int
    at_most: float | None = None

    @property
    def verdict(self) -> str:
        if not 1 / CONTROL_LIMIT <= self.control <= CONTROL_LIMIT:
            return "noisy"
        if self.at_most is None:
            return ""
        return "reached" if self.ratio <= self.at_most else "missed"


def compare(
    baseline: Callable[[], object],
    contenders: Mapping[str, tuple[Callable[[], object], float | None]],
    *,
    rounds: int,
    calls: int,
    pause_s: float = 0.0,
    is_warm: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Time `calls` calls of each, in turn, `rounds` times.

    clock: gives seconds; time.process_time on a machine with other work.
    pause_s: rest before each timing, after one untimed call; longer than idle threads spin.
    is_warm: one untimed call before each timing. The baseline comes twice a round, and would find
    its weights in the caches more often than a contender with a session of its own.
    The order of the timings is drawn anew for each round, so that none always follows the same:
    what one leaves behind (spinning threads, caches, the clock's speed) meets all alike.
    """
    order = random.Random(0)
    functions = [baseline, baseline, *(function for function, _ in contenders.values())]
    times: list[list[float]] = [[] for _ in functions]
    for round_ in range(-max(2, rounds // 20), rounds):  # the first ones warm up and do not count
        for which in order.sample(range(len(functions)), len(functions)):
            function = functions[which]
            if pause_s:
                time.sleep(pause_s)
            if pause_s or is_warm:
                function()
            begin = clock()
            for _ in range(calls):
                function()
            spent = (clock() - begin) / calls
            if round_ >= 0:
                times[which].append(spent)
        if progress is not None:
            progress(max(round_ + 1, 0), rounds)
    control = _ratio(times[1], times[0])
    return [
        Row(what, statistics.median(times[0]), statistics.median(own), _ratio(own, times[0]),
            control, rounds, at_most)
        for (what, (_, at_most)), own in zip(contenders.items(), times[2:], strict=True)
    ]  # fmt: skip


def _ratio(own: list[float], base: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(own, base, strict=True))


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """One other process that keeps a core busy meanwhile."""
    # It ends with this process, also where that is killed.
    text = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    process = subprocess.Popen([sys.executable, "-c", text])
    try:
        time.sleep(0.2)
        yield
    finally:
        process.kill()
        process.wait()


def parser_of(description: str | None, *, json: bool = False) -> argparse.ArgumentParser:
    """Return the parser of a script's options. json: it takes --json."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def bar(title: str) -> Callable[[int, int], None] | None:
    """A progress line on a terminal's stderr; None elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        full = 30 * done // total
        end = "\r\033[K" if done == total else ""
        sys.stderr.write(f"\r{title:24} [{'#' * full}{'.' * (30 - full)}] {done}/{total}{end}")
        sys.stderr.flush()

    return show


def report(rows: list[Row], as_json: bool) -> None:
    """Print the rows as a table, or as JSON."""
    if as_json:
        print(json.dumps([{**asdict(row), "verdict": row.verdict} for row in rows], indent=2))
        return
    print(
        f"{'what':52} {'baseline':>11} {'this':>11} {'ratio':>6} {'at most':>7} {'A/A':>6} "
        f"{'rounds':>6}"
    )
    for row in rows:
        limit = "" if row.at_most is None else f"{row.at_most:.2f}"
        print(
            f"{row.what:52} {_time(row.baseline_s):>11} {_time(row.seconds):>11} "
            f"{row.ratio:6.3f} {limit:>7} {row.control:6.3f} {row.rounds:6} {row.verdict}"
        )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def pss_bytes(pid: int) -> int:
    """Return a process's memory, of shared pages its part."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def shared_bytes() -> int:
    """Return the bytes in tmpfs and shared memory."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Shmem:"))
