"""Weights that are inputs of the graph too -> constants.

From IR version 4 on such an initializer is a default that a caller of ONNX Runtime may replace, so
nothing that reads it is folded, fused or packed. No caller of a Model can: its inputs are those
without an initializer. Tools that were written for IR version 3 list all weights so. The results
are those of the same model with constants: ONNX Runtime folds BatchNormalization into Conv, for
one, and that rounds otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from engine.errors import ModelError
from engine.host.interrupts import raised_by_handler
from engine.model_bytes import Budget, fields, schema
from engine.types import ModelSource
from engine_cpu.nodes import held_still, view_of

if TYPE_CHECKING:
    from onnx import ModelProto

REASON = "weights that the file lists as inputs, as constants"

_FIELDS = 10_000_000  # the core has read the model within that
LISTS = 4  # the first IR version in which what is listed so is no constant


def lists_weights(source: ModelSource) -> bool:
    """Return True for a file whose graph has more inputs than a Model; without onnx."""
    graph = source.graph
    assert graph is not None, "the core reads every ONNX file before a backend does"
    if graph.ir_version < LISTS or not graph.parameters:
        return False
    budget, count = Budget(_FIELDS), 0
    try:
        with held_still(source):
            for _, part in fields(view_of(source), budget, {schema.MODEL_GRAPH}):
                count += sum(1 for _ in fields(part, budget, {schema.GRAPH_INPUT}))
    except (OSError, ValueError) as error:  # it is no longer what the core has read
        if isinstance(error, ModelError) or raised_by_handler(error):
            raise
        return False
    return count > len(graph.inputs)


def make_constants(model: ModelProto, inputs: Collection[str]) -> set[str]:
    """Drop what is no input of a Model from the graph's inputs; return the names."""
    weights = {tensor.name for tensor in model.graph.initializer} - set(inputs)
    kept = [value for value in model.graph.input if value.name not in weights]
    dropped = {value.name for value in model.graph.input} & weights
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return dropped
