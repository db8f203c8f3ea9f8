"""A contest in a process of its own: what a runtime does to that costs the caller nothing.

The process tells of each step before it, so that its parent knows what it died of, or what it hangs
in. Then another process goes on without that. The process ends with its parent.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import PickleBuffer
from time import monotonic
from typing import Any, NamedTuple, cast

from engine.context import Context
from engine.errors import ModelError, one_line
from engine.host.arena import Arena
from engine.host.channel import LOOK_S
from engine.host.interrupts import pass_interrupt
from engine.host.paths import absolute
from engine.host.worker import Ended, Worker, receive_fds
from engine.plan import BuildOptions, build_plan
from engine.report.choice.contest import Contest, Event, Known, Outcome, Step
from engine.report.choice.evidence import Setup, Trial
from engine.report.choice.limits import Limits
from engine.types import ModelSource
from engine.weights.compile_cache import CompileCache, Mode

_LOOK_LIMIT_S = 60.0
"""Seconds for a look at a backend, and for the start of the process before it."""
_PATIENCE_S = 5.0
"""Seconds over the budget after which what still runs is ended."""
_PATIENCE = 2
"""As many times that which the default took come in addition."""
_NICENESS = 10


class Order(NamedTuple):
    """All that a contest takes.

    variable_weights: as for `build_plan`. begin: makes the contest; it can be pickled.
    """

    source: ModelSource
    options: BuildOptions
    default: Setup
    limits: Limits
    variable_weights: Sequence[str] = ()
    begin: Callable[..., Contest] = Contest

    def contest(self, **more: Any) -> Contest:
        """Return the contest, to be held here."""
        cache = CompileCache.of(self.options.config)
        # What is kept of the model is used; what only a trial needs is not written.
        forms = None if cache.mode is Mode.OFF else CompileCache(cache.folder, Mode.READ)
        names = self.variable_weights
        build = partial(build_plan, self.source, variable_weights=names, forms=forms)
        exact = None if self.limits.max_error is None else partial(_in_float64, self.source)
        return self.begin(self.options, self.default, build, self.limits, exact=exact, **more)


def _in_float64(source: ModelSource, samples: Sequence[Sequence[Any]], limit_s: float) -> Any:
    try:
        from engine.report.choice.exact import in_float64
    except ImportError:  # there is no onnx
        return None
    return in_float64(source, samples, limit_s)


def hold(order: Order, check: Callable[[], object]) -> Outcome:
    """Return the outcome of a contest that is held in processes, one after the other.

    check: called while one is at work; what it raises ends the contest. Raises what the build's
    progress callback raises.
    """
    with _Contests(order, check) as contests:
        found: Outcome | Known = Known()
        while isinstance(found, Known):
            found = contests.go_on(found)
        return found


class _Contests:
    """The contests on one model, each with what those before it have found."""

    def __init__(self, order: Order, check: Callable[[], object]) -> None:
        self._order = order
        self._check = check
        self._end: float | None = None  # of the budget
        self._default_s = 0.0  # until the default had run
        self._parcel = Arena()

    def __enter__(self) -> _Contests:
        self._lengths = _packed(self._order.source, self._parcel)
        return self

    def __exit__(self, *error: object) -> None:
        self._parcel.close()

    def go_on(self, known: Known) -> Outcome | Known:
        """Hold a contest; return its outcome, or what is known where its process was lost."""
        order = self._order
        options = order.options
        if self._end is not None:
            known = known._replace(left_s=max(0.0, self._end - monotonic()))
        request = _Request(
            context=options.context,
            config=options.config,
            place=(options.rank, options.world_size),
            shares_workspace=options.shares_workspace,
            is_watched=options.is_watched,
            default=order.default,
            limits=order.limits,
            variable_weights=tuple(order.variable_weights),
            begin=order.begin,
            known=known,
        )
        step, begin, until = Step(), monotonic(), monotonic() + _LOOK_LIMIT_S
        try:
            worker = Worker("engine.report.choice.apart:serve", request)
        except ModelError as error:  # the machine lacks something
            pass_interrupt(error)
            return Outcome(order.default, f"nothing was compared: {one_line(error)}")
        with worker:
            worker.send(self._lengths, [self._parcel.descriptor])
            while True:
                try:
                    kind, value = worker.receive(LOOK_S)
                except TimeoutError:
                    self._check()
                    if monotonic() < until:
                        continue
                    taken_s = monotonic() - begin
                    return self._without(known, step, f"was ended after {taken_s:.0f} s")
                except Ended as ended:
                    return self._without(known, step, str(ended))
                if kind == "outcome":
                    return cast("Outcome", value)
                if kind == "progress":
                    options.note_progress(*value)
                elif kind == "trial":
                    known = _with(known, value)
                else:
                    if step.setup == order.default:  # it has run
                        self._default_s = max(self._default_s, monotonic() - begin)
                        self._end = self._end or monotonic() + order.limits.budget_s
                    step, begin = value, monotonic()
                    until = begin + self._limit_s(step)

    def _limit_s(self, step: Step) -> float:
        """Return how long a step may take."""
        if step.setup is None:
            return _LOOK_LIMIT_S
        left_s = self._order.limits.budget_s if step.left_s is None else max(0.0, step.left_s)
        return left_s + _PATIENCE_S + _PATIENCE * self._default_s

    def _without(self, known: Known, step: Step, how: str) -> Outcome | Known:
        """Return what is known with the step in which a process was lost."""
        why_not = f"the process that tried it {how}"
        if step.backend:
            return known._replace(unusable={**known.unusable, step.backend: why_not})
        default = self._order.default
        if step.setup is None:
            return Outcome(default, f"nothing was compared: the process for that {how}")
        if step.setup == default:
            trial = Trial(setup=default, why_not=why_not, is_open=True)
            return Outcome(default, f"nothing was compared: {default}: {why_not}", (trial,))
        return _with(known, Trial(setup=step.setup, why_not=why_not, is_open=True))


def _with(known: Known, trial: Trial) -> Known:
    others = (other for other in known.trials if other.setup != trial.setup)
    return known._replace(trials=(*others, trial))


def _packed(source: ModelSource, parcel: Arena) -> list[int]:
    """Put a model into memory that a process gets; return the lengths to read it with."""
    kind = type(source)
    plain = {field.name: getattr(source, field.name) for field in fields(source)}
    plain.update(data=None, files={})
    for name in ("path", "folder"):
        plain[name] = plain[name] and absolute(plain[name])
    if "versions" in plain:
        plain["versions"] = {absolute(path): v for path, v in plain["versions"].items()}
    data = None if source.data is None else PickleBuffer(source.data)
    files = {name: PickleBuffer(content) for name, content in source.files.items()}
    try:
        _, lengths = parcel.write((kind, plain, data, files))
    finally:
        for view in filter(None, (data, *files.values())):
            view.release()
    return lengths


# -------------------------------------------------------------------------------- the process


class _Request(NamedTuple):
    """What a process gets beside the model. place: the rank and the number of ranks."""

    context: Context
    config: Mapping[str, Mapping[str, str]]
    place: tuple[int, int]
    shares_workspace: bool
    is_watched: bool
    default: Setup
    limits: Limits
    variable_weights: Sequence[str]
    begin: Callable[..., Contest]
    known: Known


def serve(request: _Request, parent: Connection) -> None:
    """Hold a contest, and tell the parent of its steps, its trials and its outcome."""
    if request.limits.is_behind:
        os.nice(_NICENESS)
    with suppress(OSError):  # not Linux
        # Where memory runs out the kernel ends this process, and not one that serves.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    # A crash is expected here, and is to leave no copy of the model: it may be a decrypted one.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    lengths = parent.recv()
    [descriptor] = receive_fds(parent, 1)
    source = _unpacked(Arena(descriptor), lengths)

    def note_progress(*step: object) -> None:
        parent.send(("progress", step))

    def tell(event: Event) -> None:
        parent.send(("trial" if isinstance(event, Trial) else "step", event))

    options = BuildOptions(
        request.context,
        request.config,
        note_progress if request.is_watched else None,
        share_workspace=request.shares_workspace,
        place=request.place,
    )
    order = Order(
        source,
        options,
        request.default,
        request.limits,
        request.variable_weights,
        request.begin,
    )
    try:
        outcome = order.contest(tell=tell, known=request.known).hold()
    except Exception as error:  # a file that is gone, for one: the build says it once more
        why_not = f"nothing was compared: {one_line(error)}"
        outcome = Outcome(request.default, why_not)
    parent.send(("outcome", outcome))


def _unpacked(parcel: Arena, lengths: Sequence[int]) -> ModelSource:
    kind, plain, data, files = parcel.read(lengths)
    plain["data"] = None if data is None else bytes(data)
    plain["files"] = {name: memoryview(content) for name, content in files.items()}
    return cast("ModelSource", kind(**plain))
