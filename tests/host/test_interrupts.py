"""Exceptions of a signal handler are told from those of the interrupted code."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from waiting import wait_until

from engine.host import interrupts
from engine.host.interrupts import raised_by_handler, undisturbed


class Limit(Exception):
    pass


def plain(number: int, frame: object) -> None:
    raise Limit("plain")


def of_any(*arguments: object) -> None:
    raise Limit("any")


def behind(text: str, number: int, frame: object) -> None:
    raise Limit(text)


class Handler:
    def __call__(self, number: int, frame: object) -> None:
        self.end()

    def end(self) -> None:
        raise Limit("object")

    def method(self, number: int, *rest: object) -> None:
        self.end()


HANDLERS: list[Callable[..., Any]] = [
    plain,
    of_any,
    functools.partial(behind, "partial"),
    Handler(),
    Handler().method,
    lambda *_: plain(0, None),
]


@contextmanager
def handled_by(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGUSR1)


def translated() -> None:
    try:
        interrupt()
    except Exception as error:
        raise RuntimeError("the runtime is at fault") from error


def replaced() -> None:
    try:
        interrupt()
    except Exception:
        raise RuntimeError("the runtime is at fault")  # noqa: B904


@contextmanager
def translating() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RuntimeError("the runtime is at fault") from error


def in_a_generator() -> None:
    with translating():
        interrupt()


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("work", [interrupt, translated, replaced, in_a_generator])
def test_a_handlers_exception_is_found_in_whatever_was_made_of_it(work: Any, handler: Any) -> None:
    with handled_by(handler):
        try:
            work()
        except Exception as error:
            found = raised_by_handler(error)
    assert type(found) is Limit


def test_an_exception_of_the_code_itself_is_none_of_a_handlers() -> None:
    def fail(number: int, frame: object) -> None:
        raise Limit("called by code of our own, as handlers are not")

    for call in (lambda: fail(1, None), lambda: 1 / 0, lambda: int("x")):
        try:
            call()
        except Exception as error:
            assert raised_by_handler(error) is None  # noqa: PT017


def test_one_that_the_caller_is_handling_is_not_taken_for_one_of_ours() -> None:
    def library() -> BaseException | None:
        try:
            raise RuntimeError("a failure of its own")
        except RuntimeError as error:
            return raised_by_handler(error)

    with handled_by(plain):
        try:
            interrupt()
        except Limit:
            assert library() is None


def test_an_interrupt_from_the_keyboard_is_found_too() -> None:
    with handled_by(signal.default_int_handler):
        try:
            translating_all()
        except RuntimeError as error:
            assert type(raised_by_handler(error)) is KeyboardInterrupt  # noqa: PT017


def translating_all() -> None:
    try:
        interrupt()
    except BaseException as error:
        raise RuntimeError("the runtime is at fault") from error


def test_undisturbed_work_ends_though_a_handler_raises_meanwhile() -> None:
    has_begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        interrupt()  # handled in the main thread, which waits
        ended.set()

    with handled_by(plain), pytest.raises(Limit):
        undisturbed(work)
    assert has_begun.is_set()
    assert ended.wait(10)


def test_undisturbed_work_has_one_thread_for_all_that_follows_closely_and_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interrupts, "_IDLE_S", 0.1)
    seen = {undisturbed(threading.get_ident) for _ in range(100)}
    assert len(seen) <= 2  # one may be left from before
    assert threading.get_ident() not in seen
    nested = undisturbed(lambda: undisturbed(threading.get_ident))
    assert nested != threading.get_ident()
    wait_until(lambda: not interrupts._waiting)
    assert undisturbed(lambda: 5) == 5


def test_undisturbed_work_is_done_though_a_handler_that_raised_left_the_thread_busy() -> None:
    goes_on = threading.Event()

    def work() -> None:
        interrupt()
        goes_on.wait(10)

    with handled_by(plain), pytest.raises(Limit):
        undisturbed(work)
    assert undisturbed(lambda: 5) == 5
    goes_on.set()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_undisturbed_work_is_done_in_a_forked_child_too() -> None:
    undisturbed(lambda: None)
    child = os.fork()
    if not child:
        os._exit(undisturbed(lambda: 5))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


def test_undisturbed_work_gives_its_result_or_its_error() -> None:
    assert undisturbed(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 / 0)
