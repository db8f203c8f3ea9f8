"""A compiled setup of a model: its outputs on generated inputs, and the time of a call."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.errors import InputError
from engine.host.interrupts import pass_interrupt
from engine.plan import Plan
from engine.plan.contexts import close
from engine.plan.open_sizes import shapes_of_size
from engine.plan.reports import total
from engine.report.choice.errors import beyond, difference, error_of, without_number
from engine.report.filled import Fill, run_filled
from engine.report.parts import arrays_of
from engine.tensor.description import Array
from engine.types import Capability, Values

SIZE = 64
"""Size of the open axes of generated inputs, but the first of each input, which is 1."""

_SEEDS = (0, 1)
_ROWS = 2
"""Size of the first axis in the last sample: what is right for one row may be wrong for others."""
_BELOW = 100
"""Integers there are below it: what is right for 0 and 1 may be wrong for others."""
_LONG_S = 0.1
"""Seconds of a call from which on one sample has to do."""

_SHAPES = 6


class Sample(NamedTuple):
    """Inputs, and the outputs by name that the default gave for them.

    exact: outputs that errors are measured against; None for those of the default.
    """

    values: list[Any]
    outputs: dict[str, Array]
    exact: dict[str, Array] | None = None


class Agreement(NamedTuple):
    """Comparison of a setup's outputs with the default's.

    error: the largest of all outputs, None where it was not measured. why_not: why they do not
    agree; "" where they do.
    """

    error: float | None = None
    why_not: str = ""


class Running:
    """A compiled setup with one context.

    on_one_cpu: a call keeps one CPU of this process busy. samples: of the default alone. call_s:
    the shortest time of a call so far. placement: of the model's nodes. bits: digest of the outputs
    for the first sample.
    """

    def __init__(self, plan: Plan, on_one_cpu: bool) -> None:
        self._plan = plan
        self.on_one_cpu = on_one_cpu
        self.names = [spec.name for spec in plan.executable.inputs]
        self.samples: list[Sample] = []
        self.call_s = math.inf
        self.bits = ""
        try:
            self.placement = plan.placement()
            self._context = plan.executable.open_context()
        except BaseException:
            plan.pool.close()
            raise

    def run(self, values: Values, deadline_s: float | None = None) -> Values:
        """Predict once."""
        return self._plan.predict(self._context, values, None, deadline_s)

    def learn(
        self, end: float, clock: Callable[[], float], shapes: Mapping[str, Sequence[int]]
    ) -> None:
        """Make up inputs that fit, and keep the outputs.

        end: of the time for it. shapes: that some inputs are to have, by name. Raises
        DeadlineExceeded where the backends can stop then, and InputError where no inputs fit, or an
        output is empty, NaN or infinite on those that do.
        """
        specs = self._plan.executable.inputs
        wanted = {name: tuple(shape) for name, shape in shapes.items()}
        first = [shapes_of_size(specs, 1, SIZE) | wanted]
        until = self._deadline(end)

        def run(values: list[Any]) -> dict[str, Array]:
            outputs = self._by_name(self._timed(values, until, clock))
            if not self.samples and (name := without_number(outputs)):
                raise InputError(f"output {name!r} has no number there, and shows nothing")
            return outputs

        for seed in _SEEDS:
            values, outputs = run_filled(specs, Fill.RANDOM, run, seed, most=_SHAPES, first=first)
            self.samples.append(Sample(values, outputs))
            self.bits = self.bits or _digest(self.samples[0].outputs)
            if self.call_s > _LONG_S:
                run(values)  # the first call may have taken longer than others
            if self.call_s > _LONG_S:
                return
        single = self.samples[-1].values
        rows = shapes_of_size(specs, _ROWS, SIZE)
        several = run_filled(specs, Fill.RANDOM, list, seed, most=0, first=[rows])[0]
        for values, below in ((several, _BELOW), (several, 2), (single, 2)):
            values = _varied(values, below)
            try:
                self.samples.append(Sample(values, run(values)))
            except Exception as error:  # a model may want numbers of 0 or more, or one row
                pass_interrupt(error)
            else:
                return

    def agrees(
        self, base: Running, end: float, clock: Callable[[], float], max_error: float | None
    ) -> Agreement:
        """Compare the outputs with those that the default gave."""
        errors: list[float] = []
        until = self._deadline(end)
        for values, expected, exact in base.samples:
            own = self._by_name(self._timed(values, until, clock))
            self.bits = self.bits or _digest(own)
            if max_error is not None:
                errors.append(error_of(own, expected, exact))
                if errors[-1] > max_error:
                    return Agreement(errors[-1], beyond(errors[-1], max_error))
                continue
            if how := difference(own, expected):
                return Agreement(why_not=f"its results differ from the default's: {how}")
        if len(base.samples) == 1:  # the first call may have taken longer than others
            self._timed(base.samples[0].values, until, clock)
        return Agreement(max(errors) if errors else None)

    def nodes(self) -> Mapping[str, int]:
        """Return the number of nodes that each backend runs."""
        return dict(Counter(placed.backend for placed in self.placement))

    def memory_bytes(self) -> int:
        """Return the memory that it takes, as far as its backends can tell."""
        held = total(report for _, _, report in self._plan.memory())
        return held.weights_bytes + held.shared_bytes + held.mapped_bytes + held.workspace_bytes

    def close(self) -> None:
        """Free the context and what was compiled."""
        close(self._context)
        self._plan.pool.close()

    def _timed(self, values: Values, until: float | None, clock: Callable[[], float]) -> Values:
        """Predict once, and note the time where it is the shortest so far."""
        begin = clock()
        results = self.run(values, until)
        self.call_s = min(self.call_s, clock() - begin)
        return results

    def _deadline(self, end: float) -> float | None:
        """Return the end of the time for a run, where all its backends can stop then."""
        return None if self._plan.lacks(Capability.DEADLINES)[0] else end

    def _by_name(self, results: Values) -> dict[str, Array]:
        return {
            name: array
            for spec, value in zip(self._plan.executable.outputs, results, strict=True)
            for name, array in arrays_of(spec.name, value, spec.dtype).items()
        }


def _digest(outputs: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for array in outputs.values():
        content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        digest.update(content)
    return digest.hexdigest()


def _varied(values: Sequence[Any], below: int) -> list[Any]:
    """Return inputs whose floats, uniform in [0, 1), are uniform in [-4, 4) instead.

    below: integers are below it where one input alone has such; two may be a text and its mask.
    """
    generator = np.random.default_rng(below)
    whole = [value for value in values if getattr(value, "dtype", np.dtype(bool)).kind in "iu"]

    def varied(value: Any) -> Any:
        if isinstance(value, list):
            return [*map(varied, value)]
        if value is None or value.dtype.kind in "bOUS":
            return value
        if "int" not in value.dtype.name:
            return (value * 8 - 4).astype(value.dtype)
        if len(whole) != 1 or value is not whole[0]:
            return value
        return generator.integers(0, below, value.shape).astype(value.dtype)

    return [*map(varied, values)]
