"""Model: one trained model, built for a target and run from any thread."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from engine.config.wording import prefixed
from engine.errors import ModelStateError
from engine.host import fork
from engine.host.imports import ready
from engine.model.build import BUILDING, ModelBuild
from engine.model.facts import NOT_BUILT
from engine.model.handle import FORKED
from engine.runtime.descriptions import recorded
from engine.runtime.inputs import ThreadInputs
from engine.tensor import Tensor
from engine.tensor.description import Array
from engine.tensor.tensor import arrays_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.model.profiling import Profile
    from engine.runtime.thread_state import ThreadState
    from engine.serving.lane import Lane
    from engine.types import CancelToken
    from engine.typing import ArrayLike, Inputs
    from engine.weights.variables import Update

__all__ = ["Model"]

new = object.__new__

_CLOSED = "the model is closed; build a new one"


class Model(ModelBuild):
    """One trained model.

    Build it once, run it from any number of threads: each gets input tensors and results of its
    own, and they run in parallel, as many as the backend finds worth while. What predict returns
    is new memory, and nothing changes it afterwards; memory is reused only where the caller
    passes `outputs`.

    A context manager: `close()` frees the model when the last running predict has ended.

    model_path_: the file it was built from, "" for one that was in memory. provider: what
    context.ascend.provider said. lora_name_map: for scripts that look at it; nothing is in it in
    this version.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dims: Sequence[Sequence[int]] | None = None  # of the last resize
        self._is_reshaped = False
        self._lane: Lane | None = None
        self._inputs = threading.local()  # apart: they outlive what a thread's state is of
        fork.watch(self)

    # ---------------------------------------------------------------------------------- running

    def predict(
        self,
        inputs: Inputs,
        outputs: list[Tensor] | None = None,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
    ) -> list[Tensor]:
        """Run the model once; returns one Tensor an output, in the model's order.

        inputs: Tensors or numpy arrays in the model's order, a dict by input name, or the one array
        of a model of one input; dtypes as declared, shapes as declared or last resized. Not
        modified, not kept. Other libraries' tensors are taken without a copy: what has
        `__dlpack__`, `__cuda_array_interface__` or `__array__`. Memory of a device goes as it is to
        a model on that device, where the backend takes such; else it is copied to the host.
        outputs: None or [], or one Tensor an output to fill and return. Their memory is reused, so
        results of earlier calls with the same tensors change; a Tensor without data gets new
        memory, on the device that it was made for. Do not reshape or retype an array that is in
        use so; give the tensor another.
        What is no tensor goes in and comes out as a list for a sequence, None for an optional that
        is absent, a dict for a map; in `outputs` None or Tensor() stands for it.
        timeout_s: stop a run that takes longer, in seconds, with DeadlineExceeded; waiting for
        other predicts counts, where the backend runs only some at once.
        cancel: an engine.CancelToken that stops the run, with Cancelled, when any thread calls its
        `cancel()`. A run that is through by then gives its results.

        Raises TypeError for elements of another type, RuntimeError and ValueError (InputError)
        where count, names, dtypes or shapes do not fit, RuntimeError (ModelError) where the
        model fails on this data, (ModelStateError) before building or after closing, or where the
        backend cannot stop a run and timeout_s or cancel is given.
        """
        try:
            state = self._threads.state
        except AttributeError:
            state = self._open_state()
        try:
            if outputs is None:
                values, buffers = state.take(inputs), None
            elif type(outputs) is list and not outputs:  # as in MindSpore Lite: none are given
                values, buffers, outputs = state.take(inputs), None, None
            else:
                values, buffers = state.bind(inputs, outputs)
            run: Any = state.run
            deadline_s = None if timeout_s is None else state.deadline(timeout_s)
            if cancel is not None:
                run = state.cancellable(cancel)
        except BaseException as error:
            state.refuse(error)
            raise
        lease = state.lease
        try:
            try:
                del state.idle[lease]  # take the context that this thread used last
            except KeyError:
                lease = state.borrow(deadline_s, cancel)
            try:
                results = run(lease.context, values, buffers, deadline_s)
                if len(results) != state.output_count:
                    raise TypeError(
                        f"engine_predict gave {len(results)} values for {state.output_count}"
                    )
            finally:
                if cancel is not None and run.is_cancelled:
                    lease.is_spoiled = True
                    state.pool.discard(lease)
                elif state.is_gated:
                    state.give_back(lease)
                else:
                    state.idle[lease] = None  # ContextPool.give_back, without the call
                    if state.pool.is_closed:
                        state.pool.settle()
        except BaseException as error:
            if isinstance(error, ModelStateError) and self._plan not in (None, state.plan):
                # Another thread has built the model for other sizes since the state was read.
                return self.predict(inputs, outputs, timeout_s=timeout_s, cancel=cancel)
            state.fail(error, timeout_s, lease)
        if results is buffers:
            return outputs  # type: ignore[return-value]  # a list: bind has looked
        if outputs is not None or not state.is_plain:
            return state.give(results, outputs)  # type: ignore[no-any-return]
        tensors = []
        for value, description in zip(results, state.descriptions):
            tensor = new(Tensor)
            tensor._value = value
            tensor._description = description
            tensors.append(tensor)
        return tensors

    async def predict_async(
        self,
        inputs: Inputs,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
    ) -> list[Tensor]:
        """Await what predict returns; as many run at once as this machine has CPUs.

        The inputs must not change until it is done. A task that is cancelled stops its run, or,
        where the backend cannot stop one, leaves it to itself. Raises what predict raises.
        """
        return await self._require_lane().predict_async(inputs, timeout_s, cancel)

    def _require_lane(self) -> Lane:
        with self._building:
            self._require_built("predict")
            if self._lane is None:
                ready("engine.serving.lane", "engine.serving.statistics")
                from engine.serving.lane import Lane
                from engine.serving.statistics import Recorder

                # A proxy: a model that nobody has any more is freed at once, not by a collector.
                self._lane = Lane(cast("Model", weakref.proxy(self)), Recorder(), 0)
            return self._lane

    def __call__(
        self, /, *arrays: ArrayLike, **by_name: ArrayLike | CancelToken
    ) -> dict[str, Array]:
        """Run the model on arrays by input name, or by place; returns its outputs by name.

        >>> outputs = model(x=array)  # doctest: +SKIP
        >>> outputs = model(array, outputs=["y"], timeout_s=0.5)  # doctest: +SKIP

        A dict serves where a name is no Python name, a list of arrays for those by place.
        outputs: the names of those to return, in that order; all are computed. timeout_s, cancel:
        as for predict. Each is an option unless the model has an input of that name: then the
        keyword is the input, and beside inputs by place or in a dict it is the option.
        Raises what predict raises.
        """
        if by_name:
            if arrays or len(by_name) != self._named:
                ready("engine.runtime.calling")
                from engine.runtime.calling import call  # rare

                signature = self._require_built("predict").signature
                return call(self.predict, signature, arrays, by_name)
            results = self.predict(by_name)  # type: ignore[arg-type]  # no option is among them
        elif len(arrays) == 1 and isinstance(arrays[0], dict):
            results = self.predict(arrays[0])
        elif len(arrays) == 1 and type(arrays[0]) is not np.ndarray:
            ready("engine.runtime.calling")
            from engine.runtime.calling import unpacked  # rare

            results = self.predict(unpacked(arrays[0], self._require_built("predict").signature))
        else:
            if len(arrays) == 2 and isinstance(arrays[1], dict):
                ready("engine.runtime.calling")
                from engine.runtime.calling import refuse_names  # rare

                refuse_names(*arrays)
            results = self.predict(arrays or {})
        built = self._built
        if built is not None and not built.signature.is_plain:
            return {s.name: arrays_in(v) for s, v in zip(built.signature.outputs, results)}
        return {
            tensor._description.name: value
            if type(value := tensor._value) is np.ndarray
            else tensor.get_data_to_numpy()
            for tensor in results
        }

    # ----------------------------------------------------------------------- inputs and outputs

    def get_inputs(self) -> list[Tensor]:
        """Return the calling thread's own input tensors: new objects in every call.

        Give them data with set_data_from_numpy and pass them to predict. They begin with the data
        of those that the thread got last, if these have any; their shape may be set all the same.
        Open axes are -1. Empty, with a logged error, before the model is built.
        """
        if not self._is_built():
            return []
        # Beside the state, not in it: a state has an execution context, which may cost much memory.
        threads = self._inputs
        if not hasattr(threads, "given"):
            threads.given = ThreadInputs()
        return threads.given.give(self._require_built().signature.inputs, self)  # type: ignore[no-any-return]

    def resize(self, inputs: Sequence[Tensor], dims: Sequence[Sequence[int]]) -> None:
        """Fix the inputs' shapes, for every thread, from its next call on.

        inputs: this model's tensors from get_inputs, in order; they take the new shapes and lose
        their data.
        dims: one shape an input, every dim 1 or more, 0 too for an axis that the file leaves open,
        or -1 for one that is to be open again, as it is in the file. Where a dim is another than
        the file fixes, the model is built anew for it and run once on zeros; a model that cannot
        have these shapes stays as it was.
        Raises TypeError for arguments of the wrong type, ValueError for counts that differ,
        RuntimeError (InputError) for shapes that the model does not allow and tensors of another.
        """
        from engine.model.update import resize  # rare

        resize(self, inputs, dims)

    def update_weights(self, weights: Update) -> None:
        """Exchange weights that were declared variable, for every predict that begins afterwards.

        weights: MindSpore Lite's form, a list of lists of Tensors, each with the name of a weight
        (or of the node by which it was declared), or all without names, in the order of the
        declaration; or a dict of arrays or Tensors by name. Copied. Exactly the dtype and shape of
        the weight. A weight that is left out stays as it is.
        A predict that runs keeps the old weights to its end: none sees some old and some new ones,
        however many threads and backends there are. Which weights may change, and how they do, is
        said where the model is built: docs/update_weights.md.

        Raises TypeError for another form; RuntimeError (InputError) for a name, dtype or shape that
        does not fit, (ModelStateError) before building, after closing and where no weight was
        declared, (ModelError, BackendError) where the model cannot be rebuilt. Then nothing has
        changed.
        """
        from engine.model.update import update_together  # rare

        update_together([self], weights)

    def profile(
        self,
        inputs: Inputs,
        predicts: int = 10,
        *,
        warmup: int = 3,
    ) -> Profile:
        """Measure how long each kernel takes on these inputs, and return the times.

        The model is built once more for that, beside this one, which goes on as it is.

        inputs: as for predict. predicts: how many are measured, after `warmup` that are not.
        Raises what predict raises; BackendError where no backend of the model can tell, ModelError
        where its file changed or is kept nowhere (a large model in memory, an encrypted one).
        """
        from engine.model.profiling import profile  # rare

        return profile(self, inputs, predicts, warmup)

    # -------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Free the model once running predicts have ended; twice does nothing."""
        if self._built is None:
            return
        self._why_not = _CLOSED
        self._recipe = None
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.submitter.close(f"predict failed! {_CLOSED}", finish=False)  # does not wait
        self._free()

    def _free(self) -> None:
        """Close what is built; a resize in another thread may have built anew meanwhile."""
        while (built := self._built) is not None:
            try:
                self._threads, self._inputs = threading.local(), threading.local()
            finally:
                built.close()
            # Only now: until then another call, of a `with` block or the last, does what is left.
            if self._built is built:
                self._built = None

    def __del__(self) -> None:
        if getattr(self, "_built", None) is not None:
            self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a Model cannot be copied or sent to another process; build it where it is used"
        )

    # ---------------------------------------------------------------------------------- threads

    def _open_state(self) -> ThreadState:
        """Make the calling thread's state, at its first call."""
        ready("engine.runtime.thread_state")
        from engine.runtime.thread_state import ThreadState

        # Read in this order: a resize between the two lines leaves a state that nobody finds.
        threads = self._threads
        built = self._built
        if built is None or self._why_not:
            raise prefixed(ModelStateError(self._why_not), "predict failed! ")
        plan, signature, predict = built.plan, built.signature, built.predict
        kind: type[ThreadState] = ThreadState
        if not signature.is_plain:
            ready("engine.runtime.values")
            from engine.runtime.values import ValuesState  # rare

            kind = ValuesState
        threads.seen = []
        if signature.is_open_ended:
            predict = recorded(predict, threads.seen)
        state = kind(plan, signature, predict, self.model_path_)
        threads.state = state
        return state

    def _abandon(self) -> None:
        """In a forked child: forget the model, and never free what belongs to the parent."""
        fork.never_free(self._built, self._threads)
        if self._built is not None:
            self._why_not = FORKED
        elif self._why_not is BUILDING:
            self._why_not = NOT_BUILT
        self._built = self._lane = None
        self._threads = threading.local()
        self._building = threading.RLock()
