"""Bytes that a kernel reads and writes: its inputs, weights among them, and its outputs, once each.

What stays in a cache between two kernels, or is read more often than once, does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Bytes = Mapping[str, int | None]

_VIEWS = frozenset(("Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators that runtimes compute without touching an element."""
_SHAPES = frozenset(("Shape", "Size"))
_PICKING = frozenset(("Gather", "GatherElements", "GatherND", "Slice", "Compress"))
"""Operators that read of their first input no more than they write."""


def moved(op_type: str, inputs: Sequence[str], outputs: Sequence[str], nbytes: Bytes) -> int | None:
    """Return the bytes of one node; None where the size of a tensor is not known.

    inputs, outputs: names of tensors, "" for one that is left out. nbytes: their sizes.
    """
    if op_type in _VIEWS:
        return 0
    made = _total(outputs, nbytes)
    if op_type in _SHAPES or made is None:
        return made
    if op_type in _PICKING:
        rest = _total(inputs[1:], nbytes)
        return None if rest is None else 2 * made + rest
    read = _total(inputs, nbytes)
    return None if read is None else read + made


def moved_together(
    nodes: Sequence[tuple[Sequence[str], Sequence[str]]], needed: frozenset[str], nbytes: Bytes
) -> int | None:
    """Return the bytes of a kernel that computes several nodes: what goes between them is not.

    nodes: the inputs and outputs of each. needed: what others read.
    """
    inside = {name for _, outputs in nodes for name in outputs}
    read = {name for inputs, _ in nodes for name in inputs} - inside
    return _total([*read, *(inside & needed)], nbytes)


def _total(names: Sequence[str], nbytes: Bytes) -> int | None:
    total = 0
    for name in {*names} - {""}:
        size = nbytes.get(name)
        if size is None:
            return None
        total += size
    return total
