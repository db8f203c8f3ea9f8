"""Build setups of a model, one after the other, and compare each with the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from time import monotonic
from typing import Any, NamedTuple, NoReturn, TypeAlias

from engine.errors import BackendError, DeadlineExceeded, ModelError, one_line
from engine.host.interrupts import pass_interrupt
from engine.plan import BuildOptions, Plan, Targets
from engine.plan.targets import OpenTarget
from engine.report.choice import duel
from engine.report.choice.evidence import Setup, Trial
from engine.report.choice.limits import Limits
from engine.report.choice.running import Agreement, Running
from engine.report.choice.setups import applied, lower, others, settings, shows_in_placement
from engine.report.filled import shapes_of
from engine.tensor.description import Array
from engine.types import CancelToken, Placement

MARGIN = 0.97
"""A setup is chosen only if it takes less than this part of the default's time, twice."""

UNCHANGED = "it changes nothing of this model"
_DUEL_S = 0.4
_SLOW = 4.0
"""A few calls tell enough of a setup that takes so many times the default's time."""
_EXACT = 0.1
"""Part of the budget in which errors get results in float64 to be measured against."""

Build = Callable[[Targets], Plan]
"""Compiles the model for targets."""

Exact = Callable[[Sequence[Sequence[Any]], float], "list[dict[str, Array]] | None"]
"""Returns outputs in float64 of some inputs, in so many seconds; None where it cannot."""


class Step(NamedTuple):
    """The work that a contest begins: a setup, or a look at a backend.

    left_s: seconds that are left for a setup; None for the default, whose time does not count.
    """

    setup: Setup | None = None
    backend: str = ""
    left_s: float | None = None

    def __str__(self) -> str:
        return f"backend {self.backend!r}" if self.backend else str(self.setup)


Event: TypeAlias = "Step | Trial"


class Known(NamedTuple):
    """What earlier contests on the same model have found, which were ended.

    trials: of all setups that were tried, the default's not among them. unusable: why a backend
    cannot be had, by name. left_s: seconds of the budget that are left; None for all.
    """

    trials: tuple[Trial, ...] = ()
    unusable: Mapping[str, str] = {}
    left_s: float | None = None


class Outcome(NamedTuple):
    """The result of a contest: see `Evidence`. Without trials where the default cannot be built."""

    chosen: Setup
    reason: str
    trials: tuple[Trial, ...] = ()
    inputs: Mapping[str, Sequence[int]] = {}


class _Best(NamedTuple):
    """The setup that was the fastest so far. place: of its trial. running: None to build again."""

    ratio: float
    running: Running | None
    place: int


class Contest:
    """One contest on one model.

    limits: the time counts from when the default has run. A setup is not begun without time for
    it, but ends even so: a backend may not be able to stop while it compiles. exact: None where no
    errors are measured, or nothing can tell them better than the default. tell: is told of each
    step before it, and of each trial. known: is not tried again. clock: in seconds. shapes: of
    inputs that are not to have generated ones, by name.
    """

    def __init__(
        self,
        options: BuildOptions,
        default: Setup,
        build: Build,
        limits: Limits,
        *,
        exact: Exact | None = None,
        tell: Callable[[Event], object] = lambda event: None,
        known: Known | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.shapes: Mapping[str, Sequence[int]] = {}
        self._options = options
        self._default = default
        self._build = build
        self._clock = clock
        self._limits = limits
        self._exact = exact
        self._tell = tell
        self._known = known or Known()
        self._end = 0.0
        self._others: tuple[tuple[str, str], ...] = ()
        self._trials: list[Trial] = []
        self._best: _Best | None = None
        self._seen: list[tuple[list[Placement], str]] = []

    def hold(self) -> Outcome:
        """Try all setups for which there is time, and return the fastest, or the default.

        Raises Cancelled, and what a signal handler or the progress callback raises.
        """
        self._others = tuple(self._found_others())
        self._tell(Step(self._default))
        base: Running | None = None
        try:
            try:
                base = self._opened(self._default)
            except Exception as error:
                self._pass_on(error)
                return self._without_default(error)
            try:
                end = self._clock() + max(1.0, self._limits.budget_s)
                base.learn(end, self._clock, self.shapes)
            except Exception as error:
                self._pass_on(error)
                return self._unlearned(base, error)
            left_s = self._known.left_s
            self._end = self._clock() + (self._limits.budget_s if left_s is None else left_s)
            self._learn_exact(base)
            self._seen.append((base.placement, base.bits))
            own_s = base.call_s
            self._trials.append(
                Trial(setup=self._default, default_s=own_s, seconds=own_s, nodes=base.nodes())
            )
            for setup, why_not in self._setups():
                self._trials.append(self._of_before(setup) or self._begun(base, setup, why_not))
            chosen, reason = self._decision(base)
            shapes = dict(zip(base.names, shapes_of(base.samples[0].values), strict=True))
            return Outcome(chosen, reason, tuple(self._trials), shapes)
        finally:
            self._close()
            if base is not None:
                base.close()

    def _close(self) -> None:
        """Close what is open beside the default."""
        if self._best is not None and self._best.running is not None:
            self._best.running.close()

    def _found_others(self) -> Iterator[tuple[str, str]]:
        """Yield the backends beside the default, each with why it cannot be had; "" if it can."""
        return others(self._default.targets[0], self._known.unusable, self._note_look)

    def _note_look(self, backend: str) -> None:
        self._tell(Step(backend=backend))

    def _learn_exact(self, base: Running) -> None:
        """Have errors measured against results in float64, where these can be had in time."""
        if self._is_exact or self._exact is None:
            return
        limit_s = _EXACT * self._limits.budget_s
        found = self._exact([sample.values for sample in base.samples], limit_s)
        if found is not None:
            base.samples = [
                sample._replace(exact=exact)
                for sample, exact in zip(base.samples, found, strict=True)
            ]

    def _setups(self) -> Iterator[tuple[Setup, str]]:
        """Yield what to try, each with why it cannot be had.

        What mostly gains most for its time comes first: less precise arithmetic if an error is
        allowed; another graph on the default, which compiles fast; then the other backends.
        """
        default = self._default
        own = list(settings(default, self._options))
        graphs = [setup for setup in own if shows_in_placement(setup)]
        graph = [(setup, "") for setup in graphs[:1]]
        elsewhere = self._setups_elsewhere()
        yield from chain(graph, elsewhere) if self._is_exact else chain(elsewhere, graph)
        for setup in own:
            if setup not in graphs or (setup is not graphs[0] and self._may_gain(graphs[0])):
                yield setup, ""
        best = None if self._best is None else self._trials[self._best.place].setup
        if best is not None and best.targets != default.targets:
            for setup in settings(best, self._options):
                yield setup, ""

    @property
    def _is_exact(self) -> bool:
        return self._limits.max_error is None

    def _setups_elsewhere(self) -> Iterator[tuple[Setup, str]]:
        """Yield other backends and, if an error is allowed, less precise arithmetic on each."""
        for name, why_not in self._others:
            setup = Setup((name, *self._default.targets))
            yield setup, why_not
            if not self._is_exact and self._trials[-1].ratio is not None:
                for less_precise in lower(setup, self._options):
                    yield less_precise, ""
        if not self._is_exact:
            for setup in lower(self._default, self._options):
                yield setup, ""

    def _may_gain(self, first: Setup) -> bool:
        """Return whether a further graph may be faster, by the trial of the first one."""
        [trial] = [trial for trial in self._trials if trial.setup == first]
        has_gained = trial.ratio is not None and trial.ratio < MARGIN
        return not has_gained and trial.why_not != UNCHANGED

    def _of_before(self, setup: Setup) -> Trial | None:
        """Return the trial of a setup that an earlier contest has tried."""
        for trial in self._known.trials:
            if trial.setup == setup:
                if trial.ratio is not None and not trial.why_not:
                    self._take_if_best(setup, trial.ratio, None)
                return trial
        return None

    def _begun(self, base: Running, setup: Setup, why_not: str) -> Trial:
        self._options.check_cancelled()
        self._note_begun(setup)
        self._tell(Step(setup, left_s=self._left_s()))
        trial = self._tried(base, setup, why_not)
        self._tell(trial)
        return trial

    def _note_begun(self, setup: Setup) -> None:
        self._options.note_progress(f"try {setup}", len(self._trials), None)

    def _tried(self, base: Running, setup: Setup, why_not: str) -> Trial:
        """Return the trial of a setup, which stays open where it is the fastest so far."""
        is_open = setup.targets[0] in self._known.unusable
        trial = Trial(setup=setup, why_not=why_not, is_open=is_open)
        if why_not:
            return trial
        if self._left_s() < self._needed_s(base, setup):
            return replace(trial, why_not="no time was left to try it", is_open=True)
        running: Running | None = None
        try:
            running = self._opened(setup)
            nodes = running.nodes()
            trial = replace(trial, nodes=nodes)
            if nodes and setup.targets[0] not in nodes:
                return replace(trial, why_not=f"{setup.targets[0]} can run none of its nodes")
            if shows_in_placement(setup) and self._has_seen(running.placement):
                return replace(trial, why_not=UNCHANGED)
            agreement = self._agreement(base, running)
            trial = replace(trial, error=agreement.error, why_not=agreement.why_not)
            if trial.why_not:
                return trial
            seen = (running.placement, running.bits)
            if seen in self._seen and not setup.is_of_threads:
                return replace(trial, why_not=UNCHANGED)
            self._seen.append(seen)
            self._options.check_cancelled()
            if self._is_hopeless(base, running):
                return replace(trial, default_s=base.call_s, seconds=running.call_s,
                               ratio=running.call_s / base.call_s, rounds=1)  # fmt: skip
            found = self._compared(base, setup, running)
            trial = replace(
                trial,
                default_s=found.default_s,
                seconds=found.candidate_s,
                ratio=found.ratio,
                rounds=found.rounds,
            )
            running = self._take_if_best(setup, found.ratio, running)
        except Exception as error:
            self._pass_on(error)
            return replace(trial, why_not=one_line(error))
        finally:
            if running is not None:
                running.close()
        return trial

    def _has_seen(self, placement: list[Placement]) -> bool:
        return any(placement == seen for seen, _ in self._seen)

    def _needed_s(self, base: Running, setup: Setup) -> float:
        """Return the time that must be left for a setup to be tried."""
        return 4 * duel.least_rounds(base.call_s) * base.call_s

    def _is_hopeless(self, base: Running, running: Running, at_once: int = 1) -> bool:
        """Return whether one call tells enough of a setup. at_once: calls that may share a run."""
        return running.call_s > at_once * _SLOW * base.call_s

    def _take_if_best(self, setup: Setup, ratio: float, running: Running | None) -> Running | None:
        """Note the next trial's setup where it is the fastest so far; return what to close."""
        best = self._best
        if ratio >= MARGIN * (1.0 if best is None else best.ratio):
            return running
        self._best = _Best(ratio, running, len(self._trials))
        return None if best is None else best.running

    def _agreement(self, base: Running, running: Running) -> Agreement:
        end = self._clock() + max(self._left_s(), 1 + 10 * base.call_s)
        return running.agrees(base, end, self._clock, self._limits.max_error)

    def _decision(self, base: Running) -> tuple[Setup, str]:
        """Return the setup to choose, and why: the fastest where it is so a second time too."""
        best = self._best
        if best is None:
            return self._default, f"nothing that was tried is clearly faster than {self._default}"
        trial = self._trials[best.place]
        self._tell(Step(trial.setup, left_s=self._left_s()))
        try:
            if best.running is None:
                best = self._best = best._replace(running=self._opened(trial.setup))
            assert best.running is not None
            again = self._compared(base, trial.setup, best.running).ratio
        except Exception as error:
            self._pass_on(error)
            self._trials[best.place] = replace(trial, why_not=one_line(error), is_open=True)
            return self._default, f"{trial.setup} failed when it was compared again"
        if again >= MARGIN:
            why_not = f"compared again, it took {again:.3f} of the default's time"
            self._trials[best.place] = replace(trial, why_not=why_not, is_open=True)
            return self._default, f"{trial.setup} is not faster than {self._default} each time"
        ratio = max(best.ratio, again)
        self._trials[best.place] = replace(trial, ratio=ratio)
        return trial.setup, f"{trial.setup} takes {ratio:.2f} of the time of {self._default}"

    def _compared(self, base: Running, setup: Setup, running: Running) -> duel.Duel:
        values = base.samples[0].values
        return duel.duel(
            partial(base.run, values),
            partial(running.run, values),
            min(_DUEL_S, max(0.0, self._left_s() / 2)),
            self._options.check_cancelled,
            on_one_cpu=base.on_one_cpu and running.on_one_cpu,
        )

    def _without_default(self, error: Exception) -> Outcome:
        names = [name for name, why_not in self._others if not why_not]
        chosen = Setup((*self._default.targets, *names))
        return Outcome(chosen, f"{self._default} cannot be built: {one_line(error)}")

    def _unlearned(self, base: Running, error: Exception) -> Outcome:
        """Return the outcome where the default gives nothing to compare with."""
        why_not = f"it does not run on generated inputs: {one_line(error)}"
        if is_open := isinstance(error, DeadlineExceeded):
            why_not = f"a predict on generated inputs takes more than {self._limits.budget_s:g} s"
        trial = Trial(setup=self._default, nodes=base.nodes(), why_not=why_not, is_open=is_open)
        return Outcome(self._default, f"nothing was compared: {why_not}", (trial,))

    def _left_s(self) -> float:
        return self._end - self._clock()

    def _opened(self, setup: Setup, cancel: CancelToken | None = None) -> Running:
        """Build a setup. cancel: ends the build where its backend can stop, beside the user's."""
        options = applied(setup, self._options)
        options.cancel = cancel or options.cancel
        plan = self._plan(setup, _Strict(options, (setup.targets, "", False)))
        on_cpu = all(device.type == "cpu" for device in plan.run_on)
        return Running(plan, on_cpu and options.threads.intra_op == 1 and not options.is_isolated)

    def _plan(self, setup: Setup, targets: Targets) -> Plan:
        return self._build(targets)

    def _pass_on(self, error: Exception) -> None:
        """Raise what is nobody's fault: an interrupt, the callback's exception, Cancelled."""
        pass_interrupt(error)
        if self._options.progress_error is not None:
            raise self._options.progress_error from None
        self._options.check_cancelled()


class _Strict(Targets):
    """Targets of which the first must do: a later one gets only what the first cannot run."""

    def pass_over(self, target: OpenTarget, error: BackendError | ModelError) -> NoReturn:
        raise error
