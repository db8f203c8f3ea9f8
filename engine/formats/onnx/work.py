"""Work that constants take to compute: counted node by node, and held against limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from engine.formats.onnx import limits
from engine.formats.onnx.reading import Invalid
from engine.formats.onnx.scope import title
from engine.types import NodeInfo

Constant: TypeAlias = tuple[tuple[int, ...], int]
"""Shape of a constant, and the bits of an element."""


class Folded(NamedTuple):
    """Result of a node that reads nothing but constants.

    operations: to compute it. nbytes: of all its outputs.
    """

    constant: Constant
    operations: int
    nbytes: int

    @property
    def cost(self) -> int:
        """The work of computing it: operations, and 10 for each byte."""
        return min(self.operations + 10 * self.nbytes, limits.ELEMENTS)


@dataclass(slots=True)
class Work:
    """Work of a graph's nodes that read nothing but constants, in order.

    cost, operations: sums. nbytes: of results, but those of ConstantOfShape, which are `filled`.
    steps: of each node that makes a megabyte or more what it reads, what it makes, and the size of
    that.
    """

    cost: int = 0
    operations: int = 0
    nbytes: int = 0
    filled: int = 0
    steps: list[tuple[NodeInfo, int]] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Iterable[tuple[Work, int]]) -> Work:
        """Return the work of several, each so many times; the memory at one time is the most."""
        whole = cls()
        for part, times in parts:
            whole.cost = min(whole.cost + times * part.cost, limits.ELEMENTS)
            whole.operations = min(whole.operations + times * part.operations, limits.ELEMENTS)
            whole.nbytes = min(whole.nbytes + times * part.nbytes, limits.ELEMENTS)
            whole.filled = min(whole.filled + times * part.filled, limits.ELEMENTS)
            if part.live_bytes()[0] > whole.live_bytes()[0]:
                whole.steps = part.steps
        return whole

    def add(self, node: NodeInfo, result: Folded) -> None:
        """Count a node."""
        self.cost = min(self.cost + result.cost, limits.ELEMENTS)
        self.operations = min(self.operations + result.operations, limits.ELEMENTS)
        if node.op_type == "ConstantOfShape":
            self.filled = min(self.filled + result.nbytes, limits.ELEMENTS)
            return
        self.nbytes = min(self.nbytes + result.nbytes, limits.ELEMENTS)
        if result.nbytes >= _NOTED_BYTES:
            self.steps.append((node, result.nbytes))

    def live_bytes(self) -> tuple[int, str]:
        """Return the most memory that results take at one time, and the node that takes it.

        In the file's order. A value that none of these nodes reads is taken to be kept.
        """
        last = {name: place for place, (node, _) in enumerate(self.steps) for name in node.inputs}
        ends: dict[int, int] = {}
        now = most = 0
        where = ""
        for place, (node, nbytes) in enumerate(self.steps):
            now += nbytes
            if now > most:
                most, where = now, title(node)
            end = max((last.get(name, -1) for name in node.outputs), default=-1)
            if end >= 0:
                ends[end] = ends.get(end, 0) + nbytes
            now -= ends.pop(place, 0)
        return most, where


_NOTED_BYTES = 1 << 20


def check_work(work: Work, more: Work, file_bytes: int) -> None:
    """Raise Invalid where constants cost more to compute than a file of its size may ask for.

    more: the work of the functions that are called.
    """
    live, where = work.live_bytes()
    for count, most, what in (
        (
            max(live, more.live_bytes()[0]),
            limits.LIVE_BYTES + limits.LIVE_PER_BYTE * file_bytes,
            f"bytes of memory at one time{where and f', at {where}'}",
        ),
        (
            work.nbytes + more.nbytes,
            limits.MADE_BYTES + limits.MADE_PER_BYTE * file_bytes,
            "bytes of results",
        ),
        (
            work.filled + more.filled,
            limits.FILLED_BYTES + limits.FILLED_PER_BYTE * file_bytes,
            "bytes that are filled with one value",
        ),
        (
            work.operations + more.operations,
            limits.OPERATIONS + limits.OPERATIONS_PER_BYTE * file_bytes,
            "operations",
        ),
    ):
        if count > most:
            raise Invalid(
                f"its constants take {count:,} {what} to compute, before any input is read; at "
                f"most {most:,} are allowed for a file of {file_bytes:,} bytes: compute them once, "
                "and store the results in the file"
            )
