"""A backend whose models are built and run in processes of their own.

    isolated(open_backend("cpu")).load(source, options)

Harm that a runtime does to its process - a crash in a kernel, a call that never returns - is a
worker's: the caller gets an error, and the next predict a new worker. To the rest of the core this
is a backend like any other. A worker's side is in `worker`.

A model has one worker, which runs its predicts on a thread for each context; each context has a
`channel` of its own.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, replace
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from engine.backends.backend import Backend
from engine.backends.isolation.process import COMPILING, GRACE_S, LOADING, RUNNING, Process
from engine.errors import Cancelled, DeadlineExceeded, InputError, ModelError, one_line
from engine.host.arena import Arena
from engine.host.channel import LOOK_S, owned
from engine.host.interrupts import raised_by_handler
from engine.host.paths import absolute
from engine.types import (
    CancelToken,
    Capability,
    CompileOptions,
    LoadedModel,
    MemoryReport,
    ModelSource,
    Placement,
    TensorSpec,
    Values,
)

_KEPT = frozenset(
    {
        Capability.DYNAMIC_SHAPES,
        Capability.CANCEL_COMPILE,
        Capability.COMPILE_CACHE,
        Capability.MIXED_PLACEMENT,
        Capability.FILES_IN_MEMORY,
    }
)
"""Capabilities that do not need the caller's memory."""
_GIVEN = frozenset({Capability.DEADLINES, Capability.CANCEL_PREDICT})
"""Those that every isolated backend has: what does not stop by itself is ended."""
_PAUSE_S = 1.0  # between a start that failed and the next that nobody waits for


def isolated(backend: Backend) -> Backend:
    """Return the same backend with its models in processes of their own."""
    result = copy(backend)
    result.capabilities = (backend.capabilities & _KEPT) | _GIVEN
    result.info = replace(backend.info, capabilities=result.capabilities)
    executables = _executables[result] = WeakSet()

    def compiled(loaded: LoadedModel, options: CompileOptions) -> _RemoteExecutable:
        executable = _RemoteExecutable(loaded)
        executables.add(executable)
        return executable

    result.load = lambda source, options: _RemoteModel(backend, source, options)
    result.compile = compiled
    result.predict, result.predict_with, result.begin_with = _predict, None, None
    return result


def is_isolated(backend: Backend) -> bool:
    """Return whether a backend is one that `isolated` gave."""
    return backend.predict is _predict


def why_lost(backend: Backend) -> str:
    """Say how processes of an isolated backend were lost, "" where all are there; does not wait.

    One that has ended is started again, as the next predict would have it.
    """
    reasons = [executable.revived() for executable in [*_executables.get(backend, ())]]
    return "; ".join(filter(None, reasons))


@contextmanager
def _views(
    source: ModelSource,
) -> Iterator[tuple[pickle.PickleBuffer | None, dict[str, pickle.PickleBuffer]]]:
    """Yield views of a source's data and files that are pickled without a copy.

    They are released at the end: the traceback of an error that a build raises keeps no memory.
    """
    files: dict[str, pickle.PickleBuffer] = {}
    data = None
    try:
        if source.data is not None:
            data = pickle.PickleBuffer(source.data)
        for name, content in source.files.items():
            files[name] = pickle.PickleBuffer(content)
        yield data, files
    finally:
        for view in filter(None, (data, *files.values())):
            view.release()


class _RemoteModel:
    """A model that a worker has loaded. See LoadedModel."""

    def __init__(self, backend: Backend, source: ModelSource, options: CompileOptions) -> None:
        self.backend = backend
        self.options = options
        # For the next worker, if this one dies. Bytes are kept in memory that is shared with it.
        self.parcel = Arena()
        plain = {field.name: getattr(source, field.name) for field in fields(ModelSource)}
        plain.update(data=None, files={})
        # A later worker begins in the working folder of then.
        plain.update({name: absolute(path) for name in ("path", "folder") if (path := plain[name])})
        sent = replace(options, progress=None, cancel=None)
        with _views(source) as (data, files):
            _, self.lengths = self.parcel.write((ModelSource(**plain), data, files, sent))
        kept: dict[str, Any] = {"data": None, "files": {}}
        if versions := getattr(source, "versions", None):  # an OpenedSource's
            kept["versions"] = {absolute(path): version for path, version in versions.items()}
        self.source = replace(source, **kept)
        self.process: Process | None = None
        try:
            self.process = self.load(options)
        except BaseException:
            self.parcel.close()
            raise

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    unsupported: Mapping[int, str]

    def load(self, options: CompileOptions, *, is_first: bool = True) -> Process:
        """Start a worker and let it load the model.

        is_first: a later one uses and writes no compiled form: an entry of the cache is not held
        any more, and its files may be what the last worker died of.
        """
        process = Process(self.backend, self.source)
        try:
            self.inputs, self.outputs, self.unsupported = process.call(
                "load",
                self.lengths,
                is_first,
                doing=LOADING,
                fds=[self.parcel.descriptor],
                options=options,
            )
        except BaseException:
            process.worker.close()
            raise
        return process

    def close(self) -> None:
        """See LoadedModel. The process stays if an executable has taken it."""
        process, self.process = self.process, None
        if process is not None:
            process.close()
            self.parcel.close()


class _RemoteExecutable:
    """An executable in a worker; a worker that has died is followed by another. See Executable."""

    def __init__(self, loaded: LoadedModel) -> None:
        assert isinstance(loaded, _RemoteModel)
        assert loaded.process is not None
        self._loaded = loaded
        self._lock = threading.RLock()
        self._process: Process | None = loaded.process
        self._starting: _Start | None = None
        self._compile(self._process, loaded.options)
        loaded.process = None  # it is this one's now

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    concurrency: int

    def _compile(self, process: Process, options: CompileOptions) -> None:
        self.inputs, self.outputs, self.concurrency = process.call(
            "compile", doing=COMPILING, options=options
        )

    def alive(self) -> Process | None:
        """Return the worker that runs the model; None where the last has died."""
        process = self._process
        return None if process is None or process.worker.has_ended else process

    def process(self, check: Callable[[], object] = lambda: None) -> Process:
        """Return the worker that runs the model, a new one if the last has died.

        check: called while that starts; what it raises ends the wait, but not the start, which is
        there for the next call.
        """
        with self._lock:
            if (process := self.alive()) is not None:
                return process
            if self._process is None:
                raise ModelError("the model is closed")
            starting = self._begun(self._process)
        while not starting.is_done.wait(LOOK_S):
            check()
        with self._lock:
            if self._starting is starting:
                self._starting, self._process = None, starting.process or self._process
        if starting.process is None:
            assert starting.error is not None, "it is done"
            raise starting.error
        return starting.process

    def _begun(self, ended: Process) -> _Start:
        """Return the start of the worker that follows one that has ended, with the lock held."""
        if self._starting is None:
            # Not closed: other contexts may be about to tell how it ended. It goes with them.
            ended.worker.kill()
            self._starting = _Start(self._fresh)
        return self._starting

    def revived(self) -> str:
        """Have a worker that has ended started again; say why there is none, "" where there is.

        Does not wait. After a start that failed, the next one is a second later.
        """
        with self._lock:
            if (ended := self._process) is None or self.alive() is not None:  # closed, or well
                return ""
            starting = self._begun(ended)
            if starting.process is not None:
                self._starting, self._process = None, starting.process
                return ""
            if starting.error is None:
                return "the model's process has ended, and another is being started"
            if time.monotonic() >= starting.failed_s + _PAUSE_S:
                self._starting = None
            return f"the model's process cannot be started again: {one_line(starting.error)}"

    def _fresh(self, cancel: CancelToken) -> Process:
        check = getattr(self._loaded.source, "check_unchanged", None)  # an OpenedSource's
        if check is not None:
            check()
        options = replace(self._loaded.options, progress=None, cancel=cancel)
        fresh = self._loaded.load(options, is_first=False)
        try:
            self._compile(fresh, options)
            if check is not None:
                check()  # what the runtime has read
        except BaseException:
            fresh.worker.close()
            raise
        return fresh

    def open_context(self) -> _RemoteContext:
        return _RemoteContext(self)

    def placement(self) -> Sequence[Placement]:
        return cast(
            "Sequence[Placement]", self.process().ask("placement", "while it told the placement")
        )

    def memory(self) -> MemoryReport:
        return cast("MemoryReport", self.process().ask("memory", "while it told its memory"))

    def close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            starting, self._starting = self._starting, None
        if starting is not None:
            starting.close()
        if process is not None:
            process.close()
            self._loaded.parcel.close()


class _Start:
    """A worker that is being started by a thread, so that nobody has to wait for it to the end.

    process, error: one of both, when it is done. failed_s: when it failed, of the monotonic clock.
    """

    def __init__(self, fresh: Callable[[CancelToken], Process]) -> None:
        self.is_done = threading.Event()
        self.process: Process | None = None
        self.error: BaseException | None = None
        self.failed_s = 0.0
        self._token = CancelToken()
        self._fresh = fresh
        self._thread = threading.Thread(target=self._run, name="engine-restart", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.process = self._fresh(self._token)
        except BaseException as error:  # whoever waits raises it
            self.failed_s = time.monotonic()
            self.error = error
        finally:
            self.is_done.set()

    def close(self) -> None:
        """Give it up, and what has been started."""
        self._token.cancel()
        self._thread.join()
        if self.process is not None:
            self.process.close()


class _RemoteContext:
    """A context of a worker's executable, opened anew where that worker has died."""

    def __init__(self, executable: _RemoteExecutable) -> None:
        self._executable = executable
        self._process: Process | None = None
        self._is_asking = False  # a reply to an earlier question may come
        self._cancelled_s: float | None = None
        process = executable.alive()
        if process is not None:  # else `run` has a deadline for it
            self._open(process)

    def _open(self, process: Process) -> None:
        self.close()
        self._number, self._caller = process.open()
        self._process = process
        self._is_asking = False

    def run(self, inputs: Values, outputs: Values | None, deadline_s: float | None) -> Values:
        if self._cancelled_s is not None:  # before it began
            raise Cancelled("predict was cancelled by its owner")
        process = self._executable.alive()
        if process is None:
            process = self._executable.process(partial(self._check_waiting, deadline_s))
        if process is not self._process or self._is_asking:
            self._open(process)
        process.worker.trim_errors()
        is_done = False
        self._is_asking = True  # for one that is interrupted in its clean-up, too
        try:
            reply = self._exchange(process, inputs, deadline_s)
            try:
                found = self._caller.results(reply)
            except Exception as error:
                # The reply's facts; cut off by a handler, they may have been noted by halves.
                is_done = not raised_by_handler(error)
                raise
            results = self._given(outputs, found)
            is_done = self._cancelled_s is None
            return results
        finally:
            if is_done:
                self._is_asking = False
            else:  # a reply may still come, to a question that nobody asks any more
                process.cancel(self._number)
                self.close()

    def _check_waiting(self, deadline_s: float | None) -> None:
        """Raise what ends the wait for a new worker."""
        if self._cancelled_s is not None:
            raise Cancelled("predict was cancelled by its owner")
        if deadline_s is not None and time.monotonic() >= deadline_s:
            raise DeadlineExceeded(
                "the model's process had ended, and another is being started; it is there for a "
                "later predict"
            )

    def _exchange(self, process: Process, inputs: Values, deadline_s: float | None) -> bytes:
        """Ask and return the reply; what does not stop in time is ended."""
        can_stop = process.backend.can(Capability.DEADLINES)
        last_s = None if deadline_s is None else deadline_s + can_stop * GRACE_S
        can_cancel = process.backend.can(Capability.CANCEL_PREDICT)
        try:
            self._caller.ask(inputs, deadline_s if can_stop else None)
        except ConnectionError as error:
            if raised_by_handler(error):
                raise
            raise process.failed("before it ran the model") from None
        while True:
            reply = self._caller.reply()
            if reply:
                return reply
            if reply is not None or process.worker.has_ended:
                raise process.failed(RUNNING)
            now = time.monotonic()
            if last_s is not None and now >= last_s:
                process.end("a predict of it did not stop at its deadline")
                raise DeadlineExceeded("the model did not stop, and its process was ended")
            if self._cancelled_s is not None and now >= self._cancelled_s + can_cancel * GRACE_S:
                process.end("a predict of it was cancelled")
                raise Cancelled("predict was cancelled by its owner")

    def _given(self, outputs: Values | None, results: Sequence[Any]) -> Values:
        """Copy results out of the arena, into the caller's buffers where there are such."""
        if outputs is None:
            return owned(results)
        filled: list[Any] = []
        for spec, buffer, result in zip(self._executable.outputs, outputs, results, strict=True):
            if not isinstance(buffer, np.ndarray):
                filled.extend(owned([result]))
                continue
            if buffer.shape != result.shape or buffer.dtype != result.dtype:
                raise InputError(
                    f"output {spec.name!r}: the model gives {result.dtype}{list(result.shape)}, "
                    f"but the buffer is {buffer.dtype}{list(buffer.shape)}",
                    spec.name,
                )
            np.copyto(buffer, result)
            filled.append(buffer)
        return outputs if all(a is b for a, b in zip(filled, outputs, strict=True)) else filled

    def cancel(self) -> None:
        process = self._process
        self._cancelled_s = time.monotonic()
        if process is not None:
            process.cancel(self._number)

    def close(self) -> None:
        """See ExecutionContext. The worker's thread closes its own when the socket is closed."""
        process, self._process = self._process, None
        if process is not None:
            self._caller.close()


def _predict(
    context: Any, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    return cast("Values", context.run(inputs, outputs, deadline_s))


_executables: WeakKeyDictionary[Backend, WeakSet[_RemoteExecutable]] = WeakKeyDictionary()
"""Those of each isolated backend that are in use."""
