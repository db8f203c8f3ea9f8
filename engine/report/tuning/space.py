"""The setups that a tuning tries: from what computes, to how it runs, to how requests share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from engine.plan import BuildOptions
from engine.report.choice.evidence import Setup
from engine.report.choice.setups import settings

GRAPHS: tuple[Mapping[str, str], ...] = (
    {"rewrites": "on", "measure_rewrites": "off"},
    {"rewrites": "on"},
    {"rewrites": "exact"},
    {"rewrites": "off"},
)
"""Options of what a backend makes of the graph."""

WAITING: tuple[Mapping[str, str], ...] = ({"spin_us": "0"}, {"spin_us": "-1"})
"""Options of how long idle threads wait for work: not at all, and as the runtime would."""


def graphs(base: Setup, options: BuildOptions) -> Iterator[Setup]:
    """Yield a setup with each way to rewrite the graph that the user has left open."""
    return settings(base, options, GRAPHS, counts=())


def threads(base: Setup, options: BuildOptions) -> Iterator[Setup]:
    """Yield a setup with each number of threads: the CPUs', and powers of two below it.

    The CPUs' is no copy of the default: a backend that chooses the number itself may keep each
    thread on a core, where it waits while another process has that core.
    """
    most = options.threads.intra_op
    counts = [most, *(count for count in (1 << place for place in range(10)) if count < most)]
    return settings(base, options, (), counts=counts)


def waiting(base: Setup, options: BuildOptions) -> Iterator[Setup]:
    """Yield a setup with each way to wait, where there are threads that wait."""
    if base.threads != 1:
        yield from settings(base, options, WAITING, counts=())


def sharing(base: Setup, options: BuildOptions, clients: int, has_batch: bool) -> Iterator[Setup]:
    """Yield a setup with each number of workers and of threads in each, then without shared runs.

    Workers that together have all CPUs, and twice as many of one thread. has_batch: requests may
    share runs there.
    """
    cpus = options.threads.intra_op
    if options.threads.is_counted and not base.threads:
        pairs = [(cpus // count, count) for count in (1 << place for place in range(10))
                 if count <= cpus]  # fmt: skip
        for workers, count in [*pairs, (2 * cpus, 1)]:
            if workers <= max(clients, cpus):
                yield replace(base, workers=workers, threads=count)
    if has_batch:
        yield replace(base, max_batch=1)
