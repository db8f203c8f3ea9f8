"""Values sent through a channel arrive as they were, in memory that is reused."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from engine.errors import InputError
from engine.host.arena import Arena
from engine.host.channel import LOOK_S, Answerer, Caller, received

Ask = Callable[..., Any]


@pytest.fixture
def connect() -> Iterator[Callable[..., Ask]]:
    """Answer with a function, in another thread; returns what asks and waits."""
    opened: list[tuple[Caller, Answerer, threading.Thread]] = []

    def make(run: Callable[..., Any]) -> Ask:
        caller = Caller()
        answerer = Answerer(*received(*map(os.dup, caller.fds)), run)
        caller.sent()
        thread = threading.Thread(target=answerer.serve)
        thread.start()
        opened.append((caller, answerer, thread))

        def ask(*values: Any, deadline_s: float | None = None) -> Any:
            caller.ask(values, deadline_s)
            while (reply := caller.reply()) is None:
                pass
            return caller.own(reply)

        ask.arena = caller._arena  # type: ignore[attr-defined]
        return ask

    yield make
    for caller, answerer, thread in opened:
        caller.close()
        thread.join(10)
        assert not thread.is_alive()
        answerer.close()


def double(values: list[Any], buffers: list[Any] | None, deadline_s: float | None) -> list[Any]:
    """Return 2 x of each value, in the buffers where there are such."""
    if buffers is None:
        return [2 * value for value in values]
    for value, buffer in zip(values, buffers, strict=True):
        np.multiply(value, 2, out=buffer)  # raises where the shapes differ
    return buffers


def test_arrays_of_any_size_and_order_come_back_in_memory_of_their_own(
    connect: Callable[..., Ask],
) -> None:
    ask = connect(double)
    kept = []
    for count in (3, 3, 3, 100_000, 100_000, 1, 1, 1, 0, 3):
        x = np.arange(2.0 * count).reshape(count, 2)
        rows = np.arange(12.0).reshape(3, 4)[:, ::2]  # neither whole nor in order
        kept.append((ask(x, rows, np.float32(3) * np.ones(())), x, rows))
    for results, x, rows in kept:
        for result, wanted in zip(results, (2 * x, 2 * rows, np.array(6, "f4")), strict=True):
            assert result.shape == wanted.shape
            np.testing.assert_array_equal(result, wanted)


def test_results_stay_as_they_are_while_they_are_held_however_many_and_of_whatever_size(
    connect: Callable[..., Ask],
) -> None:
    ask = connect(double)
    chance = random.Random(0)
    held: list[tuple[Any, np.ndarray[Any, Any]]] = []
    for number in range(400):
        x = np.full(chance.choice((3, 3, 3, 1000, 50_000)), float(number))
        for _ in range(chance.choice((1, 5))):
            [y] = ask(x)
            held.append((y[1:].reshape(-1, 1), x))  # a view of it holds it too
        while len(held) > chance.randrange(12):
            held.pop(chance.randrange(len(held)))
        for y, x in held:
            np.testing.assert_array_equal(y.ravel(), 2 * x[1:])


def test_memory_grows_no_further_while_the_last_result_is_held_and_sizes_change(
    connect: Callable[..., Ask],
) -> None:
    ask = connect(double)
    kept: list[Any] = []
    for number in range(300):
        for _ in range(4):
            kept = [*kept[-1:], ask(np.ones(1000 + number % 3 * 50_000))]
    assert ask.arena._size <= 1 << 23  # four of the largest are 4 x 2 x 0.8 MB


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_results_that_a_forked_child_may_hold_are_never_overwritten(
    connect: Callable[..., Ask],
) -> None:
    ask = connect(double)
    for _ in range(3):
        y = None  # so that all come to lie in one place
        [y] = ask(np.full(5, 1.0))
    assert not y.flags.owndata  # it is in the shared memory
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.read(told, 1)
        os._exit(0 if (y == 2).all() else 1)
    del y
    for number in range(2, 20):
        ask(np.full(5, float(number)))
    os.write(tell, b".")
    assert os.waitpid(child, 0)[1] == 0
    os.close(told)
    os.close(tell)


def test_results_may_change_their_shape_after_they_were_written_in_place(
    connect: Callable[..., Ask],
) -> None:
    def nonzero(values: list[Any], buffers: list[Any] | None, deadline_s: float | None) -> Any:
        [found] = np.nonzero(values[0])
        if buffers is None:
            return [found]
        if found.shape != buffers[0].shape:
            raise ValueError("it has another shape this time")
        np.copyto(buffers[0], found)
        return buffers

    ask = connect(nonzero)
    for given in ([1, 0, 2], [3, 4, 0], [0, 1, 1], [0, 0, 1], [5, 0, 0], [1, 1, 1]):
        assert ask(np.array(given))[0].tolist() == np.nonzero(given)[0].tolist()


def test_errors_deadlines_and_the_number_of_a_question_arrive(connect: Callable[..., Ask]) -> None:
    seen: list[float | None] = []

    def refuse(values: list[Any], buffers: list[Any] | None, deadline_s: float | None) -> Any:
        seen.append(deadline_s)
        if values[0] == "known":
            raise InputError("it does not fit", "x")
        raise OSError(2, "of the system") if values[0] == "builtin" else _Foreign("not known here")

    ask = connect(refuse)
    with pytest.raises(InputError, match="it does not fit") as caught:
        ask("known", deadline_s=12.5)
    assert caught.value.name == "x"
    with pytest.raises(FileNotFoundError, match="of the system"):
        ask("builtin")
    with pytest.raises(RuntimeError, match="_Foreign: not known here"):
        ask("foreign")
    assert seen == [12.5, None, None]


class _Foreign(Exception):
    """An exception that another process could not import."""


def test_a_caller_hears_that_nobody_answers_any_more_and_looks_up_meanwhile() -> None:
    caller = Caller()
    began = time.monotonic()
    assert caller.reply() is None
    assert time.monotonic() - began >= LOOK_S / 2
    caller.sent()
    assert caller.reply() == b""
    with pytest.raises(OSError, match="Broken pipe"):
        caller.ask([np.ones(1)], None)
    caller.close()
    caller.close()


def test_a_sequence_of_more_tensors_than_a_message_has_room_for_comes_back(
    connect: Callable[..., Ask],
) -> None:
    ask = connect(lambda values, buffers, deadline_s: [list(values[0])])
    tensors = [np.full((1, 1), number, np.float32) for number in range(40_000)]

    [result] = ask(tensors)

    assert np.concatenate(result).ravel().tolist() == [*map(float, range(40_000))]


def test_what_does_not_fit_into_memory_is_no_lost_worker(
    connect: Callable[..., Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = connect(double)
    small, large = np.ones(3, np.float32), np.ones(1 << 20, np.float32)
    ask(small)

    with monkeypatch.context() as limited:
        limited.setattr(mmap, "mmap", _no_memory)
        with pytest.raises(OSError, match="Cannot allocate memory") as raised:
            ask(large)
    assert not isinstance(raised.value, ConnectionError)

    np.testing.assert_array_equal(ask(large)[0], 2 * large)


def _no_memory(*arguments: object) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize("kind", [TimeoutError, BlockingIOError, ConnectionResetError])
def test_what_a_signal_handler_raises_is_no_answer(kind: type[OSError]) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        raise kind("a time limit")

    caller = Caller()
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 2 * LOOK_S)
        with pytest.raises(kind, match="a time limit"):
            next(filter(None, iter(caller.reply, b"")), None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        caller.close()


@pytest.mark.parametrize("where", ["pickling", "the memory", "copying"])
def test_a_write_that_fails_keeps_no_view_of_what_was_to_be_written(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python before 3.13 dies where it collects a view of a view, which an error's frames hold."""
    memory = bytearray(100_000)
    arena = Arena()
    values: list[Any] = [pickle.PickleBuffer(memoryview(memory))]

    def fail(*_: Any) -> None:
        raise OSError("no room")

    if where == "pickling":
        values.append(threading.Lock())
    else:
        place = (arena, "_memory") if where == "the memory" else (np, "frombuffer")
        monkeypatch.setattr(*place, fail)
    with pytest.raises((OSError, TypeError)) as kept:
        arena.write(values)
    monkeypatch.undo()
    memory.clear()  # raises BufferError while there is a view
    assert kept.value.__traceback__ is not None
    arena.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_process_is_not_raised_in_another(
    error: type[BaseException], connect: Callable[..., Ask]
) -> None:
    def run(values: list[Any], buffers: Any, deadline_s: float | None) -> list[Any]:
        raise error("there")

    with pytest.raises(RuntimeError, match=rf"^{error.__name__}: there$"):
        connect(run)(np.zeros(3))
