"""The user's settings -> ONNX Runtime's session options.

Section [cpu_context] of the configuration:

    graph_optimization  all (default) | extended | basic | none
    spin_us             how long idle threads wait for more work before they sleep; 0 for not
                        at all, -1 for ONNX Runtime's own choice; by default see spin.py
    memory_arena        on (default) | off: keep freed activations for the next predict
    deterministic       off (default) | on: kernels whose results do not depend on threads
    denormal_as_zero    off (default) | on
    session.*, optimization.*, mlas.*   ONNX Runtime's own session configuration entries, as
                        listed in its onnxruntime_session_options_config_keys.h
"""

from __future__ import annotations

import difflib
import os

import onnxruntime as ort

from engine.types import CompileOptions, Threads
from engine_cpu.spin import spin_us as default_spin_us

_LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_KEYS = ("graph_optimization", "spin_us", "memory_arena", "deterministic", "denormal_as_zero")
_RAW = ("session.", "optimization.", "mlas.")


def session_options(options: CompileOptions) -> ort.SessionOptions:
    """ONNX Runtime's options for `options`; ValueError for an unknown key or value."""
    settings = options.options
    for key in settings:
        if key not in _KEYS and not key.startswith(_RAW):
            near = difflib.get_close_matches(key, _KEYS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"[cpu_context] has no key {key!r}{hint} "
                f"(known: {', '.join(_KEYS)}, and ONNX Runtime's session.*)"
            )
    if options.provider not in ("", "onnxruntime"):
        raise ValueError(f"provider must be 'onnxruntime' or '', but got {options.provider!r}")
    result = ort.SessionOptions()
    result.log_severity_level = 4  # errors come as exceptions, not as lines on stderr
    result.intra_op_num_threads = _intra_op(options.threads)
    result.inter_op_num_threads = options.threads.inter_op
    if options.threads.inter_op > 1:
        result.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    result.graph_optimization_level = _LEVELS[
        _choice(settings, "graph_optimization", "all", tuple(_LEVELS))
    ]
    result.enable_cpu_mem_arena = _choice(settings, "memory_arena", "on", ("on", "off")) == "on"
    result.use_deterministic_compute = _is_on(settings, "deterministic")
    for key, value in _entries(options).items():
        try:
            result.add_session_config_entry(key, value)
        except Exception as error:  # ONNX Runtime's own, without a common base
            raise ValueError(f"[cpu_context] {key} = {value!r}: {error}") from error
    return result


# What bounds the memory and time of a load, and what a file is taken for.
_LIMITS = {
    # Else bytes that carry ORT's own mark are read as its flatbuffer format, unchecked.
    "session.load_model_format": "ONNX",
    # Of each constant that is computed while the session is made; ONNX Runtime's default is 1 GiB.
    "optimization.constant_folding_max_output_size_in_bytes": str(512 << 20),
    # Nodes that a model's own functions may be inlined to.
    "session.function_expansion_node_limit": "200000",
}


def _entries(options: CompileOptions) -> dict[str, str]:
    settings = options.options
    entries = dict(_LIMITS)
    text = settings.get("spin_us")
    spin_us = default_spin_us(options.threads.intra_op) if text is None else _spin_us(text)
    if spin_us == 0:
        entries["session.intra_op.allow_spinning"] = "0"
        entries["session.inter_op.allow_spinning"] = "0"
    elif spin_us > 0:
        entries["session.intra_op.spin_duration_us"] = str(spin_us)
        entries["session.inter_op.spin_duration_us"] = str(spin_us)
    if _is_on(settings, "denormal_as_zero"):
        entries["session.set_denormal_as_zero"] = "1"
    if options.threads.cores and options.threads.intra_op > 1:
        entries["session.intra_op_thread_affinities"] = _affinities(options.threads.cores)
    raw = {key: value for key, value in settings.items() if key.startswith(_RAW)}
    return {**entries, **raw}


def _intra_op(threads: Threads) -> int:
    """The threads of a session; 0 leaves them to ONNX Runtime where the whole machine is ours.

    It then takes one thread a physical core, which is right beside hyper-threads, and pins each to
    its core, which saves 10 % on models of many short operators: a free thread that is woken often
    starts on its waker's core.
    """
    whole_machine = threads.is_counted and threads.intra_op == os.cpu_count()
    return 0 if whole_machine else threads.intra_op


def _affinities(cores: tuple[int, ...]) -> str:
    """ONNX Runtime's form: 1-based processors, one entry for each thread but the caller's own."""
    return ";".join(str(core + 1) for core in cores[1:])


def _spin_us(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -2
    if not -1 <= value <= 1_000_000:
        raise ValueError(
            f"[cpu_context] spin_us must be -1 (ONNX Runtime's own) or 0..1000000 us, "
            f"but got {text!r}"
        )
    return value


def _is_on(settings: object, key: str) -> bool:
    return _choice(settings, key, "off", ("on", "off")) == "on"


def _choice(settings: object, key: str, default: str, choices: tuple[str, ...]) -> str:
    assert hasattr(settings, "get")
    value = str(settings.get(key, default)).strip().lower()
    if value not in choices:
        raise ValueError(f"[cpu_context] {key} must be in {list(choices)}, but got {value!r}")
    return value
