"""Runs a model on inputs that are generated, in other sizes where the first do not fit together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

from engine.cli.build import Built, timed
from engine.cli.inputs import Inputs
from engine.cli.output import aside, note, plain
from engine.plan.disagreement import sizes_and_disagreement
from engine.plan.open_sizes import first_that_runs
from engine.report.filled import shapes_of
from engine.report.measurement import ranks_of

R = TypeVar("R")

_SIZES = "say sizes that fit together: --shape NAME=SIZES"


def first_fitting(
    built: Built | None, inputs: Inputs, run: Callable[[Inputs], R]
) -> tuple[Inputs, R]:
    """Run a model on inputs; where generated ones do not fit together, on others.

    built: None for a model that is elsewhere. A rank of several tries no others: the ranks would be
    out of step. Returns the inputs that went well, and what `run` gave.
    """
    others = () if built is not None and ranks_of(built.model) else inputs.others

    def sizes(tried: Inputs) -> str:
        specs = [given.spec for given in tried.given]
        shapes = dict(zip((spec.name for spec in specs), shapes_of(tried.values())))
        return sizes_and_disagreement(None if built is None else built.file(), specs, shapes)

    return first_that_runs(chain([inputs], others), run, sizes, _SIZES)


def run_shown(
    built: Built, inputs: Inputs, phase: str, run: Callable[[list[Any]], R], is_shown: bool = True
) -> tuple[Inputs, R, float]:
    """Run as `first_fitting`, from values; print the inputs before, and those that went well.

    Returns these, what `run` gave, and the seconds that it took.
    """
    if is_shown:  # now: the run may take long, or fail
        show_inputs(inputs)
        sys.stdout.flush()
    chosen, (result, seconds) = first_fitting(
        built, inputs, lambda tried: timed(phase, lambda: run(tried.values()))
    )
    if is_shown and chosen is not inputs:
        note("note: the model does not run with these sizes; it was run with others:")
        show_inputs(chosen)
    return chosen, result, seconds


def show_inputs(inputs: Inputs) -> None:
    """Print what a model is run on, a line each."""
    for value in inputs.given:
        aside(plain(str(value)))
