"""ModelParallelRunner: one model for any number of clients at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from engine.config.checks import require, require_int
from engine.config.wording import own_text, prefixed, reworded
from engine.context import Context
from engine.errors import InputError, ModelError, ModelStateError, SettingError
from engine.formats.given import absent
from engine.host import fork
from engine.host.cpus import usable_cpus
from engine.model.build import configuration_of
from engine.model.model import Model, model_state
from engine.model.state import NO_ID, USUAL
from engine.model.update import update_together
from engine.plan.targets import is_auto
from engine.runtime.extensions import chosen, description
from engine.serving.runner import CLOSED, Runner
from engine.serving.short_runs import EXTRA
from engine.tensor import Tensor
from engine.tensor.enums import ModelType
from engine.wings import wing

if TYPE_CHECKING:
    from engine.report.observing.observation import Observation, Parts
    from engine.serving.built_model import BuiltModel
    from engine.serving.request_queue import RequestQueue
    from engine.serving.short_runs import Direct
    from engine.serving.statistics import RunnerStatistics
    from engine.types import CancelToken, ModelDescription, Progress
    from engine.typing import DecMode, Inputs, WhenFull
    from engine.weights.variables import Update

__all__ = ["ModelParallelRunner"]

_NOT_BUILT = "the runner is not built; call build_from_file first"


class ModelParallelRunner(Runner):
    """Serves one model to any number of threads, by priority, then first come, first served.

    As many predicts run at once as the machine is worth (`context.parallel.workers_num`); the
    others wait in one queue. A thread that finds a free slot runs the model itself; who waits is
    served by a worker thread. All workers of a device share one copy of the weights.

        runner = engine.ModelParallelRunner()
        runner.build_from_file("net.onnx")
        outputs = runner.predict([array])            # from any thread
        future = runner.submit([array], timeout_s=1)  # a concurrent.futures.Future
        outputs = await runner.predict_async([array])

    Where a model reads more than it computes, requests that wait share a run, if that changes no
    bit of any result: see `build_from_file`. A context manager: leaving it ends all requests.
    Any thread may call any method.
    """

    def __init__(self) -> None:
        super().__init__(_NOT_BUILT)
        self._queues: list[RequestQueue[BuiltModel]]
        self._batching = ""
        self._direct: Direct = _queued
        fork.watch(self)

    # --------------------------------------------------------------------------------- building

    def build_from_file(
        self,
        model_path: str,
        context: Context | None = None,
        *,
        max_batch_size: int | None = None,
        max_delay_us: int | None = None,
        batching: Literal["auto", "force"] = "auto",
        queue_limit: int = 1000,
        when_full: WhenFull = "wait",
        dec_key: bytes | None = None,
        dec_mode: DecMode = "AES-GCM",
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Read a model file, compile it, and take requests for it.

        context: its `parallel` settings are read: workers_num, how many predicts run at once on all
            device_ids together (0 fits them to the machine: on the cpu, such runners share the
            process's CPUs, by priority); config_path, config_info. Where the backend runs predicts
            without a thread that waits (capability async_predict), two threads begin them all,
            unless requests share runs.
            cpu.thread_num: the threads inside an operator, which all workers share; 0 divides the
            CPUs among them. cpu.thread_affinity_core_list: one core for each of the thread_num x
            workers_num threads; as many threads are shared then.
        max_batch_size: how many samples (sizes of the inputs' first axis, which must be open) may
            share a run. None measures at build where that pays, up to 32; 1 never. Requests share
            a run only where it is proven that samples do not meet, whatever the data and weights,
            and a trial gives the same bits; for a model of which that is not so, a number above 1
            is an error that names the node.
        batching: "force" has requests share runs without that proof and whatever the trial finds;
            it gives up that a request's results depend on its own inputs alone. Other clients'
            data may then change them. A model without an open batch is an error then.
        max_delay_us: how long, in microseconds, a request waits for others to share its run. None
            waits for those alone whom the last run has just served, a quarter of a run's time
            at most, so that a lone client never waits; 0 takes along only who waits anyway.
        queue_limit: how many requests may wait for a device; `when_full`: "wait" lets `submit` wait
            for room, "raise" has it, predict and predict_async raise QueueFull.
        dec_key, dec_mode: for an encrypted file. progress, cancel: as Model.build_from_file.

        Raises what Model.build_from_file raises.
        """
        from engine.serving.shared_runs import Wishes, share_runs

        require("model_path", model_path, str)
        context = Context() if context is None else require("context", context, Context)
        if max_batch_size is not None and require_int("max_batch_size", max_batch_size) < 1:
            raise ValueError(f"max_batch_size must be 1 or more, but got {max_batch_size}")
        if batching not in ("auto", "force"):
            raise ValueError(f"batching must be 'auto' or 'force', but got {batching!r}")
        if max_delay_us is not None and require_int("max_delay_us", max_delay_us) < 0:
            raise ValueError(f"max_delay_us must be 0 or more, but got {max_delay_us}")
        if require_int("queue_limit", queue_limit) < 1:
            raise ValueError(f"queue_limit must be 1 or more, but got {queue_limit}")
        if when_full not in ("wait", "raise"):
            raise ValueError(f"when_full must be 'wait' or 'raise', but got {when_full!r}")
        if not os.path.exists(model_path):
            raise absent(
                model_path,
                "ModelParallelRunner's build from file failed, model_path does not exist! got ",
            )
        with self._lock:
            if self._why_not is not _NOT_BUILT:
                state = self._why_not or "the runner is already built; make another one"
                raise ModelStateError(
                    f"ModelParallelRunner's build from file failed! Error is {state}"
                )
            queues: list[RequestQueue[BuiltModel]] = []
            devices: list[int | None] = [*context.parallel.device_ids] or [None]
            options = {"dec_key": dec_key, "dec_mode": dec_mode}
            watchers = {"progress": progress, "cancel": cancel}

            def build(further: Mapping[str, Mapping[str, str]]) -> list[RequestQueue[BuiltModel]]:
                built: list[RequestQueue[BuiltModel]] = []
                try:
                    for place, device in enumerate(devices):
                        own = _for_workers(tuned, device, place, len(devices))
                        built.append(
                            self._built(
                                model_path, own, further, queue_limit, when_full, options, watchers
                            )
                        )
                except BaseException:
                    for queue in built:
                        queue.runnable.model.close()
                    raise
                return built

            def work(noted: Progress | None) -> tuple[str, ModelDescription, Parts]:
                nonlocal queues
                watchers["progress"] = noted
                queues = build({})
                queues, how = share_runs(queues, wishes, build, self._recorder)
                built = [model_state(queue.runnable.model).require_built() for queue in queues]
                about = description(built[0].plan, built[0].signature, model_path)
                run_on = (device for each in built for device in each.plan.run_on)
                about = replace(about, devices=tuple(dict.fromkeys(run_on)))
                return how, about, [part for each in built for part in each.plan.parts]

            try:
                tuned, shared = _tuned(context)
                most = max_batch_size or shared or None
                wishes = Wishes(model_path, most, max_delay_us, batching == "force", cancel)
                self._observation = _observation(tuned, model_path)
                if self._observation is None:
                    self._batching, _, _ = work(progress)
                else:
                    self._batching = self._observation.built(work, progress)
            except BaseException as error:
                for queue in queues:
                    queue.runnable.model.close()
                if isinstance(error, InputError | ModelError | SettingError):
                    reworded(error, own_text(error))
                    prefixed(error, "ModelParallelRunner's build from file failed! Error is ")
                raise
            for queue in queues:
                queue.runnable.observation = self._observation
            self._queues = queues
            if len(queues) == 1:
                self._direct = queues[0].runnable.direct(self._recorder) or _queued
            self.model_path_ = model_path
            self._why_not = ""

    def _built(
        self,
        path: str,
        context: Context,
        further: Mapping[str, Mapping[str, str]],
        limit: int,
        when_full: WhenFull,
        options: Mapping[str, Any],
        watchers: Mapping[str, Any],
    ) -> RequestQueue[BuiltModel]:
        from engine.serving.built_model import BuiltModel
        from engine.serving.request_queue import RequestQueue

        model = Model()
        state = model_state(model)
        parallel = context.parallel
        state.is_resizable, state.is_inner = False, True
        state.has_peers = len(parallel.device_ids) > 1
        config: dict[str, dict[str, str]] = vars(parallel).get("config_info", {})
        if further:
            added = {name: {**config.get(name, {}), **further[name]} for name in further}
            config = {**config, **added}
        model.build_from_file(
            path, ModelType.MINDIR, context, parallel.config_path, config, **options, **watchers
        )
        try:
            plan = state.require_built().plan
            slots = parallel.workers_num or getattr(plan.executable, "concurrency", 0)
            threads = context.cpu.thread_num or 1
            is_fixed = bool(slots)
            slots = slots or max(1, usable_cpus() // threads)
            if plan.pool.semaphore is not None:
                plan.pool.limit(slots)
            is_cpu = context.target == ["cpu"] or (
                is_auto(context.target) and plan.backend.name == "cpu"
            )
            is_free = not is_fixed and is_cpu
            runnable = BuiltModel(
                model,
                slots=slots,
                extra=EXTRA if is_free and threads == 1 else 0,
                shared_cpus=threads if is_free else 0,
            )
            return RequestQueue(
                runnable, self._recorder, limit, when_full == "wait", runnable.futures
            )
        except BaseException:
            model.close()
            raise

    # ---------------------------------------------------------------------------------- running

    def predict(
        self,
        inputs: Inputs,
        outputs: list[Tensor] | None = None,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
        priority: int = 0,
        request_id: str = "",
    ) -> list[Tensor]:
        """Run the model on one request when its turn comes; see Model.predict.

        timeout_s: waiting counts. A request that is late or cancelled leaves the queue at once; if
        it runs, it is stopped, or, where the backend cannot stop a run, abandoned.
        priority, request_id: see submit.
        Raises what Model.predict raises, and QueueFull where `when_full` says so.
        """
        try:
            if (
                timeout_s is None
                and cancel is None
                and priority is USUAL
                and request_id is NO_ID
                and not self._why_not
            ):
                results = self._direct(inputs, outputs)
                if results is not None:
                    return results
            return self._free_queue().predict(
                inputs, outputs, timeout_s, cancel, priority, request_id
            )
        except ModelStateError as error:
            if self._why_not is CLOSED:  # while it waited: say what is closed
                raise ModelStateError(f"predict failed! {CLOSED}") from error
            raise

    def get_inputs(self) -> list[Tensor]:
        """Return new tensors for the inputs; open axes are -1. Empty before the runner is built."""
        if self._why_not is _NOT_BUILT:
            return Model().get_inputs()  # which logs why
        return self._built_model().get_inputs()

    @property
    def shares_runs(self) -> bool:
        """See Runner."""
        return any(queue.runnable.batcher is not None for queue in self._queues)

    @property
    def is_in_process(self) -> bool:
        """See Runner: False with [common_context] isolate."""
        return not any(queue.runnable.is_isolated for queue in self._queues)

    def _lost(self) -> str:
        """See Runner: on every device."""
        reasons = [queue.runnable.why_lost() for queue in self._queues]
        return "; ".join(reasons) if all(reasons) else ""

    def _built_model(self) -> Model:
        """Return the model on the device that has the least to do. Raises ModelStateError."""
        model: Model = self._free_queue().runnable.model
        return model

    def update_weights(self, weights: Update) -> None:
        """Exchange weights that were declared variable, for all workers at once.

        See Model.update_weights; the declaration stands in `context.parallel`'s configuration.
        """
        with self._lock:
            if self._why_not:
                raise ModelStateError(f"update weight failed! Error is {self._why_not}")
            states = [model_state(queue.runnable.model) for queue in self._queues]
            if self._observation is None:
                update_together(states, weights)
            else:
                self._observation.update(lambda: update_together(states, weights))

    def statistics(self) -> RunnerStatistics:
        """Return counts, times and batch sizes of all requests since the runner was built."""
        return self._counted(f"{self._batching}{self._recorder.sharing or ''}")

    def close(self, *, finish: bool = True) -> None:
        """See Runner."""
        super().close(finish=finish)
        self._direct = _queued

    def _abandon(self) -> None:
        self._direct = _queued
        super()._abandon()

    def _capacity(self) -> str:
        return f"{sum(queue.semaphore.slots for queue in self._queues)} at once"


def _queued(inputs: Inputs, outputs: list[Tensor] | None) -> None:
    """Stand for what runs a request at once, where none is: see ShortRuns.runner."""


def _configuration(context: Context) -> dict[str, dict[str, str]]:
    parallel = context.parallel
    sections = vars(parallel).get("config_info", {})
    return configuration_of(parallel.config_path, sections, "build_from_file")


def _tuned(context: Context) -> tuple[Context, int]:
    """Return a context with what a tuning's configuration says, and how many share a run.

    0 where that is not said. Raises SettingError.
    """
    tuned = _configuration(context).get("tuned")
    if tuned is None:
        return context, 0
    from engine.report.tuning.taking import naming_file, number, settled

    try:
        with naming_file(tuned):
            count = number(tuned, "max_batch_size")
        return settled(context, tuned), count
    except ValueError as error:
        raise SettingError(own_text(error)) from error


def _observation(context: Context, path: str) -> Observation | None:
    """Return what tells observers of a runner; None where none is switched on."""
    found = chosen(context, _configuration(context))
    return wing("observation")(found, path) if found else None


def _for_workers(context: Context, device_id: int | None, place: int, devices: int) -> Context:
    """Return a context for one device's workers, with threads and cores divided among them."""
    context = copy(context)
    shares = [
        max(1, len(range(number, context.parallel.workers_num, devices)))
        for number in range(devices)
    ]
    if device_id is not None:
        context.gpu.device_id = context.ascend.device_id = device_id
    if not context.cpu.thread_num:
        workers = context.parallel.workers_num
        context.cpu.thread_num = max(1, usable_cpus() // workers) if workers else 1
    elif cores := context.cpu.thread_affinity_core_list:
        context.cpu.thread_affinity_core_list = _cores_of(
            cores, context.cpu.thread_num, sum(shares[:place]), shares[place], sum(shares)
        )
        context.cpu.thread_num = len(context.cpu.thread_affinity_core_list)
    if context.parallel.workers_num:  # spread over the devices, one each at least
        context.parallel.workers_num = shares[place]
    return context


def _cores_of(cores: list[int], threads: int, first: int, count: int, workers: int) -> list[int]:
    """Return the cores of some workers, which share the threads that are pinned to them.

    cores: one a thread, of all `workers` or of one. first, count: the workers.
    """
    if len(cores) == threads:
        return cores
    if len(cores) != threads * workers:
        raise InputError(
            f"cpu_thread_affinity_core_list names {len(cores)} cores for {workers} workers of "
            f"{threads} threads; expected {threads * workers}, one core a thread"
        )
    return cores[first * threads : (first + count) * threads]
