"""Weights of a plan that may be exchanged while it runs.

A declared weight is an input of the graph (`variables` of the source), and its value is the core's.
A predict reads the values once, as one tuple, so an update is atomic for all of it: over segments,
contexts and threads alike. A backend never sees that a weight has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.errors import InputError, ModelError
from engine.formats.opened import variables_of
from engine.options import nearest
from engine.plan.compile import Opener, Plan
from engine.plan.contexts import ContextPool
from engine.plan.partition import reachable
from engine.plan.segments import SegmentedExecutable
from engine.plan.transfer import Transfer, takes_buffers
from engine.types import (
    Device,
    DeviceBuffer,
    ExecutionContext,
    MemoryReport,
    ModelSource,
    Placement,
    TensorSpec,
    Value,
    Values,
)

_HAVE_BODIES = frozenset(("If", "Loop", "Scan", "SequenceMap"))


class PlanWeights:
    """The present values of a plan's variable weights. Any thread may call any method.

    specs: name, dtype and shape of each, in the order of the graph's inputs. homes: the device
    where each is read, None for the host.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        initial: Sequence[np.ndarray[Any, Any]],
        homes: Sequence[Device | None],
        transfer: Transfer,
    ) -> None:
        self.specs = tuple(specs)
        self._homes = tuple(homes)
        self._transfer = transfer
        self._numbers = {spec.name: number for number, spec in enumerate(specs)}
        self._turn = threading.Lock()  # of updates; predicts take none
        self.values: tuple[Value, ...] = tuple(
            self._at_home(array, number) for number, array in enumerate(initial)
        )

    def update(self, weights: Mapping[str, Value]) -> None:
        """Exchange weights, for every predict that begins after this returns.

        weights: new values by name, arrays or DeviceBuffers; copied. Predicts that run keep the
            old ones to their end.
        Raises InputError naming the weight that is unknown or does not fit; nothing changed then.
        """
        for name, value in weights.items():
            self._check(name, value)
        # Copied to the devices before the exchange: what follows it cannot fail.
        arrived = {
            self._numbers[name]: self._at_home(value, self._numbers[name])
            for name, value in weights.items()
        }
        with self._turn:
            self.values = tuple(
                arrived.get(number, value) for number, value in enumerate(self.values)
            )

    def _check(self, name: str, value: Value) -> None:
        number = self._numbers.get(name)
        if number is None:
            near = nearest(name, self._numbers)
            hint = f"did you mean {near!r}? " if near else ""
            raise InputError(
                f"weight {name!r} was not declared variable; {hint}declared: "
                f"{', '.join(map(repr, self._numbers))}",
                name,
            )
        spec = self.specs[number]
        if isinstance(value, DeviceBuffer):
            got = f"{value.dtype}{list(value.shape)}"
            fits = (value.dtype, value.shape) == (spec.dtype, spec.shape)
        elif isinstance(value, np.ndarray):
            got = f"{value.dtype}{list(value.shape)}"
            fits = value.dtype == spec.dtype.numpy and value.shape == spec.shape
        else:
            got, fits = type(value).__name__, False
        if not fits:
            raise InputError(f"weight {name!r}: expected {spec}, got {got}", name)

    def _at_home(self, value: Value, number: int) -> Value:
        """Return a copy of a weight where it is read."""
        home = self._homes[number]
        if home is not None:
            if isinstance(value, np.ndarray):
                value = np.ascontiguousarray(value)
            return self._transfer.to_device(value, home, self.specs[number].name)
        if isinstance(value, DeviceBuffer):
            return self._transfer.to_host(value)
        return np.array(value, order="C")


def with_weights(plan: Plan) -> Plan:
    """Return the plan without the inputs that are its variable weights; `weights` holds these."""
    slots = variables_of(plan.source)
    if not slots:
        return plan
    executable = plan.executable
    first = len(executable.inputs) - len(slots)
    specs = executable.inputs[first:]
    segmented = executable if isinstance(executable, SegmentedExecutable) else None
    transfer = segmented.transfer if segmented else Transfer([(plan.backend, plan.device)])
    homes = [_home(plan, segmented, first + number) for number in range(len(slots))]
    weights = PlanWeights(specs, [slot.initial for slot in slots], homes, transfer)
    weighted = WeightedExecutable(plan, weights)
    pool = ContextPool(Opener(plan.backend, weighted))
    return replace(plan, executable=weighted, predict=weighted.predict, pool=pool, weights=weights)


def _home(plan: Plan, segmented: SegmentedExecutable | None, number: int) -> Device | None:
    """Return the device on which all that read an input run, None where it is not one."""
    if segmented is None:
        return plan.device if takes_buffers(plan.backend, plan.device) else None
    devices = {
        segment.device if takes_buffers(segment.backend, segment.device) else None
        for segment in segmented.segments
        if number in segment.reads
    }
    return devices.pop() if len(devices) == 1 else None


class WeightedExecutable:
    """An executable whose last inputs are weights that the core holds."""

    def __init__(self, plan: Plan, weights: PlanWeights) -> None:
        self._inner = plan.executable
        self._run = plan.predict
        self._weights = weights
        self.concurrency: int = getattr(plan.executable, "concurrency", 0)
        self.inputs = plan.executable.inputs[: -len(weights.specs)]
        self.outputs = plan.executable.outputs

    def predict(
        self,
        context: ExecutionContext,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
    ) -> Values:
        """See engine_predict. The weights are those of one moment."""
        return self._run(context, [*inputs, *self._weights.values], outputs, deadline_s)

    def open_context(self) -> ExecutionContext:
        """See Executable."""
        return self._inner.open_context()

    def placement(self) -> Sequence[Placement]:
        """See Executable."""
        return self._inner.placement()

    def memory(self) -> MemoryReport:
        """Return the inner executable's memory and the weights that are held here."""
        report = self._inner.memory()
        held = sum(getattr(value, "nbytes", 0) for value in self._weights.values)
        return replace(report, weights_bytes=report.weights_bytes + held)

    def close(self) -> None:
        """See Executable."""
        self._inner.close()


def check_declared(source: ModelSource, names: Sequence[str]) -> None:
    """Raise InputError for a declared weight that is not there, ModelError for one without effect.

    names: what the user has declared; they may be a node's, whose weight has another name.
    """
    slots = variables_of(source)
    graph = source.graph
    if names and not slots:
        raise InputError(
            f"{source.name}: has no weights that can be exchanged, but {list(names)} were declared "
            "variable; declare weights of an ONNX or MindIR model",
            names[0],
        )
    if not slots or graph is None:
        return
    wanted = {slot.name for slot in slots}
    if any(node.op_type in _HAVE_BODIES for node in graph.nodes):
        from engine.plan.extract import Whole  # rare; bodies of nodes are not in the GraphInfo

        live = reachable(Whole(source).graph)
    else:
        from engine.plan.collectives import graph_of

        live = reachable(graph_of(graph))
    dead = sorted(wanted - live)
    if dead:
        raise ModelError(
            f"{source.name}: weight {dead[0]!r} was declared variable, but no output depends on "
            "it; leave it out of the declaration",
            source.name,
        )


__all__ = ["PlanWeights", "WeightedExecutable", "check_declared", "with_weights"]
