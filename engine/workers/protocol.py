"""The contract between a runner and a worker of any kind: a process, an actor on another machine.

    worker = start(assignment)            # a Start: at once, the model is not built yet
    ready = worker.build(progress)
    try:
        results = worker.run(values, deadline_s=None)
    except Lost as lost:                  # it died, or `end` was called
        worker.close()
        worker = start(assignment)

A worker does what it is asked and says when it is gone. Retrying, restarting, deadlines that it
does not keep: all that is the supervisor's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from engine.context import Context
    from engine.formats.opened import FileVersion
    from engine.types import Device, Placement, Progress, TensorSpec, Value
    from engine.typing import DecMode
    from engine.weights.variables import Update


MOST_LOST = 3
"""The number of workers that a part of a request, or an update, may lose.

The last one that a part may lose runs nothing else.
"""


class Question(IntEnum):
    """A question to a process, by a channel's note."""

    RUN = 0
    RUN_STOPPABLE = 1
    PREPARE = 2
    SETTLE = 3


class Lost(Exception):
    """A worker has ended, by itself or by `end`, and will not answer. The text says how.

    had_begun: it may have been at work on what it was asked; False where it never heard of it.
    """

    def __init__(self, how: str, had_begun: bool = True) -> None:
        super().__init__(how)
        self.had_begun = had_begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The model that a worker builds, and the device that it builds it for. Can be pickled.

    place: which of `count` workers it is, from 0. device_id: as the user listed it; the context
        has it as gpu.device_id and ascend.device_id already. context: the worker's own.
    model_path: absolute. config: all sections of the configuration, the file's among them.
    dec_key: secret: it goes neither into the environment, nor an argument, nor a file.
    cores: CPUs of this machine that the worker may use; () for all. None of another machine's.
    version: of the file when the runner was made, so that no later worker builds another model;
        None where the worker reads a file of its own.
    data_files: that the model has beside its own, by the paths that it names them by, where links
        may be; known once a worker has built it.
    batch_axes: as the user gave them. is_proving: it is to say whether requests may be cut.
    """

    place: int
    count: int
    device_id: int
    model_path: str
    context: Context
    config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dec_key: bytes | None = field(default=None, repr=False)
    dec_mode: DecMode = "AES-GCM"
    cores: tuple[int, ...] = ()
    version: FileVersion | None = None
    data_files: Mapping[str, FileVersion] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] | None = None
    is_proving: bool = False

    @property
    def is_current(self) -> bool:
        """True while the files are the ones of then."""
        if self.version is None:
            return True
        try:
            return not any(
                version.of(os.stat(path)) != version
                for path, version in ((self.model_path, self.version), *self.data_files.items())
            )
        except OSError:  # moved
            return False


class Cuts(NamedTuple):
    """The proof that requests may be cut along the batch.

    reason: why they may not, "" where they may. outputs: the axis of the batch of each, None for
    one that is the same from every part; () where nothing is proven. elsewhere: axes of the inputs
    along which they might be, if one of these is the batch.
    """

    reason: str = ""
    outputs: tuple[int | None, ...] = ()
    elsewhere: Mapping[str, int] = {}


class Ready(NamedTuple):
    """A worker's description of the model that it has built.

    keeps_deadlines, can_stop: its backends stop a run at a deadline, and when they are told to.
    data_files: as an assignment has them; empty on another machine. variable_weights: those that
    were declared. cuts: None where no proof was asked for. backends, devices: those that run it.
    placement: where each node runs.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    keeps_deadlines: bool
    can_stop: bool
    data_files: Mapping[str, FileVersion]
    variable_weights: tuple[TensorSpec, ...] = ()
    cuts: Cuts | None = None
    backends: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    placement: tuple[Placement, ...] = ()


class Worker(Protocol):
    """A worker: `build` first, once, then any number of `run`, one at a time, from any thread.

    `prepare` and `settle` come between runs.
    `stop` and `end` come from other threads while one of these is under way.
    """

    @property
    def pid(self) -> int:
        """The number of its process, on the machine where that is."""

    @property
    def sentinel(self) -> int | None:
        """A descriptor that is readable once the worker has ended; None where there is none.

        It stays open until `close`. Without one, `has_ended` is asked now and then.
        """

    @property
    def has_ended(self) -> bool:
        """True once it has ended: it will never answer again. Quick, and never raises."""

    def build(self, progress: Progress | None) -> Ready:
        """Build the model, as Model.build_from_file; `progress` is called in this thread.

        Raises what that raises, and Lost. Nobody stops it but by `end`.
        """

    def run(
        self, values: Sequence[Value], deadline_s: float | None, may_stop: bool = True
    ) -> list[Value]:
        """Run the model once; block until the results are there.

        values: one an input, in order, arrays C-contiguous. They do not change meanwhile and are
            not kept.
        deadline_s: of time.monotonic() here (another machine's clock differs: send what is left),
            None for none. Only for a worker that `keeps_deadlines`.
        may_stop: `stop` may come; to be ready for that costs something.
        Returns one value an output, in new memory that is the caller's.
        Raises what the model raises, an EngineError, and Lost.
        """

    def prepare(self, weights: Update) -> list[str]:
        """Do all of an update of the model's weights that can fail, as it would run one.

        weights: in host memory. Returns the names of the weights that it changes, in its order.
        Raises what Model.update_weights raises, and Lost. `settle` follows.
        """

    def settle(self, take: bool) -> None:
        """Switch to the weights that were prepared, or forget them. Raises Lost."""

    def stop(self) -> None:
        """Have the run that is under way raise Cancelled soon, where the worker `can_stop`.

        Returns at once. Comes at most once a run, just before it begins at the earliest, and never
        after it has returned.
        """

    def end(self, why: str) -> None:
        """End the worker now, whatever it does: what is under way raises Lost with `why`.

        Returns at once; twice, or after its end, does nothing.
        """

    def close(self) -> None:
        """Free it all: nothing of it is left behind. It may be busy; twice does nothing."""


Start: TypeAlias = Callable[[Assignment], Worker]
"""Start a worker for an assignment and return without waiting for its model."""
