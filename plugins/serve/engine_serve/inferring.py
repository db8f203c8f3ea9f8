"""One inference from its request to its answer, whatever the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TypeVar

from engine.types import CancelToken
from engine_serve.errors import RequestError
from engine_serve.loaded import LoadedModel
from engine_serve.repository import Repository
from engine_serve.request import Inference
from engine_serve.tensors import Array

Answer = TypeVar("Answer")
_LARGE = 20_000  # elements as text: some milliseconds


async def infer(
    repository: Repository,
    name: str,
    version: str,
    read: Callable[[LoadedModel], Inference],
    write: Callable[[Inference, Mapping[str, Array], LoadedModel], Answer],
    cancel: CancelToken | None = None,
    *,
    is_large: bool = False,
) -> Answer:
    """Return the answer of a model that is borrowed meanwhile.

    read: from the model to its request. write: from results to the answer. is_large: reading takes
    long, so that another thread does it; the event loop runs meanwhile.
    Raises what these raise, NotFound, Unavailable, and what the runner raises.
    """
    model = repository.borrow(name, version)
    try:
        begin_s = perf_counter()
        try:
            inference = await asyncio.to_thread(read, model) if is_large else read(model)
            inputs = model.checked(inference)
        except RequestError:
            model.own.refused += 1
            raise
        input_s = perf_counter() - begin_s
        results = await model.infer(inference, inputs, cancel)
        results_s = perf_counter()
        if inference.is_text and sum(value.size for value in results.values()) > _LARGE:
            answer = await asyncio.to_thread(write, inference, results, model)
        else:
            answer = write(inference, results, model)
        end_s = perf_counter()
        model.own.add(model.samples_of(inference), input_s, end_s - results_s)
        model.own.latencies.add(end_s - begin_s)
        return answer
    finally:
        repository.give_back(model)
