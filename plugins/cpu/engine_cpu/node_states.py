"""States of nodes in a run: read off the graph that ONNX Runtime has optimised.

ONNX Runtime does not say what becomes of a node. It can write the graph that it runs, though: a
node whose result, or whose name, is there runs; one that is not was folded to a constant, fused
into the kernel of a neighbour, or left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from engine.host.folder import temporary_folder
from engine.host.interrupts import pass_interrupt
from engine.model_bytes import Budget, fields, schema
from engine.types import GraphInfo, NodeInfo, NodeState
from engine_cpu.risk import NESTS

T = TypeVar("T")

# The state of each node of the main graph, in order, and the index of the one it is fused into.
NodeStates: TypeAlias = "list[tuple[NodeState, int | None]]"

_FIELDS = 10_000_000
MEMORY_FOLDER = "/dev/shm"

# Kernels that only move data: fusions leave them behind under the name of what they replaced.
_MOVES = frozenset({"Reshape", "Transpose", "ReorderInput", "ReorderOutput"})


# Left out, or moved to before another node, which then makes their result.
_GIVING_WAY = frozenset({"Identity", "Dropout", "QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True, slots=True)
class Kernel:
    """A node of the optimised graph."""

    op_type: str
    name: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OptimisedGraph:
    """Graph that ONNX Runtime runs. constants: names of its initializers."""

    kernels: tuple[Kernel, ...]
    constants: frozenset[str]


def read_optimised(path: Path) -> OptimisedGraph:
    """Read the nodes and the names of the initializers; raises ValueError for what is no model."""
    budget = Budget(_FIELDS)
    kernels: list[Kernel] = []
    constants: set[str] = set()
    model = memoryview(path.read_bytes())
    for _, graph in fields(model, budget, {schema.MODEL_GRAPH}):
        for tag, part in fields(graph, budget, {schema.GRAPH_NODE, schema.GRAPH_INITIALIZER}):
            if tag == schema.GRAPH_NODE:
                kernels.append(_kernel(part, budget))
            else:
                names = fields(part, budget, {schema.TENSOR_NAME})
                constants.update(str(name, "utf-8") for _, name in names)
    return OptimisedGraph(tuple(kernels), frozenset(constants))


def _kernel(node: memoryview, budget: Budget) -> Kernel:
    name = op_type = ""
    outputs, inputs = [], []
    wanted = {schema.NODE_NAME, schema.NODE_OP_TYPE, schema.NODE_OUTPUT, schema.NODE_INPUT}
    for tag, payload in fields(node, budget, wanted):
        text = str(payload, "utf-8")
        if tag == schema.NODE_OUTPUT:
            outputs.append(text)
        elif tag == schema.NODE_INPUT:
            inputs.append(text)
        elif tag == schema.NODE_NAME:
            name = text
        else:
            op_type = text
    return Kernel(op_type, name, tuple(outputs), tuple(inputs))


def observed(
    write: Callable[[str, str], None],
    is_secret: bool,
    read: Callable[[Path], T],
    has_weights: bool = False,
) -> T | None:
    """Have the optimised graph written, and read it; None where that fails.

    write: makes a session that writes its graph to the path given first, and all initializers
        into a file beside it that is named by the second.
    is_secret: nothing may come to a disk, so without a folder in memory nothing is written.
    has_weights: the file of the initializers is there to be read.
    """
    try:
        parent = Path(MEMORY_FOLDER) if os.path.isdir(MEMORY_FOLDER) else None
        if is_secret and parent is None:
            return None
        if has_weights and not is_secret:
            parent = None  # memory that files may take is often small
        # It goes even where this process is killed, as workers are; that takes some milliseconds.
        with temporary_folder("engine-", parent) as folder:
            if not has_weights:
                os.symlink(os.devnull, folder / "weights")
            write(str(folder / "graph"), "weights")
            return read(folder / "graph")
    except Exception as error:  # ONNX Runtime's own; it is only a diagnosis that fails
        pass_interrupt(error)
        return None


def kernel_nodes(
    graph: GraphInfo,
    optimised: OptimisedGraph,
    rewritten: Collection[int] = (),
    leads: Mapping[int, int] = MappingProxyType({}),
) -> list[tuple[Kernel, tuple[int, ...]]]:
    """Return each kernel with the indices of the nodes of `graph` that it computes.

    rewritten: nodes that others are in the place of: kernels before theirs that compute no other
    node are theirs too. leads: see Prepared.
    """
    comparison = _Comparison(graph, optimised)
    nodes: dict[int, list[int]] = {id(kernel): [] for kernel in optimised.kernels}
    for index, (state, into) in enumerate(grouped(comparison.states(), leads)):
        owner = index if state is NodeState.RUNS else into
        if owner is not None and owner in comparison.kernels:
            nodes[id(comparison.kernels[owner])].append(index)
    writers = {name: kernel for kernel in optimised.kernels for name in kernel.outputs}
    for index in rewritten:
        pending = [kernel for kernel in optimised.kernels if index in nodes[id(kernel)]]
        while pending:
            for name in pending.pop().inputs:
                kernel = writers.get(name)
                if kernel is not None and not nodes[id(kernel)]:
                    nodes[id(kernel)].append(index)
                    pending.append(kernel)
    return [(kernel, tuple(nodes[id(kernel)])) for kernel in optimised.kernels]


def node_states(
    graph: GraphInfo, optimised: OptimisedGraph, leads: Mapping[int, int] = MappingProxyType({})
) -> NodeStates:
    """Return the state of every node of `graph`, judged by the optimised form of it.

    leads: see Prepared; that form then is another model's, in which only the leads' results are.
    """
    return grouped(_Comparison(graph, optimised).states(), leads)


def grouped(states: NodeStates, leads: Mapping[int, int]) -> NodeStates:
    """Give the nodes that were written as one group the state of its lead, or fuse them into it."""
    if not leads:
        return states
    for index, lead in leads.items():
        state, into = states[lead]
        if index != lead:
            states[index] = (NodeState.FUSED, lead) if state is NodeState.RUNS else (state, into)
    for index, (state, into) in enumerate(states):
        if state is NodeState.FUSED and into is not None and states[into][1] is not None:
            states[index] = (state, states[into][1])  # into what was fused itself
    return states


class _Comparison:
    """A graph beside its optimised form.

    kernels: of nodes that run, by index. folded: nodes that are constants. absorbed: nodes that
    a kernel of another type than its node must hold, by index, and that node's.
    """

    def __init__(self, graph: GraphInfo, optimised: OptimisedGraph) -> None:
        self.graph = graph
        self.nodes: Sequence[NodeInfo] = graph.nodes
        self.tensors = {name for kernel in optimised.kernels for name in kernel.outputs}
        self.producers = {name: n.index for n in self.nodes for name in n.outputs if name}
        self.readers: dict[str, list[int]] = {}
        for node in self.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node.index)
        self.kernels = self._kernels(optimised)
        self.folded = self._folded(optimised)
        self.absorbed = self._absorbed()

    def states(self) -> NodeStates:
        """Return the state of every node, in order."""
        needed = self._needed()
        states: NodeStates = []
        for node in self.nodes:
            if node.index in self.kernels:
                states.append((NodeState.RUNS, None))
            elif node.index not in needed:
                states.append((NodeState.UNUSED, None))
            elif node.index in self.folded:
                states.append((NodeState.FOLDED, None))
            else:
                states.append((NodeState.FUSED, self._fused_into(node)))
        return states

    def _kernels(self, optimised: OptimisedGraph) -> dict[int, Kernel]:
        """Find the kernel that stands for a node.

        It gives the node's result, or bears the name of the node or of its result; or its result
        is the node's in another layout.
        """
        counts = Counter(node.name for node in self.nodes)
        unique = {node.name: node.index for node in self.nodes if counts[node.name] == 1}
        named = {**self.producers, **unique}
        named.pop("", None)
        writers = {name: kernel for kernel in optimised.kernels for name in kernel.outputs}
        kernels: dict[int, Kernel] = {}
        moved: dict[int, Kernel] = {}
        for kernel in optimised.kernels:
            owners = [self.producers[name] for name in kernel.outputs if name in self.producers]
            own = unique.get(kernel.name)
            if own is not None and self.nodes[own].op_type == kernel.op_type:
                owners = [own if self.nodes[i].op_type in _GIVING_WAY else i for i in owners]
            if not owners:
                owners = _named(kernel.name, named)
            for index in owners:
                if kernel.op_type not in _MOVES or self.nodes[index].op_type in _MOVES:
                    kernels.setdefault(index, kernel)
                elif kernel.inputs and (writer := writers.get(kernel.inputs[0])):
                    moved.setdefault(index, writer)
        owned = set(map(id, kernels.values()))
        for index, kernel in moved.items():
            if index not in kernels and id(kernel) not in owned and kernel.op_type not in _MOVES:
                kernels[index] = kernel
        return kernels

    def _folded(self, optimised: OptimisedGraph) -> set[int]:
        """Find the nodes that are constants: by what they read, or because ONNX Runtime says so."""
        constants = {parameter.name for parameter in self.graph.parameters} | {""}
        folded = set()
        for node in self.nodes:
            if node.index in self.kernels:
                continue
            if constants.issuperset(node.inputs) or optimised.constants & set(node.outputs):
                folded.add(node.index)
                constants.update(node.outputs)
        return folded

    def _absorbed(self) -> dict[int, int]:
        """Assign nodes to kernels of another type than the node that these stand for.

        Conv for a Clip holds the Conv before it; FusedMatMul for a Mul the MatMul.
        """
        absorbed: dict[int, int] = {}
        for owner, kernel in self.kernels.items():
            if kernel.op_type == self.nodes[owner].op_type:
                continue
            pending = [owner]
            while pending:
                for name in self.nodes[pending.pop()].inputs:
                    index = self.producers.get(name)
                    if index is None or name in self.tensors:
                        continue
                    if index in absorbed or index in self.kernels or index in self.folded:
                        continue
                    absorbed[index] = owner
                    if self.nodes[index].op_type not in kernel.op_type:
                        pending.append(index)
        return absorbed

    def _fused_into(self, node: NodeInfo) -> int | None:
        """Return the node whose kernel computes `node`; None where that cannot be told."""
        if node.index in self.absorbed:
            return self.absorbed[node.index]
        # Where the result of the node before is not to be had either, its kernel goes on to here.
        before = {self.producers[name] for name in node.inputs if name in self.producers}
        hidden = [
            index for index in before & self.kernels.keys()
            if self.tensors.isdisjoint(self.nodes[index].outputs)
        ]  # fmt: skip
        if hidden:
            return max(hidden)
        pending, seen = [node.index], {node.index}
        while pending:
            for name in self.nodes[pending.pop(0)].outputs:
                for index in self.readers.get(name, ()):
                    if index in self.kernels:
                        return index
                    if index in self.absorbed:
                        return self.absorbed[index]
                    if index not in seen:
                        seen.add(index)
                        pending.append(index)
        return None

    def _needed(self) -> set[int]:
        """Return the nodes that some output depends on; all where subgraphs may read a tensor."""
        if any(node.op_type in NESTS for node in self.nodes):
            return {node.index for node in self.nodes}
        needed: set[int] = set()
        pending = [spec.name for spec in self.graph.outputs]
        while pending:
            index = self.producers.get(pending.pop())
            if index is not None and index not in needed:
                needed.add(index)
                pending.extend(self.nodes[index].inputs)
        return needed


def _named(name: str, indices: dict[str, int]) -> list[int]:
    """Return the node whose name ONNX Runtime has made `name` of, by adding "_nchwc", "/..."."""
    while name:
        if name in indices:
            return [indices[name]]
        name = name[: max(name.rfind("_"), name.rfind("/"), 0)]
    return []
