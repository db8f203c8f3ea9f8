"""The targets of a build: tried one after the other, with the reasons of those that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from engine.backends import (
    OFFICIAL,
    Backend,
    Target,
    find_target,
    installed,
    open_backend,
    warn_once,
)
from engine.backends.names import OWN
from engine.errors import BackendError, ModelError
from engine.host.interrupts import pass_interrupt, raised_by_handler
from engine.plan.options import BuildOptions, overriding
from engine.plan.plan import Plan

if TYPE_CHECKING:
    from engine.context import Context


AUTO = "auto"
"""The target that stands for whichever backend is measured to be the fastest."""

Choice: TypeAlias = tuple[Sequence[str], str, bool]
"""Targets to try, why these, and whether ENGINE_TARGET overrides the context's."""


Measure: TypeAlias = Callable[[Callable[[], object]], "Targets"]
"""Measures targets, and returns the best."""


def is_auto(targets: Sequence[str]) -> bool:
    """Return whether targets are AUTO, which stands alone."""
    return len(targets) == 1 and targets[0].lower() == AUTO


def default_target() -> str:
    """Return the target that AUTO stands for until others are measured: cpu where that is there.

    Else the first backend that can be had, this project's own first; "cpu" where none can.
    """
    own = [name for name in OFFICIAL.values() if name in installed()]
    for name in (*own, *(name for name in installed() if name not in OWN)):
        try:
            return open_backend(name).name
        except BackendError as error:
            pass_interrupt(error)
    return "cpu"


def targets_of(context: Context) -> Choice:
    """Return the targets to try and why; for AUTO its default."""
    names, why, is_override = _asked(context)
    return ([default_target()] if is_auto(names) else names), why, is_override


def _asked(context: Context) -> Choice:
    override = overriding()
    if not override:
        return context.target, f"target {context.target}", False
    if len(override) > 1 and AUTO in map(str.lower, override):
        raise BackendError(f"ENGINE_TARGET: 'auto' stands alone, but got {','.join(override)}")
    if override != context.target:
        warn_once(f"ENGINE_TARGET={','.join(override)} overrides the target {context.target}")
    return override, f"ENGINE_TARGET={','.join(override)} instead of target {context.target}", True


class OpenTarget(NamedTuple):
    """A target that can be had. name: as the user wrote it. later: the names of those after it."""

    name: str
    target: Target
    backend: Backend
    later: Sequence[str]


class Targets:
    """The targets of one build. A later one is tried only where all before it have failed.

    chosen: what a measurement has chosen in place of AUTO; None for what the context says.
    measure: returns those to build the model for again, after it was built; None for none. It calls
    its argument while it measures, which may raise.
    The first that can be had is open from the start. Raises BackendError with the reasons of all
    where none can. To be iterated once.
    """

    def __init__(self, options: BuildOptions, chosen: Choice | None = None) -> None:
        self.options = options
        names, why, is_override = chosen or _asked(options.context)
        self.is_unmeasured = chosen is None and is_auto(names)
        self.choice = ([default_target()] if self.is_unmeasured else names), why, is_override
        self._names, self._why, self._is_override = self.choice
        self.measure: Measure | None = None
        self._passed_over: list[str] = []
        self._rest = self._opened()
        self._first = next(self._rest)

    @property
    def suffixes(self) -> Mapping[str, str]:
        """The file name endings that the first open target's backend reads, with their formats."""
        return self._first.backend.info.suffixes

    def __iter__(self) -> Iterator[OpenTarget]:
        yield self._first
        yield from self._rest

    def _opened(self) -> Iterator[OpenTarget]:
        for number, name in enumerate(self._names):
            later = self._names[number + 1 :]
            try:
                target = find_target(name)
                backend = self.options.opened(target.backend)
            except BackendError as error:
                pass_interrupt(error)
                self._refuse(name, error, is_last=not later)
                continue
            yield OpenTarget(name, target, backend, later)

    def _refuse(self, name: str, error: BackendError, is_last: bool) -> None:
        """Note why a target cannot be had. Raises the error of all where it is the last."""
        if is_last and not self._passed_over:
            if not self._is_override:
                raise error
            raise _restated(error, f"{self._why}: {error}") from error
        self._passed_over.append(f"{name!r} passed over: {error}")
        if is_last:
            raise _restated(error, "; ".join(self._passed_over)) from error

    def pass_over(self, target: OpenTarget, error: BackendError | ModelError) -> None:
        """Note why a target cannot build the model. Raises the error of all where it is the last.

        An exception of the user's progress callback or of a signal handler is nobody's reason.
        """
        if raised_by_handler(error):
            raise error
        if self.options.progress_error is not None:
            raise self.options.progress_error from None
        if not target.later and not self._passed_over:
            raise error
        if not target.later:
            raise _restated(error, "; ".join([*self._passed_over, str(error)])) from error
        self._passed_over.append(f"{target.name!r} passed over: {error}")

    def chosen(self, target: OpenTarget, plan: Plan) -> Plan:
        """Return the plan of a target, which says how that came to be chosen."""
        reason = "; ".join([self._why, *self._passed_over])
        if self._passed_over:
            import logging  # rare

            logging.getLogger("engine").warning("target %r is used: %s", target.name, reason)
        options = self.options
        return replace(plan, why=reason, rank=options.rank, world_size=options.world_size)


def _restated(error: BackendError | ModelError, text: str) -> BackendError | ModelError:
    """Return the same error with another text; its attributes stay."""
    restated = copy(error)
    restated.args = (text,)
    return restated
