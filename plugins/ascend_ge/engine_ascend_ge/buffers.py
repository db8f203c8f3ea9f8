"""Memory on the device for inputs and outputs, and the datasets that name it to ACL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from engine_ascend_ge.acl_call import HUGE_FIRST, done, got, made

_SMALLEST = 64  # bytes; ACL allocates nothing for 0


class Buffer:
    """Memory of one input or output. It grows with `fit` and keeps what it has.

    nbytes: what ACL was told of it. None of the methods chooses ACL's context; the caller has.
    """

    def __init__(self, acl: Any, owner: str, what: str) -> None:
        self._acl = acl
        self._owner = owner
        self._what = what
        self.pointer = 0
        self.capacity_bytes = 0
        self.nbytes = 0
        self.handle = made(acl.create_data_buffer(0, 0), f"create a data buffer for {what}", owner)

    def fit(self, nbytes: int) -> None:
        """Have room for `nbytes` and tell ACL that so many are used."""
        nbytes = max(nbytes, _SMALLEST)
        if nbytes == self.nbytes:
            return
        if nbytes > self.capacity_bytes:
            self._free()
            self.pointer = got(
                self._acl.rt.malloc(nbytes, HUGE_FIRST),
                f"allocate {nbytes} bytes for {self._what}",
                self._owner,
            )
            self.capacity_bytes = nbytes
        self._update(self.pointer, nbytes)

    def leave_to_cann(self) -> None:
        """Have CANN allocate the next result, which is ours to free then."""
        self._free()
        self._update(0, 0)

    def collect(self) -> int:
        """The address of a result, also of one that CANN allocated; 0 if it allocated nothing."""
        if not self.pointer:
            self.pointer = self._acl.get_data_buffer_addr(self.handle)
        return self.pointer

    def drop_result(self) -> None:
        """Free what CANN allocated for a result, whether or not anyone looked at it."""
        self.collect()
        self.leave_to_cann()

    def close(self) -> None:
        """Free the memory and the data buffer; the dataset that names it is gone by then."""
        handle, self.handle = self.handle, 0
        if handle:
            doing = f"destroy the data buffer of {self._what}"
            with ExitStack() as stack:
                stack.callback(lambda: done(self._acl.destroy_data_buffer(handle), doing))
                self._free()

    def _update(self, pointer: int, nbytes: int) -> None:
        code = self._acl.update_data_buffer(self.handle, pointer, nbytes)
        done(code, f"update the data buffer of {self._what}", self._owner)
        self.nbytes = nbytes

    def _free(self) -> None:
        pointer, self.pointer, self.capacity_bytes = self.pointer, 0, 0
        if pointer:
            done(self._acl.rt.free(pointer), f"free the memory of {self._what}", self._owner)


class Dataset:
    """The inputs or the outputs of one loaded model, in its order.

    sizes: the bytes that each needs at once; None for one whose first predict says it.
    """

    def __init__(
        self, acl: Any, owner: str, whats: Sequence[str], sizes: Sequence[int | None]
    ) -> None:
        self.buffers: list[Buffer] = []
        with ExitStack() as stack:
            for what, size in zip(whats, sizes, strict=True):
                buffer = Buffer(acl, owner, what)
                stack.callback(buffer.close)
                self.buffers.append(buffer)
                if size is not None:
                    buffer.fit(size)
            self.handle = made(acl.mdl.create_dataset(), "create a dataset", owner)
            stack.callback(self._destroy, acl, owner)
            for buffer in self.buffers:
                _, code = acl.mdl.add_dataset_buffer(self.handle, buffer.handle)
                done(code, "add a buffer to a dataset", owner)
            self._closing = stack.pop_all()

    @property
    def nbytes(self) -> int:
        """Device memory that the buffers hold."""
        return sum(buffer.capacity_bytes for buffer in self.buffers)

    def close(self) -> None:
        """Give everything back; twice does nothing."""
        self._closing.close()

    def _destroy(self, acl: Any, owner: str) -> None:
        done(acl.mdl.destroy_dataset(self.handle), "destroy a dataset", owner)
