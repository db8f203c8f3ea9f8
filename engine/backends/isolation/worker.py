"""The worker of an isolated backend: loads, compiles and runs one model. See `isolated`."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from engine.backends.backend import Backend
from engine.backends.discovery import open_backend
from engine.host.arena import Arena
from engine.host.channel import Answerer, portable, received
from engine.host.worker import receive_fds
from engine.types import CancelToken, Capability, Executable, LoadedModel, Values

_DESCRIPTORS = {"load": 1, "open": 2}  # what comes with a question


def serve(name: str, parent: Connection) -> None:
    """Answer the parent's questions about one model until it asks to end."""
    questions: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    model = _Model(name, parent)
    # Beside the thread that answers: a cancel is meant for what runs now.
    threading.Thread(target=_receive, args=(parent, questions, model), daemon=True).start()
    while True:
        what, *arguments = questions.get()
        if what == "end":
            model.close()
            os._exit(0)  # a runtime's own clean-up at exit has hung before
        try:
            answer = "result", getattr(model, what)(*arguments)
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            answer = "error", portable(error)
        parent.send(answer)


def _receive(parent: Connection, questions: SimpleQueue[tuple[Any, ...]], model: _Model) -> None:
    while True:
        try:
            what, *arguments = parent.recv()
        except (EOFError, OSError):
            questions.put(("end",))
            return
        if what == "cancel":
            model.cancel(*arguments)
        else:
            fds = receive_fds(parent, _DESCRIPTORS[what]) if what in _DESCRIPTORS else ()
            questions.put((what, *arguments, *fds))


class _Model:
    """The worker's model, as far as it is built; each method answers a question."""

    def __init__(self, name: str, parent: Connection) -> None:
        self._name = name
        self._parent = parent
        self._token = CancelToken()
        self._contexts: dict[int, _Context] = {}
        self._backend: Backend | None = None
        self._loaded: LoadedModel | None = None
        self._executable: Executable | None = None

    def load(self, lengths: Sequence[int], is_first: bool, descriptor: int) -> tuple[Any, ...]:
        self._backend = open_backend(self._name)
        source, data, files, options = Arena(descriptor).read(lengths)
        if not is_first:
            source, options = replace(source, compiled=None), replace(options, save_to=None)
        self._options = replace(options, progress=self._progress, cancel=self._token)
        source = replace(
            source,
            data=None if data is None else bytes(data),
            files={name: memoryview(content) for name, content in files.items()},
        )
        loaded = self._loaded = self._backend.load(source, self._options)
        return tuple(loaded.inputs), tuple(loaded.outputs), dict(loaded.unsupported)

    def compile(self) -> tuple[Any, ...]:
        assert self._backend is not None
        assert self._loaded is not None
        executable = self._executable = self._backend.compile(self._loaded, self._options)
        self._loaded.close()
        self._loaded = None
        concurrency = getattr(executable, "concurrency", 0)
        return tuple(executable.inputs), tuple(executable.outputs), concurrency

    def open(self, number: int, messages: int, arena: int) -> None:
        assert self._backend is not None
        assert self._executable is not None
        ways = received(messages, arena)
        on_end = partial(self._contexts.pop, number, None)
        context = _Context(self._backend, self._executable.open_context(), ways, on_end)
        self._contexts[number] = context
        context.thread.start()

    def placement(self) -> list[Any]:
        assert self._executable is not None
        return list(self._executable.placement())

    def memory(self) -> Any:
        assert self._executable is not None
        return self._executable.memory()

    def cancel(self, number: int | None) -> None:
        """Stop the compile, or what runs in a context."""
        if number is None:
            self._token.cancel()
        elif (context := self._contexts.get(number)) is not None:
            context.cancel()

    def close(self) -> None:
        for context in list(self._contexts.values()):
            context.thread.join(1)
        for thing in (self._loaded, self._executable):
            if thing is not None:
                thing.close()

    def _progress(self, phase: str, done: int, total: int | None) -> None:
        self._parent.send(("progress", (phase, done, total)))


class _Context:
    """An execution context and the thread that runs in it, until the parent closes its socket.

    on_end: called when all has been freed.
    """

    def __init__(
        self,
        backend: Backend,
        context: Any,
        ways: tuple[socket.socket, Arena],
        on_end: Callable[[], object],
    ) -> None:
        self._predict = backend.predict
        self._can_cancel = backend.can(Capability.CANCEL_PREDICT)
        self._context = context
        self._answerer = Answerer(*ways, self._run)
        self._on_end = on_end
        self._closing = threading.Lock()
        self._is_closed = False
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def cancel(self) -> None:
        with self._closing:  # the parent cancels and closes at once
            # Errors of a backend's cancel are suppressed: the parent ends what does not stop, and
            # the thread that calls this must go on to receive.
            if self._can_cancel and not self._is_closed:
                with suppress(Exception):
                    self._context.cancel()

    def _serve(self) -> None:
        try:
            self._answerer.serve()
        finally:
            with self._closing, suppress(Exception):
                self._is_closed = True
                self._context.close()
            self._answerer.close()
            self._on_end()

    def _run(self, inputs: list[Any], outputs: list[Any] | None, until: float | None) -> Values:
        return self._predict(self._context, inputs, outputs, until)
