"""Segments of collectives: the core's own backend runs them, for the ranks of one plan.

To the executor such a segment is like any other: it reads and writes host arrays, or values in the
memory of a device whose backend has collectives.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from engine.backends import Backend
from engine.distributed.device import (
    DeviceGroups,
    DeviceRun,
    arrays_of,
    buffers_of,
    met_for,
    runs_there,
)
from engine.distributed.nodes import Call, CollectiveNode, read_node, tells_shape
from engine.errors import Cancelled, CommunicatorError, ModelError
from engine.formats.collectives import is_collective
from engine.hookspecs import hookimpl
from engine.types import (
    BackendInfo,
    Capability,
    CompileOptions,
    Device,
    DeviceInfo,
    Devices,
    DType,
    MemoryReport,
    ModelSource,
    Placement,
    TensorSpec,
    Value,
    Values,
)

Array: TypeAlias = "np.ndarray[Any, Any]"

HOST = Device("cpu")
NAME, PROVIDER = "ranks", "local"


class Ranks(Protocol):
    """The ranks of a plan, as its segments need them: engine.distributed.ranks.Ranks.

    device: where collectives run. on_device: their groups there; None on the host. timeout_s: how
    long ranks wait for each other.
    """

    rank: int
    world_size: int
    timeout_s: float
    device: Device
    on_device: DeviceGroups | None

    def add_group(self, name: str, members: tuple[int, ...], op_type: str = "") -> None:
        """Note a group that a node of this rank belongs to, to be joined."""

    def call(self, group: str, deadline_s: float) -> Call:
        """Return what a node of a group needs to run until `deadline_s`."""

    def meet(self, group: str, what: str, deadline_s: float) -> None:
        """Wait until all ranks of a group have come to the same collective on the device."""

    def raise_known(self, error: CommunicatorError) -> None:
        """Raise what the other ranks have said of a failure on the device, if anything."""

    def abort(self, why: str) -> None:
        """End what runs and what comes in all groups, here and on the other ranks."""

    def close(self) -> None:
        """Leave all groups."""


def backend_of(ranks: Ranks, groups: DeviceGroups | None) -> Backend:
    """Return the backend of a plan's collectives. groups: None where they run on the host."""
    hooks = _Hooks(ranks) if groups is None else _DeviceHooks(ranks, groups)
    return Backend(NAME, hooks, [])


class _Hooks:
    """The hooks by which a plan loads, compiles and runs segments of collectives."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @hookimpl
    def engine_backend(self) -> BackendInfo:
        """See engine.hookspecs, as for all that follow."""
        return BackendInfo(
            name=NAME,
            version="1",
            device_types=(HOST.type,),
            providers=(PROVIDER,),
            capabilities=frozenset(
                {Capability.DYNAMIC_SHAPES, Capability.DEADLINES, Capability.CANCEL_PREDICT}
            ),
        )

    @hookimpl
    def engine_devices(self) -> Devices:
        """See engine.hookspecs."""
        return Devices(found=(DeviceInfo(HOST, "memory that ranks of one machine share"),))

    @hookimpl
    def engine_load(self, source: ModelSource, options: CompileOptions) -> LoadedExchange:
        """See engine.hookspecs."""
        return LoadedExchange(source, self._ranks, options.resident)

    @hookimpl
    def engine_compile(self, loaded: LoadedExchange, options: CompileOptions) -> Exchange:
        """See engine.hookspecs."""
        return Exchange(loaded)

    @hookimpl
    def engine_predict(
        self,
        context: ExchangeContext,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
    ) -> Values:
        """See engine.hookspecs."""
        return context.run(inputs, outputs, deadline_s)


class _DeviceHooks(_Hooks):
    """The same for segments whose values stay in the memory of a device, by its backend."""

    def __init__(self, ranks: Ranks, groups: DeviceGroups) -> None:
        super().__init__(ranks)
        self._device = groups.device
        self._allocate = groups.backend.bind("engine_buffer")
        self._copy = groups.backend.bind("engine_copy")
        self._order = groups.backend.bind("engine_order")

    @hookimpl
    def engine_backend(self) -> BackendInfo:
        """See engine.hookspecs, as for all that follow."""
        info = super().engine_backend()
        return replace(
            info,
            device_types=(self._device.type,),
            capabilities=info.capabilities | {Capability.DEVICE_BUFFERS},
        )

    @hookimpl
    def engine_devices(self) -> Devices:
        """See engine.hookspecs."""
        return Devices(found=(DeviceInfo(self._device, "memory of a device"),))

    @hookimpl
    def engine_buffer(
        self, device: Device, dtype: DType, shape: tuple[int, ...], on_host: bool
    ) -> Value:
        """See engine.hookspecs."""
        value: Value = self._allocate(device, dtype, shape, on_host)
        return value

    @hookimpl
    def engine_copy(self, source: Value, target: Value, stream: int | None) -> bool:
        """See engine.hookspecs."""
        return bool(self._copy(source, target, stream))

    @hookimpl
    def engine_order(self, device: Device, earlier: int, later: int | None) -> bool:
        """See engine.hookspecs."""
        return bool(self._order(device, earlier, later))


class LoadedExchange:
    """A segment of collectives, as the part of the model that it is cut out of says."""

    unsupported: Mapping[int, str] = {}

    def __init__(
        self, source: ModelSource, ranks: Ranks, resident: frozenset[str] = frozenset()
    ) -> None:
        graph = source.graph
        assert graph is not None, "a segment is cut out of a graph"
        self.ranks = ranks
        self.resident = resident
        self.constants = _constants(source)
        known = {spec.name: spec for spec in graph.inputs}
        for name, array in self.constants.items():
            known[name] = TensorSpec(name, DType.from_numpy(array.dtype), array.shape)
        declared = {spec.name: spec for spec in graph.outputs}
        nodes: list[CollectiveNode] = []
        for info in graph.nodes:
            if is_collective(info.op_type, info.domain):  # else a constant
                node = read_node(info, known, ranks.rank, ranks.world_size, source.name)
                ranks.add_group(node.group, node.members, info.op_type)
                known[node.output.name] = _completed(node.output, declared)
                nodes.append(node)
        self.nodes = tuple(nodes)
        self.has_changing_shapes = any(map(tells_shape, nodes))
        self.all_nodes = graph.nodes
        self.inputs = graph.inputs
        self.outputs = tuple(known[spec.name] for spec in graph.outputs)

    def close(self) -> None:
        """See LoadedModel."""


class Exchange:
    """A segment of collectives, ready to run when the ranks have joined."""

    concurrency = 1  # predicts take turns: ranks meet by the order of their calls alone

    def __init__(self, loaded: LoadedExchange) -> None:
        self.ranks = loaded.ranks
        self.nodes = loaded.nodes
        self.constants = loaded.constants
        self.resident = loaded.resident
        self.inputs = loaded.inputs
        self.outputs = loaded.outputs
        self.has_changing_shapes = loaded.has_changing_shapes
        self._all_nodes = loaded.all_nodes

    def open_context(self) -> ExchangeContext:
        """See Executable."""
        groups = self.ranks.on_device
        return ExchangeContext(self) if groups is None else DeviceExchangeContext(self, groups)

    def placement(self) -> Sequence[Placement]:
        """See Executable."""
        return [
            Placement(
                index=node.index,
                node=node.name,
                op_type=node.op_type,
                backend=NAME,
                device=str(self.ranks.device),
                provider=PROVIDER,
                reason=f"{self.ranks.world_size} ranks exchange it in {self._memory}",
            )
            for node in self._all_nodes
        ]

    @property
    def _memory(self) -> str:
        groups = self.ranks.on_device
        if groups is None:
            return "host memory"
        return f"the memory of {groups.device}, by backend {groups.backend.name!r}"

    def memory(self) -> MemoryReport:
        """See Executable."""
        return MemoryReport()

    def close(self) -> None:
        """See Executable. The first segment that is closed ends the groups of the whole plan."""
        self.ranks.close()


class ExchangeContext:
    """One predict at a time through a segment of collectives."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._is_cancelled = False
        self._names = [spec.name for spec in exchange.inputs]
        self._results = [spec.name for spec in exchange.outputs]
        self._places = {name: place for place, name in enumerate(self._results)}

    def run(self, inputs: Values, outputs: Values | None, deadline_s: float | None) -> Values:
        """Run the nodes in the file's order."""
        ranks = self._exchange.ranks
        end_s = time.monotonic() + ranks.timeout_s
        if deadline_s is not None:
            end_s = min(end_s, deadline_s)
        values: dict[str, Any] = dict(self._exchange.constants)
        values.update(zip(self._names, inputs))
        try:
            for node in self._exchange.nodes:
                place = self._places.get(node.output.name)
                given: Any = outputs[place] if outputs is not None and place is not None else None
                taken = [values[name] for name in node.info.inputs if name]
                values[node.output.name] = self._run_node(node, taken, given, end_s)
        except CommunicatorError:
            if self._is_cancelled:
                raise Cancelled("predict was cancelled by its owner") from None
            raise
        return self._delivered([values[name] for name in self._results], outputs)

    def _run_node(
        self, node: CollectiveNode, taken: Sequence[Any], given: Any, end_s: float
    ) -> Any:
        return node.run(self._exchange.ranks.call(node.group, end_s), taken, given)

    def _delivered(self, results: list[Any], outputs: Values | None) -> Values:
        """Return the results: the caller's own list, where all are in what it has given."""
        if outputs is not None and all(a is b for a, b in zip(results, outputs)):
            return outputs
        return results

    def cancel(self) -> None:
        """See ExecutionContext. The other ranks fail, too: they would wait for this one."""
        self._is_cancelled = True
        self._exchange.ranks.abort("predict was cancelled by its owner")

    def close(self) -> None:
        """See ExecutionContext."""


class DeviceExchangeContext(ExchangeContext):
    """The same in the memory of a device. Nodes whose parts do not lie one after another there,
    and those of types that no device has, are run on the host.
    """

    def __init__(self, exchange: Exchange, groups: DeviceGroups) -> None:
        super().__init__(exchange)
        self._device_groups = groups
        self._results_there = DeviceRun(groups, exchange.resident)

    def _run_node(
        self, node: CollectiveNode, taken: Sequence[Any], given: Any, end_s: float
    ) -> Any:
        ranks, groups = self._exchange.ranks, self._device_groups
        if not runs_there(node) or len(node.members) == 1:
            return node.run(ranks.call(node.group, end_s), arrays_of(groups, taken), None)
        if what := met_for(node, taken):
            ranks.meet(node.group, what, end_s)
        return self._run_there(node, taken, given, end_s)

    def _delivered(self, results: list[Any], outputs: Values | None) -> Values:
        entries = outputs or [None] * len(results)
        wanted = zip(self._results, results, entries, strict=True)
        return [self._results_there.delivered(*one) for one in wanted]

    def _run_there(
        self, node: CollectiveNode, taken: Sequence[Any], entry: Value, end_s: float
    ) -> Any:
        """Run a node on the device; of a failure the other ranks may know more than it does."""
        groups = self._device_groups
        groups.choose_stream(taken)
        call: Any = groups.call(node.group, self._exchange.ranks.call(node.group, end_s))
        given: Any = self._results_there.given(node.output.name, entry)
        buffers = buffers_of(groups, taken)
        try:
            result = node.run(call, buffers, given)
            groups.keep(*buffers, result)
            return result
        except CommunicatorError as error:
            self._exchange.ranks.raise_known(error)
            raise


def _completed(spec: TensorSpec, declared: Mapping[str, TensorSpec]) -> TensorSpec:
    """Return the spec of what a node makes, with the shape that the file declares for it."""
    said = declared.get(spec.name)
    if spec.shape is not None or said is None or said.dtype is not spec.dtype:
        return spec
    return said


def _constants(source: ModelSource) -> Mapping[str, Array]:
    """Return what a segment's initializers and Constant nodes hold; nearly always nothing.

    Raises ModelError for what is no tensor.
    """
    graph = source.graph
    assert graph is not None
    if not graph.parameters and all(is_collective(n.op_type, n.domain) for n in graph.nodes):
        return {}
    import onnx  # rare
    from onnx.external_data_helper import load_external_data_for_model

    assert source.data is not None, "a part is in memory"
    model = onnx.load_model_from_string(source.data)
    if source.folder is not None:
        load_external_data_for_model(model, str(source.folder))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            if node.attribute[0].name != "value":
                raise ModelError(
                    f"{source.name}: Constant {node.name!r} holds {node.attribute[0].name!r}; "
                    "between ranks only one that holds a tensor, in 'value', can go",
                    source.name,
                )
            tensors[node.output[0]] = node.attribute[0].t
    return {name: np.array(onnx.numpy_helper.to_array(t)) for name, t in tensors.items()}
