"""CompileOptions for a part of a model, from the model's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.types import CompileOptions, ShapeRange

if TYPE_CHECKING:
    from engine.plan.ranges import PartRanges

_plans = itertools.count(1)


def plan_name() -> str:
    """Return a name for a plan of several segments, which no other of this process has."""
    return f"plan {next(_plans)} of {os.getpid()}"


def part_options(
    options: CompileOptions,
    ranges: PartRanges,
    inputs: Sequence[str],
    resident: Iterable[str],
    plan: str,
) -> CompileOptions:
    """Return the options of a part of the model that `options` are for.

    ranges: derive those of any tensor from the model's. inputs: the part's, by name. resident:
    its outputs that stay on its device. plan: see CompileOptions.
    """
    profiles = tuple(ranges.of(profile, inputs) for profile in options.profiles)
    shapes = ranges.of(options.shapes, inputs)
    # The shapes of a tensor must be known in all profiles, or are said in none.
    known: list[Mapping[str, ShapeRange]] = [shapes, *profiles]
    names = [name for name in shapes if all(name in shape_ranges for shape_ranges in known)]
    return replace(
        options,
        shapes={name: shapes[name] for name in names},
        profiles=tuple({n: profile[n] for n in names} for profile in profiles) if names else (),
        resident=frozenset(resident),
        plan=plan,
        variable_weights=(),  # the core holds the weights of a plan itself
        save_to=None,
    )
