"""Segments that run one after another, as one executable.

To the rest of the core they are a backend's: an executable, its contexts, and `predict` with the
signature of engine_predict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from engine.backends import Backend
from engine.errors import EngineError, InputError, ModelError, one_line
from engine.plan.compile import Opener, attribute_errors_to
from engine.plan.contexts import close
from engine.types import (
    Executable,
    ExecutionContext,
    MemoryReport,
    Placement,
    TensorSpec,
    Value,
    Values,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a model that one backend has compiled.

    nodes: which nodes of the whole model its nodes are, in its order. reads, writes: the places
    of its inputs and outputs among the values of a run. ends: the places that nobody reads
    afterwards.
    """

    backend: Backend
    executable: Executable
    nodes: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    ends: tuple[int, ...]


class SegmentedExecutable:
    """Segments in running order.

    inputs, outputs: the whole model's. places: where the outputs are among the values of a run;
    the inputs come first there. width: how many values there are.
    rest: the placement of nodes that are in no segment.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        places: tuple[int, ...],
        width: int,
        rest: Sequence[Placement],
    ) -> None:
        self.segments = tuple(segments)
        self.inputs = inputs
        self.outputs = outputs
        self.places = places
        self.width = width
        self._rest = tuple(rest)

    def open_context(self) -> SegmentedContext:
        """A context of every segment."""
        return SegmentedContext(self)

    def placement(self) -> list[Placement]:
        """One entry for each node of the whole model; of copies, that of the first."""
        found = {each.index: each for each in self._rest}
        for segment in self.segments:
            with attribute_errors_to(segment.backend, "placement"):
                placed = segment.executable.placement()
                for index, each in zip(segment.nodes, placed, strict=True):
                    found.setdefault(index, replace(each, index=index))
        return [found[index] for index in sorted(found)]

    def memory(self) -> MemoryReport:
        """The sum over the segments."""
        reports = (astuple(segment.executable.memory()) for segment in self.segments)
        return MemoryReport(*map(sum, zip(*reports, strict=True)))

    def close(self) -> None:
        """Close every segment's executable."""
        for segment in self.segments:
            close(segment.executable)


class SegmentedContext:
    """One context of each segment, and the way of the values through them."""

    def __init__(self, executable: SegmentedExecutable) -> None:
        self._executable = executable
        self._contexts: list[ExecutionContext] = []
        with ExitStack() as opened:
            for segment in executable.segments:
                context = Opener(segment.backend, segment.executable).open_context()
                opened.callback(close, context)
                self._contexts.append(context)
            self._closing = opened.pop_all()

    def run(self, inputs: Values, outputs: Values | None, deadline_s: float | None) -> Values:
        """See engine_predict. Values cross as they are: host arrays are never copied."""
        executable = self._executable
        values: list[Value] = [*inputs, *[None] * (executable.width - len(inputs))]
        buffers = _direct(outputs or (), inputs, executable.places)
        for segment, context in zip(executable.segments, self._contexts, strict=True):
            taken = [values[place] for place in segment.reads]
            given: list[Value] | None = [buffers.get(place) for place in segment.writes]
            if not any(place in buffers for place in segment.writes):
                given = None
            try:
                results = segment.backend.predict(context, taken, given, deadline_s)
                if len(results) != len(segment.writes):
                    raise TypeError(
                        f"engine_predict gave {len(results)} values for {len(segment.writes)}"
                    )
            except EngineError:
                raise
            except Exception as error:
                name = segment.backend.name
                raise ModelError(f"backend {name!r} raised {one_line(error)}") from error
            for place, result in zip(segment.writes, results, strict=True):
                values[place] = result
            for place in segment.ends:
                values[place] = None
        # An input that is an output too is copied: the caller owns what it gets.
        ends = [
            values[place] if place >= len(inputs) else deepcopy(values[place])
            for place in executable.places
        ]
        return ends if outputs is None else _filled(outputs, ends, executable.outputs)

    def reset(self) -> None:
        """Let the segments' contexts forget the callers' arrays."""
        for context in self._contexts:
            reset = getattr(context, "reset", None)
            if reset is not None:
                reset()

    def close(self) -> None:
        """Close every context; twice does nothing."""
        self._closing.close()


def predict(
    context: SegmentedContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    """Run every segment once; engine_predict of a model that is cut."""
    return context.run(inputs, outputs, deadline_s)


def _direct(outputs: Values, inputs: Values, places: Sequence[int]) -> dict[int, Value]:
    """The buffers that segments may fill themselves, by their places among the values.

    One that overlaps an input is filled last: a later segment may read that input.
    """
    buffers = [(place, each) for place, each in zip(places, outputs) if each is not None]
    arrays = [array for value in inputs for array in _arrays(value)] if buffers else []
    return {
        place: buffer
        for place, buffer in buffers
        if not any(np.may_share_memory(buffer, array) for array in arrays)
    }


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The arrays in a value: of a sequence or a map its elements."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _arrays(each)


def _filled(outputs: Values, results: list[Value], specs: Sequence[TensorSpec]) -> Values:
    """The results, in the buffers that were given for them."""
    for place, (buffer, result, spec) in enumerate(zip(outputs, results, specs, strict=True)):
        if buffer is None or result is buffer:
            continue
        assert isinstance(buffer, np.ndarray)
        assert isinstance(result, np.ndarray)
        if buffer.shape != result.shape:
            raise InputError(
                f"output {spec.name!r}: the result has shape {list(result.shape)}, but the buffer "
                f"given for it {list(buffer.shape)}",
                spec.name,
            )
        buffer[...] = result
        results[place] = buffer
    return results if any(buffer is None for buffer in outputs) else outputs
