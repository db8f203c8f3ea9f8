"""Weights on a device that several models of a process have, and other processes, by CUDA IPC.

The exporter is to outlive its borrowers: their memory is the exporter's. A borrower is told when
the exporter has closed its model or has ended, before the next predict reads what is gone. CUDA
knows no list of pids: whoever has the handle may open it, and the core gives it to listed
processes only.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import BackendUnavailable, CompiledFormError, ModelError
from engine.host.peers import has_ended
from engine.types import CompileOptions, Device, SharedWeights
from engine_gpu_trt.cuda import DeviceMemory, Gpu, ImportedMemory, as_bytes
from engine_gpu_trt.outside import Weight

_ALIGNMENT = 512
_CHUNK = 2**22


class Block:
    """Weights in one piece of device memory: offsets by digest.

    lender: the process whose memory it is; None for ours.
    """

    def __init__(
        self,
        memory: DeviceMemory | ImportedMemory,
        offsets: Mapping[str, int],
        nbytes: int,
        lender: Lender | None = None,
    ) -> None:
        self.memory = memory
        self.offsets = dict(offsets)
        self.nbytes = nbytes
        self.lender = lender


_blocks: dict[int, weakref.WeakSet[Block]] = {}
"""Blocks that models of this process may share, by device."""
_lent: weakref.WeakValueDictionary[str, Block] = weakref.WeakValueDictionary()
"""Blocks that this process lends, by handle: here they are simply used, CUDA opens none twice."""
_lock = threading.Lock()


class Lender:
    """The process that lends, and whether it still does. Any thread may ask."""

    def __init__(self, pid: int, loan: int, mark: bytes) -> None:
        """Watch a process; loan: its descriptor of a Loan's memory, which begins with `mark`.

        Raises BackendUnavailable where it is gone already.
        """
        self._pid = pid
        try:
            self._process = os.pidfd_open(pid)
        except OSError as error:
            raise BackendUnavailable(_ended(pid), "gpu_trt") from error
        self._close = weakref.finalize(self, os.close, self._process)
        try:
            with Path(f"/proc/{pid}/fd/{loan}").open("rb") as file:
                self._loan = mmap.mmap(file.fileno(), len(mark) + 1, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            if has_ended(self._process):
                raise BackendUnavailable(_ended(pid), "gpu_trt") from error
            raise BackendUnavailable(_closed(pid), "gpu_trt") from error
        if self._loan[: len(mark)] != mark:  # the number is another file's by now
            raise BackendUnavailable(_closed(pid), "gpu_trt")
        self.check()

    def check(self) -> None:
        """Raise BackendUnavailable where the weights are there no more."""
        if self._loan[-1] == 0:
            raise BackendUnavailable(_closed(self._pid), "gpu_trt")
        if has_ended(self._process):
            raise BackendUnavailable(_ended(self._pid), "gpu_trt")


def _closed(pid: int) -> str:
    return (
        f"the weights are gone: process {pid} has closed the model that lent them, which has to "
        "stay open as long as its borrowers: build the model again"
    )


def _ended(pid: int) -> str:
    return (
        f"the weights are gone: process {pid}, which lent them, has ended; it has to stay as long "
        "as its borrowers: build the model again"
    )


class Loan:
    """A block that is lent, until it is closed.

    descriptor: of memory by which borrowers learn of that: `mark`, then 1 until it is closed.
    """

    def __init__(self, block: Block, handle: bytes) -> None:
        self._block: Block | None = block
        self.handle = handle.hex()
        self.descriptor = os.memfd_create("engine-gpu-loan")
        self.mark = os.urandom(16)
        os.write(self.descriptor, self.mark + b"\1")
        _lent[self.handle] = block
        self._free = weakref.finalize(self, _end_loan, self.descriptor, self.handle, os.getpid())

    def close(self) -> None:
        """End the loan; twice does nothing."""
        self._free()
        self._block = None


def _end_loan(descriptor: int, handle: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child, which ends sooner
        os.pwrite(descriptor, b"\0", 16)
    os.close(descriptor)
    _lent.pop(handle, None)


class Outside:
    """The weights outside one executable: where each is on the device.

    nbytes: of them. is_shared: others have them, or gave them.
    """

    def __init__(
        self, blocks: Sequence[Block], weights: Mapping[str, Weight], is_shared: bool
    ) -> None:
        self.blocks = tuple(blocks)
        self.is_shared = is_shared
        self.nbytes = sum(weight.array.nbytes for weight in weights.values())
        places = {
            digest: block.memory.pointer + offset
            for block in blocks
            for digest, offset in block.offsets.items()
        }
        self.addresses = {name: places[weight.digest] for name, weight in weights.items()}
        self.lenders = [block.lender for block in blocks if block.lender is not None]

    def check(self) -> None:
        """Raise BackendUnavailable where a lender is gone."""
        for lender in self.lenders:
            lender.check()


def place(gpu: Gpu, weights: Mapping[str, Weight], options: CompileOptions, name: str) -> Outside:
    """Have weights on the device: another process's, this process's, or new ones.

    name: the model, in messages. Raises BackendUnavailable where memory is short or the lender is
    gone, ModelError where the lender has other weights.
    """
    if options.shared_weights is not None:
        blocks = _borrow(gpu, options.shared_weights)
        known = {digest for block in blocks for digest in block.offsets}
        lacking = [key for key, weight in weights.items() if weight.digest not in known]
        if lacking:
            raise ModelError(
                f"{name}: what is lent lacks {len(lacking)} of the model's {len(weights)} shared "
                f"weights, {lacking[0]!r} for one; build both from the same file"
            )
        return Outside(blocks, weights, is_shared=True)
    is_shared = options.lend == "process"
    with _lock:
        blocks = []
        missing = {weight.digest: weight.array for weight in weights.values()}
        for block in list(_blocks.get(gpu.id, ())) if is_shared else ():
            if not missing.keys().isdisjoint(block.offsets):
                blocks.append(block)
                missing = {key: missing[key] for key in missing if key not in block.offsets}
        if missing:
            block = _copied(gpu, missing)
            blocks.append(block)
            if is_shared:
                _blocks.setdefault(gpu.id, weakref.WeakSet()).add(block)
    return Outside(blocks, weights, is_shared)


def _copied(gpu: Gpu, arrays: Mapping[str, Any]) -> Block:
    """Copy arrays to the device, through page-locked memory, piece by piece."""
    offsets: dict[str, int] = {}
    end = 0
    for digest, array in arrays.items():
        offsets[digest] = end
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    with gpu, ExitStack() as closing:
        memory = gpu.allocate(end)
        try:
            stream = gpu.stream()
            closing.callback(stream.close)
            pinned = gpu.pin(_CHUNK)
            closing.callback(pinned.close)
            for digest, array in arrays.items():
                data = as_bytes(array)
                found = hashlib.sha256()
                for start in range(0, data.nbytes, _CHUNK):
                    piece = data[start : start + _CHUNK]
                    staged = pinned.array[: piece.nbytes]
                    np.copyto(staged, piece)
                    found.update(staged.data)
                    gpu.copy_in(memory.pointer + offsets[digest] + start, staged, stream.raw)
                    stream.synchronize()
                if found.hexdigest() != digest:  # of a compiled form's file
                    raise CompiledFormError("weights outside the engine are not what was written")
        except gpu.Error as error:
            raise gpu.unavailable(error, f"{end} bytes of weights") from error
    return Block(memory, offsets, end)


def lend(gpu: Gpu, outside: Outside) -> SharedWeights:
    """Lend an executable's weights to other processes; engine_share_weights says how."""
    device = Device("gpu", gpu.id)
    if not outside.blocks:
        return SharedWeights(backend="gpu_trt", device=device, nbytes=0, token=b"[]")
    [block] = outside.blocks  # of a model that was compiled to be lent
    with gpu:
        try:
            loan = Loan(block, gpu.export(block.memory.pointer))
        except gpu.Error as error:
            raise BackendUnavailable(
                f"{gpu.name}: its weights cannot be lent to other processes: {error}", "gpu_trt"
            ) from error
    said: dict[str, Any] = {"handle": loan.handle, "offsets": block.offsets}
    said |= {"pid": os.getpid(), "loan": loan.descriptor, "mark": loan.mark.hex()}
    return SharedWeights(
        backend="gpu_trt",
        device=device,
        nbytes=outside.nbytes,
        token=json.dumps([said]).encode(),
        owner=loan,
    )


def _borrow(gpu: Gpu, shared: SharedWeights) -> list[Block]:
    blocks = []
    for part in json.loads(shared.token or b"[]"):
        own = _lent.get(part["handle"])
        if own is not None:
            blocks.append(own)
            continue
        lender = Lender(int(part["pid"]), int(part["loan"]), bytes.fromhex(part["mark"]))
        with gpu:
            try:
                memory = gpu.import_memory(bytes.fromhex(part["handle"]))
            except gpu.Error as error:
                raise BackendUnavailable(
                    f"{gpu.name}: the weights of process {part['pid']} cannot be opened: {error}; "
                    "both processes need the same GPU, and the lender's model has to be open",
                    "gpu_trt",
                ) from error
        offsets = {str(digest): int(offset) for digest, offset in part["offsets"].items()}
        blocks.append(Block(memory, offsets, shared.nbytes, lender))
    return blocks
