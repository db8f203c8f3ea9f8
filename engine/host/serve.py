"""Serve as a worker: `python -m engine.host.serve MESSAGES LIFELINE MODULE:FUNCTION`.

The process that `worker.Worker` starts. MESSAGES and LIFELINE are descriptors: a connection, and
a pipe that ends when the parent does.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from threading import Thread


def main(function: str = "") -> None:
    """Call the function with the request that comes first; its result is the exit status.

    function: "" for the third argument.
    """
    messages, lifeline = int(sys.argv[1]), int(sys.argv[2])
    function = function or sys.argv[3]
    for descriptor in (messages, lifeline):
        os.set_inheritable(descriptor, False)
    end_with(lifeline)
    # The parent tells what is to be stopped: an interrupt ends a worker, as other signals do.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    connection = Connection(messages)
    request = connection.recv()  # before foreign code runs: the parent is not kept waiting
    module, _, name = function.partition(":")
    sys.argv = [module]
    sys.exit(getattr(import_module(module), name)(request, connection))


def end_with(lifeline: int) -> None:
    """End this process, and what it has started, when the other end of a pipe is closed.

    On Linux the kernel does it, whatever the process is busy with; elsewhere a thread.
    """
    if hasattr(fcntl, "F_SETSIG"):
        end_group_with(lifeline, os.getpgid(0))
        if select.select([lifeline], [], [], 0)[0]:  # closed before the kernel was told
            _end()
    else:
        Thread(target=_end_after, args=(lifeline,), daemon=True).start()


def end_group_with(lifeline: int, group: int) -> None:
    """Have the kernel end a group of processes, which hold this pipe, when its other end closes."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -group)
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)


def end_interrupted() -> None:
    """End this process as SIGINT ends others, because of a KeyboardInterrupt of foreign code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)


def _end_after(lifeline: int) -> None:
    os.read(lifeline, 1)
    _end()


def _end() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
