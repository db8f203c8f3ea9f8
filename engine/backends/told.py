"""Options of the predicts that run, by the id() of their context, for backends that take them.

A context runs one predict at a time, whatever wraps it and in whatever thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.types import PredictOptions

told: dict[int, PredictOptions] = {}


def looked_up(predict: Callable[..., Any]) -> Callable[..., Any]:
    """Return an engine_predict that takes options as one that finds them by its context."""
    return lambda context, inputs, outputs, deadline_s: predict(
        context, inputs, outputs, deadline_s, told.get(id(context))
    )
