"""Many requests to a runner, one after the other, and their results in the same order."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING

from engine.host.imports import ready

if TYPE_CHECKING:
    import asyncio

    from engine.serving.submission import Job
    from engine.tensor import Tensor
    from engine.typing import Inputs


class Streaming:
    """What all runners do with many requests."""

    def map(self, requests: Iterable[Inputs]) -> Iterator[list[Tensor]]:
        """Yield the outputs of many requests in their order, with as many at work as pay."""
        ahead: deque[Job] = deque()
        try:
            for inputs in requests:
                ahead.append(self._queue(inputs))
                if len(ahead) > self._ahead():
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for job in ahead:
                job.cancel()

    async def stream(
        self, requests: Iterable[Inputs] | AsyncIterable[Inputs]
    ) -> AsyncIterator[list[Tensor]]:
        """Yield the outputs of many requests in their order, as `map` does, for `async for`."""
        ready("asyncio", "engine.serving.submission")
        import asyncio  # a process without it starts sooner

        from engine.serving.submission import awaited

        ahead: deque[asyncio.Task[list[Tensor]]] = deque()
        try:
            async for inputs in _each(requests):
                ahead.append(asyncio.ensure_future(awaited(self._queue(inputs))))
                if len(ahead) > self._ahead():
                    yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()

    def _queue(self, inputs: Inputs) -> Job:
        """Queue a request, however many wait: never too many of these do."""
        raise NotImplementedError

    def _ahead(self) -> int:
        """Return how many requests keep all workers busy."""
        raise NotImplementedError


async def _each(requests: Iterable[Inputs] | AsyncIterable[Inputs]) -> AsyncIterator[Inputs]:
    if isinstance(requests, AsyncIterable):
        async for inputs in requests:
            yield inputs
        return
    for inputs in requests:
        yield inputs
