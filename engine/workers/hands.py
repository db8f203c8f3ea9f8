"""Threads that run the parts of requests beside the threads that call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from engine.host.interrupts import raised_by_handler, undisturbed


class Task:
    """Work that one of the threads does. Once `wait` has returned True, `result` has what it gave.

    is_unwanted: set by who does not wait any more; work that has not begun is then left out.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.is_unwanted = False
        self._call: Callable[[], Any] | None = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_over = threading.Lock()
        self._is_over.acquire()

    @property
    def has_begun(self) -> bool:
        """True once a thread has taken it up."""
        return self._call is None

    def run(self) -> None:
        """Do it."""
        call, self._call = self._call, None
        try:
            if call is not None and not self.is_unwanted:
                self._result = call()
        except BaseException as error:  # for who waits
            self._error = error
        self._is_over.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, -1 for any time; return whether it has come. By one thread, once."""
        return self._is_over.acquire(timeout=timeout_s)

    def result(self) -> Any:
        """Return what the work returned, or raise what it raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result


class Hands:
    """So many daemon threads, started when they are first needed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._starting = threading.RLock()  # nobody counts on a thread that may not start

    def start(self, calls: list[Callable[[], Any]]) -> list[Task]:
        """Have each call made by a thread. Raises RuntimeError where one cannot be started."""
        with self._starting:
            while len(self._threads) < self._count:
                self._start_one()
        tasks = [Task(call) for call in calls]
        for task in tasks:
            self._tasks.put(task)
        return tasks

    def _start_one(self) -> None:
        thread = threading.Thread(
            target=_work, args=(self._tasks,), name="engine-part", daemon=True
        )
        self._threads.append(thread)  # also where an interrupt cuts off the wait for its start
        try:
            undisturbed(thread.start)
        except RuntimeError as error:
            if not raised_by_handler(error):
                self._threads.remove(thread)
            raise

    def close(self) -> None:
        """End the threads after what there is to do."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()


def _work(tasks: SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # its values and results are not kept until the next one
