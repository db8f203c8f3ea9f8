"""MultiDeviceRunner: one model on many devices, a process for each."""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.config.checks import (
    check_decryption,
    require,
    require_int,
    require_list,
    require_seconds,
    require_watchers,
)
from engine.config.reader import configuration
from engine.config.wording import prefixed
from engine.context import Context
from engine.errors import InputError, ModelError, ModelStateError
from engine.formats.given import absent
from engine.host import fork
from engine.host.interrupts import undisturbed
from engine.runtime.extensions import chosen
from engine.serving.request_queue import RequestQueue
from engine.serving.runner import CLOSED, Runner, end
from engine.tensor import Tensor
from engine.types import ModelDescription
from engine.wings import wing
from engine.workers import factory
from engine.workers.assignments import assignments
from engine.workers.batch_axes import check_axes
from engine.workers.replicas import Replicas
from engine.workers.statistics import MultiDeviceStatistics, report
from engine.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from engine.types import CancelToken, Progress
    from engine.typing import DecMode, Inputs, WhenFull, WorkerKind
    from engine.weights.variables import Update
    from engine.workers.protocol import Ready

__all__ = ["MultiDeviceRunner"]


class MultiDeviceRunner(Runner):
    """Runs one model on many devices of a machine, in a process for each.

        with engine.MultiDeviceRunner("net.onnx", [0, 1, 2, 3], context) as runner:
            outputs = runner.predict([array])            # from any thread; cut along the batch
            future = runner.submit([array], timeout_s=1)  # a concurrent.futures.Future
            outputs = await runner.predict_async([array])

    A request is cut along its batch into as many parts as there are workers, and the outputs are
    joined in order: any batch, also for a model of fixed batch, in multiples of it. A request of
    one sample goes to the worker that is free. The weights are one copy for all processes where the
    compile cache keeps the model.

    A worker that dies or hangs is started again, and what it ran is run by another: requests that
    are under way do not see it, but one that ends every worker that runs it is refused.

    Scripts need no `if __name__ == "__main__"`. A context manager: leaving it ends all requests and
    all workers, as the end of this process does. Any thread may call any method.
    """

    def __init__(
        self,
        model_path: str | PathLike[str],
        device_ids: Sequence[int],
        context: Context | None = None,
        *,
        batch_axes: Mapping[str, int | None] | None = None,
        batching: Literal["auto", "force"] = "auto",
        hang_timeout_s: float | None = None,
        queue_limit: int = 1000,
        when_full: WhenFull = "wait",
        workers: WorkerKind = "process",
        dec_key: bytes | None = None,
        dec_mode: DecMode = "AES-GCM",
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Start a worker for each device, and have all of them build the model, at once.

        device_ids: numbers of GPUs or NPUs, one worker each; on cpu only their count matters: the
            CPUs are divided among the workers.
        context: its `parallel` settings config_path and config_info are read.
        batch_axes: for inputs and outputs by name, the axis of the batch, None for one that has
            none; where it is left out, what the model declares says so.
        batching: requests of an open batch are cut only where it is proven that parts do not change
            each other's results; others are kept whole, on one device, and `statistics().batching`
            says why, by node. "force" cuts them all the same, also where parts give other results
            than the whole.
        hang_timeout_s: a run that takes longer has hung: its worker is ended, and it is run by
            another. None, the default, waits for ever, but no longer than a request's own
            `timeout_s`: in a service, set one of them.
        queue_limit: how many requests may wait; `when_full`: "wait" lets `submit` wait for room,
            "raise" has it, predict and predict_async raise QueueFull.
        workers: "process" for processes of this machine, "ray" for actors that Ray places.
        dec_key, dec_mode: for an encrypted file. progress(phase, done, total): phases of each
            worker ("worker 0 (device 0): compile"), and "workers", how many are ready; called from
            other threads, one at a time. cancel: ends the build.

        Raises what Model.build_from_file raises; then no process is left.
        """
        super().__init__(CLOSED)
        self._updating = threading.Lock()
        if isinstance(model_path, PathLike):
            model_path = os.fspath(model_path)
        self.model_path_ = model_path = require("model_path", model_path, str)
        if isinstance(device_ids, tuple | range):
            device_ids = list(device_ids)
        devices = require_list("device_ids", device_ids, int)
        if not devices or min(devices) < 0:
            raise ValueError(f"device_ids must be one or more numbers from 0, but got {devices}")
        context = Context() if context is None else require("context", context, Context)
        if hang_timeout_s is not None:
            limit_s = require_seconds("hang_timeout_s", hang_timeout_s)
            hang_timeout_s = min(limit_s, threading.TIMEOUT_MAX)
        if require_int("queue_limit", queue_limit) < 1:
            raise ValueError(f"queue_limit must be 1 or more, but got {queue_limit}")
        if when_full not in ("wait", "raise"):
            raise ValueError(f"when_full must be 'wait' or 'raise', but got {when_full!r}")
        if batch_axes is not None:
            check_axes(batch_axes)
        if batching not in ("auto", "force"):
            raise ValueError(f"batching must be 'auto' or 'force', but got {batching!r}")
        start = factory(workers)
        if dec_key:
            check_decryption(dec_key, dec_mode, 0)
        require_watchers(progress, cancel)
        failure = "MultiDeviceRunner's build failed! Error is "
        is_local = workers == "process"
        if is_local and not os.path.exists(model_path):
            raise absent(model_path, f"{failure}model_path does not exist! got ")
        sections: dict[str, dict[str, str]] = vars(context.parallel).get("config_info", {})
        config = configuration(context.parallel.config_path, sections, "MultiDeviceRunner")
        self._supervisor = Supervisor(
            assignments(
                model_path,
                devices,
                context,
                config,
                dec_key or None,
                dec_mode,
                is_local=is_local,
                batch_axes=batch_axes,
                is_proving=True,
            ),
            start,
            hang_timeout_s,
        )
        try:
            ready = self._observed_build(chosen(context, config), failure, progress, cancel)
            self._variable_weights = ready.variable_weights
            self._replicas = Replicas(
                self._supervisor,
                ready.inputs,
                ready.outputs,
                batch_axes,
                ready.cuts,
                is_forced=batching == "force",
            )
            self._replicas.observation = self._observation
            self._queues = [
                RequestQueue(self._replicas, self._recorder, queue_limit, when_full == "wait")
            ]
            self._why_not = ""
            fork.watch(self)
        except BaseException:
            self._supervisor.close(CLOSED)
            if self._observation is not None:
                self._observation.close()
            raise

    def _observed_build(
        self,
        found: Mapping[str, Mapping[str, str]],
        failure: str,
        progress: Progress | None,
        cancel: CancelToken | None,
    ) -> Ready:
        """Have the workers build the model, and tell observers, if `found` has some."""
        path = self.model_path_
        observation = wing("observation")(found, path) if found else None
        if observation is None:
            return self._built(failure, progress, cancel)

        def work(noted: Progress) -> tuple[Ready, ModelDescription, tuple[()]]:
            ready = self._built(failure, noted, cancel)
            about = ModelDescription(
                name=Path(path).stem,
                path=path,
                backends=ready.backends,
                inputs=ready.inputs,
                outputs=ready.outputs,
                devices=self._supervisor.devices,
            )
            return ready, about, ()

        built: Ready = observation.built(work, progress)
        self._observation = observation
        return built

    def _built(self, failure: str, progress: Progress | None, cancel: CancelToken | None) -> Ready:
        """Have the workers build the model. failure: what the message of an error begins with."""
        try:
            return self._supervisor.build(progress, cancel)
        except (ModelError, InputError) as error:
            text = str(error).removeprefix("build_from_file failed! Error is ")
            error.args = (text, *error.args[1:])
            raise prefixed(error, failure) from None

    # ---------------------------------------------------------------------------------- running

    def predict(
        self,
        inputs: Inputs,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
        priority: int = 0,
        request_id: str = "",
    ) -> list[Tensor]:
        """Run the model on one request when its turn comes; see Model.predict.

        timeout_s: waiting counts. cancel: a token. A run that does not stop is ended with its
        worker, which is started again. priority, request_id: see submit; for the runner's queue
        and observers, and not for the workers' backends.
        Raises what Model.predict raises, QueueFull where `when_full` says so, RequestRefused for a
        request that ends every worker that runs it, and ModelError where no worker is left.
        """
        return self._free_queue().predict(inputs, None, timeout_s, cancel, priority, request_id)

    def get_inputs(self) -> list[Tensor]:
        """Return new tensors for the inputs; open axes are -1."""
        self._free_queue()
        return self._replicas.get_inputs()

    def _lost(self) -> str:
        """See Runner: on every device."""
        return self._supervisor.why_none_is_ready()

    def _built_model(self) -> Ready:
        """Return what the first worker has said of the model. Raises ModelStateError."""
        self._free_queue()
        ready = self._supervisor.slots[0].ready
        assert ready is not None, "it is built"
        return ready

    def update_weights(self, weights: Update) -> None:
        """Exchange weights that were declared variable, in all workers between two requests.

        See Model.update_weights; the declaration stands in `context.parallel`'s configuration. A
        request that came before runs with the old weights, one that comes when this has returned
        with the new ones, and each with one of both in all its parts. A worker that is started
        again has the new ones, too: a copy of them is kept in this process.
        An interrupt of this does not stop the update. A signal handler that interrupts a predict
        cannot update: ModelStateError. RequestRefused for what ends three workers.
        """
        from engine.weights.variables import check_form, sendable
        from engine.workers.updates import update_all

        check_form(weights)
        if not (queues := self._queues):
            raise ModelStateError(f"update weight failed! Error is {self._why_not or CLOSED}")
        [queue] = queues
        if queue.semaphore.is_mine:  # it would wait for itself
            raise ModelStateError(
                "update weight failed! Error is it was called in the middle of a predict of the "
                "same thread; call it after that one has returned, or in another thread"
            )
        if not self._variable_weights:
            raise ModelStateError(
                "update weight failed! Error is no weight of this model was declared variable; "
                "name them where the runner is built: [common_context] variable_weights_list, in "
                "context.parallel.config_info"
            )

        def update() -> Sequence[str]:
            with self._updating:
                sent = sendable(weights, self._variable_weights)
                return update_all(self._supervisor, sent, queue.alone)

        observation = self._observation
        undisturbed(update if observation is None else lambda: observation.update(update))

    def statistics(self) -> MultiDeviceStatistics:
        """Return counts and times of all requests since the start, and the state of each worker."""
        return report(self._counted(self._replicas.batching), self._supervisor)

    # ----------------------------------------------------------------------------------- the end

    def __del__(self) -> None:
        queues = getattr(self, "_queues", None)
        # As the process ends no other thread runs, and the workers end with it.
        if queues and not sys.is_finalizing():
            # Not by this one: Python collects garbage in any thread, also in one that has a request
            # or a worker, which would wait for itself, and in the middle of threading's own steps.
            last = threading.Thread(target=end, args=(queues, False), daemon=True)
            _thread.start_new_thread(last.start, ())

    def _capacity(self) -> str:
        return f"{len(self._supervisor.slots)} workers"

    def _most_ahead(self) -> int:
        return 2 * len(self._supervisor.slots)

    def _abandon(self) -> None:
        """In a forked child: forget the workers too, which are the parent's."""
        fork.never_free(self._supervisor)
        self._updating = threading.Lock()
        super()._abandon()
