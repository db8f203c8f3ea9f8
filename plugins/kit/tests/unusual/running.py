"""Runtimes that compute, compile, run or stop in another way than most."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from faulty import Context, Faulty

from engine.types import Capability, Devices

_WIDER: dict[Any, Any] = {np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}
HEAVY_NODES = 50


def _nodes(context: Context) -> list[str]:
    return [node.op_type for node in context.inner._executable.inner._nodes]


class FusesMultiplyAdd(Faulty):
    """Rounds once for a product and the sum that it goes into, as fused instructions do."""

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        evaluator = executable.inner.inner.evaluator
        if {node.op_type for node in loaded.graph.nodes} <= {"Mul", "Add"}:
            evaluator.rt_inits_ = {
                name: _widened(value) for name, value in evaluator.rt_inits_.items()
            }
            executable.notes["is_fused"] = True
        return executable

    def predict(self, context, inputs, outputs, deadline_s):
        if context.executable.notes.get("is_fused"):
            inputs = [_widened(x) if isinstance(x, np.ndarray) else x for x in inputs]
        return super().predict(context, inputs, outputs, deadline_s)

    def manifest(self):
        info = super().manifest()  # what is done with weights or values of other types is not here
        others = {
            Capability.SHARE_WEIGHTS, Capability.UPDATE_WEIGHTS, Capability.DEVICE_BUFFERS,
            Capability.COLLECTIVES, Capability.QUEUED_COLLECTIVES, Capability.ASYNC_PREDICT,
        }  # fmt: skip
        return replace(info, capabilities=info.capabilities - others)


def _widened(array: Any) -> Any:
    return array.astype(_WIDER[array.dtype]) if array.dtype in _WIDER else array


class CompilesAtTheFirstPredict(Faulty):
    """For the shapes that it meets there, with progress, and stopped by the token of the build."""

    def compile(self, loaded, options):
        if options.cancel is not None:
            options.cancel.check()
        executable = super().compile(loaded, replace(options, progress=None, cancel=None))
        executable.notes.update(options=options, shapes=set(), lock=threading.Lock())
        return executable

    def predict(self, context, inputs, outputs, deadline_s):
        notes = context.executable.notes
        shapes = tuple(np.shape(x) for x in inputs if isinstance(x, np.ndarray))
        with notes["lock"]:
            if shapes not in notes["shapes"]:
                self._specialise(notes["options"], len(_nodes(context)))
                notes["shapes"].add(shapes)
        return super().predict(context, inputs, outputs, deadline_s)

    def _specialise(self, options: Any, nodes: int) -> None:
        for node in range(nodes):
            if options.cancel is not None:
                options.cancel.check()
            if options.progress is not None:
                options.progress("specialise", node, nodes)
            if nodes > HEAVY_NODES:
                end_s = time.thread_time() + 0.02
                while time.thread_time() < end_s:
                    pass


class HasOnePool(Faulty):
    """One pool for the process, whose threads take predicts in turn: one thread for each."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.pool = ThreadPoolExecutor(4)  # its threads start with the first predicts

    def predict(self, context, inputs, outputs, deadline_s):
        run = super().predict
        return self.pool.submit(run, context, inputs, outputs, deadline_s).result()


class CannotStop(Faulty):
    """Announces what other versions of its runtime do, and says that this one does not."""

    LACKS = dict.fromkeys(
        (Capability.DEADLINES, Capability.CANCEL_COMPILE, Capability.CANCEL_PREDICT),
        "runtime 1.0 ends what it has begun; 2.0 can be stopped",
    )

    def devices(self):
        return Devices(tuple(replace(info, lacks=self.LACKS) for info in super().devices().found))

    def compile(self, loaded, options):
        return super().compile(loaded, replace(options, cancel=None))

    def predict(self, context, inputs, outputs, deadline_s):
        return super().predict(context, inputs, outputs, None)

    def cancel(self, context):
        raise AssertionError("the core cancels a context that cannot be cancelled")
