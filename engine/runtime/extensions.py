"""Extensions and observers: what a user switches on to see or change what models do.

By `ENGINE_EXTENSIONS=trace,metrics;port=9000`, by [common_context] extensions with a section
[trace_extension] for options, or by `Context.extensions`. A name stands for an entry point of group
`engine.extensions.v1`. It wraps a model's predict when that is built (`engine.types.Extension`), or
makes an observer, which is told of events (`engine.types.Observer`).
Nothing is imported, wrapped or told for one that is off.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, TypeVar

from engine.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from engine.context import Context
    from engine.plan import Plan
    from engine.runtime.signature import Signature
    from engine.types import ModelDescription

    Chosen = Mapping[str, Mapping[str, str]]

T = TypeVar("T")

VARIABLE = "ENGINE_EXTENSIONS"
KEY = "extensions"
SECTION = "_extension"


def chosen(context: Context, config: Mapping[str, Mapping[str, str]]) -> Chosen:
    """Return what is switched on for a model, the outermost first: names with their options.

    The environment's extensions come first, then the configuration's, then the context's; of one
    option that several set, the latter has the last word. Raises SettingError.
    """
    found: dict[str, dict[str, str]] = {}
    own = context.extensions
    for text in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        name, _, options = text.partition(";")
        found.setdefault(name.strip(), {}).update(_options(name, options))
    listed = config.get("common_context", {}).get(KEY, "")
    for name in (*filter(None, map(str.strip, listed.split(","))), *own):
        found.setdefault(name, {})
    for section, given in config.items():
        if not section.endswith(SECTION):
            continue
        if (name := section.removesuffix(SECTION)) not in found:
            from engine.config.text import did_you_mean  # rare

            hint = did_you_mean(name, found) or f"[common_context] {KEY} = {name}"
            raise SettingError(
                f"configuration section [{section}] has options for an extension that is not "
                f"switched on; {hint}"
            )
        found[name].update(given)
    for name, given in own.items():
        found[name].update(given)
    return found


def _options(name: str, text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise SettingError(
                f"{VARIABLE}: an option of {name.strip()!r} must be key=value, but got {part!r}; "
                f"write {VARIABLE}='{name.strip()};key=value'"
            )
        found[key.strip()] = value.strip()
    return found


def description(plan: Plan, signature: Signature, path: str) -> ModelDescription:
    """Return a model that was built, as extensions and observers see it."""
    from pathlib import Path

    from engine.types import ModelDescription

    graph = plan.source.graph
    backends = dict.fromkeys(part.name for part, _ in plan.parts)
    return ModelDescription(
        name=Path(path).stem if path else (graph.name if graph else ""),
        path=path,
        backends=tuple(sorted(backends, key=lambda name: name != plan.backend.name)),
        inputs=signature.inputs,
        outputs=signature.outputs,
        devices=plan.run_on,
    )


class _Unseen(threading.local):
    """A thread's predicts that are nobody's requests, or whose requests somebody tells of."""

    trials = served = telling = 0


unseen = _Unseen()
"""trials, served, telling: how many calls of the functions of these names the thread is in."""


def in_trial(work: Callable[[], T]) -> T:
    """Return what `work` returns; no extension or observer sees what it builds and predicts."""
    before = unseen.trials
    unseen.trials = before + 1  # no block: a signal handler that raises must not leave it so
    try:
        return work()
    finally:
        unseen.trials = before


def as_served(work: Callable[[], T]) -> T:
    """Return what `work` returns; no observer is told of the predicts that it makes.

    For a queue, which tells of its requests itself.
    """
    before = unseen.served
    unseen.served = before + 1
    try:
        return work()
    finally:
        unseen.served = before


def as_telling(work: Callable[[], T]) -> T:
    """Return what `work` returns: an observer's method. Nobody is told of what it predicts."""
    before = unseen.telling
    unseen.telling = before + 1
    try:
        return work()
    finally:
        unseen.telling = before
