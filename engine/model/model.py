"""Model: one trained model, built for a target and run from any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from engine.errors import ModelStateError
from engine.host.imports import ready
from engine.model import build, facts
from engine.model.handle import Handle
from engine.model.state import NO_ID, USUAL, ModelState, RequestQueue
from engine.runtime.descriptions import Specs
from engine.runtime.inputs import ThreadInputs
from engine.tensor import Tensor
from engine.tensor.description import Array
from engine.tensor.values import arrays_by_name, arrays_in, as_expected, tensors_of
from engine.wings import wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.context import Context
    from engine.model.memory import ModelMemory
    from engine.model.reports import Explanation, ModelSummary, Profile
    from engine.tensor import TensorMeta
    from engine.tensor.enums import ModelType
    from engine.types import CancelToken, Placement, Progress
    from engine.typing import ArrayLike, DecMode, Inputs
    from engine.weights.variables import Update

__all__ = ["Model"]


class Model(Handle):
    """One trained model.

    Build it once, run it from any number of threads: each gets input tensors and results of its
    own, and they run in parallel, as many as the backend finds worth while. Results of predict
    are new memory, and nothing changes them afterwards; memory is reused only where the caller
    passes `outputs`.

    A context manager: `close()` frees the model when the last running predict has ended.
    """

    def __init__(self) -> None:
        self._state = ModelState()

    @property
    def model_path_(self) -> str:
        """The file that the model was built from, "" for one that was in memory."""
        return self._state.path

    @property
    def provider(self) -> str:
        """The provider that context.ascend had when the model was built."""
        return self._state.provider

    @property
    def lora_name_map(self) -> dict[str, str]:
        """The user's own names of variable weights, each with the model's."""
        return self._state.own_names

    # --------------------------------------------------------------------------------- building

    def build_from_file(
        self,
        model_path: str,
        model_type: ModelType,
        context: Context | None = None,
        config_path: str = "",
        config_dict: dict[str, dict[str, str]] | None = None,
        dec_key: bytes | None = None,
        dec_mode: DecMode = "AES-GCM",
        dec_num_parallel: int = 0,
        *,
        variable_weights: Sequence[str] = (),
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Read a model file and compile it for the context's target.

        model_path: among several ranks a file of this name need not exist: that of rank 1 is
        model1.onnx where model.onnx is given.
        context: None stands for Context(), the CPU. config_path, config_dict: sections of
        options; the dict wins, and what nobody reads is logged. dec_key: for encrypted files, with
        dec_mode and dec_num_parallel (0..64). variable_weights: those that update_weights may
        change, beside what the configuration declares. progress(phase, done, total) is called while
        a backend compiles; `cancel`, an engine.CancelToken, stops it: as soon as the backend
        can, at the latest when it has compiled.

        Raises TypeError for arguments of the wrong type; RuntimeError (ModelError) for a file
        that is missing or cannot be compiled, (BackendError) for a target that cannot be had,
        (ModelStateError) for a model that is built already, (SettingError, a ValueError too) for a
        wrong setting; Cancelled.
        A model that failed to build may be built again.
        """
        build.from_file(
            self._state,
            model_path,
            model_type,
            context,
            config_path,
            config_dict,
            dec_key,
            dec_mode,
            dec_num_parallel,
            variable_weights,
            progress,
            cancel,
        )

    def build_from_buffer(
        self,
        model_bytes: bytes,
        weight_bytes: bytes | None = None,
        model_type: ModelType | None = None,
        context: Context | None = None,
        config_path: str = "",
        config_dict: dict[str, dict[str, str]] | None = None,
        *,
        dec_key: bytes | None = None,
        dec_mode: DecMode = "AES-GCM",
        variable_weights: Sequence[str] = (),
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Compile a model that is in memory, as build_from_file does one in a file.

        model_bytes: a whole ONNX or MindIR model; external data has no folder here and is refused.
        weight_bytes: the data file of a split MindIR model; an ONNX model has none.
        dec_key: for an encrypted model in one piece, with dec_mode.
        model_type: None goes by the content, and so does MINDIR.

        Raises what build_from_file raises.
        """
        build.from_buffer(
            self._state,
            model_bytes,
            weight_bytes,
            model_type,
            context,
            config_path,
            config_dict,
            dec_key,
            dec_mode,
            variable_weights,
            progress,
            cancel,
        )

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
        Other kinds of values go in and come out as a list for a sequence, None for an optional that
        is absent, a dict for a map; in `outputs` None or Tensor() stands for it.
        timeout_s: stop a run that takes longer, in seconds, with DeadlineExceeded; waiting for
        other predicts counts, where the backend runs only some at once.
        cancel: an engine.CancelToken that stops the run, with Cancelled, when any thread calls its
        `cancel()`. A run that is through by then gives its results.
        priority: -100 to 100: where only some run at once, the highest of those that wait comes
        first. request_id: for observers and backends; unique by itself unless it is given.

        Raises TypeError for elements of another type, RuntimeError and ValueError (InputError)
        where count, names, dtypes or shapes do not fit, RuntimeError (ModelError) where the
        model fails on this data, (ModelStateError) before building or after closing, or where the
        backend cannot stop a run and timeout_s or cancel is given.
        """
        try:
            thread = self._state.threads.state
        except AttributeError:
            thread = self._state.open_thread()
        try:
            if outputs is None:
                # `take` begins so; without its call where all is as it was last time.
                values = as_expected(inputs, thread.expected) if type(inputs) is list else None  # type: ignore[comparison-overlap]
                values, buffers = thread.take(inputs) if values is None else values, None
            elif type(outputs) is list and not outputs:  # as in MindSpore Lite: none are given
                values, buffers, outputs = thread.take(inputs), None, None
            else:
                values, buffers = thread.bind(inputs, outputs)
            run: Any = thread.run
            deadline_s = None if timeout_s is None else thread.deadline(timeout_s)
            if cancel is not None or priority is not USUAL or request_id is not NO_ID:
                run = thread.asked(cancel, priority, request_id)
        except BaseException as error:
            thread.refuse(error, request_id)
            raise
        lease, idle = thread.lease, thread.idle
        try:
            try:
                del idle[lease]  # take the context that this thread used last
            except KeyError:
                lease = thread.borrow(deadline_s, cancel, priority)
            try:
                results = run(lease.context, values, buffers, deadline_s)
                if len(results) != thread.output_count:
                    raise TypeError(
                        f"engine_predict gave {len(results)} values for {thread.output_count}"
                    )
            finally:
                if cancel is not None and run.is_cancelled:
                    lease.is_spoiled = True
                    thread.pool.discard(lease)
                elif thread.is_limited:
                    thread.give_back(lease)
                else:
                    idle[lease] = None  # ContextPool.give_back, without the call
                    if thread.pool.is_closed:
                        thread.pool.settle()
        except BaseException as error:
            if isinstance(error, ModelStateError) and self._state.plan not in (None, thread.plan):
                # Another thread has built the model for other sizes since the state was read.
                further = {"cancel": cancel, "priority": priority, "request_id": request_id}
                return thread.again(self.predict, inputs, outputs, timeout_s, **further)  # type: ignore[no-any-return]
            thread.fail(error, timeout_s, lease)
        if results is buffers:
            return outputs  # type: ignore[return-value]  # a list: bind has looked
        if thread.is_open_ended and outputs is None:  # OpenEndedState.give, without the call
            thread.seen = ([result.shape for result in results],)
        elif outputs is not None or not thread.is_plain:
            return thread.give(results, outputs)  # type: ignore[no-any-return]
        return tensors_of(results, thread.descriptions)

    async def predict_async(
        self,
        inputs: Inputs,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
        priority: int = 0,
        request_id: str = "",
    ) -> list[Tensor]:
        """Await what predict returns; as many run at once as this machine has CPUs.

        Where the model is one executable of a backend that runs predicts without a thread that
        waits (capability async_predict), all run at once, or as many as that finds worth while.
        The inputs must not change until it is done. A task that is cancelled stops its run, or,
        where the backend cannot stop one, leaves it to itself. Raises what predict raises.
        """
        return await self._queue().predict_async(inputs, timeout_s, cancel, priority, request_id)

    def _queue(self) -> RequestQueue:
        state = self._state
        queue = state.queue
        if queue is not None and not state.why_not:
            return queue  # without the lock: a resize may hold it long, and this is an event loop
        with state.lock:
            state.require_built("predict")
            if state.queue is None:
                state.queue = wing("request_queue")(self)
            return state.queue

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
            if arrays or len(by_name) != self._state.named:
                ready("engine.runtime.calling")
                from engine.runtime.calling import call  # rare

                signature = self._state.require_built("predict").signature
                return call(self.predict, signature, arrays, by_name)
            results = self.predict(by_name)  # type: ignore[arg-type]  # no option is among them
        elif len(arrays) == 1 and isinstance(arrays[0], dict):
            results = self.predict(arrays[0])
        elif len(arrays) == 1 and type(arrays[0]) is not np.ndarray:
            ready("engine.runtime.calling")
            from engine.runtime.calling import unpacked  # rare

            results = self.predict(
                unpacked(arrays[0], self._state.require_built("predict").signature)
            )
        else:
            if len(arrays) == 2 and isinstance(arrays[1], dict):
                ready("engine.runtime.calling")
                from engine.runtime.calling import refuse_names  # rare

                refuse_names(*arrays)
            results = self.predict(arrays or {})
        built = self._state.built
        if built is not None and not built.signature.is_plain:
            return {s.name: arrays_in(v) for s, v in zip(built.signature.outputs, results)}
        return arrays_by_name(results)

    # ----------------------------------------------------------------------- inputs and outputs

    def get_inputs(self) -> list[Tensor]:
        """Return the calling thread's own input tensors: new objects in every call.

        Give them data with set_data_from_numpy and pass them to predict. They begin with the data
        of those that the thread got last, if these have any; their shape may be set all the same.
        Open axes are -1. Empty, with a logged error, before the model is built.
        """
        state = self._state
        if not facts.is_built(state):
            return []
        # Beside the state, not in it: a state has an execution context, which may cost much memory.
        threads = state.inputs
        if not hasattr(threads, "given"):
            threads.given = ThreadInputs()
        return threads.given.give(state.require_built().signature.inputs, state)  # type: ignore[no-any-return]

    def get_outputs(self) -> tuple[TensorMeta, ...]:
        """Return descriptions of the outputs. Empty before the model is built.

        Sizes are those of the calling thread's last predict, else what follows from the last
        resize; an axis of which neither tells is -1.
        """
        return facts.outputs(self._state)

    @property
    def inputs(self) -> Specs:
        """The inputs as the model declares them or as last resized, symbolic names included."""
        return Specs(self._state.require_built().signature.inputs)

    @property
    def outputs(self) -> Specs:
        """The outputs, likewise."""
        return Specs(self._state.require_built().signature.outputs)

    def resize(self, inputs: Sequence[Tensor], dims: Sequence[Sequence[int]]) -> None:
        """Fix the inputs' shapes, for every thread, from its next call on.

        inputs: this model's tensors from get_inputs, in order; they take the new shapes and lose
        their data.
        dims: one shape an input, every dim 1 or more, 0 too for an axis that the file leaves open,
        or -1 for one that is to be open again, as it is in the file. Where a dim is another than
        the file fixes, the model is built anew for it and run once on zeros; a model that cannot
        have these shapes stays as it was. Backends with the capability prepare do now what the
        first predict of these shapes would do; then ModelError and BackendError are raised too.
        Raises TypeError for arguments of the wrong type, ValueError for counts that differ,
        RuntimeError (InputError) for shapes that the model does not allow and tensors of another.
        """
        from engine.model.update import resize  # rare

        resize(self._state, inputs, dims)

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
        from engine.model.update import update  # rare

        update(self._state, weights)

    # ------------------------------------------------------------------------------------ facts

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the model's file, by key: who made it, labels, sizes."""
        graph = self._state.require_built().plan.source.graph
        return dict(graph.metadata) if graph is not None else {}

    @property
    def placement(self) -> list[Placement]:
        """For each node: backend, device, provider, and why it runs there."""
        return self._state.require_built().plan.placement()

    def summary(self) -> ModelSummary:
        """Return what is known of the model at a glance: print it, or show it in a notebook.

        Raises ModelStateError before building or after closing.
        """
        summary: ModelSummary = wing("summary")(self._state)
        return summary

    def memory(self) -> ModelMemory:
        """Return what the model takes in memory now, in bytes, by the backends that run it.

        Weights are private to the model, shared with others of this process, or mapped from files
        that other processes may have mapped too. Raises ModelStateError before building or after
        closing.
        """
        return facts.memory(self._state)

    def get_model_info(self, key: str) -> str:
        """Return what the model says of itself, as text; "" for what is not known yet.

        key: "user_info", the metadata of the model's file as JSON; "input_shape", for example
        "x:1,3,8,8;mask:-1,4", and "variable_weights", what was declared, likewise; "dynamic_dims",
        what the configuration gave; "current_pid", this process, also before building;
        "shareable_weight_mem_handle", what the processes that shareable_weight_pid_list names
        build the same model with, on this one's weights.
        Raises TypeError unless `key` is a str.
        """
        return facts.info(self._state, key)

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
        profile = wing("profile")
        found: Profile = profile(self._state, self.predict, _model_of, inputs, predicts, warmup)
        return found

    def explain(self, inputs: Inputs | None = None, *, profile: bool = False) -> Explanation:
        """Return for each node where it runs and why, what it costs, and its time if asked for.

        inputs: as for predict, None for made-up ones; their sizes count. Raises as `profile` does.
        """
        found: Explanation = wing("explained")(self, inputs, profile=profile)
        return found

    def _repr_html_(self) -> str:
        if self._state.built is None or self._state.why_not:
            from html import escape

            return f"<code>{escape(repr(self))}</code>"
        return self.summary()._repr_html_()

    def __repr__(self) -> str:
        return facts.described(self._state)

    # -------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Free the model once running predicts have ended; twice does nothing."""
        self._state.close()

    def __del__(self) -> None:
        state = getattr(self, "_state", None)
        if state is not None:
            state.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a Model cannot be copied or sent to another process; build it where it is used"
        )


def model_state(model: Model) -> ModelState:
    """Return what the core and its wings know of a model."""
    return model._state


def _model_of(state: ModelState) -> Model:
    """Return a model of this state."""
    model = Model()
    model._state = state
    return model
