"""Threads that run the parts of requests beside the threads that call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from engine.host.interrupts import raised_by_handler, undisturbed
from engine.host.tasks import Task


class ThreadPool:
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
