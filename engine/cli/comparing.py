"""Comparisons of `engine bench`: of several models, or of one with a saved run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from engine.cli import saved_run, side_by_side
from engine.cli.build import parse_shapes
from engine.cli.hints import misuse

if TYPE_CHECKING:
    from engine.cli.load import Against, Load, Sweep
    from engine.cli.options import InputOptions
    from engine.cli.scenario import Asked
    from engine.cli.setups import Setup


def compare(
    setups: Sequence[Setup],
    load: Load,
    sweep: Sweep,
    asked: Asked,
    given: InputOptions,
    held: Against,
) -> tuple[side_by_side.SideBySide | saved_run.Held, bool]:
    """Return the comparison that the options ask for, and whether it came to its end.

    setups: one for a saved run; none for a model on a server. Raises a usage error for options
    that are not for comparisons.
    """
    for option, is_given in (
        ("--scenario", asked.scenario is not None),
        ("--runs", load.runs is not None),
        ("--batches", bool(sweep.batches)),
        ("--rates", bool(sweep.rates)),
        ("--clients", sweep.at_once != (1,)),
        ("--threads", len(sweep.host_threads) > 1),
    ):
        if is_given:
            wanted = "a comparison, or a run to save, chooses its own number of runs"
            raise misuse(option, f"{wanted}; leave it out: --duration gives the longest time")
    if held and not setups:
        raise misuse("--save, --against", "a model on a server depends on more than is saved")
    if held and len(setups) > 1:
        raise misuse("--save, --against", "are for one model")
    shapes = parse_shapes(given.shapes)
    if held:
        return saved_run.compare(
            setups[0], given, shapes, load.duration_s or saved_run.BUDGET_S, held
        )
    try:
        return side_by_side.compare(
            setups, given, shapes, load.duration_s or side_by_side.BUDGET_S, held.limit
        )
    except click.BadParameter as error:
        if error.param_hint == "--set" and len({setup.how.settings for setup in setups}) > 1:
            error.param_hint = "--set, --versus"
        raise
