"""The hardware and the driver: devices, their memory, streams, contexts of threads."""

from __future__ import annotations

import bisect
import functools
import itertools
import mmap
import os
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

ALIGNMENT = 512
_HANDLE = struct.Struct("<qqqq")  # pid, memfd, device, bytes
POISON_NEW, POISON_FREED, POISON_PENDING = 0xCB, 0xDD, 0xCD


class Crash(BaseException):
    """A mistake that ends the process, or silently spoils memory, on a real machine.

    Not an Exception: nothing under test may catch it.
    """


class OutOfMemory(Exception):
    """Device memory is short."""


class Device:
    """One device: its memory and its streams."""

    def __init__(self, id: int, total: int) -> None:
        self.id = id
        self.name = f"Emulated GPU {id}"
        self.total = total
        self.used = 0
        self.retained = 0  # how often its primary context is retained
        self.default: Queue | None = None  # the legacy default stream, once something uses it
        self._bases: list[int] = []
        self._memory: dict[int, np.ndarray | None] = {}
        self._sizes: dict[int, int] = {}
        self._freed: dict[int, int] = {}
        self._exported: dict[int, int] = {}  # allocation -> memfd
        self._opened: set[int] = set()  # other processes' allocations
        self._next = 0x7E00_0000_0000 + (id << 36)
        self._lock = threading.Lock()

    def allocate(self, nbytes: int, backed: bool = True) -> int:
        """Return the address of new memory; `backed` False only counts it (TensorRT's own)."""
        with self._lock:
            if self.used + nbytes > self.total:
                raise OutOfMemory
            self.used += nbytes
            base, size = self._next, -(-nbytes // ALIGNMENT) * ALIGNMENT
            self._next += size + ALIGNMENT  # never used again: a stale address stays stale
            self._bases.append(base)
            self._sizes[base] = nbytes
            self._memory[base] = np.full(nbytes, POISON_NEW, np.uint8) if backed else None
            return base

    def free(self, base: int) -> None:
        with self._lock:
            if base not in self._sizes or base in self._opened:
                raise Crash(f"free of {base:#x}, which is no live allocation")
            self.used -= self._sizes[base]
            self._freed[base] = self._sizes.pop(base)
            del self._memory[base]
            self._bases.remove(base)
            if base in self._exported:
                os.close(self._exported.pop(base))

    def bytes(self, address: int, nbytes: int) -> np.ndarray:
        """Return the memory at an address; Crash where that is not wholly inside one allocation."""
        with self._lock:
            index = bisect.bisect_right(self._bases, address) - 1
            base = self._bases[index] if index >= 0 else -1
            if base < 0 or address >= base + max(self._sizes[base], 1):
                was_freed = any(b <= address < b + max(n, 1) for b, n in self._freed.items())
                why = "it was freed" if was_freed else "nothing was ever there"
                raise Crash(f"illegal address {address:#x} on {self.name}: {why}")
            start = address - base
            if start + nbytes > self._sizes[base]:
                raise Crash(
                    f"{nbytes} bytes at {address:#x} on {self.name}: only "
                    f"{self._sizes[base] - start} are left there"
                )
            memory = self._memory[base]
            if memory is None:
                raise Crash(f"{address:#x} belongs to TensorRT")
            return memory[start : start + nbytes]

    def at(self, address: int, nbytes: int) -> Callable[[], np.ndarray]:
        """Return what gives the memory at an address when it is called; see `bytes`."""
        return lambda: self.bytes(address, nbytes)

    def export(self, base: int) -> bytes:
        """Return 64 bytes by which another process opens an allocation: from now on a memfd."""
        with self._lock:
            memory = self._memory.get(base)
            if memory is None:
                raise LookupError(f"{base:#x} is no allocation's beginning")
            if base not in self._exported:
                descriptor = os.memfd_create("emulated-gpu")
                os.ftruncate(descriptor, max(1, len(memory)))
                shared = np.frombuffer(mmap.mmap(descriptor, max(1, len(memory))), np.uint8)
                shared = shared[: len(memory)]
                shared[:] = memory
                self._memory[base] = shared
                self._exported[base] = descriptor
            packed = _HANDLE.pack(os.getpid(), self._exported[base], self.id, len(memory))
            return packed.ljust(64, b"\0")

    def open(self, handle: bytes) -> int:
        """Return the address here of another process's allocation. Raises LookupError."""
        pid, descriptor, device, nbytes = _HANDLE.unpack(handle[: _HANDLE.size])
        if pid == os.getpid():
            raise LookupError("invalid device context")
        try:
            file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
        except OSError:
            raise LookupError("invalid argument") from None
        with self._lock:
            if device != self.id:
                os.close(file)
                raise LookupError("invalid device")
            address = self._next
            self._next += -(-nbytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT
            self._bases.append(address)
            self._sizes[address] = nbytes
            self._memory[address] = np.frombuffer(mmap.mmap(file, max(1, nbytes)), np.uint8)[
                :nbytes
            ]
            self._opened.add(address)
        os.close(file)
        return address

    def close(self, address: int) -> None:
        """Close what `open` gave; the other's memory stays."""
        with self._lock:
            self._opened.remove(address)
            self._freed[address] = self._sizes.pop(address)
            del self._memory[address]
            self._bases.remove(address)

    @property
    def opened(self) -> int:
        return len(self._opened)

    @property
    def allocations(self) -> int:
        return len(self._sizes) - len(self._opened)


class Queue:
    """A stream: work that waits until somebody waits for it."""

    def __init__(self, device: Device, handle: int | None = None) -> None:
        self.device = device
        self.handle = next(MACHINE.handles) if handle is None else handle
        self.queued = self.done = 0  # pieces of work, ever
        self.recording: list[Callable[[], None]] | None = None  # while it is captured
        self._work: deque[Callable[[], None]] = deque()
        self._waits: dict[int, tuple[Queue, int]] = {}  # by the number of the piece of work

    def put(self, work: Callable[[], None]) -> None:
        """Queue a piece of work; it never waits for what runs."""
        with MACHINE.queueing:
            if self.recording is not None:
                self.recording.append(work)
                return
            self._work.append(work)
            self.queued += 1

    def wait_for(self, other: Queue, position: int) -> None:
        """Go on only when `other` has done its first `position` pieces of work."""
        self.put(functools.partial(other.run, position))
        self._waits[self.queued] = (other, position)

    @property
    def is_done(self) -> bool:
        """Nothing is left, or only waits for what is done: a device needs nobody for these."""
        if not MACHINE.running.acquire(blocking=False):
            return False  # something runs, so whoever asks has not waited
        try:
            while self._work and (wait := self._waits.get(self.done + 1)) is not None:
                if wait[0].done < wait[1]:
                    break
                self.run(self.done + 1)
            return not self._work
        finally:
            MACHINE.running.release()

    def run(self, until: int | None = None) -> None:
        """Do all that is queued, or the first `until` pieces; what is queued meanwhile too."""
        if self.recording is not None:
            raise Crash("a stream is waited for while it is captured")
        with MACHINE.running:
            while self._work and (until is None or self.done < until):
                try:
                    self._work.popleft()()
                finally:
                    self.done += 1
                    self._waits.pop(self.done, None)


View = Callable[[], np.ndarray]


def queue_copy(queue: Queue, way: str, target: View, source: View) -> None:
    """Queue a copy; the addresses are checked when it is queued, and when it comes to pass."""
    nbytes = source().nbytes
    target()

    def copy() -> None:
        MACHINE.counted[way] += nbytes
        target()[:] = source().copy()

    queue.put(copy)


def queue_copy_out(queue: Queue, target: np.ndarray, source: View) -> None:
    """Queue a copy to the host; what is read before the stream is waited for is garbage."""
    queue_copy(queue, "device to host", lambda: target, source)
    target[:] = POISON_PENDING


class ContextStack(threading.local):
    """The calling thread's contexts, the current one last."""

    def __init__(self) -> None:
        self.contexts = _Stack(threading.current_thread().name)


class _Stack(list[object]):
    def __init__(self, thread: str) -> None:
        super().__init__()
        self.thread = thread

    def __del__(self) -> None:
        if self:  # pycuda aborts the process here
            MACHINE.violation(f"thread {self.thread!r} ended with a CUDA context on its stack")


class Machine:
    """All that is emulated in this process."""

    def __init__(self) -> None:
        count = int(os.environ.get("ENGINE_EMULATED_DEVICES", "1"))
        total = int(os.environ.get("ENGINE_EMULATED_MEMORY", str(2**30)))
        self.handles = itertools.count(0x5EED0000, 0x10)
        self.devices = [Device(id, total) for id in range(count)]
        self.initialised = False
        self.stack = ContextStack()
        self.streams: dict[int, Queue] = {}
        self.pinned: dict[int, int] = {}  # address -> bytes
        self.running = threading.RLock()  # one for all streams: they may wait for each other
        self.queueing = threading.Lock()
        self.live: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.scratch: dict[int, Queue] = {}  # scratch memory in use -> the stream that uses it
        self.violations: list[str] = []
        self._faults: list[list[object]] = []

    @property
    def driver(self) -> str:
        """on, none or no_device; read anew each time, so that a test may change it."""
        return os.environ.get("ENGINE_EMULATED_DRIVER", "on")

    @property
    def current(self) -> Device | None:
        """Device of the calling thread's current context."""
        contexts = self.stack.contexts
        return contexts[-1].device if contexts else None  # type: ignore[attr-defined]

    def queue(self, handle: int) -> Queue | None:
        """Return the stream with this handle; 0 is the current device's default stream."""
        if handle:
            return self.streams.get(handle)
        device = self.current
        if device is None:
            return None
        if device.default is None:
            device.default = Queue(device, 0)
        return device.default

    def queues(self, device: Device) -> list[Queue]:
        """Return every stream of a device."""
        queues = [queue for queue in list(self.streams.values()) if queue.device is device]
        return queues if device.default is None else [device.default, *queues]

    def violation(self, text: str) -> None:
        """Remember what cannot be raised where it happens."""
        self.violations.append(text)

    def is_pinned(self, address: int, nbytes: int) -> bool:
        pinned = list(self.pinned.items())  # other threads pin meanwhile
        return any(b <= address and address + nbytes <= b + n for b, n in pinned)

    def faulty(self, call: str) -> bool:
        """Tell whether a test wants this call to fail now."""
        for fault in self._faults:
            if fault[0] == call:
                fault[1] -= 1  # type: ignore[operator]
                return fault[1] == -1
        return False

    @contextmanager
    def fail(self, call: str, after: int = 0) -> Iterator[None]:
        """Let the first `call` after `after` good ones fail, as it does for want of memory."""
        fault: list[object] = [call, after]
        self._faults.append(fault)
        try:
            yield
        finally:
            self._faults.remove(fault)


def live() -> dict[str, int]:
    """Count what is there now and has to be freed, by kind; zeros are left out."""
    counts = Counter(MACHINE.live)
    counts["device allocations"] = sum(device.allocations for device in MACHINE.devices)
    counts["device bytes"] = sum(device.used for device in MACHINE.devices)
    counts["opened allocations"] = sum(device.opened for device in MACHINE.devices)
    counts["pinned allocations"] = len(MACHINE.pinned)
    counts["streams"] = len(MACHINE.streams)
    counts["primary contexts"] = sum(device.retained for device in MACHINE.devices)
    counts["pushed contexts"] = len(MACHINE.stack.contexts)
    return {kind: count for kind, count in sorted(counts.items()) if count}


def violations() -> list[str]:
    """Return and forget what was done wrong where no error could be raised."""
    texts, MACHINE.violations = MACHINE.violations, []
    return texts


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count what is done inside the block.

    Bytes copied ("host to device", "device to host", "device to device", "between devices"),
    "synchronisations", "parses" of models, "builds", "timed tactics", "deserialised" engines.
    """
    before = MACHINE.counted.copy()
    counts: Counter[str] = Counter()
    try:
        yield counts
    finally:
        counts.update(MACHINE.counted - before)


MACHINE = Machine()
fail = MACHINE.fail
