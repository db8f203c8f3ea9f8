"""Model: one trained model, built for a target and run from any thread."""

from __future__ import annotations

import os
import threading
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from engine import forks
from engine.errors import EngineError, InputError, ModelError, ModelStateError
from engine.lane import Lane, buffers_of, meta_for, same_buffers
from engine.tensor import Array, Tensor, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from engine.context import Context
    from engine.plan import Plan, Signature
    from engine.types import CancelToken, Placement, Progress, TensorSpec

__all__ = ["Model", "ModelType"]


class ModelType(Enum):
    """What kind of file a model is, as MindSpore Lite's scripts say it.

    The reader goes by the file's content: an ONNX file is read as such under either name.
    """

    MINDIR = 0
    MINDIR_LITE = 4


new = object.__new__

_NOT_BUILT = "the model is not built; call build_from_file first"
_CLOSED = "the model is closed; build a new one"
_BUILDING = "the model is being built; wait until build_from_file has returned"
_FORKED = (
    "this process was forked after the model was built, and runtimes do not survive that; "
    "build the model in this process, or start processes with 'spawn'"
)


class Model:
    """One trained model.

    Build it once, run it from any number of threads: each gets an execution context, input
    tensors and results of its own, and they run in parallel. What predict returns is new memory,
    and nothing changes it afterwards; memory is reused only where the caller passes `outputs`.

    A context manager: `close()` frees the model when the last running predict has ended.
    """

    def __init__(self) -> None:
        self.model_path_ = ""
        self.provider = ""
        self.lora_name_map: dict[str, str] = {}
        self._plan: Plan | None = None
        self._declared: Signature | None = None
        self._signature: Signature | None = None
        self._threads = threading.local()
        self._why_not = _NOT_BUILT
        # Reentrant, so that a progress callback that builds this model is refused, not stuck.
        self._building = threading.RLock()
        forks.watch(self)

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
        options; the dict wins. dec_key: for encrypted files. progress(phase, done, total) is
        called while a backend compiles; `cancel`, an engine.types.CancelToken, stops it: as soon as
        the backend can, at the latest when it has compiled.

        Raises TypeError for arguments of the wrong type; RuntimeError (ModelError) for a file
        that is missing or cannot be compiled, (BackendError) for a target that cannot be had,
        (ModelStateError) for a model that is built already; Cancelled.
        """
        from engine.config import Config, check_config, merged, read_config
        from engine.context import Context

        if not isinstance(model_path, str):
            raise TypeError(f"model_path must be str, but got {type(model_path)}.")
        if not isinstance(model_type, ModelType):
            raise TypeError(f"model_type must be ModelType, but got {type(model_type)}.")
        if context is None:
            context = Context()
        elif not isinstance(context, Context):
            raise TypeError(f"context must be Context, but got {type(context)}.")
        if not isinstance(config_path, str):
            raise TypeError(f"config_path must be str, but got {type(config_path)}.")
        if not os.path.exists(model_path):
            raise ModelError(
                f"build_from_file failed, model_path does not exist! got {model_path!r}", model_path
            )
        if config_path and not os.path.exists(config_path):
            raise ModelError(
                f"build_from_file failed, config_path does not exist! got {config_path!r}",
                model_path,
            )
        config: Config = read_config(config_path) if config_path else {}
        if config_dict:
            check_config(config_dict)
            config = merged(config, config_dict)
        if progress is not None and not callable(progress):
            raise TypeError(f"progress must be callable, but got {type(progress)}.")
        if cancel is not None and not hasattr(cancel, "cancelled"):
            raise TypeError(f"cancel must be a CancelToken, but got {type(cancel)}.")
        if dec_key:
            _check_decryption(dec_key, dec_mode, dec_num_parallel)
        self._build(model_path, context, config, progress, cancel)

    def _build(
        self,
        model_path: str,
        context: Context,
        config: Mapping[str, Mapping[str, str]],
        progress: Progress | None,
        cancel: CancelToken | None,
    ) -> None:
        from engine.formats import open_source
        from engine.plan import Signature, build_plan

        with self._building:
            if self._why_not is not _NOT_BUILT:
                state = self._why_not or "the model is already built; make another Model"
                raise ModelStateError(f"build_from_file failed! Error is {state}")
            self._why_not = _BUILDING
            try:
                plan = build_plan(
                    lambda suffixes: open_source(model_path, suffixes),
                    context,
                    config,
                    progress,
                    cancel,
                )
            except ModelError as error:
                if str(error).startswith("build_from_file failed"):
                    raise
                raise ModelError(
                    f"build_from_file failed! Error is {error}", error.path or model_path
                ) from error
            finally:
                self._why_not = _NOT_BUILT
            self._declared = self._signature = Signature(
                plan.executable.inputs, plan.executable.outputs
            )
            self._plan = plan
            self._why_not = ""
            self.model_path_ = model_path
            self.provider = plan.backend.name

    # ---------------------------------------------------------------------------------- running

    def predict(
        self,
        inputs: Sequence[Tensor | Array] | Mapping[str, Tensor | Array],
        outputs: list[Tensor] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[Tensor]:
        """Run the model once; returns one Tensor an output, in the model's order.

        inputs: Tensors or numpy arrays in the model's order, or a dict by input name; dtypes as
        declared, shapes as declared or last resized. Not modified, not kept.
        outputs: None, or one Tensor an output to fill and return. Their memory is reused, so
        results of earlier calls with the same tensors change; a Tensor without data gets new
        memory. Do not reshape or retype an array that is in use so; give the tensor another.
        timeout_s: stop a run that takes longer, in seconds, with DeadlineExceeded.

        Raises TypeError for elements of another type, RuntimeError and ValueError (InputError)
        where count, names, dtypes or shapes do not fit, RuntimeError (ModelError) where the
        model fails on this data, (ModelStateError) before building or after closing.
        """
        try:
            lane = self._threads.lane
        except AttributeError:
            lane = None
        if lane is None or lane.busy:
            # Busy: a signal handler or finalizer that predicts in the middle of a predict.
            lane = self._open_lane()
        lane.busy = True
        try:
            if outputs is not None:
                return self._fill(lane, inputs, outputs, timeout_s)
            arrays = lane.take(inputs)
            deadline_s = None if timeout_s is None else lane.deadline(timeout_s)
            try:
                results = lane.run(lane.context, arrays, None, deadline_s)
                if len(results) != len(lane.descriptions):
                    raise _miscounted(results, lane)
            except Exception as error:
                self._failed(error, lane)
            tensors = []
            for array, description in zip(results, lane.descriptions):
                tensor = new(Tensor)
                tensor._array = array
                tensor._description = description
                tensors.append(tensor)
            return tensors
        finally:
            lane.busy = False

    def __call__(self, /, *arrays: Any, **by_name: Any) -> dict[str, Array]:
        """Run the model on arrays by input name, or by place; returns its outputs by name.

        >>> outputs = model(x=array)  # doctest: +SKIP
        """
        if arrays and by_name:
            raise TypeError("pass all inputs by place or all by name, not both")
        results = self.predict(arrays or by_name)
        return {tensor._description.name: tensor.get_data_to_numpy() for tensor in results}

    def _fill(
        self, lane: Lane, inputs: Any, outputs: list[Tensor], timeout_s: float | None
    ) -> list[Tensor]:
        """Predict into the caller's tensors."""
        arrays = lane.arrays
        if not lane.still_bound(inputs):
            arrays = lane.take(inputs)
        buffers = lane.buffers
        if arrays is not lane.arrays or not same_buffers(outputs, buffers):
            buffers = buffers_of(outputs)
            lane.signature.check_buffers(buffers, arrays)
            lane.bind(arrays, buffers)
        deadline_s = None if timeout_s is None else lane.deadline(timeout_s)
        try:
            results = lane.run(lane.context, arrays, buffers, deadline_s)
            if len(results) != len(buffers):
                raise _miscounted(results, lane)
        except BaseException as error:
            lane.bind([], [])
            if isinstance(error, Exception):
                self._failed(error, lane)
            raise
        given: Any = results
        if given is not buffers:
            for tensor, result in zip(outputs, given, strict=True):
                tensor._array = result
            lane.bind([], [])
        return outputs

    def _failed(self, error: Exception, lane: Lane) -> NoReturn:
        """Raise what a user sees when a backend's predict raised `error`."""
        if isinstance(error, ModelError):
            raise ModelError(f"predict failed! {error}", self.model_path_) from error
        if isinstance(error, EngineError):
            raise error
        backend = lane.plan.backend.name
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(
            f"predict failed! backend {backend!r} raised {text}", self.model_path_
        ) from error

    # ----------------------------------------------------------------------- inputs and outputs

    def get_inputs(self) -> list[Tensor]:
        """The calling thread's own input tensors: the same objects in every call.

        Give them data with set_data_from_numpy and pass them to predict. Open axes are -1.
        Empty, with a logged error, before the model is built.
        """
        return list(self._lane().inputs) if self._is_built() else []

    def get_outputs(self) -> tuple[TensorMeta, ...]:
        """Descriptions of the outputs; open axes are -1. Empty before the model is built."""
        if not self._is_built():
            return ()
        assert self._signature is not None
        return tuple(meta_for(spec) for spec in self._signature.outputs)

    def resize(self, inputs: Sequence[Tensor], dims: Sequence[Sequence[int]]) -> None:
        """Fix the inputs' shapes, for every thread, from its next call on.

        inputs: tensors from get_inputs, in order; they take the new shapes and lose their data.
        dims: one shape an input, every dim 1 or more.
        Raises TypeError for arguments of the wrong type, ValueError for counts that differ,
        RuntimeError (InputError) for shapes that the model does not allow.
        """
        _check_resize(inputs, dims)
        self._require_built()
        assert self._declared is not None
        if len(inputs) != len(self._declared.inputs):
            raise InputError(
                f"resize failed! Error is model input len:{len(self._declared.inputs)} not equal "
                f"input len:{len(inputs)}"
            )
        self._signature = self._declared.resized(dims)
        own = self._lane().inputs
        for tensors in (inputs, own):
            for tensor, shape in zip(tensors, dims, strict=True):
                tensor._array = None
                tensor._own_description().shape = tuple(int(dim) for dim in shape)
        # Every thread makes a new lane at its next call; a running predict keeps its old one.
        # This thread keeps its input tensors: scripts hold on to what get_inputs gave them.
        self._threads = threading.local()
        self._lane().inputs = own

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

    # ---------------------------------------------------------------------------------- threads

    def _lane(self) -> Lane:
        lane: Lane | None = getattr(self._threads, "lane", None)
        return lane if lane is not None else self._open_lane()

    def _open_lane(self) -> Lane:
        """What the calling thread runs in, made at its first call."""
        # Read in this order: a resize between the two lines leaves a lane that nobody finds.
        threads = self._threads
        plan, signature = self._plan, self._signature
        if plan is None or signature is None:
            raise ModelStateError(f"predict failed! {self._why_not}")
        lane = Lane(plan, signature)
        if not hasattr(threads, "lane"):
            threads.lane = lane
        return lane

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

    def abandon(self) -> None:
        """In a forked child: forget the model, and never free what belongs to the parent."""
        forks.never_free(self._plan, self._threads)
        if self._plan is not None:
            self._why_not = _FORKED
        elif self._why_not is _BUILDING:
            self._why_not = _NOT_BUILT
        self._plan = None
        self._threads = threading.local()
        self._building = threading.RLock()


def _miscounted(results: Any, lane: Lane) -> TypeError:
    return TypeError(f"engine_predict gave {len(results)} values for {len(lane.descriptions)}")


def _check_decryption(dec_key: object, dec_mode: object, dec_num_parallel: object) -> None:
    if not isinstance(dec_key, bytes):
        raise TypeError(f"dec_key must be bytes, but got {type(dec_key)}.")
    if not isinstance(dec_mode, str):
        raise TypeError(f"dec_mode must be str, but got {type(dec_mode)}.")
    if not isinstance(dec_num_parallel, int):
        raise TypeError(f"dec_num_parallel must be int, but got {type(dec_num_parallel)}.")
    if not dec_mode:
        raise ValueError("dec_mode must not be empty string!")
    raise ModelError(
        "build_from_file failed! Error is dec_key was given, but only MindIR files can be "
        "encrypted, and this version reads ONNX; leave dec_key out"
    )


def _check_resize(inputs: object, dims: object) -> None:
    if not isinstance(inputs, list | tuple):
        raise TypeError(f"inputs must be list or tuple of Lite Tensor, but got {type(inputs)}.")
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"inputs element must be Tensor, but got {type(tensor)} at index {index}."
            )
    if not isinstance(dims, list | tuple):
        raise TypeError(f"dims must be list or tuple of shape, but got {type(dims)}.")
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
