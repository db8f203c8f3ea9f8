"""The load that a tuning is for, and what the user allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

Shapes = Mapping[str, Sequence[int]]


class Goal(NamedTuple):
    """A goal: the least time per request that is allowed.

    path: of the model's file. folder: for models that are made on the way. targets: the only ones
    to try, the default's first; () for all. clients: that send a request as soon as their last one
    is answered. p99_s: the most that 99 of 100 requests may take; None for no limit. shapes: of
    inputs, by name; what is missing is generated.
    """

    path: str
    folder: str
    targets: Sequence[str] = ()
    clients: int = 1
    p99_s: float | None = None
    shapes: Shapes = MappingProxyType({})

    @property
    def is_shared(self) -> bool:
        """True where requests come from several clients, so that a runner serves them."""
        return self.clients > 1

    def __str__(self) -> str:
        limit = "" if self.p99_s is None else f", p99 at most {self.p99_s * 1e3:g} ms"
        if self.is_shared:
            return f"requests a second of {self.clients} clients{limit}"
        return f"latency of one client{limit}"
