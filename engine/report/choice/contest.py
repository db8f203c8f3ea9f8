"""Build setups of a model, one after the other, and compare each with the default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import filterfalse
from time import monotonic
from typing import Any, NamedTuple, NoReturn

from engine.errors import BackendError, ModelError, one_line
from engine.host.interrupts import pass_interrupt
from engine.plan import BuildOptions, Plan, Targets
from engine.plan.contexts import close
from engine.plan.open_sizes import shapes_of_size
from engine.plan.targets import OpenTarget
from engine.report.choice import duel
from engine.report.choice.evidence import Setup, Trial
from engine.report.choice.setups import applied, others, settings, shows_in_placement
from engine.report.differences import compare_outputs
from engine.report.filled import Fill, run_filled, shapes_of
from engine.report.parts import arrays_of
from engine.tensor.description import Array
from engine.types import Capability, Placement, Values

MARGIN = 0.97
"""A setup is chosen only if it takes less than this part of the default's time, twice."""

SIZE = 64
"""Size of the open axes of generated inputs, but the first of each input, which is 1."""

_SEEDS = (0, 1)
_LONG_S = 0.1
"""Seconds of a call from which on one sample has to do."""

_SHAPES = 6
_DUEL_S = 0.4
_GLANCE_S = 0.2
_SLOW = 4.0
"""A few calls tell enough of a setup that takes so many times the default's time."""

Build = Callable[[Targets], Plan]
"""Compiles the model for targets."""


class Outcome(NamedTuple):
    """The result of a contest: see `Evidence`. Without trials where the default cannot be built."""

    chosen: Setup
    reason: str
    trials: tuple[Trial, ...] = ()
    inputs: Mapping[str, Sequence[int]] = {}


class _Best(NamedTuple):
    """The setup that was the fastest so far. place: of its trial."""

    ratio: float
    running: _Running
    place: int


class Contest:
    """One contest on one model.

    budget_s: from when the backends are known. A setup is not begun without time for it, but
    ends even so: a backend may not be able to stop while it compiles. clock: in seconds.
    """

    def __init__(
        self,
        options: BuildOptions,
        default: Setup,
        build: Build,
        budget_s: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._options = options
        self._default = default
        self._build = build
        self._clock = clock
        self._budget_s = budget_s
        self._end = 0.0
        self._others: tuple[tuple[str, str], ...] = ()
        self._trials: list[Trial] = []
        self._best: _Best | None = None
        self._placements: list[list[Placement]] = []

    def hold(self) -> Outcome:
        """Try all setups for which there is time, and return the fastest, or the default.

        Raises Cancelled, and what a signal handler or the progress callback raises.
        """
        self._others = tuple(others(self._default.targets[0]))
        self._end = self._clock() + self._budget_s
        base: _Running | None = None
        try:
            try:
                base = self._opened(self._default)
            except Exception as error:
                self._pass_on(error)
                return self._without_default(error)
            try:
                base.learn(self._clock)
            except Exception as error:
                self._pass_on(error)
                why_not = f"it does not run on generated inputs: {one_line(error)}"
                trial = Trial(setup=self._default, nodes=base.nodes(), why_not=why_not)
                return Outcome(self._default, f"nothing was compared: {why_not}", (trial,))
            self._placements.append(base.placement)
            own_s = base.call_s
            self._trials.append(
                Trial(setup=self._default, default_s=own_s, seconds=own_s, nodes=base.nodes())
            )
            for setup, why_not in self._setups():
                self._options.check_cancelled()
                self._options.note_progress(f"try {setup}", len(self._trials), None)
                self._trials.append(self._tried(base, setup, why_not))
            chosen, reason = self._decision(base)
            shapes = dict(zip(base.names, shapes_of(base.samples[0][0]), strict=True))
            return Outcome(chosen, reason, tuple(self._trials), shapes)
        finally:
            if self._best is not None:
                self._best.running.close()
            if base is not None:
                base.close()

    def _setups(self) -> Iterator[tuple[Setup, str]]:
        """Yield what to try, each with why it cannot be had.

        First other graphs on the default, which compile fast; then the other backends.
        """
        default = self._default
        own = list(settings(default, self._options))
        for setup in filter(shows_in_placement, own):
            yield setup, ""
        for name, why_not in self._others:
            yield Setup((name, *default.targets)), why_not
        for setup in filterfalse(shows_in_placement, own):
            yield setup, ""
        best = None if self._best is None else self._trials[self._best.place].setup
        if best is not None and best.targets != default.targets:
            for setup in settings(best, self._options):
                yield setup, ""

    def _tried(self, base: _Running, setup: Setup, why_not: str) -> Trial:
        """Return the trial of a setup, which stays open where it is the fastest so far."""
        trial = Trial(setup=setup, why_not=why_not)
        if why_not:
            return trial
        if self._left_s() < 4 * duel.least_rounds(base.call_s) * base.call_s:
            return replace(trial, why_not="no time was left to try it")
        running: _Running | None = None
        try:
            running = self._opened(setup)
            nodes = running.nodes()
            trial = replace(trial, nodes=nodes)
            if running.placement in self._placements and shows_in_placement(setup):
                return replace(trial, why_not="it changes nothing of this model")
            self._placements.append(running.placement)
            if nodes and setup.targets[0] not in nodes:
                return replace(trial, why_not=f"{setup.targets[0]} can run none of its nodes")
            end = max(self._end, self._clock() + 1 + 10 * base.call_s)
            if why_not := running.differs_from(base, end, self._clock):
                return replace(trial, why_not=why_not)
            self._options.check_cancelled()
            if running.call_s > _SLOW * base.call_s:
                return replace(trial, default_s=base.call_s, seconds=running.call_s,
                               ratio=running.call_s / base.call_s, rounds=1)  # fmt: skip
            found = self._compared(base, running)
            trial = replace(
                trial,
                default_s=found.default_s,
                seconds=found.candidate_s,
                ratio=found.ratio,
                rounds=found.rounds,
            )
            best = self._best
            if found.ratio < MARGIN * (1.0 if best is None else best.ratio):
                self._best = _Best(found.ratio, running, len(self._trials))
                running = None if best is None else best.running
        except Exception as error:
            self._pass_on(error)
            return replace(trial, why_not=one_line(error))
        finally:
            if running is not None:
                running.close()
        return trial

    def _decision(self, base: _Running) -> tuple[Setup, str]:
        """Return the setup to choose, and why: the fastest where it is so a second time too."""
        best = self._best
        if best is None:
            return self._default, f"nothing that was tried is clearly faster than {self._default}"
        trial = self._trials[best.place]
        try:
            again = self._compared(base, best.running).ratio
        except Exception as error:
            self._pass_on(error)
            self._trials[best.place] = replace(trial, why_not=one_line(error))
            return self._default, f"{trial.setup} failed when it was compared again"
        if again >= MARGIN:
            why_not = f"compared again, it took {again:.3f} of the default's time"
            self._trials[best.place] = replace(trial, why_not=why_not)
            return self._default, f"{trial.setup} is not faster than {self._default} each time"
        ratio = max(best.ratio, again)
        self._trials[best.place] = replace(trial, ratio=ratio)
        return trial.setup, f"{trial.setup} takes {ratio:.2f} of the time of {self._default}"

    def _compared(self, base: _Running, running: _Running) -> duel.Duel:
        values = base.samples[0][0]
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

    def _left_s(self) -> float:
        return self._end - self._clock()

    def _opened(self, setup: Setup) -> _Running:
        options = applied(setup, self._options)
        plan = self._build(_Strict(options, (setup.targets, "", False)))
        on_cpu = all(device.type == "cpu" for device in plan.run_on)
        return _Running(plan, on_cpu and options.threads.intra_op == 1 and not options.is_isolated)

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


class _Running:
    """A compiled setup with one context.

    on_one_cpu: a call keeps one CPU of this process busy. samples: inputs, and the outputs by name
    that it gave for them. call_s: the time of one call. placement: of the model's nodes.
    """

    def __init__(self, plan: Plan, on_one_cpu: bool) -> None:
        self._plan = plan
        self.on_one_cpu = on_one_cpu
        self.names = [spec.name for spec in plan.executable.inputs]
        self.samples: list[tuple[list[Any], dict[str, Array]]] = []
        self.call_s = 0.0
        try:
            self.placement = plan.placement()
            self._context = plan.executable.open_context()
        except BaseException:
            plan.pool.close()
            raise

    def run(self, values: Values, deadline_s: float | None = None) -> Values:
        return self._plan.predict(self._context, values, None, deadline_s)

    def learn(self, clock: Callable[[], float]) -> None:
        """Make up inputs that fit, and keep the outputs."""
        specs = self._plan.executable.inputs
        first = [shapes_of_size(specs, 1, SIZE)]
        for seed in _SEEDS:
            values, results = run_filled(
                specs, Fill.RANDOM, self.run, seed, most=_SHAPES, first=first
            )
            self.samples.append((values, self._by_name(results)))
            self._time(values, clock)
            if self.call_s > _LONG_S:
                break
        if self.call_s <= _LONG_S:
            values = [_signed(value) for value in self.samples[-1][0]]
            try:
                self.samples.append((values, self._by_name(self.run(values))))
            except Exception as error:  # a model may want numbers of 0 or more
                pass_interrupt(error)

    def differs_from(self, base: _Running, end: float, clock: Callable[[], float]) -> str:
        """Return how the outputs differ from those that the default gave; "" if they agree."""
        for values, expected in base.samples:
            own = self._by_name(self.run(values, self._deadline(end)))
            compared = compare_outputs(own, expected)
            for output in compared.outputs:
                if not output.is_within or output.dtypes[0] != output.dtypes[1]:
                    return f"its results differ from the default's: {output}"
        self._time(base.samples[0][0], clock)
        return ""

    def nodes(self) -> Mapping[str, int]:
        """Return the number of nodes that each backend runs."""
        return dict(Counter(placed.backend for placed in self.placement))

    def close(self) -> None:
        close(self._context)
        self._plan.pool.close()

    def _time(self, values: Values, clock: Callable[[], float]) -> None:
        """Note the fastest of a few calls."""
        times: list[float] = []
        while len(times) < 3 and sum(times) < _GLANCE_S:
            begin = clock()
            self.run(values)
            times.append(clock() - begin)
        self.call_s = min(times)

    def _deadline(self, end: float) -> float | None:
        """Return the end of the time for a run, where all its backends can stop then."""
        return None if self._plan.lacks(Capability.DEADLINES)[0] else end

    def _by_name(self, results: Values) -> dict[str, Array]:
        return {
            name: array
            for spec, value in zip(self._plan.executable.outputs, results, strict=True)
            for name, array in arrays_of(spec.name, value, spec.dtype).items()
        }


def _signed(value: Any) -> Any:
    """Return an input whose numbers, uniform in [0, 1), are uniform in [-4, 4) instead."""
    if isinstance(value, list):
        return [_signed(each) for each in value]
    is_whole = value is None or value.dtype.kind in "biuOUS" or "int" in value.dtype.name
    return value if is_whole else (value * 8 - 4).astype(value.dtype)
