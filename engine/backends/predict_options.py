"""Options of the predicts that run, by the id() of their context, for backends that take them.

A context runs one predict at a time, whatever wraps it and in whatever thread.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.types import PredictOptions

running: dict[int, PredictOptions] = {}
os.register_at_fork(after_in_child=running.clear)  # nothing of the parent's runs there


def by_context(predict: Callable[..., Any]) -> Callable[..., Any]:
    """Return an engine_predict that takes options as one that finds them by its context."""
    return lambda context, inputs, outputs, deadline_s: predict(
        context, inputs, outputs, deadline_s, running.get(id(context))
    )
