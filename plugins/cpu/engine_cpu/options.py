"""The user's settings -> ONNX Runtime's session options.

They are in section [cpu_context] of the configuration. Importing this module imports no runtime:
the manifest declares OPTIONS.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from engine.options import parsed
from engine.types import CompileOptions, Option, Threads
from engine_cpu.fields import FIELDS
from engine_cpu.rewrites import EXACT, MODES, OFF
from engine_cpu.spin import spin_us as default_spin_us

if TYPE_CHECKING:
    from engine_cpu.runtime import ort

_SECTION = "[cpu_context]"
_ENTRIES = "ONNX Runtime's own session configuration entries: see its header of config keys"

_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}

OPTIONS: Mapping[str, Option] = {
    "graph_optimization": Option(
        text="what ONNX Runtime may rewrite in the graph",
        choices=tuple(_LEVELS),
        default="all",
    ),
    "spin_us": Option(
        text="microseconds that idle threads wait for more work before they sleep; 0 for not at "
        "all, -1 for ONNX Runtime's own choice; by default 300, 15 beside busy processes, "
        "0 in the segments of a cut model",
        type=int,
        lowest=-1,
        highest=1_000_000,
    ),
    "memory_arena": Option(
        text="keep freed activations for the next predict", type=bool, default="1"
    ),
    "deterministic": Option(
        text="use kernels whose results do not depend on threads", type=bool, default="0"
    ),
    "denormal_as_zero": Option(text="flush denormal numbers", type=bool, default="0"),
    "thread_pool": Option(
        text="own: each session has its threads; process: all of the process share one pool, and "
        "onnxruntime then refuses every other session that wants its own",
        choices=("own", "process"),
        default="own",
    ),
    "workspace": Option(
        text="own: each session keeps memory for its activations; process: all that say so share "
        "that memory, for models that seldom run at once",
        choices=("own", "process"),
        default="own",
    ),
    "workarounds": Option(
        text="compute otherwise what a kernel of ONNX Runtime gets wrong (placement says which "
        "nodes); off: as ONNX Runtime does",
        type=bool,
        default="1",
    ),
    "rewrites": Option(
        text="write parts of a model otherwise for faster kernels (placement says which nodes); "
        "exact: only with the same results in every bit; on: also within a bound, see the README",
        choices=MODES,
        default=EXACT,
    ),
    "measure_rewrites": Option(
        text="rewrite only where the load measures that it is faster on this machine; off: "
        "wherever it is possible",
        type=bool,
        default="1",
    ),
    "batch_invariant": Option(
        text="sums over middle axes add in the order of a sample alone, whatever the batch; "
        "ModelParallelRunner turns it on where requests can share runs then",
        type=bool,
        default="0",
    ),
    "session.*": Option(text=_ENTRIES),
    "optimization.*": Option(text=_ENTRIES),
    "mlas.*": Option(text=_ENTRIES),
}
RAW = tuple(name[:-1] for name in OPTIONS if name.endswith("*"))

RUN_OPTIONS = ("spin_us", "memory_arena", "deterministic", "thread_pool", "workspace")
"""Options that choose how a session runs, not what its graph and packed weights are: they are not
in the key of the compile cache. denormal_as_zero is: constants are folded with it. The number of
threads is not, because neither graph nor weights depend on it.
"""

# The entries that an option sets.
_ENTRIES_OF: Mapping[str, tuple[str, ...]] = {
    "spin_us": tuple(
        f"session.{pool}_op.{key}"
        for pool in ("intra", "inter")
        for key in ("allow_spinning", "spin_duration_us")
    ),
    "denormal_as_zero": ("session.set_denormal_as_zero",),
    "workspace": ("session.use_env_allocators",),
}
# Settings of a session's own threads, which the one pool of a process ignores.
_OF_OWN_THREADS = ("spin_us", "session.intra_op", "session.inter_op", "session.dynamic_block_base")


def session_options(options: CompileOptions) -> ort.SessionOptions:
    """Return ONNX Runtime's options for `options`; ValueError for an unknown key or value."""
    from engine_cpu import thread_pool
    from engine_cpu.runtime import ort

    settings = _settings(options)
    if options.provider not in ("", "onnxruntime"):
        raise ValueError(f"provider must be 'onnxruntime' or '', but got {options.provider!r}")
    result = ort.SessionOptions()
    result.log_severity_level = 4  # errors come as exceptions, not as lines on stderr
    result.intra_op_num_threads = _intra_op(options.threads)
    result.inter_op_num_threads = options.threads.inter_op
    if options.threads.inter_op > 1:
        result.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    if settings["thread_pool"] == "process":
        thread_pool.make(result.intra_op_num_threads, result.inter_op_num_threads)
    if thread_pool.is_shared:
        thread_pool.join(result)
        _warn_of_own_threads(options)
    level = _LEVELS[settings["graph_optimization"]]
    result.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    result.enable_cpu_mem_arena = settings["memory_arena"]
    if shares_workspace(options):
        from engine_cpu import workspace  # rare

        workspace.use(result)
    if options.profile_to is not None:
        from engine_cpu import profile  # rare

        profile.set_up(result, options.profile_to)
    result.use_deterministic_compute = settings["deterministic"]
    raw = raw_entries(options)
    if raw:
        _check_raw(raw, options.options)
    for key, value in {**_entries(options, settings), **raw}.items():
        try:
            if key in FIELDS:
                FIELDS[key](result, value)
            else:
                result.add_session_config_entry(key, value)
        except Exception as error:  # ONNX Runtime's own, without a common base
            raise ValueError(f"{_SECTION} {key} = {value!r}: {error}") from error
    return result


def raw_entries(options: CompileOptions) -> dict[str, str]:
    """Return the entries that the user gives ONNX Runtime directly."""
    return {key: value for key, value in options.options.items() if key.startswith(RAW)}


def refused_entries(raw: Mapping[str, str], reason: str) -> ValueError:
    """Return the error for entries with which ONNX Runtime makes no session."""
    listed = ", ".join(f"{key} = {value!r}" for key, value in raw.items())
    return ValueError(f"{_SECTION} {listed}: onnxruntime refused it: {reason}")


def has_workarounds(options: CompileOptions) -> bool:
    """Return whether kernels with known issues are to be avoided."""
    return bool(_settings(options)["workarounds"])


def is_batch_invariant(options: CompileOptions) -> bool:
    """Return whether a sample's sums are to have the same bits in every batch."""
    return bool(_settings(options)["batch_invariant"])


def rewrites_mode(options: CompileOptions) -> str:
    """Return which rewrites are wanted: none without the optimiser that they are made for."""
    settings = _settings(options)
    return OFF if settings["graph_optimization"] != "all" else str(settings["rewrites"])


def measures_rewrites(options: CompileOptions) -> bool:
    """Return whether a model is rewritten only where that is measured to be faster."""
    return bool(_settings(options)["measure_rewrites"])


def shares_workspace(options: CompileOptions) -> bool:
    """Return whether a session takes its activations from the arena of the process."""
    settings = _settings(options)
    if settings["workspace"] == "process" and not settings["memory_arena"]:
        _warn(f"{_SECTION} workspace = process has no effect with memory_arena = off")
        return False
    return bool(settings["workspace"] == "process")


def _settings(options: CompileOptions) -> Mapping[str, Any]:
    return _parsed(tuple(options.options.items()))


@functools.lru_cache(4)
def _parsed(given: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    """Return the value of each option; remembered, for a load asks several times."""
    try:
        return MappingProxyType(parsed(dict(given), OPTIONS))
    except ValueError as error:
        raise ValueError(f"{_SECTION} {error}") from None


def _check_raw(raw: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise ValueError for entries that ONNX Runtime does not read or that an option sets too."""
    from engine_cpu import entries  # rare

    for key in raw:
        if key not in FIELDS:
            entries.check(key)
    for name, keys in _ENTRIES_OF.items():
        both = [key for key in keys if key in raw]
        if both and given.get(name, "").strip():
            raise ValueError(f"{_SECTION} {name} and {both[0]} set the same: give one of them")


def _warn_of_own_threads(options: CompileOptions) -> None:
    ignored = [f"{_SECTION} {key}" for key in options.options if key.startswith(_OF_OWN_THREADS)]
    if options.threads.cores:
        ignored.append("thread affinity")
    for name in ignored:
        _warn(f"{name} has no effect: the sessions of the process share one thread pool")


@functools.cache
def _warn(text: str) -> None:
    """Log a warning, once a process: a load asks for the options of several sessions."""
    import logging  # rare

    logging.getLogger("engine.cpu").warning("%s", text)


# Bounds of a load's memory and time, and of what a file is taken for.
_LIMITS = {
    # Else bytes that carry ORT's own mark are read as its flatbuffer format, unchecked.
    "session.load_model_format": "ONNX",
    # Of each constant that is computed while the session is made; ONNX Runtime's default is 1 GiB.
    "optimization.constant_folding_max_output_size_in_bytes": str(512 << 20),
    # Nodes that a model's own functions may be inlined to.
    "session.function_expansion_node_limit": "200000",
}


def _entries(options: CompileOptions, settings: Mapping[str, Any]) -> dict[str, str]:
    entries = dict(_LIMITS)
    spin_us = settings["spin_us"]
    threads = max(options.threads.intra_op, options.threads.inter_op)
    if spin_us is None and options.plan and threads > 1:
        # While one segment runs, the threads of the one before would take its CPUs by spinning.
        # Spinning that ends with the run gains less than it loses beside a neighbour that comes
        # later (bench/cut.py two-threads).
        spin_us = 0
    elif spin_us is None:
        spin_us = default_spin_us(threads)
    if spin_us == 0:
        entries["session.intra_op.allow_spinning"] = "0"
        entries["session.inter_op.allow_spinning"] = "0"
    elif spin_us > 0:
        entries["session.intra_op.spin_duration_us"] = str(spin_us)
        entries["session.inter_op.spin_duration_us"] = str(spin_us)
    if settings["denormal_as_zero"]:
        entries["session.set_denormal_as_zero"] = "1"
    cores = options.threads.cores
    if cores and options.threads.intra_op > 1:
        entries["session.intra_op_thread_affinities"] = _affinities(cores)
    elif cores:
        _warn(
            f"thread affinity to cores {list(cores)} pins nothing: a model with one thread runs on "
            f"the thread that calls predict; pin that with os.sched_setaffinity(0, {{{cores[0]}}})"
        )
    return entries


def _intra_op(threads: Threads) -> int:
    """Return a session's threads; 0, ONNX Runtime's choice, where the whole machine is ours.

    It then takes one thread a physical core, which is right beside hyper-threads, and pins each to
    its core, which saves 10 % on models of many short operators: a free thread that is woken often
    starts on its waker's core.
    """
    whole_machine = threads.is_counted and threads.intra_op == os.cpu_count()
    return 0 if whole_machine else threads.intra_op


def _affinities(cores: tuple[int, ...]) -> str:
    """Return ONNX Runtime's form: 1-based processors, one for each thread but the caller's own.

    That one is the first of a model's threads and belongs to the user: it is never pinned, and
    the first core is left to it.
    """
    return ";".join(str(core + 1) for core in cores[1:])
