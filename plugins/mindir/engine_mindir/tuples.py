"""Limits on tuples, which a short file can make huge or go through again and again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine_mindir.messages import DecodeError
from engine_mindir.values import Choice, Closure

MAX_NESTED_VALUES = 100_000  # values in one tuple and the tuples in it
MAX_WORK = 3_000_000  # values in all tuples that primitives and calls are given


class TupleLimits:
    """Counts of what is in tuples, and of how often it is gone through."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[int, Any]] = {}
        self._work = 0

    def check(self, value: Any) -> Any:
        """Return the value; raise DecodeError where it nests too many.

        A tuple that holds another one twice doubles its size, so a short file can describe one that
        no memory holds.
        """
        if isinstance(value, tuple | Closure):
            self._count(value)
        return value

    def visit(self, values: Iterable[Any]) -> None:
        """Count the values in tuples that are gone through; raise DecodeError for too many.

        A tuple of thousands that thousands of nodes append to takes its own length each time.
        """
        for value in values:
            if isinstance(value, tuple | Closure | Choice):
                self.add_work(self._count(value))

    def add_work(self, count: int) -> None:
        """Count values that are gone through. Raises DecodeError for too many."""
        self._work += count
        if self._work > MAX_WORK:
            raise DecodeError(
                f"more than {MAX_WORK:,} values of tuples are passed on, which is beyond any real "
                "model"
            )

    def _count(self, value: Any) -> int:
        if isinstance(value, Closure):
            value = value.bound
        parts = (value.chosen, value.other) if isinstance(value, Choice) else value
        if not isinstance(parts, tuple):
            return 1
        counted = self._counts.get(id(value))
        if counted is None:
            self.add_work(len(parts))
            count = 1 + sum(map(self._count, parts))
            if count > MAX_NESTED_VALUES:
                raise DecodeError(f"tuples that nest more than {MAX_NESTED_VALUES:,} values")
            # The value is stored beside its count: while it lives, no other one has its id.
            counted = self._counts[id(value)] = (count, value)
        return counted[0]
