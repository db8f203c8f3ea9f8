"""The loads of a compiled model: one for each context, all on one copy of the weights.

Three kinds: an .om file whose weights are in it, one whose weights are files beside it, and a model
of a bundle, of which there is one load and no more.
"""

from __future__ import annotations

from typing import Any, Protocol

from engine_ascend_ge.acl_call import done, got
from engine_ascend_ge.memory import DeviceMemory
from engine_ascend_ge.om import Om


class Loader(Protocol):
    """A compiled model on one device, to be loaded by contexts.

    work_bytes: scratch memory that a load needs. weight_bytes: what its weights take here.
    shared_bytes: those of them that others have, too. most: how many loads there may be, 0 for any.
    The device's ACL context is the calling thread's current one in every method.
    """

    work_bytes: int
    weight_bytes: int
    shared_bytes: int
    most: int

    def load(self, work: int) -> int:
        """Load it, with scratch memory at an address; returns the model's id."""

    def unload(self, model: int) -> int:
        """Undo that; returns CANN's code."""

    def abandon(self) -> None:
        """Never free what a load uses: one could not be undone."""

    def close(self) -> None:
        """Let go of the weights; twice does nothing."""


class OmLoader:
    """An .om file with its weights in it. These lie in memory of our own, which loads share."""

    most = 0
    shared_bytes = 0

    def __init__(self, acl: Any, home: int, om: Om, device: str) -> None:
        self._acl = acl
        self._om = om
        self._device = device
        self.work_bytes, self.weight_bytes = sizes(acl, om)
        self._weights: DeviceMemory | None = None
        if self.weight_bytes:
            what = f"weights on {device}"
            self._weights = DeviceMemory.allocate(acl, home, self.weight_bytes, what, om.name)

    @property
    def weight_pointer(self) -> int:
        """The address of the weights on the device, 0 where there are none."""
        return self._weights.pointer if self._weights is not None else 0

    def load(self, work: int) -> int:
        """See Loader."""
        answer = self._acl.mdl.load_from_mem_with_mem(
            self._om.pointer,
            self._om.nbytes,
            work,
            self.work_bytes,
            self.weight_pointer,
            self.weight_bytes,
        )
        return int(got(answer, f"load the compiled model on {self._device}", self._om.name))

    def unload(self, model: int) -> int:
        """See Loader."""
        return int(self._acl.mdl.unload(model))

    def abandon(self) -> None:
        """See Loader."""
        if self._weights is not None:
            self._weights.abandon()

    def close(self) -> None:
        """See Loader."""
        weights, self._weights = self._weights, None
        if weights is not None:
            weights.close()


def sizes(acl: Any, om: Om) -> tuple[int, int]:
    """Return the bytes of scratch memory and of the weights in an .om file."""
    work, weights, code = acl.mdl.query_size_from_mem(om.pointer, om.nbytes)
    done(code, "read the sizes of the compiled model", om.name)
    return work, weights
