"""A TensorRT engine in memory: the compiled model, shared by every context that runs it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

from engine.errors import BackendUnavailable, ModelError
from engine.types import DType, ShapeRange, TensorSpec
from engine_gpu_trt import dtypes, messages
from engine_gpu_trt.cuda import Gpu
from engine_gpu_trt.profiles import bounded

if TYPE_CHECKING:
    from engine_gpu_trt.turns import Turns


Key: TypeAlias = tuple[str, int, str]
"""Provider, device and digest of a plan."""

_loaded: WeakValueDictionary[Key, Loaded] = WeakValueDictionary()
_loading = threading.Lock()


class OpenContext(Protocol):
    """A context of an engine, for what changes or closes the engine. device_bytes: its memory."""

    @property
    def device_bytes(self) -> int:
        """See the class."""

    def settle(self) -> None:
        """Wait for the end of what it has queued."""

    def forget_recording(self) -> None:
        """Drop its recorded executions, which have the weights' addresses."""

    def close(self) -> None:
        """Free it."""


class Loaded:
    """An ICudaEngine and the runtime it lives in: one copy of the weights.

    users: how many executables run it.
    """

    def __init__(self, runtime: Any, engine: Any) -> None:
        self.runtime = runtime
        self.engine = engine
        self.users = 0


class Engine:
    """An ICudaEngine for one executable.

    Here and in `run.py` no local variable of a function that may raise names an object of
    TensorRT's: the error's traceback would keep it until long after its CUDA context was current.

    runs: the contexts that are open, by id. They are closed before the engine is.
    """

    def __init__(self, gpu: Gpu, trt: Any, loaded: Loaded) -> None:
        self.gpu = gpu
        self.trt = trt
        self._loaded: Loaded | None = loaded
        loaded.users += 1
        self.engine: Any = loaded.engine
        engine = loaded.engine
        self.runs: dict[int, OpenContext] = {}
        self.turns: Turns | None = None  # what predicts take where weights may be exchanged
        self.broken = ""  # why it runs no more: an update of its weights that failed half-way
        tensors = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        is_input = {
            name: engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in tensors
        }
        self.inputs = tuple(name for name in tensors if is_input[name])
        self.outputs = tuple(name for name in tensors if not is_input[name])
        # The shapes it was compiled for: one entry a profile, by the engine's input names.
        self.profiles = [
            {name: ShapeRange(*map(tuple, self._profile_shape(name, i))) for name in self.inputs}
            for i in range(engine.num_optimization_profiles)
        ]
        self.weights_bytes = max(0, int(engine.get_engine_stat(trt.EngineStat.TOTAL_WEIGHTS_SIZE)))

    def _profile_shape(self, name: str, index: int) -> Sequence[Sequence[int]]:
        shape = tuple(self.engine.get_tensor_shape(name))
        if -1 not in shape:
            return (shape,) * 3
        ends: Sequence[Sequence[int]] = self.engine.get_tensor_profile_shape(name, index)
        return ends

    def offer(self, digest: str) -> None:
        """Let those who load a plan of this digest have this engine."""
        with _loading:
            if self._loaded is not None:
                _loaded.setdefault((self.trt.__name__, self.gpu.id, digest), self._loaded)

    @property
    def is_shared(self) -> bool:
        """Another executable runs it too."""
        return self._loaded is not None and self._loaded.users > 1

    def close(self) -> None:
        """Free the contexts that are still open, then the engine unless others run it."""
        for run in list(self.runs.values()):
            run.close()
        with self.gpu, _loading:
            loaded, self._loaded, self.engine = self._loaded, None, None
            if loaded is not None:
                loaded.users -= 1
            del loaded  # here, where its context is current


def deserialize(
    gpu: Gpu,
    trt: Any,
    plan: Any,
    name: str,
    path: str = "",
    hint: str = "",
    digest: str = "",
) -> Engine:
    """Load the engine of a plan's bytes. name: what messages call it. hint: a possible reason.

    digest: of the plan; one that is loaded on the device already is not loaded again. "" loads it
    anew, as for weights that may be exchanged.

    Raises ModelError for a plan that is damaged or made by another version or for another
    device, BackendUnavailable where the device is short of memory.
    """
    key = (trt.__name__, gpu.id, digest)
    if digest:
        with gpu, _loading:
            loaded = _loaded.get(key)
            if loaded is not None:
                return Engine(gpu, trt, loaded)
    mark = messages.mark()
    with gpu:
        try:
            runtime = trt.Runtime(messages.logger(trt))
        except (RuntimeError, TypeError) as error:
            raise BackendUnavailable(
                f"TensorRT's runtime does not start: {messages.tidy(str(error))}; "
                "run: engine plugins",
                "gpu_trt",
            ) from error
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is not None:
            loaded = Loaded(runtime, engine)
            if digest:
                _loaded[key] = loaded
            return Engine(gpu, trt, loaded)
        del runtime  # here, and not with the error's traceback, where no context is current
        heard = messages.since(mark)
        if heard.out_of_memory:
            raise BackendUnavailable(
                f"{gpu.name}: out of memory while loading {name}: "
                f"{gpu.shortage('room for its weights')}; TensorRT says: {heard}",
                "gpu_trt",
            )
        raise ModelError(
            f"{name}: TensorRT {trt.__version__} cannot load this engine on {gpu.name}: {heard}"
            f"{hint}",
            path,
        )


def describe(
    engine: Engine, name: str
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], Mapping[str, str]]:
    """Return inputs, outputs and the engine's input names by the model's, of an engine alone.

    Raises ModelError naming what goes in or out and cannot.
    """
    names = {_original(name, engine.outputs): name for name in engine.inputs}
    inputs = []
    with engine.gpu:
        for ours, theirs in names.items():
            spec = _spec(engine, theirs, ours, name)
            if engine.engine.is_shape_inference_io(theirs):
                raise ModelError(
                    f"{name}: input {ours!r} decides a shape, which this backend cannot do yet"
                )
            inputs.append(bounded(spec, [profile[theirs] for profile in engine.profiles]))
        outputs = tuple(_spec(engine, output, output, name) for output in engine.outputs)
    return tuple(inputs), outputs, names


def _original(name: str, outputs: Sequence[str]) -> str:
    """Return the model's name of an input: the parser renames one that is an output too."""
    return name[2:] if name.startswith("__") and name[2:] in outputs else name


def _spec(engine: Engine, name: str, original: str, file: str) -> TensorSpec:
    dtype = engine.engine.get_tensor_dtype(name)
    try:
        ours: DType = dtypes.from_tensorrt(engine.trt, dtype)
    except KeyError:
        raise ModelError(f"{file}: {original!r} is of TensorRT's type {dtype}, which cannot go in "
                         "or out") from None  # fmt: skip
    shape = tuple(engine.engine.get_tensor_shape(name))
    return TensorSpec(original, ours, tuple(None if dim == -1 else dim for dim in shape))
