"""Outputs in float64 by onnx's reference evaluator: what errors are measured against.

Imported only where a user allows an error. Slow: an operator may be a loop in Python.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onnx.inliner import inline_local_functions

from engine.formats.onnx.double import widen
from engine.host.interrupts import pass_interrupt
from engine.reference.evaluator import Evaluator, EvaluatorExecutable, Host, load
from engine.report.parts import arrays_of
from engine.tensor.description import Array
from engine.types import Device, DType, ModelSource, TensorSpec

_HOST = Host("reference", Device("cpu"))
_FLOATS = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32}
_MOST_BYTES = 256 << 20
"""Weights from which on a model is not tried: each float would take 8 bytes."""


def in_float64(
    source: ModelSource, samples: Sequence[Sequence[Any]], limit_s: float
) -> list[dict[str, Array]] | None:
    """Return the outputs by name for each of some inputs.

    None where the evaluator has not all of the operators, fails, or takes longer than limit_s.
    """
    graph = source.graph
    if graph is None or sum(parameter.nbytes for parameter in graph.parameters) > _MOST_BYTES:
        return None
    end = time.monotonic() + limit_s
    try:
        model = load(source, _HOST)
        if model.unsupported or model.proto is None:
            return None
        proto = inline_local_functions(model.proto)
        widen(proto)
        executable = EvaluatorExecutable(model, Evaluator(proto))
        executable.outputs = tuple(map(_wide_spec, executable.outputs))
        context = executable.open_context()
        return [
            {
                name: array
                for spec, value in zip(
                    executable.outputs, context.run([*map(_wide, values)], None, end), strict=True
                )
                for name, array in arrays_of(spec.name, value, spec.dtype).items()
            }
            for values in samples
        ]
    except Exception as error:  # operators raise whatever numpy raises
        pass_interrupt(error)
        return None


def _wide_spec(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype=DType.FLOAT64) if spec.dtype in _FLOATS else spec


def _wide(value: Any) -> Any:
    if isinstance(value, list):
        return [_wide(each) for each in value]
    is_float = value is not None and DType.from_numpy(value.dtype) in _FLOATS
    return value.astype("float64") if is_float else value
