"""The ways in which a request reaches a model, and its inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import engine
from engine import Context, Model

Ask = Callable[..., list[Any]]

WAYS = ("predict", "predict_async", "runner", "runner_submit", "runner_async", "devices")


@contextmanager
def opened(way: str, path: Path, extensions: Mapping[str, Mapping[str, str]]) -> Iterator[Ask]:
    """A function that asks a model on the cpu in one of the `WAYS`."""
    context = Context()
    context.extensions = {name: dict(options) for name, options in extensions.items()}
    model: Any
    if way == "devices":
        model = engine.MultiDeviceRunner(path, [0, 1], context)
    elif way.startswith("runner"):
        model = engine.ModelParallelRunner()
        model.build_from_file(str(path), context)
    else:
        model = Model()
        model.build_from_file(str(path), engine.ModelType.MINDIR, context)
    with model:
        if way.endswith("submit"):
            yield lambda inputs, **options: model.submit(inputs, **options).result(60)
        elif way.endswith("async"):
            yield lambda inputs, **options: asyncio.run(model.predict_async(inputs, **options))
        else:
            yield model.predict


def rows(count: int) -> np.ndarray[Any, Any]:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)
