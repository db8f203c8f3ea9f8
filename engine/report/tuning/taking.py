"""A configuration that a tuning wrote: it counts for one model, machine and set of versions.

Every build asks here where its configuration has section [tuned]. What was measured elsewhere is
refused: it may be slower than the default, or less exact.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends import find_target
from engine.config.reader import ReadFrom
from engine.config.text import did_you_mean
from engine.config.wording import translated
from engine.errors import BackendError
from engine.options import is_declared
from engine.plan import BuildOptions
from engine.plan.targets import is_auto
from engine.report.choice.keeping import circumstances, devices
from engine.report.tuning.config_file import KEYS, SECTION
from engine.types import ModelSource
from engine.weights.compile_cache import CompileCache, Mode
from engine.weights.digests import Digests
from engine.weights.identity import model_digest
from engine.weights.location import CacheUnusable

if TYPE_CHECKING:
    from engine.config.declared import Sections
    from engine.context import Context
    from engine.formats import ModelFile

_TUNE = "tune the model here: engine tune MODEL"


def accepted(file: ModelFile, context: Context, config: Sections) -> tuple[Context, Sections]:
    """Return the context and configuration that one with section [tuned] stands for.

    file: the model that is built. Raises ValueError where the section is for another model, machine
    or version, or cannot be read; and what opening the model raises.
    """
    tuned = config[SECTION]
    settled_context = settled(context, tuned)
    rest = {name: keys for name, keys in config.items() if name != SECTION}
    source = file()
    with naming_file(tuned):
        for name, now in fingerprint(source, BuildOptions(settled_context, config)).items():
            _require_same(tuned, name, now)
    return settled_context, rest


@contextmanager
def naming_file(tuned: Mapping[str, str]) -> Iterator[None]:
    """Name the section's file in a refusal that comes out of the block."""
    try:
        yield
    except (ValueError, BackendError) as error:
        if isinstance(path := tuned.get("read_from"), ReadFrom):
            translated(error, lambda text: f"{path}: {text}")
        raise


def fingerprint(source: ModelSource, options: BuildOptions) -> dict[str, str]:
    """Return all for which figures count, by name: the model, the machine, devices and versions.

    Raises OSError where the model's files cannot be read, and BackendUnavailable for a device that
    is not there.
    """
    targets = options.context.target
    return {
        "model": _digest_of(source, options.config),
        **circumstances(_backends(targets)),
        **devices(source, options),
    }


_WHAT = {"core": "version of inference-engine", "machine": "machine", "model": "model"}


def _require_same(tuned: Mapping[str, str], name: str, now: str) -> None:
    had = tuned.get(name)
    if had is None:
        raise ValueError(f"[{SECTION}] is not whole: it has no key {name!r}; {_TUNE}")
    if had != now:
        what = _WHAT.get(name, name if name.startswith("device ") else f"version of {name}")
        file = tuned.get("file", "")
        made = f", of {file!r}, which was written beside the configuration" if file else ""
        if name == "model":  # digests, whose starts tell them apart
            had, now = had[:12], now[:12]
        raise ValueError(
            f"[{SECTION}] was measured for another {what}: expected {had!r}"
            f"{made if name == 'model' else ''}, got {now!r}; {_TUNE}"
        )


def settled(context: Context, tuned: Mapping[str, str]) -> Context:
    """Return a context with the target, the threads and the workers of section [tuned].

    Threads and workers that the user has set stay. Raises ValueError for another target than cpu,
    auto or those of the section, and for a key that cannot be read.
    """
    with naming_file(tuned):
        return _settled(context, tuned)


def _settled(context: Context, tuned: Mapping[str, str]) -> Context:
    for key, value in tuned.items():
        if not (is_declared(key, KEYS) or isinstance(value, ReadFrom)):
            hint = did_you_mean(key, KEYS) or f"known: {', '.join(KEYS)}"
            raise ValueError(f"[{SECTION}] {key} is unknown; {hint}")
    targets, default = _names(tuned, "target"), _names(tuned, "default")
    is_open = context.target == ["cpu"] or is_auto(context.target)
    if not is_open and _backends(context.target) not in map(_backends, (targets, default)):
        raise ValueError(
            f"[{SECTION}] is for target {targets}, but the target is {context.target}; leave one "
            "of the two out"
        )
    context = copy(context)
    context.target = targets
    context.cpu.thread_num = context.cpu.thread_num or number(tuned, "threads")
    context.parallel.workers_num = context.parallel.workers_num or number(tuned, "workers")
    return context


def _backends(targets: Sequence[str]) -> list[str]:
    return [find_target(name).backend for name in targets]


def number(tuned: Mapping[str, str], key: str) -> int:
    """Return a number of section [tuned]; 0 where it is not there. Raises ValueError."""
    text = tuned.get(key, "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise ValueError(f"[{SECTION}] {key} must be a whole number, but got {text!r}")
    return int(text)


def _names(tuned: Mapping[str, str], key: str) -> list[str]:
    names = [name.strip() for name in tuned.get(key, "").split(",")]
    if not all(names):
        raise ValueError(f"[{SECTION}] {key} must name targets, but got {tuned.get(key, '')!r}")
    return names


def _digest_of(source: ModelSource, config: Sections) -> str:
    """Return the digest of all that a model consists of."""
    cache = CompileCache.of(config)
    nowhere = Digests(Path(os.devnull))  # which remembers nothing
    try:
        digests = nowhere if cache.mode is Mode.OFF else cache.store().digests
    except CacheUnusable:
        digests = nowhere
    return model_digest(digests, source)
