"""Values to a worker and results back, in memory that both have mapped.

    caller = Caller()                              # here; caller.fds go to the other process
    caller.ask(values, deadline_s=None)
    while (reply := caller.reply()) is None: ...   # it is at work
    results = caller.own(reply)

    Answerer(messages, arena, run).serve()         # there: calls run(values, buffers, deadline_s)

Tensors travel in an `Arena`, what to do with them as a short message over a socket of the same.
The thread that asks waits for the reply itself: no other is woken for it.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np

from engine.errors import BackendError, Cancelled, DeadlineExceeded, EngineError
from engine.host.arena import Arena, Layout, Lent, Part, end_of, layout_of, parts_of
from engine.host.interrupts import pass_interrupt
from engine.host.space import UNBOUNDED, Space

LOOK_S = 0.05
"""Seconds that `Caller.reply` waits, for its caller to look at what else may have happened."""

_OK, _FAILED, _IN_PLACE = 0, 1, 2
_REQUEST = struct.Struct("<dqqqqq")
"""The deadline, -1 for none; the note; where the results are to begin, the room there, and where
else they begin if that is too little; where the inputs begin. Then the inputs' lengths, none where
they lie as the last ones did."""
_REPLY = struct.Struct("<qq")
"""_OK or _FAILED, where the results begin, and their lengths. _IN_PLACE: they begin where the
request says, and lie there as the last ones did."""
_LONGEST = 1 << 20
_MOST_LENT = 4
"""Results that may be in use at once; those beyond are copied."""
_MOST_PLACES = 16

Run: TypeAlias = Callable[[list[Any], "list[Any] | None", "float | None"], Sequence[Any]]
"""run(values, buffers, deadline_s): `buffers` are filled and returned, or left alone."""


class Caller:
    """The end of who asks, one question at a time."""

    def __init__(self) -> None:
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wait = struct.pack("@ll", 0, int(LOOK_S * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        self._message = _buffer()
        self._arena = Arena()
        self._space = Space()
        self._inputs: Lent | None = None  # where the last values lie
        self._inputs_begin = 0
        self._places: list[np.ndarray[Any, Any]] = []  # of each; none where they are not plain
        self._begin = 0  # where the results go
        self._nbytes = 0  # of the last ones
        # Of the last ones offset, dtype and shape of each; none where they are not plain.
        self._parts: list[Part] = []

    @property
    def fds(self) -> tuple[int, int]:
        """The descriptors that the other end is made of."""
        return self._theirs.fileno(), self._arena.descriptor

    def sent(self) -> None:
        """Let go of the other end, which another process has now, or which nobody will have."""
        self._theirs.close()

    def ask(self, values: Sequence[Any], deadline_s: float | None, note: int = 0) -> None:
        """Send a question. Raises ConnectionError where nobody is there any more.

        note: a number for the other end, see Answerer.
        """
        lengths = self._put(values)
        self._begin, room, beyond = self._space.room(self._nbytes)
        until = -1.0 if deadline_s is None else deadline_s
        message = _REQUEST.pack(until, note, self._begin, room, beyond, self._inputs_begin)
        try:
            self._socket.send(message + lengths)
        except OSError as error:
            pass_interrupt(error)  # TimeoutError is one
            raise ConnectionError(str(error)) from error

    def reply(self) -> bytes | None:
        """Return the answer; b"" where there will be none, None where it is not there yet."""
        try:
            return self._message[: self._socket.recv_into(self._message)].tobytes()
        except OSError as error:
            pass_interrupt(error)  # TimeoutError is one
            return None if isinstance(error, BlockingIOError) else b""

    def results(self, reply: bytes) -> list[Any]:
        """Return what an answer says, in the shared memory: good until the next question.

        Raises the error that it says.
        """
        status, begin = _REPLY.unpack_from(reply)
        if status == _IN_PLACE:
            return self._arena.lent(self._begin, self._nbytes).places(self._parts)
        lengths = _unpacked(reply[_REPLY.size :])
        if status == _FAILED:
            raise self._arena.read(lengths, begin, copy=True)
        results: list[Any] = self._arena.read(lengths, begin)
        self._nbytes = end_of(lengths)
        self._parts = parts_of(layout_of(results), lengths)
        return results

    def own(self, reply: bytes) -> list[Any]:
        """Return what an answer says, as `results` does, for any time.

        They stay in the shared memory, and are copied where too many others do.
        """
        results = self.results(reply)
        memory = results[0].base if results and type(results[0]) is np.ndarray else None
        if type(memory) is not Lent or self._space.lent >= _MOST_LENT:
            return owned(results)
        self._space.lend(self._begin, self._nbytes, memory)
        return results

    def forget(self) -> None:
        """Free the memory of the last values, which the other end has no use for any more."""
        inputs, self._places, self._inputs = self._inputs, [], None
        if inputs is not None:
            self._arena.free(self._inputs_begin, inputs.nbytes)

    def close(self) -> None:
        """Let go of this end; the other one's `serve` then returns. Twice does nothing."""
        self._theirs.close()
        self._socket.close()
        self._places, self._inputs = [], None
        self._arena.close()

    def _put(self, values: Sequence[Any]) -> bytes:
        """Copy values into the arena and return their lengths, b"" where those are known."""
        places = self._places
        if places and len(values) == len(places):
            for place, value in zip(places, values):
                if (
                    type(value) is not np.ndarray
                    or value.dtype != place.dtype
                    or value.shape != place.shape
                ):
                    break
                place[...] = value
            else:
                return b""
        layout = layout_of(values)
        if layout is not None:  # a pickle has only whole memory beside it, not parts of rows
            values = [value if value.flags.c_contiguous else value.copy() for value in values]
        self._places, self._inputs = [], None
        nbytes = sum(getattr(value, "nbytes", 0) for value in values)
        begin, lengths = self._arena.write(list(values), *self._space.room(nbytes))
        self._inputs = self._arena.lent(begin, end_of(lengths))
        self._inputs_begin = begin
        self._space.use(begin, end_of(lengths), self._inputs)
        self._places = self._inputs.places(parts_of(layout, lengths))
        return _packed(lengths)


class Answerer:
    """The end of who answers, one question at a time. It owns the socket and the arena.

    run: called with values that lie in the shared memory, to be read until it returns; twice for a
        question whose results do not fit where the last ones lay. number: of the question that is
        being answered, from 1. note: what `ask` was given with it.
    """

    def __init__(self, messages: socket.socket, arena: Arena, run: Run) -> None:
        self._messages = messages
        self._message = _buffer()
        self._arena = arena
        self._run = run
        self.number = self.note = 0
        self._inputs: list[Any] = []
        self._begin, self._room, self._beyond = 0, UNBOUNDED, 0  # for the results
        self._layout: Layout | None = None  # of the last ones
        self._parts: list[Part] = []
        self._nbytes = 0  # of all parts
        self._outputs: dict[int, list[Any]] = {}  # by where they begin, once results are alike

    def serve(self) -> None:
        """Answer questions until the other end is closed."""
        message, answer = self._message, self._answer
        receive, send = self._messages.recv_into, self._messages.send
        try:
            while length := receive(message):
                send(answer(message[:length]))
        except OSError:
            pass  # the other end has gone

    def close(self) -> None:
        """Let go of this end."""
        self._inputs = []
        self._forget()
        self._messages.close()
        self._arena.close()

    def _answer(self, request: memoryview) -> bytes:
        self.number += 1
        until, self.note, self._begin, self._room, self._beyond, begin = _REQUEST.unpack_from(
            request
        )
        if len(request) > _REQUEST.size:
            self._inputs = self._arena.read(_unpacked(request[_REQUEST.size :]), begin)
            self._forget()
        try:
            return self._replied(until if until >= 0 else None)
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            return self._written(_FAILED, portable(error))[0]

    def _replied(self, until: float | None) -> bytes:
        """Run; into the arena itself once the results have come out alike twice."""
        given = self._outputs.get(self._begin)
        if given is None and self._outputs:
            given = self._places()
        if given is not None and self._nbytes <= self._room:
            try:
                results = self._run(self._inputs, given, until)
                if results is given:
                    return _DONE_IN_PLACE
                results = [np.array(result) for result in results]
            except (BackendError, Cancelled, DeadlineExceeded):
                raise
            except Exception:  # a result may have another shape this time
                self._forget()
                results = self._run(self._inputs, None, until)
        else:
            results = self._run(self._inputs, None, until)
        layout = layout_of(results)
        is_like_the_last = layout is not None and layout == self._layout
        if is_like_the_last and self._nbytes <= self._room and (places := self._places()):
            for place, result in zip(places, results):
                np.copyto(place, result)
            return _DONE_IN_PLACE
        self._forget()
        reply, lengths = self._written(_OK, list(results))
        self._layout, self._parts = layout, parts_of(layout, lengths)
        self._nbytes = end_of(lengths)
        return reply

    def _places(self) -> list[Any]:
        """Return where results are to lie that are like the last ones; [] where not apart."""
        if len(self._outputs) >= _MOST_PLACES:
            self._outputs.clear()
        places = self._arena.lent(self._begin, self._nbytes).places(self._parts)
        if places:
            self._outputs[self._begin] = places
        return places

    def _forget(self) -> None:
        self._layout, self._parts = None, []
        self._outputs = {}

    def _written(self, status: int, value: object) -> tuple[bytes, list[int]]:
        begin, lengths = self._arena.write(value, self._begin, self._room, self._beyond)
        return _REPLY.pack(status, begin) + _packed(lengths), lengths


_DONE_IN_PLACE = _REPLY.pack(_IN_PLACE, 0)


def owned(results: Sequence[Any]) -> list[Any]:
    """Return a copy of what `Caller.results` gave, in memory of its own."""
    if layout_of(results) is None:
        return list(deepcopy(results))
    return [result.copy() for result in results]


def portable(error: BaseException) -> BaseException:
    """Return an exception that another process can read without importing the backend.

    Never one that ends whoever it is raised to: SystemExit and KeyboardInterrupt are this process's
    own.
    """
    is_builtin = isinstance(error, Exception) and type(error).__module__ == "builtins"
    if isinstance(error, EngineError) or is_builtin:
        error.__cause__ = error.__context__ = error.__traceback__ = None
        with suppress(Exception):  # it may hold what cannot be sent
            pickle.loads(pickle.dumps(error))
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def received(messages: int, arena: int) -> tuple[socket.socket, Arena]:
    """Return what an Answerer is made of, by the descriptors of `Caller.fds` as they arrived."""
    for descriptor in (messages, arena):
        os.set_inheritable(descriptor, False)
    return socket.socket(fileno=messages), Arena(arena)


def _buffer() -> memoryview:
    """Return memory for a message; a new one for each would cost more than all else here."""
    return memoryview(bytearray(_LONGEST))


def _packed(lengths: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(lengths)}q", *lengths)


def _unpacked(message: bytes | memoryview) -> list[int]:
    return [length for (length,) in struct.iter_unpack("<q", message)]
