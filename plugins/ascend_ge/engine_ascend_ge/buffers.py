"""Memory on the device for inputs and outputs, and the datasets that name it to ACL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from engine_ascend_ge.acl_call import done, made
from engine_ascend_ge.memory import SMALLEST, DeviceMemory


class Stage:
    """Device memory for one value, which grows and is kept."""

    def __init__(self, acl: Any, context: int) -> None:
        self._acl = acl
        self._context = context
        self.memory: DeviceMemory | None = None
        self.is_lent = False  # a DeviceBuffer refers to the memory and frees it with its end

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self.memory.nbytes if self.memory is not None else 0

    def fit(self, nbytes: int, what: str, path: str) -> DeviceMemory:
        """Return memory for at least `nbytes`."""
        if self.memory is None or self.memory.nbytes < nbytes:
            self.release()
            self.memory = DeviceMemory.allocate(self._acl, self._context, nbytes, what, path)
        return self.memory

    def release(self) -> None:
        """Let go of the memory, and free it unless it is lent."""
        memory, self.memory = self.memory, None
        is_lent, self.is_lent = self.is_lent, False
        if memory is not None and not is_lent:
            memory.close()


class Buffer:
    """One input or output of a loaded model: the memory that it is read from or written to.

    stage: where its value goes that is nowhere else on the device; somebody else closes it. The
    device's ACL context is the calling thread's current one in every method.
    """

    def __init__(self, acl: Any, context: int, path: str, what: str, stage: Stage) -> None:
        self._acl = acl
        self._context = context
        self._path = path
        self._what = what
        self._bound = (0, 0)  # the address and size that ACL knows
        self.stage = stage
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
        """Bind the stage's memory, with room for `nbytes`."""
        nbytes = max(nbytes, SMALLEST)
        memory = self.stage.fit(nbytes, self._what, self._path)
        self.bind(memory.pointer, nbytes)
        return memory

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

    def close(self) -> None:
        """Give the data buffer back; the dataset that names it is gone by then."""
        handle, self.handle = self.handle, 0
        if handle:
            code = self._acl.destroy_data_buffer(handle)
            done(code, f"destroy the data buffer of {self._what}")


class Dataset:
    """The inputs or the outputs of one loaded model, in its order.

    stages: for each, by its name in messages, where its value goes.
    """

    def __init__(
        self, acl: Any, context: int, path: str, stages: Sequence[tuple[str, Stage]]
    ) -> None:
        self.buffers: list[Buffer] = []
        with ExitStack() as stack:
            for what, stage in stages:
                buffer = Buffer(acl, context, path, what, stage)
                stack.callback(buffer.close)
                self.buffers.append(buffer)
            self.handle = made(acl.mdl.create_dataset(), "create a dataset", path)
            stack.callback(self._destroy, acl, path)
            for buffer in self.buffers:
                _, code = acl.mdl.add_dataset_buffer(self.handle, buffer.handle)
                done(code, "add a buffer to a dataset", path)
            self._closing = stack.pop_all()

    def close(self) -> None:
        """Give everything back; twice does nothing."""
        self._closing.close()

    def _destroy(self, acl: Any, path: str) -> None:
        done(acl.mdl.destroy_dataset(self.handle), "destroy a dataset", path)
