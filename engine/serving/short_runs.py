"""Short runs: more of them at once than there are CPUs.

To wait for a slot and to be woken takes a thread 30 to 100 us, much of it with Python's lock. Where
a run takes about as long, the processor's scheduler serves the threads better: it changes threads
every few milliseconds, which is many whole runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy import ndarray

from engine.serving.request_future import outcome_of
from engine.tensor import Tensor
from engine.tensor.values import value_of

if TYPE_CHECKING:
    from engine.host.fair_semaphore import FairSemaphore
    from engine.serving.batching import Batcher
    from engine.serving.statistics import Recorder

Predict: TypeAlias = "Callable[[Any, list[Tensor] | None], list[Tensor]]"
Direct: TypeAlias = "Callable[[Any, list[Tensor] | None], list[Tensor] | None]"

SHORT_S = 500e-6
LONG_S = (
    0.05  # of a run like a short one: its time depends on the data. Others' threads may last so
)
EXTRA = 62
_MOST_SHAPES = 1000


class ShortRuns:
    """The shapes of inputs with which a run was seen to be short. For any number of threads.

    Only these may run beside more others than there are slots: nobody knows of other shapes how
    long they take, or how much memory. most: how many more; 0 where the slots are a promise.
    names: of the model's inputs.
    """

    def __init__(self, most: int, names: tuple[str, ...]) -> None:
        self._most = most
        self._names = names
        self._shapes: set[object] = set()

    def extra(self, inputs: Any) -> int:
        """Return how many slots beyond those of the semaphore a request may take."""
        if not self._shapes or _shapes_of(self._in_order(inputs)) not in self._shapes:
            return 0
        return self._most

    def note(self, inputs: Any, run_s: float) -> None:
        """Note how long a run of these inputs took."""
        if self._most:
            self._note(_shapes_of(self._in_order(inputs)), run_s)

    def _in_order(self, inputs: Any) -> Any:
        is_by_name = type(inputs) is dict and inputs.keys() == {*self._names}
        return [inputs[name] for name in self._names] if is_by_name else inputs

    def _note(self, shapes: object, run_s: float) -> None:
        if run_s > LONG_S:
            self._shapes.discard(shapes)
        elif run_s < SHORT_S and shapes is not None and len(self._shapes) < _MOST_SHAPES:
            self._shapes.add(shapes)

    def runner(
        self,
        predict: Predict,
        semaphore: FairSemaphore,
        recorder: Recorder,
        batcher: Batcher | None,
    ) -> Direct:
        """Return what runs a request at once, with no more than a slot and a count around it.

        It gives None where there is no slot, in the main thread, and where others are to share
        the run. batcher: of those; None where none share runs.
        """
        enter, leave, short, most = semaphore.enter, semaphore.leave, self._shapes, self._most
        runs_s, ended, note = recorder.runs_s.append, recorder.ended, self._note
        names, thread_of, now = self._names, get_ident, time.perf_counter

        def direct(inputs: Any, outputs: list[Tensor] | None) -> list[Tensor] | None:
            if type(inputs) is dict and tuple(inputs) == names:
                inputs = [*inputs.values()]  # of which predict has less to look at
            if batcher is not None and batcher.sharing.is_on:
                if batcher.is_waiting:
                    return None
                shapes, extra = None, 0
            else:
                shapes = _shapes_of(inputs) if most else None
                extra = most if shapes in short else 0
            thread = thread_of()
            if not enter(thread, extra):
                return None
            begin_s = now()
            try:
                results = predict(inputs, outputs)
            except BaseException as error:
                leave(thread)
                ended(outcome_of(error), begin_s, begin_s, now())
                raise
            leave(thread)
            end_s = now()
            run_s = end_s - begin_s
            runs_s(run_s)
            if end_s >= recorder.look_s:
                recorder.look(end_s)
            if run_s > LONG_S or (most and not extra):
                note(shapes, run_s)
            return results

        return direct


def _shapes_of(inputs: Any) -> object:
    """Return the shapes of inputs in order, for a set; None where they are no plain arrays."""
    shapes = []
    for value in inputs if type(inputs) in (list, tuple) else (inputs,):
        if type(value) is not ndarray:
            value = value_of(value) if type(value) is Tensor else value
            if type(value) is not ndarray:
                return None
        shapes.append(value.shape)
    return tuple(shapes)
