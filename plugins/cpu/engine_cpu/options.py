"""The user's settings -> ONNX Runtime's session options.

They are in section [cpu_context] of the configuration. Importing this module imports no runtime:
the manifest declares OPTIONS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.options import parsed
from engine.types import CompileOptions, Option, Threads
from engine_cpu.spin import spin_us as default_spin_us

if TYPE_CHECKING:
    import onnxruntime as ort

_ENTRIES = "ONNX Runtime's own session configuration entries: see its header of config keys"

_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
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


def session_options(options: CompileOptions) -> ort.SessionOptions:
    """Return ONNX Runtime's options for `options`; ValueError for an unknown key or value."""
    import onnxruntime as ort

    from engine_cpu import thread_pool

    settings = parsed(options.options, OPTIONS)
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
    for key in options.options:
        if key.startswith(RAW):
            from engine_cpu import entries  # rare

            entries.check(key)
    for key, value in _entries(options, settings).items():
        try:
            result.add_session_config_entry(key, value)
        except Exception as error:  # ONNX Runtime's own, without a common base
            raise ValueError(f"[cpu_context] {key} = {value!r}: {error}") from error
    return result


def has_workarounds(options: CompileOptions) -> bool:
    """Return whether kernels with known issues are to be avoided."""
    return bool(parsed(options.options, OPTIONS)["workarounds"])


def is_batch_invariant(options: CompileOptions) -> bool:
    """Return whether a sample's sums are to have the same bits in every batch."""
    return bool(parsed(options.options, OPTIONS)["batch_invariant"])


def shares_workspace(options: CompileOptions) -> bool:
    """Return whether a session takes its activations from the arena of the process."""
    settings = parsed(options.options, OPTIONS)
    return settings["workspace"] == "process" and bool(settings["memory_arena"])


# What bounds the memory and time of a load, and what a file is taken for.
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
        import logging  # rare

        logging.getLogger("engine.cpu").warning(
            "thread affinity to cores %s pins nothing: a model with one thread runs on the thread "
            "that calls predict; pin that with os.sched_setaffinity(0, {%d})",
            list(cores), cores[0],
        )  # fmt: skip
    raw = {key: value for key, value in options.options.items() if key.startswith(RAW)}
    return {**entries, **raw}


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
