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
_WITH_BODIES = frozenset(("If", "Loop", "Scan", "SequenceMap"))


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
    kernels.sort(key=lambda event: (event["ts"], -event["dur"]))
    are_inner = _are_inner(kernels)
    own = [event for event, is_inner in zip(kernels, are_inner, strict=True) if not is_inner]
    nodes = _nodes(graph, optimised, own, rewritten, leads or {})
    return [
        KernelTime(
            predict=bisect_right(starts, event["ts"]) - 1,
            nodes=() if is_inner else nodes.get(_name(event), ()),
            name=_name(event),
            op_type=event["args"]["op_name"],
            start_s=zero_s + event["ts"] / 1e6,
            duration_s=event["dur"] / 1e6,
        )
        for event, is_inner in zip(kernels, are_inner, strict=True)
    ]


def _name(event: Mapping[str, Any]) -> str:
    name: str = event["name"]
    return name.removesuffix(_KERNEL)


def _are_inner(kernels: Iterable[Mapping[str, Any]]) -> list[bool]:
    """Return for each kernel, in the order of their starts, whether a body of another has it.

    Its name may be that of a node outside too: ONNX Runtime numbers the nodes of each body anew.
    """
    found: list[bool] = []
    ends: dict[int, int] = {}  # of the last outer kernel with a body, by thread
    for event in kernels:
        thread, start = event["tid"], event["ts"]
        found.append(start < ends.get(thread, 0))
        if not found[-1] and event["args"]["op_name"] in _WITH_BODIES:
            ends[thread] = start + event["dur"]
    return found


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
        name, op_type = _name(event), event["args"]["op_name"]
        if name not in found and re.fullmatch(rf"{re.escape(op_type)}_\d+", name):
            numbered[op_type][name] = None
    for op_type, names in numbered.items():
        if len(names) == len(unnamed[op_type]):
            found.update(zip(names, unnamed[op_type], strict=True))
    return found
