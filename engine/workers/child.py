"""A worker's own process: builds the model that it is sent, and runs it until it is told to end."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from engine.errors import one_line
from engine.host.channel import Answerer, portable, received
from engine.host.serve import end_interrupted
from engine.host.worker import receive_fds
from engine.workers.protocol import Question
from engine.workers.served import ServedModel

if TYPE_CHECKING:
    from engine.workers.protocol import Assignment


def serve(assignment: Assignment, parent: Connection) -> None:
    """Build the model, say so, and answer what comes over the channel, in the main thread.

    The first message is followed by the channel's descriptors. `("progress", ...)` may be sent
    before `("ready", Ready)` or `("error", exception)`.
    """
    # All workers build at once: one makes the compiled form, and the others map it. Each with
    # weights of its own until it is written would take the memory of all.
    os.environ.setdefault("ENGINE_CACHE", "wait")
    parent.recv()
    channel = received(*receive_fds(parent, 2))
    model = ServedModel(assignment)
    try:
        ready = model.build(lambda *step: parent.send(("progress", step)))
        del assignment  # no key is kept longer than it is needed
        parent.send(("ready", ready))
    except BaseException as error:  # SystemExit, or a panic of a compiled extension
        parent.send(("error", portable(error)))
        os._exit(0)
    # Beside the thread that works: what comes here is meant for what it does now.
    threading.Thread(target=_listen, args=(parent, model), daemon=True).start()

    def run(values: list[Any], outputs: list[Any] | None, deadline_s: float | None) -> list[Any]:
        try:
            if answerer.note == Question.PREPARE:
                return [model.prepare(*values)]
            if answerer.note == Question.SETTLE:
                model.settle(*values)
                return [None]
            may_stop = answerer.note == Question.RUN_STOPPABLE
            return model.run(answerer.number, values, outputs, deadline_s, may_stop)
        except Exception:
            raise
        except KeyboardInterrupt:  # of a handler that the backend has installed
            end_interrupted()
            raise
        except BaseException as error:  # it would end the process of who called
            raise RuntimeError(one_line(error)) from error

    answerer = Answerer(*channel, run)
    answerer.serve()
    model.close()
    os._exit(0)  # a runtime's own clean-up at exit has hung before


def _listen(parent: Connection, model: ServedModel) -> None:
    """Hear which run is to be stopped: ("stop", number)."""
    with suppress(EOFError, OSError):  # the parent has gone, and this process goes with it
        while True:
            _, number = parent.recv()
            model.stop(number)
