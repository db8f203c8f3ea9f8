"""The time of each kernel of a model: the least, at the roof, and what was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.report.explanation.node import ExplainedNode, kernels_of, sum_of, total_of
from engine.report.explanation.roof import Roof
from engine.report.explanation.traffic import moved_together
from engine.types import DType, GraphInfo, NodeState

if TYPE_CHECKING:
    from engine.report.explanation.tensors import Tensors
    from engine.report.profiling import Profile

NOT_COMPUTED = (NodeState.FOLDED, NodeState.UNUSED)
"""States of nodes that no predict computes."""


def timed(
    nodes: list[ExplainedNode],
    graph: GraphInfo,
    tensors: Tensors | None,
    roof: Roof | None,
    profile: Profile | None,
) -> tuple[list[ExplainedNode], float]:
    """Return the nodes with the times of their kernels, and the time that is no node's."""
    kernels = kernels_of(nodes)
    lead_of = {node.index: lead for lead, members in kernels.items() for node in members}
    times: dict[int, float] = defaultdict(float)
    unplaced_s = 0.0
    for kernel in profile.kernels if profile is not None else ():
        leads = {lead_of.get(index, index) for index in kernel.nodes}
        if not leads:
            unplaced_s += kernel.time_s
        for lead in leads:  # several where the runtime has fused more than it tells of
            times[lead] += kernel.time_s / len(leads)
    readers: dict[str, set[int]] = defaultdict(set)
    for node in nodes:
        for name in node.reads:
            readers[name].add(node.index)
    ends = {spec.name for spec in graph.outputs}
    found = list(nodes)
    for lead, members in kernels.items():
        if nodes[lead].state in NOT_COMPUTED:
            continue
        least_s, bound = None, ""
        if roof is not None and tensors is not None:
            least_s, bound = _least(members, graph, readers, ends, tensors, roof)
        found[lead] = replace(
            nodes[lead],
            least_s=least_s,
            bound=bound,
            time_s=None if profile is None else times.get(lead),
        )
    return found, unplaced_s


def _least(
    members: Sequence[ExplainedNode],
    graph: GraphInfo,
    readers: Mapping[str, set[int]],
    ends: set[str],
    tensors: Tensors,
    roof: Roof,
) -> tuple[float | None, str]:
    """Return the least time of a kernel, and which of the two bounds it.

    The rate of operations is float32's: of other types, only the bytes count.
    """
    if len(members) == 1 and members[0].bodies:
        return _of_bodies(members[0])
    nodes = [graph.nodes[node.index] for node in members]
    if len(members) == 1:
        nbytes = members[0].moved_bytes
    else:
        own = {node.index for node in members}
        needed = frozenset(
            name for node in nodes for name in node.outputs if name in ends or readers[name] - own
        )
        sizes = {**tensors.nbytes, **{one.name: one.nbytes for one in graph.parameters}}
        nbytes = moved_together([(node.inputs, node.outputs) for node in nodes], needed, sizes)
    flops = sum_of(node.flops for node in members)
    if nbytes is None or flops is None:
        return None, ""
    types = {
        tensors.specs[node.inputs[0]].dtype
        for node in nodes
        if {*node.inputs[:1]} & tensors.specs.keys()
    }
    return bounded(flops if types == {DType.FLOAT32} else 0, nbytes, roof)


def _of_bodies(node: ExplainedNode) -> tuple[float | None, str]:
    """Return the least time of a node's bodies, and which of the two bounds the longest."""
    least_s = total_of(node, "least_s")
    longest = max(node.bodies, key=lambda body: (body.times or 0) * (body.least_s or 0))
    return least_s, longest.bound if least_s else ""


def bounded(flops: int, nbytes: int, roof: Roof) -> tuple[float, str]:
    """Return the time of operations of float32 and of bytes, and which of the two it is."""
    compute_s, memory_s = flops / roof.flops_per_s, nbytes / roof.bytes_per_s
    if compute_s > memory_s:
        return compute_s, "compute"
    return memory_s, "memory" if memory_s else ""
