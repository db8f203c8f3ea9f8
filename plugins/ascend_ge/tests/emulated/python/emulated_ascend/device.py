"""The work of an emulated device: streams with queued work, and loaded models."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from emulated_ascend.compute import Program, host_dtype
from emulated_ascend.machine import OK, errors, machine
from emulated_ascend.memory import Allocation
from emulated_ascend.omfile import FROM_ONNX, Om, Value, nbytes

Array = npt.NDArray[Any]
GEAR_INPUT = "ascend_mbatch_shape_data"
SLACK = 64  # bytes by which the vendor lets a static buffer fall short


@dataclass(slots=True)
class DataBuffer:
    """Memory as a dataset names it."""

    pointer: int
    nbytes: int


@dataclass(slots=True)
class TensorDesc:
    """A shape, as create_tensor_desc makes it or a run leaves it in a dataset."""

    dtype: int
    dims: list[int]


@dataclass(slots=True)
class Dataset:
    """Inputs or outputs: handles of data buffers, and of tensor descriptions where there are."""

    buffers: list[int] = field(default_factory=list)
    descs: dict[int, int] = field(default_factory=dict)
    gear: list[int] | None = None


@dataclass(slots=True)
class LoadedBundle:
    """Models that were loaded together, by id."""

    models: list[int]


@dataclass(slots=True)
class LoadConfig:
    """A configuration to load with: values by attribute, and where weights of files lie."""

    values: dict[int, Any] = field(default_factory=dict)
    external: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class ModelDesc:
    """A model's description, empty until get_desc fills it."""

    om: Om | None = None
    model: int = 0


@dataclass(slots=True, eq=False)
class Task:
    """Work on a stream.

    finish: makes its results visible, once, and returns a code; of None, for work that was
    discarded, it only lets go of what the work used. stop: ends the work soon.
    """

    future: Future[Any]
    finish: Callable[[Any], int]
    stop: Callable[[], None]


@dataclass(slots=True, eq=False)
class Event:
    """A place in a stream, and how many others still have to wait for it."""

    stream: Stream | None = None
    task: Task | None = None
    waiters: int = 0

    @property
    def is_complete(self) -> bool:
        """True once the stream has come to it, or has discarded it."""
        if self.task is None or self.stream is None:
            return False
        return self.task.future.done() or self.task not in self.stream.tasks


class Stream:
    """A queue of work, done one after another by a thread of its own, or at once without one.

    Made without the machine's lock: a thread that starts may run finalizers, which want the lock.
    """

    def __init__(self, context: int, has_thread: bool = True) -> None:
        self.context = context
        self.tasks: list[Task] = []
        self._aborted: Future[None] = Future()  # of the next abort
        self._was_aborted = False
        self._code = OK
        self._worker: ThreadPoolExecutor | None = None
        if has_thread:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="emulated-npu")
            self._worker.submit(int).result()

    def put(
        self, work: Callable[[], Any], finish: Callable[[Any], int],
        stop: Callable[[], None] = lambda: None,
    ) -> Task:  # fmt: skip
        """Queue work, which begins when all before it is done and visible."""
        before = self.tasks[-1] if self.tasks else None

        def begin() -> Any:
            if before is not None:
                self.finish_until(before)
            return work()

        if self._worker is not None:
            future = self._worker.submit(begin)
        else:
            future = Future()
            future.set_result(begin())
        task = Task(future, finish, stop)
        self.tasks.append(task)
        return task

    def finish_until(self, last: Task) -> None:
        """Make visible what was queued until `last`, once it is done."""
        while True:
            with machine.lock:
                if last not in self.tasks:
                    return
                task = self.tasks[0]
            self._show(task)

    def _show(self, task: Task) -> None:
        result = task.future.result()
        with machine.lock:
            if self.tasks and self.tasks[0] is task:
                del self.tasks[0]
                self._code = task.finish(result) or self._code

    def wait(self, timeout_s: float | None) -> int:
        """Wait for what is queued and make it visible. Called without the machine's lock."""
        stop_at = None if timeout_s is None else time.monotonic() + timeout_s
        has_waited = False
        while True:
            with machine.lock:
                if not self.tasks:
                    machine.waits += has_waited
                    code, self._code = self._code, OK
                    return code
                task, aborted, has_waited = self.tasks[0], self._aborted, True
            left = None if stop_at is None else max(0.0, stop_at - time.monotonic())
            done, _ = futures.wait((task.future, aborted), left, futures.FIRST_COMPLETED)
            if aborted in done:
                continue
            if not done:
                machine.say("E4019: synchronizing the stream timed out")
                return errors.RT_STREAM_SYNC_TIMEOUT
            self._show(task)

    def abort(self) -> None:
        """Discard what is queued and stop what runs; the next wait says so."""
        discarded, self.tasks = self.tasks, []
        for task in discarded:
            task.stop()
            task.finish(None)
        if discarded:
            self._code = errors.RT_STREAM_ABORT
            self._was_aborted = True
        aborted, self._aborted = self._aborted, Future()
        aborted.set_result(None)

    def close(self) -> None:
        """End the thread."""
        if self._worker is not None:
            self._worker.shutdown(wait=not self._was_aborted)


class Model:
    """One load of an .om on one device."""

    def __init__(
        self, om: Om, context: int, work: int, weights: int, owned: list[int],
        external: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.om, self.context, self.work, self.weights = om, context, work, weights
        self.owned = owned  # memory that the load allocated itself
        self.external = external or {}  # where weights of files lie
        self.gear: list[int] | None = None
        self.busy_on: int | None = None
        self.on_run: Callable[[int, int], None] | None = None  # of acl.prof: begin, end in ns
        self.subscription = -1
        self.program = Program(om)
        self.program.session(self._constants())
        used = (work, weights, *self.external.values())
        self.pinned = [machine.memory.find(address) for address in used if address]
        for allocation in self.pinned:
            allocation.pins += 1

    def execute(self, inputs: Dataset, outputs: Dataset, stream: int, waits: bool) -> int:
        """Check a run as GE does and queue it. waits: results may be allocated, for `execute`."""
        if self.busy_on is not None:
            raise machine.fault(
                f"one model runs on stream {stream:#x} while it is on {self.busy_on:#x}"
            )
        for other in machine.models.values():
            is_shared = other is not self and self.work and other.work == self.work
            if is_shared and other.busy_on not in (None, stream):  # on one stream they take turns
                raise machine.fault("two models run at once in the same working memory")
        shapes = self._shapes(inputs)
        if isinstance(shapes, int):
            return shapes
        reads: list[tuple[str, Array, list[int]]] = []
        used: list[Allocation] = []
        for index, (value, dims) in enumerate(zip(self.om.inputs, shapes, strict=True)):
            buffer = machine.get(inputs.buffers[index], DataBuffer)
            size = nbytes(value.dtype, dims)
            short = SLACK if not self.om.is_ranged and not self.om.gears else 0
            if buffer.nbytes + short < size:
                machine.say(
                    f"E13025: the input memory size set by the user is invalid: {buffer.nbytes} "
                    f"bytes for input {value.name}, which needs {size}"
                )
                return errors.GE_PARAM_INVALID
            view = machine.memory.at(buffer.pointer, size) if size else np.empty(0, np.uint8)
            if size:
                used.append(machine.memory.find(buffer.pointer))
            reads.append((value.name, view, dims))
        for index, value in enumerate(self.om.outputs):
            buffer = machine.get(outputs.buffers[index], DataBuffer)
            size = self._static_output(index, value)
            if buffer.pointer:
                used.append(machine.memory.find(buffer.pointer, buffer.nbytes))
            elif size and not waits:
                machine.say("E19999: output addr is null")
                return errors.GE_DYNAMIC_INPUT_ADDR_INVALID
            if size is not None and buffer.pointer and buffer.nbytes + SLACK < size:
                machine.say(f"E13025: output {value.name} needs {size} bytes")
                return errors.GE_PARAM_INVALID
        return self._queue(reads, used, outputs, stream, waits)

    def _queue(
        self, reads: list[tuple[str, Array, list[int]]], used: list[Allocation], outputs: Dataset,
        stream: int, waits: bool,
    ) -> int:  # fmt: skip
        constants = self._constants()
        delay_s, on_run = machine.delay_s, self.on_run
        queue: Stream = machine.get(stream, Stream)
        self.busy_on = stream
        for allocation in used:
            allocation.pins += 1
        # Read now where nothing is queued before, so that a change from here on is noticed.
        copies = [] if queue.tasks else [view.copy() for _, view, _ in reads]
        interrupted = threading.Event()
        options = ort.RunOptions()

        def work() -> list[Array] | str:
            started, begin_ns = time.monotonic(), time.monotonic_ns()
            if not copies:
                copies.extend(view.copy() for _, view, _ in reads)
            feeds = {
                name: copy.view(host_dtype(self.program.types[name])).reshape(dims)
                for copy, (name, _, dims) in zip(copies, reads, strict=True)
            }
            try:
                results = self.program.run(feeds, constants, options)
            except Exception as error:  # whatever onnxruntime raises is a failed run here
                return f"E39999: {' '.join(str(error).split())}"
            interrupted.wait(max(0.0, delay_s - (time.monotonic() - started)))
            if on_run is not None:
                on_run(begin_ns, time.monotonic_ns())
            return results

        def finish(results: list[Array] | str | None) -> int:
            self.busy_on = None
            for allocation in used:
                allocation.pins -= 1
            if results is None:
                return OK
            views = [view for _, view, _ in reads]
            if not all(map(np.array_equal, views, copies)):
                raise machine.fault("an input changed in device memory while a queued run read it")
            if isinstance(results, str):
                machine.say(results)
                return errors.RT_MODEL_EXECUTE
            return self._write(results, outputs, waits)

        def stop() -> None:
            interrupted.set()
            options.terminate = True

        queue.put(work, finish, stop)
        return OK

    def _write(self, results: list[Array], outputs: Dataset, waits: bool) -> int:
        for index, result in enumerate(results):
            buffer = machine.get(outputs.buffers[index], DataBuffer)
            raw = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
            if not buffer.pointer and waits:
                device = machine.objects[self.context].device
                buffer.nbytes = max(raw.nbytes, 1)
                buffer.pointer = machine.memory.allocate(device, buffer.nbytes)
            if buffer.pointer and raw.nbytes > buffer.nbytes + (0 if self.om.is_ranged else SLACK):
                # GE says so before it queues; here the run has to show how large the result is.
                machine.say(f"E13025: output {index} needs {raw.nbytes} bytes")
                return errors.GE_PARAM_INVALID
            if buffer.pointer and raw.nbytes:
                machine.memory.at(buffer.pointer, raw.nbytes)[:] = raw
            if self.om.is_ranged:
                old = outputs.descs.pop(index, 0)
                machine.objects.pop(old, None)
                outputs.descs[index] = machine.new(
                    TensorDesc(FROM_ONNX[self._type(index)], list(result.shape))
                )
        return OK

    def _constants(self) -> Array:
        inside = np.empty(0, np.uint8)
        if self.weights:
            inside = machine.memory.at(self.weights, self.om.weight_size)
        if not self.om.external:
            return inside
        last = self.om.external[-1]
        every = np.zeros(last[1] + last[2], np.uint8)
        every[: inside.size] = inside
        for name, offset, size in self.om.external:
            every[offset : offset + size] = machine.memory.at(self.external[name], size)
        return every

    def _type(self, index: int) -> int:
        return list(self.program.types.values())[len(self.om.inputs) + index]

    def _shapes(self, inputs: Dataset) -> list[list[int]] | int:
        """Return the dims of each input of this run, or the code of what is wrong with them."""
        wanted = len(self.om.inputs) + bool(self.om.gears)
        if len(inputs.buffers) < wanted:
            machine.say(f"E10001: {len(inputs.buffers)} inputs, the model has {wanted}")
            return errors.INVALID_PARAM
        if self.om.gears:
            if inputs.gear is None or self.gear != inputs.gear:
                machine.say("E19999: the model is dynamic and no gear was set for this dataset")
                return errors.GE_PARAM_INVALID
            sizes = iter(inputs.gear)
            return [[dim if dim >= 0 else next(sizes) for dim in v.dims] for v in self.om.inputs]
        shapes = []
        for index, value in enumerate(self.om.inputs):
            dims = value.dims
            if -1 in dims:
                handle = inputs.descs.get(index)
                dims = machine.get(handle, TensorDesc).dims if handle else dims
                if len(dims) != len(value.dims) or not all(
                    low <= dim and (high < 0 or dim <= high)
                    for dim, (low, high) in zip(dims, value.ranges, strict=True)
                ):
                    machine.say(f"E10001: input {index} shape {dims} out of shape range")
                    return errors.INVALID_PARAM
            shapes.append(dims)
        return shapes

    def _static_output(self, index: int, value: Value) -> int | None:
        """Return how many bytes an output will have, None where the run decides."""
        if self.om.gears:
            gear = self.om.gears.index(self.gear or [])
            return nbytes(value.dtype, self.om.gear_outputs[gear][index])
        return None if -1 in value.dims else nbytes(value.dtype, value.dims)
