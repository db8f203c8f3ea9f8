"""Model: one trained model, built for a target and run from any thread."""

from __future__ import annotations

import os
import threading
import weakref
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from engine.config.checks import require, require_int, require_watchers
from engine.config.wording import prefixed
from engine.errors import (
    BackendError,
    ExtensionError,
    InputError,
    ModelError,
    ModelStateError,
)
from engine.host import fork
from engine.runtime.descriptions import meta_for, tensor_for
from engine.tensor import Array, Tensor, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from engine.context import Context
    from engine.formats import ModelFile
    from engine.plan import Plan
    from engine.runtime.signature import Signature
    from engine.runtime.thread_state import ThreadState
    from engine.types import CancelToken, Placement, Predict, Progress, TensorSpec

__all__ = ["Model", "ModelType"]


class ModelType(Enum):
    """What kind of file a model is, as MindSpore Lite's scripts say it.

    The reader goes by the file's content: an ONNX file is read as such under either name.
    """

    MINDIR = 0
    MINDIR_LITE = 4


new = object.__new__

# Whose input tensors these are, so that no model reshapes another's.
_owners: weakref.WeakKeyDictionary[Tensor, weakref.ref[Model]] = weakref.WeakKeyDictionary()

_NOT_BUILT = "the model is not built; call build_from_file first"
_CLOSED = "the model is closed; build a new one"
_BUILDING = "the model is being built; wait until build_from_file has returned"
_FORKED = (
    "this process was forked after the model was built, and runtimes do not survive that; "
    "build the model in this process, or start processes with 'spawn'"
)


class Model:
    """One trained model.

    Build it once, run it from any number of threads: each gets input tensors and results of its
    own, and they run in parallel, as many as the backend finds worth while. What predict returns
    is new memory, and nothing changes it afterwards; memory is reused only where the caller
    passes `outputs`.

    A context manager: `close()` frees the model when the last running predict has ended.

    model_path_: the file it was built from, "" for one that was in memory. provider: how it runs:
    what context.ascend.provider said, else the backend's name. lora_name_map: for scripts that
    look at it; nothing is in it in this version.
    """

    def __init__(self) -> None:
        self.model_path_ = ""
        self.provider = ""
        self.lora_name_map: dict[str, str] = {}
        self._plan: Plan | None = None
        self._predict: Predict | None = None  # the plan's, in the extensions that are on
        self._extensions: tuple[str, ...] = ()
        self._declared: Signature | None = None
        self._signature: Signature | None = None
        self._config: Mapping[str, Mapping[str, str]] = {}
        self._threads = threading.local()
        self._why_not = _NOT_BUILT
        # Reentrant, so that a progress callback that builds this model is refused, not stuck.
        self._building = threading.RLock()
        fork.watch(self)

    # --------------------------------------------------------------------------------- building

    def build_from_file(
        self,
        model_path: str,
        model_type: ModelType,
        context: Context | None = None,
        config_path: str = "",
        config_dict: dict[str, dict[str, str]] | None = None,
        dec_key: bytes | None = None,
        dec_mode: str = "AES-GCM",
        dec_num_parallel: int = 0,
        *,
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Read a model file and compile it for the context's target.

        context: None stands for Context(), the CPU. config_path, config_dict: sections of
        options; the dict wins, and what nobody reads is logged. dec_key: for encrypted files, with
        dec_mode and dec_num_parallel (0..64). progress(phase, done, total) is called while a
        backend compiles; `cancel`, an engine.CancelToken, stops it: as soon as the backend
        can, at the latest when it has compiled.

        Raises TypeError for arguments of the wrong type; RuntimeError (ModelError) for a file
        that is missing or cannot be compiled, (BackendError) for a target that cannot be had,
        (ModelStateError) for a model that is built already; ValueError for a setting; Cancelled.
        A model that failed to build may be built again.
        """
        from engine.config.reader import configuration
        from engine.context import Context
        from engine.formats import ModelFile

        require("model_path", model_path, str)
        require("model_type", model_type, ModelType)
        context = Context() if context is None else require("context", context, Context)
        require("config_path", config_path, str)
        if not os.path.exists(model_path):
            raise ModelError(
                f"build_from_file failed, model_path does not exist! got {model_path!r}", model_path
            )
        config = configuration(config_path, config_dict, "build_from_file")
        if dec_key:
            _check_decryption(dec_key, dec_mode, dec_num_parallel)
        require_watchers(progress, cancel)
        file = ModelFile(model_path, dec_key=dec_key or None, dec_mode=dec_mode)
        self._build_file(file, context, config, progress, cancel)
        self.model_path_ = model_path

    def _build_file(
        self,
        file: ModelFile,
        context: Context,
        config: Mapping[str, Mapping[str, str]],
        progress: Progress | None,
        cancel: CancelToken | None,
    ) -> None:
        """Build what build_from_file builds, of a file that may have been opened before."""
        file.look_in(config.get("model_file", {}).get("mindir_path"))
        path = "" if file.path is None else file.name
        self._build("build_from_file", file, context, config, progress, cancel, path)
        self.model_path_ = path

    def build_from_buffer(
        self,
        model_bytes: bytes,
        weight_bytes: bytes | None = None,
        model_type: ModelType | None = None,
        context: Context | None = None,
        config_path: str = "",
        config_dict: dict[str, dict[str, str]] | None = None,
        *,
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Compile a model that is in memory, as build_from_file does one in a file.

        model_bytes: a whole ONNX or MindIR model; external data has no folder here and is refused.
        weight_bytes: the data file of a split MindIR model; an ONNX model has none.
        model_type: None goes by the content, and so does MINDIR.

        Raises what build_from_file raises.
        """
        from engine.config.reader import configuration
        from engine.context import Context
        from engine.formats import ModelFile

        require("model_bytes", model_bytes, bytes)
        if not model_bytes:
            raise ModelError("build_from_buffer failed, model_bytes is empty. Pass a whole model")
        if weight_bytes is not None:
            require("weight_bytes", weight_bytes, bytes)
        if model_type is not None:
            require("model_type", model_type, ModelType)
        if model_type is ModelType.MINDIR_LITE:
            raise ModelError(
                f"build_from_buffer failed, model_type should be MINDIR, but got {model_type}; "
                "leave it out to go by the content"
            )
        context = Context() if context is None else require("context", context, Context)
        require("config_path", config_path, str)
        config = configuration(config_path, config_dict, "build_from_buffer")
        require_watchers(progress, cancel)

        self._build(
            "build_from_buffer",
            ModelFile.of_bytes(model_bytes, weight_bytes or None),
            context,
            config,
            progress,
            cancel,
        )

    def _build(
        self,
        caller: str,
        file: ModelFile,
        context: Context,
        config: Mapping[str, Mapping[str, str]],
        progress: Progress | None,
        cancel: CancelToken | None,
        path: str = "",
    ) -> None:
        from engine.plan import build_plan
        from engine.runtime import extensions
        from engine.runtime.signature import Signature

        with self._building:
            if self._why_not is not _NOT_BUILT:
                state = self._why_not or "the model is already built; make another Model"
                raise prefixed(ModelStateError(state), f"{caller} failed! Error is ")
            self._why_not = _BUILDING
            try:
                plan = build_plan(file, context, config, progress, cancel)
                try:
                    signature = Signature(plan.executable.inputs, plan.executable.outputs)
                    names = extensions.enabled()
                    predict = extensions.wrap(plan, signature, path, names)
                except BaseException as error:
                    plan.pool.close()
                    if isinstance(error, ImportError):  # an element type that needs ml_dtypes
                        raise ModelError(str(error)) from error
                    raise
            except (BackendError, ExtensionError, InputError, ModelError) as error:
                prefixed(error, f"{caller} failed! Error is ")
                raise
            finally:
                self._why_not = _NOT_BUILT
            self._declared = self._signature = signature
            self._config = config
            self._predict, self._extensions = predict, names
            self._plan = plan
            self._why_not = ""
            self.provider = context.ascend.provider or plan.backend.name

    # ---------------------------------------------------------------------------------- running

    def predict(
        self,
        inputs: Sequence[Tensor | Array] | Mapping[str, Tensor | Array],
        outputs: list[Tensor] | None = None,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
    ) -> list[Tensor]:
        """Run the model once; returns one Tensor an output, in the model's order.

        inputs: Tensors or numpy arrays in the model's order, or a dict by input name; dtypes as
        declared, shapes as declared or last resized. Not modified, not kept. Other libraries'
        tensors are taken without a copy: what has `__dlpack__`, `__cuda_array_interface__` or
        `__array__`. Memory of a device goes as it is to a model on that device, where the backend
        takes such; else it is copied to the host.
        outputs: None, or one Tensor an output to fill and return. Their memory is reused, so
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
        if outputs is None:
            values, buffers = state.take(inputs), None
        else:
            values, buffers = state.bind(inputs, outputs)
        run: Any = state.run
        deadline_s = None if timeout_s is None else state.deadline(timeout_s)
        if cancel is not None:
            run = state.cancellable(cancel)
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
                    state.pool.discard(lease)
                elif state.is_gated:
                    state.give_back(lease)
                else:
                    state.idle[lease] = None  # ContextPool.give_back, without the call
                    if state.pool.is_closed:
                        state.pool.settle()
        except BaseException as error:
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

    def __call__(self, /, *arrays: Any, **by_name: Any) -> dict[str, Array]:
        """Run the model on arrays by input name, or by place; returns its outputs by name.

        >>> outputs = model(x=array)  # doctest: +SKIP

        A dict serves where a name is no Python name. Raises what predict raises.
        """
        if arrays and by_name:
            raise TypeError("pass all inputs by place or all by name, not both")
        if len(arrays) == 1 and isinstance(arrays[0], dict):
            [by_name], arrays = arrays, ()
        results = self.predict(arrays or by_name)
        signature = self._signature
        if signature is not None and not signature.is_plain:
            from engine.runtime import values

            return {s.name: values.arrays(v) for s, v in zip(signature.outputs, results)}
        return {tensor._description.name: tensor.get_data_to_numpy() for tensor in results}

    # ----------------------------------------------------------------------- inputs and outputs

    def get_inputs(self) -> list[Tensor]:
        """Return the calling thread's own input tensors: the same objects in every call.

        Give them data with set_data_from_numpy and pass them to predict. Open axes are -1.
        Empty, with a logged error, before the model is built.
        """
        return list(self._inputs()) if self._is_built() else []

    def _inputs(self) -> list[Tensor]:
        # Beside the state, not in it: a state has an execution context, which may cost much memory.
        threads, signature = self._threads, self._signature
        assert signature is not None
        if not hasattr(threads, "inputs"):
            threads.inputs = [tensor_for(spec) for spec in signature.inputs]
            _owners.update(dict.fromkeys(threads.inputs, weakref.ref(self)))
        inputs: list[Tensor] = threads.inputs
        return inputs

    def get_outputs(self) -> tuple[TensorMeta, ...]:
        """Return descriptions of the outputs; open axes are -1. Empty before the model is built."""
        if not self._is_built():
            return ()
        assert self._signature is not None
        return tuple(meta_for(spec) for spec in self._signature.outputs)

    def resize(self, inputs: Sequence[Tensor], dims: Sequence[Sequence[int]]) -> None:
        """Fix the inputs' shapes, for every thread, from its next call on.

        inputs: this model's tensors from get_inputs, in order; they take the new shapes and lose
        their data.
        dims: one shape an input, every dim 1 or more.
        Raises TypeError for arguments of the wrong type, ValueError for counts that differ,
        RuntimeError (InputError) for shapes that the model does not allow and tensors of another.
        """
        _check_resize(inputs, dims)
        if self._plan is None:
            raise ModelStateError(f"resize failed! Error is {self._why_not}")
        assert self._declared is not None
        if len(inputs) != len(self._declared.inputs):
            raise InputError(
                f"resize failed! Error is model input len:{len(self._declared.inputs)} not equal "
                f"input len:{len(inputs)}"
            )
        for index, tensor in enumerate(inputs):
            owner = _owners.get(tensor)
            if owner is not None and owner() is not self:
                raise InputError(
                    f"resize failed! Error is inputs element {index} is tensor {tensor.name!r} of "
                    "another model; pass what this model's get_inputs gives",
                    tensor.name,
                )
        self._signature = self._declared.resized(dims)
        own = self._inputs()
        for tensors in (inputs, own):
            for tensor, shape in zip(tensors, dims, strict=True):
                tensor._value = None
                tensor._own_description().shape = tuple(int(dim) for dim in shape)
        # Every thread makes a new state at its next call; a running predict keeps its old one.
        # This thread keeps its input tensors: scripts hold on to what get_inputs gave them.
        self._threads = threading.local()
        self._threads.inputs = own

    def get_model_info(self, key: str) -> str:
        """Return what the model says of itself, as text; "" for what is not known yet.

        key: "user_info", the metadata of the model's file as JSON; "input_shape", for example
        "x:1,3,8,8;mask:-1,4"; "dynamic_dims", what the configuration gave; "current_pid", this
        process, also before building; "shareable_weight_mem_handle".
        Raises TypeError unless `key` is a str.
        """
        require("key", key, str)
        if key == "current_pid":
            return str(os.getpid())
        if self._plan is None or self._signature is None:
            return ""
        if key == "input_shape":
            inputs = self._signature.inputs
            return ";".join(f"{s.name}:{','.join(map(str, tensor_for(s).shape))}" for s in inputs)
        if key == "user_info":
            import json

            graph = self._plan.source.graph
            return json.dumps(dict(graph.metadata)) if graph and graph.metadata else ""
        if key == "dynamic_dims":
            backend = self._plan.backend
            first = [f"{name}_context" for name in (backend.name, *backend.info.device_types)]
            given = (self._config.get(name, {}).get(key, "") for name in (*first, *self._config))
            return next(filter(None, given), "")
        return ""

    # -------------------------------------------------------------------------------- the model

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The inputs as the model declares them or as last resized, symbolic names included."""
        self._require_built()
        assert self._signature is not None
        return self._signature.inputs

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The outputs, likewise."""
        self._require_built()
        assert self._signature is not None
        return self._signature.outputs

    @property
    def placement(self) -> list[Placement]:
        """For each node: backend, device, provider, and why it runs there."""
        self._require_built()
        assert self._plan is not None
        return self._plan.placement()

    def close(self) -> None:
        """Free the model once running predicts have ended; twice does nothing."""
        plan, self._plan = self._plan, None
        if plan is None:
            return
        self._predict = None
        self._why_not = _CLOSED
        self._threads = threading.local()
        plan.pool.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_plan", None) is not None:
            self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a Model cannot be copied or sent to another process; build it where it is used"
        )

    def __str__(self) -> str:
        return f"model_path: {self.model_path_}."

    def __repr__(self) -> str:
        if self._plan is None:
            return f"<engine.Model: {self._why_not}>"
        return f"<engine.Model {self.model_path_ or 'from bytes'!r} on {self._plan.backend.name}>"

    # ---------------------------------------------------------------------------------- threads

    def _open_state(self) -> ThreadState:
        """Make the calling thread's state, at its first call."""
        from engine.runtime.thread_state import ThreadState, ValuesState

        # Read in this order: a resize between the two lines leaves a state that nobody finds.
        threads = self._threads
        plan, signature = self._plan, self._signature
        if plan is None or signature is None or self._predict is None:
            raise prefixed(ModelStateError(self._why_not), "predict failed! ")
        kind = ThreadState if signature.is_plain else ValuesState
        state = kind(plan, signature, self._predict, self.model_path_, self._extensions)
        threads.state = state
        return state

    def _is_built(self) -> bool:
        if self._why_not is _NOT_BUILT:
            import logging

            logging.getLogger("engine").error(_NOT_BUILT)
            return False
        self._require_built()
        return True

    def _require_built(self) -> None:
        if self._plan is None:
            raise ModelStateError(self._why_not)

    def _abandon(self) -> None:
        """In a forked child: forget the model, and never free what belongs to the parent."""
        fork.never_free(self._plan, self._predict, self._threads)
        if self._plan is not None:
            self._why_not = _FORKED
        elif self._why_not is _BUILDING:
            self._why_not = _NOT_BUILT
        self._plan = self._predict = None
        self._threads = threading.local()
        self._building = threading.RLock()


def _check_decryption(dec_key: object, dec_mode: object, dec_num_parallel: object) -> None:
    require("dec_key", dec_key, bytes)
    mode = require("dec_mode", dec_mode, str)
    count = require_int("dec_num_parallel", dec_num_parallel)
    if not 0 <= count <= 64:
        raise ValueError(
            f"dec_num_parallel should be in range [0, 64], but got {count}; 0 leaves it open"
        )
    if not mode:
        raise ValueError("dec_mode must not be empty string! The usual mode is 'AES-GCM'")


def _check_resize(inputs: object, dims: object) -> None:
    if not isinstance(inputs, list | tuple):
        raise TypeError(f"inputs must be list or tuple of Lite Tensor, but got {type(inputs)}.")
    if not isinstance(dims, list | tuple):
        raise TypeError(f"dims must be list or tuple of shape, but got {type(dims)}.")
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"inputs element must be Tensor, but got {type(tensor)} at index {index}."
            )
    for i, shape in enumerate(dims):
        if not isinstance(shape, list | tuple):
            raise TypeError(
                f"dims element must be list or tuple of int, but got {type(shape)} at index {i}."
            )
        for j, dim in enumerate(shape):
            if not isinstance(dim, int | np.integer):
                raise TypeError(
                    f"dims element's element must be int, but got {type(dim)} at {i}th dims "
                    f"element's {j}th element."
                )
    if len(inputs) != len(dims):
        raise ValueError(
            "inputs' size does not match dims' size, but got "
            f"inputs: {len(inputs)} and dims: {len(dims)}."
        )
