"""ONNX Runtime's session configuration entries: which of them it knows.

It takes any key and reads those that it knows, so a misspelt one has no effect and no error. It
says nowhere which these are; but the keys are constants of its library.
"""

from __future__ import annotations

import functools
import mmap
from pathlib import Path

from engine_cpu.runtime import ort

# Entries that carry a session's other settings elsewhere, and have no effect here: what has.
_SETTINGS = {
    "session.enable_cpu_mem_arena": "memory_arena",
    "session.graph_optimization_level": "graph_optimization",
    "session.inter_op_num_threads": "inter_op_parallel_num of the context",
    "session.intra_op_num_threads": "thread_num of the context",
    "session.optimized_model_filepath": "the compile cache",
    "session.use_deterministic_compute": "deterministic",
    "session.use_per_session_threads": "thread_pool",
}
_WORD = 16  # compilers may keep a long constant in words, the last of them apart


def check(key: str) -> None:
    """Raise ValueError for a key that this ONNX Runtime does not read."""
    if key in _SETTINGS:
        raise ValueError(
            f"[cpu_context] {key} has no effect on a session; set {_SETTINGS[key]} instead"
        )
    if not _is_known(key):
        raise ValueError(
            f"[cpu_context] {key} is no session configuration entry that onnxruntime "
            f"{ort.__version__} knows: see its onnxruntime_session_options_config_keys.h"
        )


@functools.cache
def _is_known(key: str) -> bool:
    sought = [key.encode() + b"\0"]
    if len(key) > 2 * _WORD:
        sought.append(key[: len(key) // _WORD * _WORD].encode())
    libraries = sorted(Path(ort.__file__).parent.glob("capi/*onnxruntime*.so*"))
    for path in libraries:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if any(data.find(text) >= 0 for text in sought):
                return True
    return not libraries  # packed otherwise than the wheels that are known here
