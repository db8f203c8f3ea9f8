"""Times of kernels, from the file that ONNX Runtime writes of a session that was profiled.

The format is Chrome's trace events (times in microseconds): an event "model_run" for each run, and
one for each kernel, whose name is the node's in the optimised graph with "_kernel_time" after it.
A node without a name is called by its operator and its number there.
"""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.types import GraphInfo, KernelTime
from engine_cpu.runtime import ort

if TYPE_CHECKING:
    from engine_cpu.node_states import OptimisedGraph

_KERNEL = "_kernel_time"
_RUN = "model_run"


def set_up(settings: ort.SessionOptions, folder: Path) -> None:
    """Have a session measured; it writes into the folder, under a name of its own."""
    settings.enable_profiling = True
    settings.profile_file_prefix = str(folder / f"onnxruntime-{id(settings):x}")


def kernel_times(
    session: ort.InferenceSession,
    graph: GraphInfo,
    optimised: OptimisedGraph | None,
    rewritten: Collection[int] = (),
    leads: Mapping[int, int] | None = None,
) -> Sequence[KernelTime]:
    """Return the times of all runs of a session by now; it is measured no longer.

    optimised: what it runs; None where that is not known, and so not whose nodes its kernels are.
    rewritten: nodes that several kernels may compute. leads: of those that are computed as one.
    """
    # ONNX Runtime reads the clock of the day there, where the contract has the monotonic one.
    zero_s = session.get_profiling_start_time_ns() / 1e9 - time.time() + time.monotonic()
    path = Path(session.end_profiling())
    events = json.loads(path.read_bytes())
    path.unlink()
    starts = sorted(event["ts"] for event in events if event["name"] == _RUN)
    kernels = [
        event for event in events if event["cat"] == "Node" and event["name"].endswith(_KERNEL)
    ]
    kernels.sort(key=lambda event: event["ts"])
    nodes = _nodes(graph, optimised, kernels, rewritten, leads or {})
    return [
        KernelTime(
            predict=bisect_right(starts, event["ts"]) - 1,
            nodes=nodes.get(name := event["name"].removesuffix(_KERNEL), ()),
            name=name,
            op_type=event["args"]["op_name"],
            start_s=zero_s + event["ts"] / 1e6,
            duration_s=event["dur"] / 1e6,
        )
        for event in kernels
    ]


def _nodes(
    graph: GraphInfo,
    optimised: OptimisedGraph | None,
    events: Iterable[Mapping[str, Any]],
    rewritten: Collection[int],
    leads: Mapping[int, int],
) -> dict[str, tuple[int, ...]]:
    """Return the nodes of the model's graph by the name of the kernel in the events."""
    if optimised is None:
        return {}
    from engine_cpu.node_states import kernel_nodes

    found: dict[str, tuple[int, ...]] = {}
    unnamed: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for kernel, indices in kernel_nodes(graph, optimised, rewritten, leads):
        if not kernel.name:
            unnamed[kernel.op_type].append(indices)
        elif kernel.name not in found:
            found[kernel.name] = indices
        else:  # two of one name: the file lets nobody tell them apart
            found[kernel.name] = ()
    # Both in the order in which they run. Where it is not one to one, nothing is known.
    numbered: dict[str, dict[str, None]] = defaultdict(dict)
    for event in events:
        name, op_type = event["name"].removesuffix(_KERNEL), event["args"]["op_name"]
        if name not in found and re.fullmatch(rf"{re.escape(op_type)}_\d+", name):
            numbered[op_type][name] = None
    for op_type, names in numbered.items():
        if len(names) == len(unnamed[op_type]):
            found.update(zip(names, unnamed[op_type], strict=True))
    return found
