"""The contest of a tuning: many setups are tried, and the best compete until one is proven."""

from __future__ import annotations

import math
import random
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any

from engine.errors import Cancelled, DeadlineExceeded, one_line
from engine.plan import Plan, Targets, build_plan
from engine.report.choice.contest import MARGIN, Contest, Outcome, Step
from engine.report.choice.duel import Duel
from engine.report.choice.evidence import Figures, Setup, Trial
from engine.report.choice.running import Running
from engine.report.tuning import contender, space
from engine.report.tuning.contender import Contender
from engine.report.tuning.forms import FORMS, Forms
from engine.report.tuning.goal import Goal
from engine.report.tuning.order import LEAST, Interval
from engine.report.tuning.proof import P99_CHANCE, Proof, within
from engine.report.tuning.rounds import FEWEST, Timings, round_s, timed
from engine.types import CancelToken, Values

_KEPT = 4
"""Setups that stay open to compete in the end."""
_FINALS = 0.4
"""Part of the budget that is kept for them."""
_RUNG = 0.12
"""Part of the budget for one stage of that. The last comparison has all that is left."""
_LEAST_S, _MOST_S = 0.3, 1.5
"""Seconds for the first comparison of a setup."""
_BUILDS = 2 * LEAST
"""New builds of the last two for which there must be time if these are to give the ratios."""
_LONG = 4
"""As many times that which one more build of them takes must be left for it."""
_SAME = Interval(1.0, 1.0, 1.0)


class Tournament(Contest):
    """A contest under a load.

    Each setup is compared with the default for a moment; the best few stay open. Of these the worse
    half is dropped after each stage, in which all take turns. The last one is chosen if a
    comparison anew proves that it is better; see `Proof`. Where builds are quick both are built
    anew for each ratio of that: two builds of one setup differ, by where their memory lies.
    """

    def __init__(self, *given: Any, goal: Goal, **more: Any) -> None:
        super().__init__(*given, **more)
        self.shapes = goal.shapes
        self._goal = goal
        self._forms = Forms(goal.path, goal.folder)
        self._contenders: dict[Setup, Contender] = {}
        self._figures: dict[Setup, Figures] = {}
        self._took_s: dict[Setup, float] = {}  # to build each as a contender
        self._order = random.Random(0)
        left_s = self._known.left_s
        self._whole_s = self._limits.budget_s if left_s is None else left_s
        self._kept_s = _FINALS * self._whole_s
        known = [t for t in self._known.trials if t.figures is not None and not t.why_not]
        self._again = [trial.setup for trial in sorted(known, key=ratio_of)[:_KEPT]]

    def hold(self) -> Outcome:
        """See Contest; the default's trial has figures too."""
        outcome = super().hold()
        self._note_spent(self._limits.budget_s)
        default = self._figures.get(self._default)
        if default is None:
            return outcome
        first, *others = outcome.trials
        return outcome._replace(trials=(replace(first, figures=default, ratio=1.0), *others))

    # ---------------------------------------------------------------------- the setups to try

    def _found_others(self) -> Iterator[tuple[str, str]]:
        wanted = self._goal.targets
        for name, why_not in super()._found_others():
            if not wanted or name in wanted:
                yield name, why_not

    def _setups(self) -> Iterator[tuple[Setup, str]]:
        tried = set()
        for setup, why_not in self._in_order():
            if setup not in tried:
                tried.add(setup)
                yield setup, why_not

    def _in_order(self) -> Iterator[tuple[Setup, str]]:
        """Yield what to try: what mostly gains most for its time comes first."""
        default = self._default
        for setup in self._again:
            yield setup, ""
        graphs = [(setup, "") for setup in space.graphs(default, self._options)]
        yield from graphs[:1]
        if not self._goal.is_shared:  # a runner takes longer to build than a plan
            yield from self._ways_to_run(default)
        yield from self._setups_elsewhere()
        if not self._is_exact:
            for form in FORMS:
                yield replace(default, form=form), ""
        yield from graphs[1:]
        for best in self._leading(2):
            yield from self._ways_to_run(best)
        for best in self._leading(1):
            for setup in space.waiting(best, self._options):
                yield setup, ""

    def _ways_to_run(self, base: Setup) -> Iterator[tuple[Setup, str]]:
        """Yield a setup with other numbers of threads, and of workers where there are such."""
        goal, found = self._goal, self._contenders.get(self._default)
        if goal.is_shared:
            has_batch = found is not None and found.shares_runs
            setups = space.sharing(base, self._options, goal.clients, has_batch)
        else:
            setups = space.threads(base, self._options)
        for setup in setups:
            yield setup, ""

    def _leading(self, count: int) -> list[Setup]:
        """Return the best setups so far, of which the default may be one."""
        return sorted([self._default, *self._rivals()], key=self._rank)[:count]

    def _rivals(self) -> list[Setup]:
        return [setup for setup in self._contenders if setup != self._default]

    def _rank(self, setup: Setup) -> tuple[bool, float]:
        """Return what is least for the best setup: within the limit first, then the fastest."""
        found = self._figures.get(setup)
        return (False, 1.0) if found is None else (self._is_late(setup), found.ratio)

    def _is_late(self, setup: Setup) -> bool:
        """Return whether a p99 is beyond the limit, or where requests were many, may be."""
        found = self._figures[setup]
        if found.p99_high_s is None:
            return within((found.p99_low_s, math.inf), self._goal.p99_s) is False
        return within((found.p99_low_s, found.p99_high_s), self._goal.p99_s) is not True

    # ------------------------------------------------------------------------- one after the other

    def _of_before(self, setup: Setup) -> Trial | None:
        """See Contest. What may win is tried anew: it is to be open in the end."""
        known = (each for each in self._known.trials if each.setup == setup)
        return None if setup in self._again else next(known, None)

    def _note_begun(self, setup: Setup) -> None:
        self._note_time()

    def _note_time(self) -> None:
        """Tell who watches how much of the budget is spent."""
        self._note_spent(self._limits.budget_s - super()._left_s())

    def _note_spent(self, spent_s: float) -> None:
        budget_s = self._limits.budget_s
        done = round(min(spent_s, budget_s) * 1000)
        self._options.note_progress("tuning", done, round(budget_s * 1000))

    def _tried(self, base: Running, setup: Setup, why_not: str) -> Trial:
        trial = super()._tried(base, setup, why_not)
        return replace(trial, figures=self._figures.get(setup))

    def _left_s(self) -> float:
        return super()._left_s() - self._kept_s

    def _needed_s(self, base: Running, setup: Setup) -> float:
        """Return about how long it takes to build a setup and to see how fast it is."""
        default_s = self._took_s[self._default]
        like = [took_s for each, took_s in self._took_s.items() if _is_like(each, setup)]
        builds = 2 if self._goal.is_shared else 1  # a plan, and the runner
        rounds_s = 2 * FEWEST * round_s(base.call_s, self._goal.clients)
        return builds * max(like, default=default_s) + rounds_s

    def _opened(self, setup: Setup, cancel: CancelToken | None = None) -> Running:
        with self._within_time(setup) as token, ExitStack() as undo:
            self._forms.path(setup.form, token)  # which takes time once
            begin = self._clock()
            running = super()._opened(setup, token)
            undo.callback(running.close)
            if token is not None:
                token.check()  # cancelled as the build ended, it would end what the plan does later
            undo.pop_all()
        self._took_s[setup] = self._clock() - begin
        return running

    @contextmanager
    def _within_time(self, setup: Setup) -> Iterator[CancelToken | None]:
        """Cancel a build in the block when the time for trying is over; gives its token.

        Not the default's and not those of the last comparison, whose time is known. A backend that
        cannot stop while it compiles goes on. Raises DeadlineExceeded.
        """
        user = self._options.cancel
        if setup == self._default or not self._kept_s:
            yield user
            return
        token = CancelToken()
        timer = threading.Timer(max(0.0, self._left_s()), token.cancel)
        timer.daemon = True
        timer.start()
        try:
            with nullcontext() if user is None else user.watch(token.cancel):
                yield token
        except Cancelled as error:
            self._options.check_cancelled()
            raise DeadlineExceeded("the time for trying was over while it was built") from error
        finally:
            timer.cancel()

    def _plan(self, setup: Setup, targets: Targets) -> Plan:
        if not setup.form:
            return super()._plan(setup, targets)
        return build_plan(self._forms.source(setup.form), targets)

    def _is_hopeless(self, base: Running, running: Running, at_once: int = 1) -> bool:
        """See Contest. A few rounds tell more than a call does, which others may have delayed.

        And a setup that is slow alone may serve several clients at once.
        """
        is_short = FEWEST * running.call_s < _MOST_S
        return not is_short and super()._is_hopeless(base, running, self._goal.clients)

    def _compared(self, base: Running, setup: Setup, running: Running) -> Duel:
        self._contender(self._default, base, base)
        own = self._contender(setup, running, base)
        seconds = min(_MOST_S, max(_LEAST_S, self._limits.budget_s / 40))
        try:
            left_s = max(0.0, self._left_s())
            timings = self._timed(
                setup, [self._default, setup], seconds, least=FEWEST, most_s=left_s
            )
            if len(timings[0].request_s) < FEWEST:
                raise DeadlineExceeded("the time was over before it had taken turns often enough")
        except BaseException:
            del self._contenders[setup]
            if self._goal.is_shared:  # else it is `running`, which the caller closes
                own.close()
            raise
        self._note(self._default, _SAME, timings[0], base.memory_bytes())
        ratio = timings[1].over(timings[0])
        found = self._note(setup, ratio, timings[1], running.memory_bytes())
        default_s = self._figures[self._default].p50_s
        return Duel(default_s, found.p50_s, found.ratio, found.ratio, found.rounds)

    def _contender(self, setup: Setup, running: Running, base: Running) -> Contender:
        """Return a setup under the load, which stays open. running: the same for one client."""
        if setup not in self._contenders:
            values = base.samples[0].values
            if self._goal.is_shared:
                self._contenders[setup] = self._served(setup, values)
            else:
                self._contenders[setup] = contender.alone(running, values, running is not base)
        return self._contenders[setup]

    def _served(self, setup: Setup, values: Values) -> Contender:
        path, begin = self._forms.path(setup.form), self._clock()
        with self._within_time(setup) as token:
            options = copy(self._options)
            options.cancel = token
            found = contender.served(setup, options, path, values)
        self._took_s[setup] = self._clock() - begin
        return found

    def _timed(
        self, setup: Setup, setups: Sequence[Setup], seconds: float, **more: Any
    ) -> list[Timings]:
        """Time setups that are open in turn. setup: to blame if this process is lost meanwhile."""

        def check() -> None:
            self._options.check_cancelled()
            self._tell(Step(setup, left_s=self._left_s()))  # it has not hung
            self._note_time()

        runs = [self._contenders[each].run for each in setups]
        return timed(runs, self._goal.clients, seconds, check, **more)

    def _note(
        self, setup: Setup, ratio: Interval, own: Timings, memory_bytes: int,
        p99_bounds_s: tuple[float, float] | None = None,
    ) -> Figures:  # fmt: skip
        """Note the figures of a setup. ratio: to the default's time, measured in turn with it."""
        low_s, high_s = own.p99_bounds_s(P99_CHANCE / 2) if p99_bounds_s is None else p99_bounds_s
        found = Figures(
            ratio=ratio.middle,
            low=ratio.low,
            high=ratio.high,
            rounds=len(own.request_s),
            requests=own.requests,
            p50_s=own.percentile_s(50),
            p99_s=own.percentile_s(99),
            p99_low_s=low_s,
            p99_high_s=high_s if high_s < math.inf else None,
            throughput_per_s=1 / statistics.median(own.request_s),
            memory_bytes=memory_bytes,
        )
        self._figures[setup] = found
        return found

    def _take_if_best(self, setup: Setup, ratio: float, running: Running | None) -> Running | None:
        """Keep the setups that may win, up to so many; return what to close of this one."""
        if self._figures[setup].low >= 1 and self._rank(setup) >= self._rank(self._default):
            self._drop(setup)
        elif len(rivals := self._rivals()) > _KEPT:
            self._drop(max(rivals, key=self._rank))
        return running if self._goal.is_shared else None

    def _drop(self, setup: Setup) -> None:
        self._contenders.pop(setup).close()

    # ------------------------------------------------------------------------- the best among them

    def _decision(self, base: Running) -> tuple[Setup, str]:
        self._kept_s = 0.0
        if self._default not in self._figures:  # there was no time for anything else
            self._contender(self._default, base, base)
            [own] = self._timed(self._default, [self._default], 0.0)
            self._note(self._default, _SAME, own, base.memory_bytes())
        try:
            winner = self._best_rival()
            if winner is None:
                why = f"nothing that was tried is clearly faster than {self._default}"
                return self._default, why
            return self._judged(winner, self._proof(winner, base))
        except Exception as error:
            self._pass_on(error)
            return self._default, f"one of the best failed in the end: {one_line(error)}"

    def _best_rival(self) -> Setup | None:
        """Return the best of the setups that are open; in each stage all take turns."""
        rivals = sorted(self._rivals(), key=self._rank)
        while len(rivals) > 1:
            self._measure(rivals)
            rivals.sort(key=self._rank)
            best = self._figures[rivals[0]]
            rivals = [each for each in rivals if self._figures[each].low <= best.high]
            rivals = rivals[: max(1, len(rivals) // 2)]
            for setup in self._rivals():
                if setup not in rivals:
                    self._drop(setup)
        return rivals[0] if rivals else None

    def _measure(self, rivals: Sequence[Setup]) -> None:
        """Measure setups in turn with the default, if there is time for rounds that tell more."""
        setups = [self._default, *rivals]
        seconds = min(_RUNG * self._whole_s, self._left_s() / 2)
        if FEWEST * sum(map(self._round_s, setups)) > seconds:
            return
        timings = self._timed(
            rivals[0], setups, seconds, least=FEWEST, is_decided=_is_led, most_s=seconds
        )
        for setup, own in zip(setups, timings, strict=True):
            self._renote(setup, own.over(timings[0]), own)

    def _renote(self, setup: Setup, ratio: Interval, own: Timings, **more: Any) -> None:
        """Note later figures of a setup, in its trial too."""
        found = self._note(setup, ratio, own, self._figures[setup].memory_bytes, **more)
        for place, trial in enumerate(self._trials):
            if trial.setup == setup:
                self._trials[place] = replace(trial, figures=found, ratio=found.ratio)

    def _round_s(self, setup: Setup) -> float:
        return round_s(self._figures[setup].p50_s, self._goal.clients)

    def _proof(self, winner: Setup, base: Running) -> Proof:
        """Compare a setup with the default anew, and note the figures.

        Where there is time, new builds of both give each ratio, else the same two give all. These
        are new too unless that takes long: the setup may have been picked for a lucky one.
        """
        proof, pair = Proof(self._goal.p99_s), (self._default, winner)
        took_s = sum(self._took_s[setup] for setup in pair)
        rounds_s = sum(map(self._round_s, pair))
        left_s = self._left_s()
        if _BUILDS * (took_s + max(took_s, rounds_s)) <= left_s:
            self._prove_by_builds(proof, pair, base, max(1, round(took_s / rounds_s)))
            return proof
        if _LONG * took_s <= left_s:
            self._renew(pair, base)
        left_s = max(0.0, self._left_s())

        def is_decided(timings: Sequence[Timings]) -> bool:
            return proof.look(timings[1].ratios(timings[0]), timings)

        timings = self._timed(winner, pair, left_s, is_decided=is_decided, most_s=left_s)
        is_decided(timings)
        self._note_proven(proof, pair, timings)
        return proof

    def _prove_by_builds(
        self, proof: Proof, pair: tuple[Setup, Setup], base: Running, rounds: int
    ) -> None:
        """Take each ratio of new builds, by so many rounds."""
        ratios: list[float] = []
        total = Timings(), Timings()
        while True:
            begin = self._clock()
            self._renew(pair, base)
            timings = self._timed(pair[1], pair, 0.0, least=rounds, order=self._order)
            ratios.append(timings[1].over(timings[0]).middle)
            for all_of_it, own in zip(total, timings, strict=True):
                all_of_it.extend(own)
            if proof.is_due(len(ratios)) and proof.look(ratios, total):
                break
            if self._left_s() < self._clock() - begin:
                proof.look(ratios, total)
                break
        self._note_proven(proof, pair, total)

    def _renew(self, setups: Sequence[Setup], base: Running) -> None:
        """Build setups anew, and warm them up."""
        for setup in setups:
            self._drop(setup)
        for setup in self._order.sample(setups, len(setups)):
            self._tell(Step(setups[-1], left_s=self._left_s()))
            running = base if self._goal.is_shared else self._opened(setup)
            self._contender(setup, running, base).run()

    def _note_proven(
        self, proof: Proof, pair: tuple[Setup, Setup], timings: Sequence[Timings]
    ) -> None:
        for setup, ratio, own, bounds_s in zip(
            pair, (_SAME, proof.ratio), timings, proof.p99_bounds_s, strict=True
        ):
            self._renote(setup, ratio, own, p99_bounds_s=bounds_s)

    def _judged(self, winner: Setup, proof: Proof) -> tuple[Setup, str]:
        """Return the winner if it is proven, else the default, and why."""
        found, default = self._figures[winner], self._default
        text = f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}) of the time of {default}"
        p99_ms = found.p99_s * 1e3
        default_keeps, keeps = proof.keeps
        if keeps is False:
            who = f"only {default}" if default_keeps else "no setup"
            return default, f"{who} keeps the limit: {winner} has a p99 of {p99_ms:.3g} ms"
        if keeps is None:
            known = f"a p99 of {p99_ms:.3g} ms by {found.requests} requests"
            return default, f"{winner} is not proven to keep the limit: it has {known}"
        if not default_keeps:
            how = "does not" if default_keeps is False else "is not proven to"
            return winner, f"{winner} keeps the limit, which {default} {how}; it takes {text}"
        if proof.is_faster:
            return winner, f"{winner} takes {text}"
        if found.high < 1:
            gain = f"by less than {100 * (1 - MARGIN):.0f} %"
            return default, f"the best, {winner}, is faster {gain}: it takes {text}"
        return default, f"the best, {winner}, is not proven to be faster: it takes {text}"

    def _close(self) -> None:
        for setup in [*self._contenders]:
            self._drop(setup)


def _is_led(timings: Sequence[Timings]) -> bool:
    """Return whether one is faster than all others, by all of the interval."""
    ratios = [own.over(timings[0]) for own in timings[1:]]
    best = min(ratios, key=lambda ratio: ratio.middle)
    return all(ratio is best or ratio.low > best.high for ratio in ratios)


def _is_like(setup: Setup, other: Setup) -> bool:
    """Return whether setups take about the same time to build: on one backend, of one form."""
    return (setup.targets, setup.form) == (other.targets, other.form)


def ratio_of(trial: Trial) -> float:
    """Return the ratio of a trial; infinity where it was not measured."""
    return math.inf if trial.ratio is None else trial.ratio
