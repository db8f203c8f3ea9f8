"""The model of a worker in an actor of Ray. Imports no Ray: that runs it, wherever it likes."""

from __future__ import annotations

import os
import platform
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.host.channel import portable
from engine.host.folder import nameless_file
from engine.host.version import __version__
from engine.workers.protocol import Assignment
from engine.workers.ray_content import digest_of
from engine.workers.served import ServedModel

if TYPE_CHECKING:
    from engine.weights.variables import Update


class Actor:
    """A model and what is said about it. Each call is answered; errors of the model are answers."""

    def __init__(self) -> None:
        self._model: ServedModel | None = None
        self._steps: list[tuple[str, int, int]] = []  # of the build
        self._held = ExitStack()

    def hello(self) -> tuple[int, str, str]:
        """Return the process, the machine and the version of this package."""
        return os.getpid(), platform.node(), __version__

    def live(self) -> None:
        """Never return: the call ends with the process."""
        threading.Event().wait()

    def has(self, path: str, digest: str) -> bool:
        """Return whether a file with this digest is here."""
        return digest_of(path) == digest

    def build(
        self, assignment: Assignment, content: np.ndarray[Any, Any] | None
    ) -> tuple[bool, Any]:
        """Build the model, of `content` where its file is not here; return (False, Ready)."""
        try:
            if content is not None:
                file, path = self._held.enter_context(nameless_file())
                file.write(content.data)
                file.flush()
                assignment = replace(assignment, model_path=path)
            self._model = ServedModel(assignment)
            return False, self._model.build(self._note)
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            return True, portable(error)

    def progressed(self, seen: int) -> list[tuple[str, int, int]]:
        """Return the steps of the build from the `seen`-th on."""
        return self._steps[seen:]

    def run(self, number: int, values: list[Any], left_s: float | None) -> tuple[bool, Any]:
        """Run the model, for the `number`-th time; return (False, its outputs).

        left_s: until the deadline; the clocks of two machines have nothing in common.
        """
        assert self._model is not None
        try:
            deadline_s = None if left_s is None else time.monotonic() + left_s
            return False, self._model.run(number, values, None, deadline_s)
        except BaseException as error:  # as above
            return True, portable(error)

    def prepare(self, weights: Update) -> tuple[bool, Any]:
        """Prepare an update of the weights; return (False, their names). See Worker.prepare."""
        assert self._model is not None
        try:
            return False, self._model.prepare(weights)
        except BaseException as error:  # as above
            return True, portable(error)

    def settle(self, take: bool) -> tuple[bool, Any]:
        """See Worker.settle."""
        assert self._model is not None
        try:
            self._model.settle(take)
            return False, None
        except BaseException as error:  # as above
            return True, portable(error)

    def stop(self, number: int) -> None:
        """Stop the `number`-th run, which may be over, or on its way."""
        if self._model is not None:
            self._model.stop(number)

    def close(self) -> None:
        """Free the model."""
        if self._model is not None:
            self._model.close()
        self._held.close()

    def _note(self, *step: Any) -> None:
        self._steps.append(step)
