"""The targets of a build with `target = "auto"`: from kept evidence, or by measuring."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from engine.formats.collectives import is_collective
from engine.formats.opened import state_of
from engine.plan import BuildOptions, Targets, build_plan
from engine.plan.targets import Choice
from engine.report.choice.contest import Contest
from engine.report.choice.evidence import Evidence, Setup
from engine.report.choice.keeping import Keeping, key_of
from engine.report.choice.setups import applied
from engine.weights.compile_cache import CompileCache, Mode

if TYPE_CHECKING:
    from engine.types import ModelSource

BUDGET_S = 5.0
KEY = "auto_budget_s"


def chosen_targets(
    source: ModelSource, targets: Targets, variable_weights: Sequence[str] = ()
) -> Targets:
    """Return the targets to build a model for, those of AUTO's default given.

    variable_weights: as for `build_plan`. Raises Cancelled, ValueError for a setting, and what the
    progress callback raises.
    """
    options = targets.options
    default = Setup(tuple(targets.choice[0]))
    budget_s = _budget_of(options.config)
    if why_not := _why_unmeasured(source, options):
        return _targets(options, targets.choice, default, why_not)
    keeping = Keeping(source, options.config, key_of(source, options, default, variable_weights))
    evidence = keeping.find()
    if evidence is None and not budget_s:
        return _targets(options, targets.choice, default, f"[common_context] {KEY} is 0")
    if evidence is None:
        with keeping.turn(options.check_cancelled):
            evidence = keeping.find()  # of who had the turn before
            if evidence is None:
                evidence = _measured(source, options, default, variable_weights, budget_s)
                if evidence.trials:
                    keeping.keep(evidence)
    return _targets(options, targets.choice, evidence.chosen, evidence.reason)


def _targets(options: BuildOptions, asked: Choice, setup: Setup, reason: str) -> Targets:
    _, why, _ = asked
    return Targets(applied(setup, options), (setup.targets, f"{why}: {reason}", False))


def _measured(
    source: ModelSource,
    options: BuildOptions,
    default: Setup,
    variable_weights: Sequence[str],
    budget_s: float,
) -> Evidence:
    begin = time.monotonic()
    cache = CompileCache.of(options.config)
    # What is kept of the model is used; what only a trial needs is not written.
    forms = None if cache.mode is Mode.OFF else CompileCache(cache.folder, Mode.READ)
    build = partial(build_plan, source, variable_weights=variable_weights, forms=forms)
    outcome = Contest(options, default, build, budget_s).hold()
    return Evidence(
        **outcome._asdict(),
        default=default,
        key=key_of(source, options, default, variable_weights),
        created=time.time(),
        took_s=time.monotonic() - begin,
    )


def _why_unmeasured(source: ModelSource, options: BuildOptions) -> str:
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


def _budget_of(config: Mapping[str, Mapping[str, str]]) -> float:
    text = config.get("common_context", {}).get(KEY, "")
    if not text:
        return BUDGET_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(
            f"[common_context] {KEY} must be a number of seconds, 0 for no measuring, "
            f"but got {text!r}"
        )
    return seconds
