"""A predict of a model by itself, as a request that observers are told of.

`ObservedThread` stands in place of a thread's state for one predict: `Model.predict` goes its usual
way through it, and pays nothing for observers where there are none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from engine.report.observing.request import ObservedRequest
from engine.runtime.extensions import as_served
from engine.tensor.values import tensors_of

if TYPE_CHECKING:
    from engine.runtime.thread_state import ThreadState


class ObservedThread:
    """The state of a thread, which it asks for all that it does not watch itself."""

    is_plain = is_open_ended = False  # so that `give` sees every result
    expected = ((None, None),)  # which fits nothing: `take` sees every input

    def __init__(self, own: ThreadState, request: ObservedRequest) -> None:
        self._own = own
        self._request = request
        self._inputs: Any = None
        self._run_s = 0.0
        self._is_in_place = False  # the results are in the caller's buffers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def take(self, inputs: Any) -> list[Any]:
        """See ThreadState."""
        self._inputs = inputs
        return self._own.take(inputs)

    def bind(self, inputs: Any, outputs: Any) -> tuple[list[Any], list[Any]]:
        """See ThreadState."""
        self._inputs = inputs
        return self._own.bind(inputs, outputs)

    def run(self, *arguments: Any) -> Any:
        """See engine_predict."""
        own, request = self._own, self._request
        # Its backend wants options always: these have an id.
        run = own.run if own.run is own.plain else own.asked(None, 0, request.id)
        return self._timed(run, *arguments)

    def asked(self, cancel: Any, priority: int = 0, request_id: str = "") -> _Asked:
        """See ThreadState."""
        run = self._own.asked(cancel, priority, request_id or self._request.id)
        self._request.id = request_id or self._request.id
        return _Asked(run, self._timed)

    def _timed(self, run: Callable[..., Any], *arguments: Any) -> Any:
        self._run_s = time.perf_counter()
        results = run(*arguments)
        if results is not None and results is arguments[2]:
            self._is_in_place = True
            return list(results)  # in another list, so that predict has `give` look at it
        return results

    def give(self, results: Any, outputs: Any) -> list[Any]:
        """See ThreadState."""
        own = self._own
        try:
            if self._is_in_place:
                tensors: list[Any] = outputs
            elif outputs is None and own.is_plain:
                tensors = tensors_of(results, own.descriptions)
            else:
                tensors = own.give(results, outputs)
        except BaseException as error:
            self._request.ended(error, self._inputs, None, self._run_s)
            raise
        self._request.ended(None, self._inputs, tensors, self._run_s)
        return tensors

    def again(self, *arguments: Any, **further: Any) -> list[Any]:
        """See ThreadState: it is one request."""
        try:
            tensors = as_served(lambda: self._own.again(*arguments, **further))
        except BaseException as error:
            self._request.ended(error, self._inputs, None, self._run_s)
            raise
        self._request.ended(None, self._inputs, tensors, self._run_s or time.perf_counter())
        return tensors

    def refuse(self, error: BaseException, request_id: str = "") -> None:
        """See ThreadState."""
        if isinstance(request_id, str) and request_id:
            self._request.id = request_id
        self._own.refuse(error)
        self._request.ended(error, self._inputs)

    def fail(self, *arguments: Any) -> NoReturn:
        """See ThreadState."""
        try:
            self._own.fail(*arguments)
        except BaseException as error:
            self._request.ended(error, self._inputs, None, self._run_s)
            raise


class _Asked:
    """The result of `ThreadState.asked`, timed."""

    def __init__(self, own: Any, timed: Callable[..., Any]) -> None:
        self._own = own
        self._timed = timed

    @property
    def is_cancelled(self) -> bool:
        """True once the context was told to stop."""
        return bool(self._own.is_cancelled)

    def __call__(self, *arguments: Any) -> Any:
        """See engine_predict."""
        return self._timed(self._own, *arguments)
