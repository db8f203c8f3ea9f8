"""The null backend with two devices, which run one executable together.

It is found as an entry point `null_mesh = "engine_testing.null_mesh"`. The nodes of a model are
dealt to the devices in turn, and each device has the weights that its nodes read. So every device
has a part of the memory, whatever the model computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.hookspecs import hookimpl
from engine.types import (
    BackendInfo,
    Capability,
    CompileOptions,
    Device,
    DeviceInfo,
    Devices,
    GraphInfo,
    LoadedModel,
    MemoryReport,
    ModelSource,
    Placement,
    Values,
)
from engine_testing import null
from engine_testing.null import host as host

DEVICES = (Device("null_mesh", 0), Device("null_mesh", 1))


@hookimpl
def engine_backend() -> BackendInfo:
    """Say who this is: the null backend, for several devices."""
    found = null.engine_backend()
    return replace(
        found,
        name="null_mesh",
        device_types=("null_mesh",),
        capabilities=found.capabilities - {Capability.PROFILE} | {Capability.SEVERAL_DEVICES},
    )


@hookimpl
def engine_devices() -> Devices:
    """Find both devices."""
    found = null.engine_devices()
    if not found.found:
        return found
    return Devices(tuple(DeviceInfo(device, f"half {device.id} of a mesh") for device in DEVICES))


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> LoadedModel:
    """Read a model, as null does."""
    from engine.reference.evaluator import load

    return load(source, host("null_mesh", options.device, options.options))


@hookimpl
def engine_compile(loaded: Any, options: CompileOptions) -> MeshExecutable:
    """Deal the nodes to the devices."""
    return MeshExecutable(loaded.compile(options), loaded.graph, options)


@hookimpl
def engine_predict(
    context: Any, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    """Run once."""
    results: Values = context.run(inputs, outputs, deadline_s)
    return results


class MeshExecutable:
    """A model on its devices."""

    def __init__(self, inner: Any, graph: GraphInfo, options: CompileOptions) -> None:
        self.inner = inner
        self.inputs, self.outputs = inner.inputs, inner.outputs
        self.devices = options.devices or (options.device,)
        self.open_context, self.close = inner.open_context, inner.close
        readers: dict[str, Device] = {}
        for node in graph.nodes:
            for name in node.inputs:
                readers.setdefault(name, self._of(node.index))
        self._sizes = dict.fromkeys(self.devices, 0)
        for parameter in graph.parameters:
            self._sizes[readers.get(parameter.name, self.devices[0])] += parameter.nbytes

    def _of(self, index: int) -> Device:
        return self.devices[index % len(self.devices)]

    def placement(self) -> Sequence[Placement]:
        """Every node on its device."""
        return [replace(node, device=str(self._of(node.index))) for node in self.inner.placement()]

    def memory_by_device(self) -> Mapping[Device, MemoryReport]:
        """The weights, by who reads them first."""
        return {device: MemoryReport(size) for device, size in self._sizes.items()}

    def memory(self) -> MemoryReport:
        """The sum over the devices."""
        return MemoryReport(sum(self._sizes.values()))
