"""The setups to try: the installed backends, and settings worth trying for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace

from engine.backends import Backend, BackendState, find_target, installed, open_backend
from engine.backends.advice import disabled
from engine.backends.discovery import record
from engine.options import value_of
from engine.plan import BuildOptions
from engine.plan.options import sections_read
from engine.report.choice.evidence import OF_THREADS, Setup
from engine.types import Arithmetic, Option

OPTIONS: tuple[Mapping[str, str], ...] = (
    # A contest measures the whole; that each rewrite is measured at each build takes seconds.
    {"rewrites": "on", "measure_rewrites": "off"},
    {"rewrites": "on"},
    {"rewrites": "exact"},
    {"spin_us": "0"},
)
"""Options that are tried where a backend declares them, together as they stand here."""

LOWER = (Arithmetic.BFLOAT16, Arithmetic.FLOAT16, Arithmetic.ROUNDED)
"""Kinds of arithmetic that are tried where an error is allowed."""


def usable() -> list[str]:
    """Return the names of the installed backends that are not switched off, in order."""
    off = disabled(os.environ.get("ENGINE_DISABLED_BACKENDS", ""))
    return [name for name in installed() if name not in off]


def others(
    default: str, unusable: Mapping[str, str], look: Callable[[str], None]
) -> Iterator[tuple[str, str]]:
    """Yield the backends beside the default, each with why it cannot be had; "" if it can.

    Not those that only complete another. unusable: known reasons by name. look: is told of each
    backend before that is imported and its devices are looked for, for it may crash.
    """
    names = [name for name in usable() if name != default]
    found = {}
    for name in names:
        if name not in unusable:
            look(name)
            found[name] = record(name)
    completing = {
        name
        for each in (record(default), *found.values())
        if each.info is not None
        for name in each.info.completed_by
    }
    for name in names:
        if name in unusable:
            yield name, unusable[name]
        elif name not in completing:
            is_ready = found[name].state is BackendState.READY
            yield name, "" if is_ready else str(found[name])


def settings(
    base: Setup,
    options: BuildOptions,
    choices: Sequence[Mapping[str, str]] = OPTIONS,
    counts: Sequence[int] = (1,),
) -> Iterator[Setup]:
    """Yield a setup with each of the settings that the user has left open.

    base: one whose backend can be had. choices: of options. counts: of threads.
    """
    target = find_target(base.targets[0])
    backend: Backend = open_backend(target.backend)
    has_threads = options.threads.intra_op > 1
    given = {key for name in sections_read(target) for key in options.config.get(name, {})}
    for keys in choices:
        is_left_open = given.isdisjoint(keys) and (has_threads or OF_THREADS.isdisjoint(keys))
        if is_left_open and all(_varies(backend, *pair) for pair in keys.items()):
            section = f"{target.backend}_context"
            yield replace(base, sections=_merged(base, section, keys))
    if has_threads and options.threads.is_counted:
        for count in counts:
            yield replace(base, threads=count)


def _varies(backend: Backend, key: str, value: str) -> bool:
    """Return whether a backend declares an option, with that value beside its default."""
    option = backend.info.options.get(key)
    if not isinstance(option, Option):
        return False
    wanted = value_of(option, value)
    return wanted is not None and wanted != value_of(option, option.default)


def lower(base: Setup, options: BuildOptions) -> Iterator[Setup]:
    """Yield a setup with each lower precision, unless the user says how exactly to compute."""
    target = find_target(base.targets[0])
    settings = getattr(options.context, target.device_type, None)
    given = {key for name in sections_read(target) for key in options.config.get(name, {})}
    is_asked = getattr(settings, "precision_mode", "") not in ("", "enforce_fp32")
    if is_asked or not given.isdisjoint(("arithmetic", "precision_mode", "precision")):
        return
    section = f"{target.backend}_context"
    for arithmetic in LOWER:
        keys = {"arithmetic": str(arithmetic)}
        yield replace(base, sections=_merged(base, section, keys))


def shows_in_placement(setup: Setup) -> bool:
    """Return whether a setup changes the graph alone, which placement tells."""
    keys = {key for keys in setup.sections.values() for key in keys}
    return "rewrites" in keys and "arithmetic" not in keys and not setup.is_of_threads


def _merged(base: Setup, section: str, keys: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    return {**base.sections, section: {**base.sections.get(section, {}), **keys}}


def applied(setup: Setup, options: BuildOptions) -> BuildOptions:
    """Return the wishes of a build with those of a setup. The user's context stays as it is."""
    context = copy(options.context)
    context.target = list(setup.targets)
    if setup.threads:
        context.cpu.thread_num = setup.threads
    if setup.workers:
        context.parallel.workers_num = setup.workers
    config = {**options.config}
    for name, keys in setup.sections.items():
        config[name] = {**config.get(name, {}), **keys}
    return options.varied(context, config)
