"""An executable: weights on a device, and a compiled program for each set of shapes that came."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from engine import types
from engine.errors import BackendUnavailable, InputError, ModelError, one_line
from engine.types import CompileOptions, Device, DeviceBuffer, TensorSpec, Values
from engine_jax import forms, memory
from engine_jax.model import JaxModel
from engine_jax.runtime import compiler_options

Shapes = tuple[tuple[int, ...], ...]


class JaxExecutable:
    """An Executable: any thread may use it."""

    def __init__(self, model: JaxModel, options: CompileOptions, kept: int) -> None:
        devices = {each.id: each for each in jax.local_devices()}
        self.devices = options.devices or (options.device,)
        if options.device.type != "jax" or options.device.id not in devices:
            raise BackendUnavailable(f"device {options.device} is not among {[*devices]}", "jax")
        model.refuse()
        self.model, self.inputs, self.outputs = model, model.inputs, model.outputs
        self.device, self.resident = options.device, options.resident
        mesh = Mesh([devices[each.id] for each in self.devices], ("batch",))
        self._whole, self._rows = (NamedSharding(mesh, PartitionSpec(*x)) for x in ((), ("batch",)))
        self._settings, self._compiling = compiler_options(options), threading.Lock()
        self._stored: dict[Shapes, tuple[Any, list[str]]] = {}
        self._program = lru_cache(kept)(self._compiled)
        with tracing(model.source.name):
            arrays = list(model.weights.values())
            self.weights = jax.device_put(arrays, self._whole, may_alias=False)
        shapes = _fixed(self.inputs, options)
        if shapes is not None and model.source.compiled is not None:
            self._stored[shapes] = forms.read(model.source.compiled)
        elif shapes is not None:  # others are compiled when they come
            program = self.program(shapes)
            if options.save_to is not None and not model.source.is_secret:
                forms.write(options.save_to, program)

    def program(self, shapes: Shapes) -> tuple[Any, list[str]]:
        """Return the code for these shapes of the inputs, and what its checks say."""
        with self._compiling:
            return self._program(shapes)

    def prepare(self, shapes: Mapping[str, Any], progress: Any, cancel: Any) -> None:
        """Compile for these shapes now; nothing stops XLA on its way."""
        if cancel is not None:
            cancel.check()
        self.program(tuple(shapes[spec.name] for spec in self.inputs))

    def _compiled(self, shapes: Shapes) -> tuple[Any, list[str]]:
        if shapes in self._stored:
            return self._stored[shapes]
        messages: list[str] = []

        def run(inputs: list[Any], weights: list[Any]) -> tuple[list[Any], Any]:
            faults: list[tuple[Any, str]] = []
            results = self.model.trace(inputs, weights, lambda *fault: faults.append(fault))
            messages[:] = [text for _, text in faults]
            return results, jnp.array([flag for flag, _ in faults], bool)

        specs = [
            jax.ShapeDtypeStruct(shape, spec.dtype.numpy, sharding=self._placed(shape))
            for shape, spec in zip(shapes, self.inputs)
        ]
        with tracing(self.model.source.name):
            lowered = jax.jit(run).lower(specs, self.weights)
            return lowered.compile(compiler_options=self._settings), messages

    def _placed(self, shape: tuple[int, ...]) -> Any:
        """Return where an input lies: rows on each device, which XLA exchanges where they meet."""
        return self._rows if shape and shape[0] % len(self.devices) == 0 else self._whole

    def open_context(self) -> JaxContext:
        """Open a context, which is no more than the way here: XLA keeps none."""
        return JaxContext(self)

    def placement(self) -> Sequence[types.Placement]:
        """All nodes are one program; those that do not depend on data are computed with it."""
        assert self.model.source.graph is not None
        return [
            types.Placement(
                index=node.index, node=node.name, op_type=node.op_type, backend="jax",
                device=",".join(map(str, self.devices)), provider="xla", reason="one program",
                state=types.NodeState.FOLDED if step.is_known else types.NodeState.RUNS,
            )
            for node, step in zip(self.model.source.graph.nodes, self.model.body.steps)
        ]  # fmt: skip

    def memory(self) -> types.MemoryReport:
        """Only the weights: XLA does not say what a program holds."""
        [report, *_] = self.memory_by_device().values()
        return types.MemoryReport(weights_bytes=report.weights_bytes * len(self.devices))

    def memory_by_device(self) -> Mapping[Device, types.MemoryReport]:
        """Each device has all weights."""
        held = (*self.weights, *self.model.small.values())
        report = types.MemoryReport(weights_bytes=sum(weight.nbytes for weight in held))
        return dict.fromkeys(self.devices, report)

    def close(self) -> None:
        """Free the weights and the code."""
        self._program.cache_clear()
        self._stored.clear()
        self.weights = []


class JaxContext:
    """An ExecutionContext."""

    def __init__(self, executable: JaxExecutable) -> None:
        self._executable: JaxExecutable | None = executable

    def run(self, inputs: Values, outputs: Values | None) -> Values:
        """Run once; results on the device are XLA's own memory, others are copies."""
        executable = self._executable
        assert executable is not None, "predict after close"
        arrays = [memory.view(value) for value in inputs]
        program, messages = executable.program(tuple(array.shape for array in arrays))
        with tracing(executable.model.source.name):
            results, refused = program(arrays, executable.weights)
            jax.block_until_ready(results)
            for at in np.flatnonzero(refused):
                raise ModelError(messages[at])
        wanted = [None] * len(results) if outputs is None else outputs
        values = [self._put(*each) for each in zip(executable.outputs, results, wanted)]
        is_filled = all(isinstance(each, np.ndarray | DeviceBuffer) for each in wanted)
        return outputs if outputs is not None and is_filled else values

    def _put(self, spec: TensorSpec, result: Any, wanted: Any) -> Any:
        """Put a result where the caller wants it."""
        assert self._executable is not None
        stays = wanted is None and spec.name in self._executable.resident
        if stays or isinstance(wanted, Device):
            return memory.buffer(result, self._executable.device)
        if wanted is None:
            return np.array(result, order="C")
        if wanted.shape != result.shape:
            problem = f"expected a buffer of shape {[*result.shape]}, got {[*wanted.shape]}"
            raise InputError(f"output {spec.name!r}: {problem}", spec.name)
        np.copyto(memory.view(wanted), result)
        return wanted

    def close(self) -> None:
        """Let go of the executable."""
        self._executable = None


def _fixed(inputs: Sequence[TensorSpec], options: CompileOptions) -> Shapes | None:
    """Return the shapes of the inputs where there is one for each, else None."""
    found = []
    for spec in inputs:
        asked = options.shapes.get(spec.name)
        shape = asked.lowest if asked is not None and asked.lowest == asked.highest else spec.shape
        if shape is None or not all(isinstance(dim, int) and dim >= 0 for dim in shape):
            return None
        found.append(tuple(shape))
    return tuple(found)


@contextmanager
def tracing(name: str) -> Iterator[None]:
    """Let this thread use 64-bit types and full products; turn errors into the contract's."""
    try:
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            yield
    except Exception as error:
        kind = BackendUnavailable if "RESOURCE_EXHAUSTED" in str(error) else ModelError
        text = str(error) if isinstance(error, ModelError) else one_line(error)
        raise kind(f"{name}: {text}") from error
