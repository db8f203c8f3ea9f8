"""The compiled form: ONNX Runtime's optimised graph with its packed weights, in a folder.

    model.onnx     the optimised graph
    weights.bin    weights, raw and as the kernels of this machine want them packed; mapped, so
                   that all processes share one copy of them
    record.json    digest and sizes of the two, and the state of each of the model's nodes

ONNX Runtime writes it while it makes a session, and takes that graph's offsets on trust: a flipped
one ends the process. So the graph's digest is compared before ONNX Runtime sees it, and the size
of the weights, which a mapping must not exceed. Their content is the core's to verify.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import CompiledFormError
from engine.options import is_declared
from engine.types import CompileOptions, GraphInfo, NodeState
from engine_cpu.node_states import NodeStates, node_states, read_optimised

if TYPE_CHECKING:
    import onnxruntime as ort

GRAPH, WEIGHTS, RECORD = "model.onnx", "weights.bin", "record.json"
LAYOUT = "1"

# Smaller weights stand in the graph file: to map them costs more than to read them.
_EXTERNAL_BYTES = 1024

# Options that choose how a session runs, not what its graph and packed weights are.
_RUN_OPTIONS = ("spin_us", "memory_arena", "deterministic", "denormal_as_zero", "thread_pool")


@dataclass(frozen=True, slots=True)
class CompiledForm:
    """A compiled form that has been checked. weights_bytes: of its mapped file."""

    graph: Path
    weights_bytes: int
    states: NodeStates


def write_into(settings: ort.SessionOptions, folder: Path) -> None:
    """Make a session with `settings` write its compiled form into `folder`."""
    settings.optimized_model_filepath = str(folder / GRAPH)
    for key, value in {
        "session.optimized_model_external_initializers_file_name": WEIGHTS,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(_EXTERNAL_BYTES),
        "session.save_external_prepacked_constant_initializers": "1",
    }.items():
        settings.add_session_config_entry(key, value)


def finish(folder: Path, graph: GraphInfo) -> CompiledForm:
    """Record what a session has written. Raises OSError or ValueError where it is not whole."""
    path = folder / GRAPH
    weights_bytes = _size(folder / WEIGHTS)
    states = node_states(graph, read_optimised(path))
    record = {
        "layout": LAYOUT,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "weights_bytes": weights_bytes,
        "states": [[str(state), into] for state, into in states],
    }
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")
    return CompiledForm(path, weights_bytes, states)


def check(folder: Path, graph: GraphInfo) -> CompiledForm:
    """Return a compiled form that may be read; CompiledFormError says what is wrong with it."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        digest = hashlib.sha256((folder / GRAPH).read_bytes()).hexdigest()
        weights_bytes = _size(folder / WEIGHTS)
    except (OSError, ValueError) as error:
        raise _unusable(folder, f"it cannot be read: {error}") from error
    try:
        layout, expected, size = record["layout"], record["sha256"], record["weights_bytes"]
        states = [_state(entry, len(graph.nodes)) for entry in record["states"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(folder, f"{RECORD} is damaged: {error!r}") from error
    if layout != LAYOUT:
        raise _unusable(folder, f"its layout is {layout!r}, but this version reads {LAYOUT!r}")
    if digest != expected:
        raise _unusable(folder, f"{GRAPH} is not what was written: its SHA-256 is {digest}")
    if weights_bytes != size:
        raise _unusable(folder, f"{WEIGHTS} has {weights_bytes:,} bytes instead of {size}")
    if len(states) != len(graph.nodes):
        text = f"it records {len(states)} nodes, but the model has {len(graph.nodes)}"
        raise _unusable(folder, text)
    return CompiledForm(folder / GRAPH, weights_bytes, states)


def discard(folder: Path) -> None:
    """Remove what a session that failed has left."""
    for name in (GRAPH, WEIGHTS, RECORD):
        (folder / name).unlink(missing_ok=True)


def trim() -> None:
    """Give memory that was freed back to the system, where libc can (glibc)."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)


def compiled_key(options: CompileOptions, plugin_version: str) -> dict[str, str]:
    """Return what the graph file and the packing depend on beside the model.

    Threads are not in it: neither depends on how many run it.
    """
    import onnxruntime

    settings: Mapping[str, str] = options.options
    given = {key: value for key, value in settings.items() if not is_declared(key, _RUN_OPTIONS)}
    given.setdefault("graph_optimization", "all")
    return {
        "engine_cpu": plugin_version,
        "layout": LAYOUT,
        "onnxruntime": onnxruntime.__version__,
        "processor": processor_features(),
        "options": json.dumps(given, sort_keys=True),
    }


@functools.cache
def processor_features() -> str:
    """Name the processor's model and instruction sets: kernels and packing are chosen by them."""
    fields: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if not value:
                    break  # the end of the first processor's
                fields[key.strip()] = value.strip()
    except OSError:
        pass
    # x86: "flags"; ARM: "Features", with numbers for the core's design.
    features = fields.get("flags") or fields.get("Features") or platform.processor()
    model = fields.get("model name") or " ".join(
        fields.get(key, "") for key in ("CPU implementer", "CPU part", "CPU variant")
    )
    digest = hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()
    return f"{platform.machine()} {model.strip()} {digest[:16]}"


def _size(path: Path) -> int:
    """Return a file's size; 0 where there is none, as for a model without large weights."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _state(entry: Any, count: int) -> tuple[NodeState, int | None]:
    state, into = entry
    if into is not None and not (isinstance(into, int) and 0 <= into < count):
        raise ValueError(f"node {into!r} is not one of {count}")
    return NodeState(state), into


def _unusable(folder: Path, text: str) -> CompiledFormError:
    return CompiledFormError(f"compiled form {str(folder)!r}: {text}", str(folder))
