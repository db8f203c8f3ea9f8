"""Memory on the device for inputs and outputs, and the datasets that name it to ACL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from engine_ascend_ge.acl_call import done, made
from engine_ascend_ge.memory import SMALLEST, DeviceMemory


class Buffer:
    """One input or output of a loaded model: the memory that it is read from or written to.

    Memory of its own, which grows and is kept, or somebody else's for one predict. The device's
    ACL context is the calling thread's current one in every method.
    """

    def __init__(self, acl: Any, context: int, path: str, what: str) -> None:
        self._acl = acl
        self._context = context
        self._path = path
        self._what = what
        self._bound = (0, 0)  # the address and size that ACL knows
        self.own: DeviceMemory | None = None
        self.is_lent = False  # a DeviceBuffer refers to the memory and frees it with its end
        self.handle = made(acl.create_data_buffer(0, 0), f"create a data buffer for {what}", path)

    @property
    def pointer(self) -> int:
        """The address that is bound."""
        return self._bound[0]

    @property
    def nbytes(self) -> int:
        """The size that is bound."""
        return self._bound[1]

    def fit(self, nbytes: int) -> DeviceMemory:
        """Bind memory of its own, with room for `nbytes`."""
        nbytes = max(nbytes, SMALLEST)
        if self.own is None or self.own.nbytes < nbytes:
            self.release()
            self.own = DeviceMemory.allocate(
                self._acl, self._context, nbytes, self._what, self._path
            )
        self.bind(self.own.pointer, nbytes)
        return self.own

    def bind(self, pointer: int, nbytes: int) -> None:
        """Bind memory that somebody else keeps alive; (0, 0): CANN allocates the result."""
        if (pointer, nbytes) != self._bound:
            code = self._acl.update_data_buffer(self.handle, pointer, nbytes)
            done(code, f"update the data buffer of {self._what}", self._path)
            self._bound = (pointer, nbytes)

    def take_result(self, nbytes: int) -> DeviceMemory | None:
        """Take over what CANN allocated for a result; None if that was nothing."""
        pointer = self._acl.get_data_buffer_addr(self.handle)
        if not pointer:
            return None
        memory = DeviceMemory(self._acl, self._context, pointer, nbytes)
        self._bound = (-1, -1)  # ACL knows an address that we did not give
        self.bind(0, 0)
        return memory

    def release(self) -> None:
        """Let go of its own memory, and free it unless it is lent."""
        own, self.own = self.own, None
        is_lent, self.is_lent = self.is_lent, False
        if own is not None and not is_lent:
            own.close()

    def close(self) -> None:
        """Give the memory and the data buffer back; the dataset that names it is gone by then."""
        handle, self.handle = self.handle, 0
        if handle:
            doing = f"destroy the data buffer of {self._what}"
            with ExitStack() as stack:
                stack.callback(lambda: done(self._acl.destroy_data_buffer(handle), doing))
                self.release()


class Dataset:
    """The inputs or the outputs of one loaded model, in its order."""

    def __init__(self, acl: Any, context: int, path: str, whats: Sequence[str]) -> None:
        self.buffers: list[Buffer] = []
        with ExitStack() as stack:
            for what in whats:
                buffer = Buffer(acl, context, path, what)
                stack.callback(buffer.close)
                self.buffers.append(buffer)
            self.handle = made(acl.mdl.create_dataset(), "create a dataset", path)
            stack.callback(self._destroy, acl, path)
            for buffer in self.buffers:
                _, code = acl.mdl.add_dataset_buffer(self.handle, buffer.handle)
                done(code, "add a buffer to a dataset", path)
            self._closing = stack.pop_all()

    @property
    def nbytes(self) -> int:
        """Device memory of the buffers' own."""
        return sum(buffer.own.nbytes for buffer in self.buffers if buffer.own is not None)

    def close(self) -> None:
        """Give everything back; twice does nothing."""
        self._closing.close()

    def _destroy(self, acl: Any, path: str) -> None:
        done(acl.mdl.destroy_dataset(self.handle), "destroy a dataset", path)
