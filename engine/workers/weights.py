"""The weights that workers have beyond those of their files, and how a late one gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from engine.workers.protocol import Worker


class Weights(NamedTuple):
    """The weights that the workers have beyond those of their files. number: of updates so far."""

    number: int = 0
    values: Mapping[str, Any] = {}


def catch_up(worker: Worker, had: int, now: Weights) -> int:
    """Give a worker that nobody else asks the weights of now; return the number of their update.

    had: the number of the update that it has. Raises what Worker.prepare raises.
    """
    if had != now.number:
        worker.prepare(dict(now.values))
        worker.settle(True)
    return now.number
