"""The targets of a build with `target = "auto"`: from kept evidence, or by measuring."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.errors import one_line
from engine.formats.collectives import is_collective
from engine.formats.opened import state_of
from engine.host.interrupts import pass_interrupt
from engine.plan import BuildOptions, Targets
from engine.plan.targets import Choice
from engine.report.choice import apart
from engine.report.choice.apart import Order
from engine.report.choice.evidence import Evidence, Setup
from engine.report.choice.keeping import Keeping, devices, key_of
from engine.report.choice.limits import BUDGET, Limits
from engine.report.choice.setups import applied
from engine.weights.compile_cache import can_start_processes

if TYPE_CHECKING:
    from engine.types import ModelSource

IS_BEHIND = "others are still to be measured, in the background"


def chosen_targets(
    source: ModelSource,
    targets: Targets,
    variable_weights: Sequence[str] = (),
    is_alone: bool = True,
) -> Targets:
    """Return the targets to build a model for, those of AUTO's default given.

    variable_weights: as for `build_plan`. is_alone: nobody relies on where the model runs, as a
    runner does that has tried whether its requests may share runs there. Then these are the
    default's where the user allows that, and their `measure` gives others later. Raises Cancelled,
    ValueError for a setting, and what the progress callback raises.
    """
    options = targets.options
    default = Setup(tuple(targets.choice[0]))
    limits = Limits.of(options.config)
    if why_not := why_unmeasured(source, options):
        return _targets(options, targets.choice, default, why_not)
    choosing = _Choosing(Order(source, options, default, limits, variable_weights), targets.choice)
    if (found := choosing.found()) is not None:
        return found
    if not limits.budget_s:
        return _targets(options, targets.choice, default, f"[common_context] {BUDGET} is 0")
    can_move = is_alone and source.path is not None and not source.is_secret
    if not (limits.is_behind and can_move and can_start_processes()):
        return choosing.measured(options.check_cancelled)
    now = _targets(options, targets.choice, default, IS_BEHIND)
    order = choosing.order._replace(options=now.options.unwatched())
    now.measure = _Choosing(order, targets.choice).measured
    return now


class _Choosing:
    """A choice of targets for one model. choice: what was asked for, with the default's targets."""

    def __init__(self, order: Order, choice: Choice) -> None:
        self.order = order
        self._choice = choice
        source, options, default, _, names, _ = order
        self._key = key_of(source, options, default, names)
        self._keeping = Keeping(source, options.config, self._key)

    def found(self) -> Targets | None:
        """Return the targets of the evidence that is kept; None where there is none."""
        evidence = self._keeping.find(
            lambda evidence: self._devices(evidence.chosen) == evidence.devices
        )
        return None if evidence is None else self._of(evidence)

    def measured(self, check: Callable[[], object]) -> Targets:
        """Measure, unless another does it meanwhile; keep the evidence and return the targets.

        check: called meanwhile; may raise.
        """
        with self._keeping.turn(check):
            if (found := self.found()) is not None:  # of who had the turn before
                return found
            begin = time.monotonic()
            if can_start_processes():
                outcome = apart.hold(self.order, check)
            else:
                outcome = self.order.contest().hold()
            evidence = Evidence(
                **outcome._asdict(),
                default=self.order.default,
                key=self._key,
                created=time.time(),
                took_s=time.monotonic() - begin,
                devices=self._devices(outcome.chosen),
            )
            if evidence.trials:
                self._keeping.keep(evidence)
        return self._of(evidence)

    def _devices(self, setup: Setup) -> dict[str, str]:
        """Return the devices of a setup; where they cannot be had, why.

        Only these: others are looked for where they are tried, in a process that may crash.
        """
        try:
            return devices(self.order.source, applied(setup, self.order.options))
        except Exception as error:  # of a hook, which a build without the cache never calls
            pass_interrupt(error)
            return {"missing": one_line(error)}

    def _of(self, evidence: Evidence) -> Targets:
        return _targets(self.order.options, self._choice, evidence.chosen, evidence.reason)


def _targets(options: BuildOptions, asked: Choice, setup: Setup, reason: str) -> Targets:
    _, why, _ = asked
    return Targets(applied(setup, options), (setup.targets, f"{why}: {reason}", False))


def why_unmeasured(source: ModelSource, options: BuildOptions) -> str:
    """Return why the default is taken without a look at others; "" where they are tried."""
    if source.graph is None:
        return "the model is a compiled form"
    if options.world_size > 1 or any(
        is_collective(node.op_type, node.domain) for node in source.graph.nodes
    ):
        return "a rank's model is not measured"
    if state_of(source):
        return "a model with state is not measured"
    return ""
