"""The null backend's executable and context: the reference evaluator, and a fake device's memory.

Imported when the first model is loaded. The evaluator computes on the host when predict is called;
what it finds goes to the device in the order of the context's stream, as a real device's would.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import CompiledFormError, InputError, ModelError
from engine.reference.evaluator import EvaluatorContext, EvaluatorExecutable, EvaluatorModel
from engine.types import (
    CancelToken,
    CompileOptions,
    Device,
    DeviceBuffer,
    Done,
    DType,
    KernelTime,
    MemoryReport,
    ModelSource,
    NodeGroups,
    Placement,
    PredictOptions,
    Progress,
    TensorSpec,
    Value,
    Values,
)
from engine_testing.fake_device import FakeDevice
from engine_testing.fake_queue import QueuedRun

WORKSPACE_BYTES = 4096
_MODEL, _DIGEST = "model.onnx", "digest"

# ---------------------------------------------------------------------------------- compiled form


def write_compiled(folder: Path, loaded: EvaluatorModel) -> None:
    """Write the model with its weights inside, and a digest to tell a damaged file by."""
    assert loaded.proto is not None
    data = loaded.proto.SerializeToString()
    (folder / _MODEL).write_bytes(data)
    (folder / _DIGEST).write_text(hashlib.sha256(data).hexdigest())


def read_compiled(source: ModelSource) -> ModelSource:
    """Return the source with what was written in place of its own contents.

    Raises CompiledFormError where that is missing or damaged.
    """
    assert source.compiled is not None
    try:
        data = (source.compiled / _MODEL).read_bytes()
        digest = (source.compiled / _DIGEST).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CompiledFormError(f"{source.compiled}: unreadable: {error}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise CompiledFormError(f"{source.compiled}: {_MODEL} is not what was written there")
    return replace(source, data=data, folder=None, files={})


# ----------------------------------------------------------------------------------------- groups


def with_groups(loaded: EvaluatorModel, together: str, least_nodes: int) -> EvaluatorModel:
    """Give a loaded model its groups: one, of the nodes of these operators that run here."""
    operators = {name.strip() for name in together.split(",")}
    group = frozenset(
        node.index
        for node in loaded.graph.nodes
        if node.op_type in operators and node.index not in loaded.unsupported
    )
    given: Any = loaded  # the evaluator's own model has none
    given.groups = NodeGroups(together=(group,) if group else (), least_nodes=least_nodes)
    return loaded


# ------------------------------------------------------------------------------------- executable


class NullExecutable:
    """The weights and the graph; the device that its contexts put values on."""

    def __init__(
        self,
        inner: EvaluatorExecutable,
        device: FakeDevice,
        options: CompileOptions,
        concurrency: int,
    ) -> None:
        self.inner = inner
        self.inputs = inner.inputs
        self.outputs = inner.outputs
        self.concurrency = concurrency
        self.resident = options.resident
        self.device = device
        self.contexts: set[NullContext] = set()  # those that are open
        assert inner.evaluator is not None
        self._as_loaded: Mapping[str, Any] = inner.evaluator.rt_inits_
        self._updating = threading.Lock()

    def open_context(self, beside: NullContext | None = None) -> NullContext:
        """Open a context: with a stream and scratch memory of its own, or those of another."""
        return NullContext(self, self.inner.open_context(), beside)

    def placement(self) -> Sequence[Placement]:
        """Everything runs in the one place that there is."""
        return self.inner.placement()

    def profile(self) -> Sequence[KernelTime]:
        """The evaluator's times; the device costs none."""
        return self.inner.profile()

    def memory(self) -> MemoryReport:
        """The weights as the file stores them; the scratch memory of open contexts."""
        shared = {context.workspace for context in list(self.contexts)}
        workspace = sum(buffer.nbytes for buffer in shared if buffer is not None)
        return replace(self.inner.memory(), workspace_bytes=workspace)

    def prepare(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        progress: Progress | None,
        cancel: CancelToken | None,
    ) -> None:
        """See Executable. The evaluator specialises nothing: the shapes are checked."""
        sizes: dict[str, int] = {}
        for at, spec in enumerate(self.inputs):
            if cancel is not None:
                cancel.check()
            shape = shapes[spec.name]
            dims = spec.shape or shape
            fits = len(dims) == len(shape) and all(
                dim in (None, size)
                if not isinstance(dim, str)
                else sizes.setdefault(dim, size) == size
                for dim, size in zip(dims, shape, strict=True)
            )
            if not fits:
                raise ModelError(f"prepare: expected {spec}, got {list(shape)}; give that shape")
            if progress is not None:
                progress("prepare", at + 1, len(self.inputs))

    def update(self, weights: Mapping[str, Value], additive: bool) -> None:
        """See engine_update_weights: one new dict, which every later predict reads once."""
        evaluator = self.inner.evaluator
        assert evaluator is not None, "update after close"
        with self._updating:
            current = evaluator.rt_inits_
            changed = {}
            for name, value in weights.items():
                old, new = self._as_loaded.get(name), self.device.read(value)
                if old is None or (old.dtype, old.shape) != (new.dtype, new.shape):
                    expected = "no weight" if old is None else f"{old.dtype}{list(old.shape)}"
                    raise InputError(
                        f"weight {name!r}: expected {expected}, got {new.dtype}{list(new.shape)}",
                        name,
                    )
                with np.errstate(over="ignore", invalid="ignore"):  # as any sum on a device
                    changed[name] = old + new if additive else new.copy()
            evaluator.rt_inits_ = {**current, **changed}

    def close(self) -> None:
        """Free the weights."""
        self.inner.close()
        self._as_loaded = {}


class NullContext:
    """A stream, scratch memory, and the outputs that stay on the device."""

    def __init__(
        self, executable: NullExecutable, inner: EvaluatorContext, beside: NullContext | None
    ) -> None:
        device = executable.device
        self._executable: NullExecutable | None = executable
        self._inner = inner
        self._device = device
        self._is_guest = beside is not None
        if beside is None:
            self.stream = device.open_stream()
            self.workspace: DeviceBuffer | None = device.allocate(DType.UINT8, (WORKSPACE_BYTES,))
        else:
            self.stream, self.workspace = beside.stream, beside.workspace
        executable.contexts.add(self)
        self._resident: dict[str, DeviceBuffer] = {}
        self._queued: QueuedRun | None = None
        self._is_cancelled = False
        self.told: PredictOptions | None = None  # of the latest predict

    def run(
        self,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
        delay_s: float | None = None,
    ) -> Values:
        """Run the model once; engine_predict says how. delay_s: the option's unless it is given."""
        executable = self._executable
        assert executable is not None, "predict after close"
        given: list[Any] = [None] * len(executable.outputs) if outputs is None else [*outputs]
        results = self._inner.run(
            [self._on_host(value) for value in inputs],
            [value if isinstance(value, np.ndarray) else None for value in given],
            deadline_s,
            delay_s,
        )
        values = [
            self._placed(result, spec, wanted)
            for result, spec, wanted in zip(results, executable.outputs, given, strict=True)
        ]
        is_filled = all(isinstance(value, np.ndarray | DeviceBuffer) for value in given)
        return outputs if outputs is not None and is_filled else values

    def begin(
        self, inputs: Values, outputs: Values | None, deadline_s: float | None, done: Done
    ) -> None:
        """Queue the model for the device; engine_predict_async says how."""
        executable = self._executable
        assert executable is not None, "predict after close"
        due_s = time.monotonic() + executable.inner.host.delay_s
        run = partial(self.run, inputs, outputs, deadline_s, delay_s=0.0)
        priority = 0 if self.told is None else self.told.priority
        self._queued = queued = QueuedRun(run, done, due_s, deadline_s, priority)
        if self._is_cancelled:  # before it began
            queued.hurry()
        queued.queue()

    def cancel(self) -> None:
        """Stop the predict that runs; the flag is never taken back, as the core closes this."""
        self._is_cancelled = True
        self._inner.cancel()
        queued = self._queued
        if queued is not None:
            queued.hurry()

    def _on_host(self, value: Value) -> Value:
        if not isinstance(value, DeviceBuffer):
            return value
        self._device.synchronise(value.stream)
        return self._device.read(value)

    def _placed(self, result: Value, spec: TensorSpec, wanted: Any) -> Value:
        """Put a result where the caller wants it: a buffer, its device, or the host."""
        device = self._device
        assert self._executable is not None
        stays = wanted is None and spec.name in self._executable.resident
        if not stays and not isinstance(wanted, DeviceBuffer | Device):
            return result
        if not isinstance(result, np.ndarray) or spec.dtype is DType.STRING:
            raise InputError(
                f"output {spec.name!r}: expected a host array, got a device: {spec.kind}s of "
                f"{spec.dtype} are on the host only", spec.name,
            )  # fmt: skip
        if isinstance(wanted, DeviceBuffer):
            if wanted.shape != result.shape:
                raise InputError(
                    f"output {spec.name!r}: expected a buffer of shape {list(result.shape)}, "
                    f"got {list(wanted.shape)}",
                    spec.name,
                )
            target = wanted  # returned itself, so its own stream says when it is complete
        else:
            kept = self._resident.get(spec.name) if stays else None
            if kept is None or kept.shape != result.shape:
                kept = device.allocate(spec.dtype, result.shape, self.stream)
            if stays:
                self._resident[spec.name] = kept
            target = kept
        if target.stream is None:
            device.write(target, result)
        else:
            device.queue(target.stream, lambda: device.write(target, result))
        return target

    def close(self) -> None:
        """Run what is queued, and free the stream unless it is another context's."""
        executable, self._executable = self._executable, None
        if executable is None:
            return
        self._inner.close()
        self._resident.clear()
        if self._is_guest:
            self._device.synchronise(self.stream)
        else:
            self._device.close_stream(self.stream)
        self.workspace = None
        executable.contexts.discard(self)
