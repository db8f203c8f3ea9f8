"""Answer of prepare/; apart from it, since that needs onnx."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_NONE: Mapping[int, str] = MappingProxyType({})
_NO_LEADS: Mapping[int, int] = MappingProxyType({})
DISABLED = "optimization.disable_specified_optimizers"


class Prepared(NamedTuple):
    """Outcome of preparing a model.

    data: the model for ONNX Runtime; b"" where some node cannot run, or where it takes the model
        as it is. folder: where its external data lies. unsupported: the nodes that cannot run,
        by index, and why. rewritten: those that are computed otherwise than by a kernel of their
        own, and how. leads: where several were written as one group (rewrites/), the node of each
        that has the group's result. unfused: names of values whose nodes are not to be fused
        (quantized.py). is_invariant: sums are to add in one order for every size of the batch.
    """

    data: bytes = b""
    folder: Path | None = None
    unsupported: Mapping[int, str] = _NONE
    rewritten: Mapping[int, str] = _NONE
    leads: Mapping[int, int] = _NO_LEADS
    unfused: frozenset[str] = frozenset()
    is_invariant: bool = False

    @property
    def is_requested(self) -> bool:
        """Return True where a model that ONNX Runtime takes is to be written otherwise."""
        return bool(self.unfused) or self.is_invariant

    def guarded(self, guard: Prepared) -> Prepared:
        """Return this one with another's reasons where it has none itself."""
        return self._replace(rewritten={**guard.rewritten, **self.rewritten})


NOTHING = Prepared()
"""Nothing to be done: ONNX Runtime takes the model as it is."""
