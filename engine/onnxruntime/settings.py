"""A session's options and providers -> the context and the configuration of a Model."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from engine import Context
from engine.backends import find_target, open_backend
from engine.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    noted_of,
)
from engine.onnxruntime.providers import CPU, TARGETS, Asked
from engine.options import is_declared

Sections = dict[str, dict[str, str]]

_LEVELS = {
    GraphOptimizationLevel.ORT_DISABLE_ALL: "none",
    GraphOptimizationLevel.ORT_ENABLE_BASIC: "basic",
    GraphOptimizationLevel.ORT_ENABLE_EXTENDED: "extended",
    GraphOptimizationLevel.ORT_ENABLE_LAYOUT: "layout",
}
_ENTRIES = ("session.", "optimization.", "mlas.")
"""Beginnings of the entries that the cpu backend hands to onnxruntime."""

_OURS = {"session.load_model_format", "session.use_env_allocators"}
"""Entries that the cpu backend sets itself."""

_NUMBERS = ("device_id",)
_IGNORED = {(CPU, "arena_extend_strategy")}
"""Options that programs give, and that onnxruntime ignores without a word too."""


def context_of(options: Any, asked: Asked) -> Context:
    """Return where a session runs, and on how many threads."""
    context = Context()
    context.target = list(dict.fromkeys(TARGETS[name] for name in asked))
    context.cpu.thread_num = max(options.intra_op_num_threads, 0)
    if options.execution_mode == ExecutionMode.ORT_PARALLEL:
        context.cpu.inter_op_parallel_num = max(options.inter_op_num_threads, 0)
    for name, given in asked.items():
        device: Any = getattr(context, TARGETS[name], None)
        if "device_id" in given and hasattr(device, "device_id"):
            device.device_id = _number(name, "device_id", given["device_id"])
    return context


def _number(provider: str, key: str, text: str) -> int:
    if not text.isdecimal():
        raise RuntimeError(f"{provider}: {key} must be a number from 0 on, but got {text!r}")
    return int(text)


def sections_of(options: Any, asked: Asked, disabled: Any = ()) -> Sections:
    """Return the configuration of a session's model.

    disabled: names of onnxruntime's optimizers that are left out.
    """
    sections: Sections = {}
    if CPU in asked:
        sections["cpu_context"] = _of_cpu(options, disabled)
    for name, given in asked.items():
        section = f"{TARGETS[name]}_context"
        own = sections.setdefault(section, {})
        for key, text in given.items():
            if key in _NUMBERS or (name, key) in _IGNORED:
                continue
            if is_declared(key, open_backend(find_target(TARGETS[name]).backend).info.options):
                own[key] = text
            else:
                logging.getLogger("engine").warning(
                    "%s: option %s = %r has no meaning here", name, key, text
                )
    if options.enable_profiling:
        # A model that is opened anew from the compile cache would begin its profile anew too.
        sections["common_context"] = {"compile_cache": "off"}
    return {name: keys for name, keys in sections.items() if keys}


def _of_cpu(options: Any, disabled: Any) -> dict[str, str]:
    noted = noted_of(options)
    own = {}
    for key, text in noted.entries.items():
        if key.startswith(_ENTRIES) and key not in _OURS:
            own[key] = text
        elif not key.startswith(_ENTRIES):
            logging.getLogger("engine").warning("session option %s = %r has no effect", key, text)
    if disabled:
        key = "optimization.disable_specified_optimizers"
        own[key] = ";".join([*filter(None, [own.get(key)]), *map(str, disabled)])
    level = _LEVELS.get(options.graph_optimization_level)
    if level is not None:
        own["graph_optimization"] = level
    if not options.enable_cpu_mem_arena:
        own["memory_arena"] = "0"
    if options.use_deterministic_compute:
        own["deterministic"] = "1"
    if not options.use_per_session_threads:
        own["thread_pool"] = "process"
    fields = {
        "session.enable_mem_pattern": "" if options.enable_mem_pattern else "0",
        "session.enable_mem_reuse": "" if options.enable_mem_reuse else "0",
        "session.log_id": options.logid,
        "session.log_severity_level": str(options.log_severity_level),
        "session.log_verbosity_level": str(options.log_verbosity_level or ""),
    }
    if options.execution_mode == ExecutionMode.ORT_PARALLEL:
        fields["session.execution_mode"] = "parallel"
    if options.execution_order != ExecutionOrder.DEFAULT:
        fields["session.execution_order"] = options.execution_order.name.lower()
    if options.enable_profiling:
        fields["session.enable_profiling"] = os.path.abspath(options.profile_file_prefix)
    if noted.libraries:
        fields["session.custom_ops_libraries"] = json.dumps(
            [os.path.abspath(path) for path in noted.libraries]
        )
    if noted.sizes or noted.denoted:
        sizes = {"name": noted.sizes, "denotation": noted.denoted}
        fields["session.free_dimensions"] = json.dumps(sizes)
    own.update({key: text for key, text in fields.items() if text})
    return own
