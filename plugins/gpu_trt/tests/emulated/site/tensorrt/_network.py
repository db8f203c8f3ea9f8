"""The emulated parser: networks, and what it has against a model."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

from emulated_gpu.graphs import OPERATORS, TYPES, Graph, Refusal
from emulated_gpu.machine import MACHINE, Crash

from ._base import ENUMS, Dims, ILogger, Made, Null

DataType, ErrorCode, LayerType = ENUMS["DataType"], ENUMS["ErrorCode"], ENUMS["LayerType"]


class ITensor:
    """An input or output of a network."""

    def __init__(
        self, name: str, dtype: Any, shape: tuple[int, ...], decides: bool = False
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = Dims(shape)
        self.is_shape_tensor = decides


class ILayer:
    """A layer of a network. Of the types, those of collectives alone are the real ones."""

    def __init__(self) -> None:
        raise TypeError("No constructor defined!")

    @classmethod
    def _of(cls, graph: Graph, index: int, network: INetworkDefinition) -> ILayer:
        layer = cls.__new__(cls)
        layer._graph = graph
        layer._index = index
        layer._network = weakref.ref(network)
        return layer

    @property
    def name(self) -> str:
        return self._graph.name_of(self._index)

    @property
    def metadata(self) -> str:
        return f"[ONNX Layer: {self.name}]"

    @property
    def type(self) -> Any:
        is_collective = self._index in self._graph.collectives()
        return LayerType.DIST_COLLECTIVE if is_collective else LayerType.IDENTITY

    @property
    def num_ranks(self) -> int:
        return self._graph.ranks.get(self._index, 1)

    @num_ranks.setter
    def num_ranks(self, count: int) -> None:
        network = self._network()
        if network is None:
            raise Crash("segmentation fault: the layer's network is gone")
        network._enter()
        if self.type is not LayerType.DIST_COLLECTIVE or self._index in self._graph.ranks:
            network._error(
                "IDistCollectiveLayer::setNbRanks", 3, "Parameter check failed, condition: "
                "getNbRanks() == 1. nbRanks is already set and cannot be changed",
            )  # fmt: skip
            raise RuntimeError(
                "Failed to set num_ranks. Only IDistCollectiveLayer supports num_ranks > 1 via "
                "ILayer."
            )
        self._graph.ranks[self._index] = count


class INetworkDefinition(Made):
    _counted = "networks"

    @classmethod
    def _of(cls, builder: object, logger: ILogger | None, flags: int) -> INetworkDefinition:
        network = cls._new(logger)
        network._builder = builder  # as the real one keeps it
        network._parser: Any = None
        network._graph: Graph | None = None
        network._flags = flags
        network._inputs: list[ITensor] = []
        network._outputs: list[ITensor] = []
        network._refittable: set[str] = set()
        return network

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def num_layers(self) -> int:
        return len(self._graph.model.graph.node) if self._graph is not None else 0

    def get_layer(self, index: int) -> ILayer:
        assert self._graph is not None
        return ILayer._of(self._graph, index, self)

    def mark_weights_refittable(self, name: str) -> bool:
        if self._graph is None or name not in self._graph.weight_names():
            return False
        self._refittable.add(name)
        return True

    def get_input(self, index: int) -> ITensor:
        return self._inputs[index]


class ParserError:
    def __init__(self, refusal: Refusal, parser: OnnxParser) -> None:
        self._refusal = refusal
        self._parser = weakref.ref(parser)

    def _of(self) -> Refusal:
        if self._parser() is None:
            raise Crash("a ParserError is read after its parser is gone")
        return self._refusal

    def code(self) -> Any:
        return ErrorCode[self._of().code]

    def desc(self) -> str:
        return self._of().text

    def node(self) -> int:
        return self._of().node

    def node_operator(self) -> str:
        return self._of().operator


class OnnxParser(Null):
    _counted = "parsers"

    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        if not isinstance(network, INetworkDefinition):
            raise TypeError("__init__(): incompatible constructor arguments")
        self._make(logger)
        # The network keeps the parser, not the other way round: so it is with the real ones.
        self._network = weakref.ref(network)
        network._parser = self
        self._refusals: list[Refusal] = []
        self._parts: list[list[int]] = []

    def _target(self) -> INetworkDefinition:
        network = self._network()
        if network is None:
            raise Crash("segmentation fault: the parser's network is gone")
        return network

    def parse(self, model: Any, path: str | None = None) -> bool:
        network = self._target()
        if network._graph is not None:
            self._log(ILogger.ERROR, "ModelImporter.cpp:1170: Parse was called with a non-empty "
                                     "network definition")  # fmt: skip
            return False
        MACHINE.counted["parses"] += 1
        graph = self._read(bytes(model), path)
        if graph is not None:
            self._refusals += graph.refusals()
        for refusal in self._refusals:
            self._log(ILogger.ERROR, f"ModelImporter.cpp:151: ERROR: {refusal.text}")
        if graph is None or self._refusals:
            return False
        network._graph = graph
        network._inputs, network._outputs = _tensors(graph)
        return True

    def parse_from_file(self, model: str) -> bool:
        self._target()
        try:
            data = Path(model).read_bytes()
        except OSError:
            self._refusals.append(
                Refusal("MODEL_DESERIALIZE_FAILED", f"Failed to open file: {model}")
            )
            return False
        return self.parse(data, model)

    def _read(self, data: bytes, path: str | None) -> Graph | None:
        try:
            return Graph(data, path)
        except ValueError as error:
            self._refusals.append(Refusal("MODEL_DESERIALIZE_FAILED", str(error)))
            return None

    @property
    def num_errors(self) -> int:
        return len(self._refusals)

    def get_error(self, index: int) -> ParserError:
        return ParserError(self._refusals[index], self)

    def supports_model_v2(self, model: Any, path: str | None = None) -> bool:
        self._target()
        MACHINE.counted["parses"] += 1
        graph = self._read(bytes(model), path)
        if graph is None:
            return False
        self._refusals += graph.refusals()
        wrong = {refusal.node for refusal in self._refusals}
        self._parts = []
        begins = True
        for index in range(len(graph.model.graph.node)):
            if index in wrong:
                begins = True
                continue
            if begins:
                self._parts.append([])
                begins = False
            self._parts[-1].append(index)
        return not wrong

    @property
    def num_subgraphs(self) -> int:
        return len(self._parts)

    def get_subgraph_nodes(self, index: int) -> list[int]:
        return list(self._parts[index])

    def supports_operator(self, op_name: str) -> bool:
        return op_name in OPERATORS


def _tensors(graph: Graph) -> tuple[list[ITensor], list[ITensor]]:
    outputs = {value.name for value in graph.outputs}
    inputs = []
    for value in graph.inputs:
        dims = value.type.tensor_type.shape.dim
        # An input that is an output as well is renamed, and an unknown rank becomes a scalar.
        inputs.append(
            ITensor(
                ("__" if value.name in outputs else "") + value.name,
                DataType[TYPES[value.type.tensor_type.elem_type]],
                tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims),
                graph.decides_shapes(value.name),
            )
        )
    shapes = graph.shapes({})
    return inputs, [
        ITensor(
            value.name,
            DataType[TYPES[value.type.tensor_type.elem_type]],
            shapes[value.name],
        )
        for value in graph.outputs
    ]
