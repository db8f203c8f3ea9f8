"""Try whether ONNX Runtime takes a model, by creating a session for it."""

from __future__ import annotations

import functools
from typing import NamedTuple

from engine.host.interrupts import pass_interrupt
from engine_cpu import thread_pool
from engine_cpu.errors import unknown_operator
from engine_cpu.runtime import ort


class Trial(NamedTuple):
    """refusal: ONNX Runtime's words, "" where it takes the model. outputs: their types then."""

    refusal: str
    outputs: tuple[str, ...] = ()

    @property
    def is_taken(self) -> bool:
        """Return True where there is a session."""
        return not self.refusal

    @property
    def is_unknown(self) -> bool:
        """Return True where ONNX Runtime does not know some operator."""
        return bool(unknown_operator(self.refusal))


def take(model: bytes) -> Trial:
    """Create a session that never runs; quick for a model of a few nodes.

    Answers for small models are remembered: the parts of a model that is cut are tried again.
    """
    return _remembered(model) if len(model) <= _SMALL_BYTES else _take(model)


_SMALL_BYTES = 4096


@functools.lru_cache(maxsize=2048)
def _remembered(model: bytes) -> Trial:
    return _take(model)


def _take(model: bytes) -> Trial:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if thread_pool.is_shared:
        thread_pool.join(options)
    try:
        session = ort.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        pass_interrupt(error)
        return Trial(str(error) or type(error).__name__)
    return Trial("", tuple(output.type for output in session.get_outputs()))
