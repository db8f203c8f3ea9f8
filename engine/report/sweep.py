"""Sweeps: the same model measured in several batches, or under several loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import InputError
from engine.report.measurement import BenchResult
from engine.types import TensorSpec

Array = np.ndarray[Any, np.dtype[np.float64]]

_KEPT_UP = 0.95
"""The part of the requests that were due by which a load counts as served: some are still at work
when the time is up, and chance makes a few more."""


_FEWEST = 20
"""Requests of which that part is at least one."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement of a sweep.

    rate_per_s, due: the load that was offered, and the requests of it; None and 0 in a closed loop.
    last_due_s: when the last of a number of requests was due, all of which are served; None where
    the measurement ends at a time. bound_s: the 99th percentile that is allowed. due_per_s: the
    rate at which requests were due, which chance moves away from rate_per_s.
    """

    result: BenchResult
    rate_per_s: float | None = None
    due: int = 0
    last_due_s: float | None = None
    bound_s: float | None = None
    due_per_s: float | None = None

    @property
    def is_valid(self) -> bool:
        """True where the load was served, within the bound if there is one."""
        is_within = self.bound_s is None or self.result.latency_s["p99"] <= self.bound_s
        return is_within and not self.is_overloaded and not self.is_too_short

    @property
    def is_overloaded(self) -> bool:
        """True where the model could not serve what was offered: then its queue only grows."""
        if self.last_due_s is not None and self.rate_per_s is not None:
            waiting = (self.result.seconds - self.last_due_s) * self.rate_per_s
            return waiting > (1 - _KEPT_UP) * self.due + self.result.clients
        return self.result.runs < _KEPT_UP * self.due - 1

    @property
    def is_too_short(self) -> bool:
        """True where too few requests were due to tell that the model can serve the load."""
        return self.due < _FEWEST and not self.is_overloaded


def batch_axes(
    specs: Sequence[TensorSpec], takes_shapes: bool = False
) -> dict[str, tuple[int, ...]]:
    """Return the axes of the batch by input name: open ones, of the name of the first such axis.

    takes_shapes: the file's axes may all be fixed and can be others; the first ones count.
    Raises InputError for a model whose batch is fixed.
    """
    first = [(spec, spec.shape[0]) for spec in specs if spec.shape]
    if takes_shapes:
        return {spec.name: (0,) for spec, _ in first}
    free = [dim for _, dim in first if not isinstance(dim, int)]
    if not free:
        fixed = ", ".join(f"input {spec.name!r} {spec}" for spec in specs) or "no inputs"
        raise InputError(
            f"the model's batch is fixed: {fixed}; export it with the first axis open, or convert "
            "it for other sizes: engine convert --shape"
        )
    symbol = free[0]
    if symbol is None:
        return {spec.name: (0,) for spec, dim in first if dim is None}
    places = {
        spec.name: tuple(axis for axis, dim in enumerate(spec.shape or ()) if dim == symbol)
        for spec in specs
    }
    return {name: axes for name, axes in places.items() if axes}


def in_batch(
    specs: Sequence[TensorSpec],
    values: Sequence[Any],
    axes: Mapping[str, tuple[int, ...]],
    batch: int,
) -> list[Any]:
    """Return the inputs with `batch` samples: those that there are, over and over."""
    sized = []
    for spec, value in zip(specs, values, strict=True):
        for axis in axes.get(spec.name, ()):
            if not isinstance(value, np.ndarray) or not value.shape[axis]:
                raise InputError(f"input {spec.name!r}: has no samples to repeat", spec.name)
            value = np.take(value, np.arange(batch) % value.shape[axis], axis)
        sized.append(value)
    return sized


def arrivals(
    rate_per_s: float, duration_s: float | None, count: int | None, seed: int = 0
) -> Array:
    """Return when requests are due, in seconds from 0: at random, as of many clients (Poisson).

    For duration_s, or `count` of them; one of the two is None.
    """
    generator = np.random.default_rng(seed)
    number = count or int(rate_per_s * (duration_s or 0.0) * 1.2) + 100
    due: Array = np.cumsum(generator.exponential(1 / rate_per_s, number))
    due -= due[0]
    return due if duration_s is None else due[due < duration_s]


def due_rate(due: Array, duration_s: float | None) -> float | None:
    """Return how many requests a second were due; None for a single one without a duration."""
    if duration_s is not None:
        return len(due) / duration_s
    return (len(due) - 1) / float(due[-1]) if len(due) > 1 else None
