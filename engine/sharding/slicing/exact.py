"""Results of a model in float64, to tell how far its own rounding takes it from them.

A model that cancels (a LayerNorm of nearly equal values, a difference of large numbers) makes much
of the last bit: it is far from the exact result itself, and so is each of its slices, which add in
another order. Slow, and asked for only where results differ by more than a rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from onnx.inliner import inline_local_functions

from engine.converter.sample_inputs import FLOATS
from engine.formats import ModelFile
from engine.formats.onnx.double import widen
from engine.host.interrupts import pass_interrupt
from engine.plan.extract import Whole
from engine.plan.partition import live
from engine.reference.evaluator import Evaluator, Host, load
from engine.sharding.slicing.emulate import constant_nodes, cut, run_parts
from engine.types import Device, DType, ModelSource

Array: TypeAlias = "np.ndarray[Any, Any]"
Values: TypeAlias = "dict[str, Any]"

_HOST = Host("reference", Device("cpu"))


def run_exactly(path: Path, inputs: Mapping[str, Any], names: Collection[str]) -> Values | None:
    """Return results of a whole model, computed in float64; None where that cannot be done.

    It cannot for an operator that onnx's reference evaluator does not have.
    """
    whole = Whole(ModelFile(path)())
    order = [index for index in live(whole.graph) if index not in constant_nodes(whole)]
    parts = cut(whole, order, {*names}, [*inputs])
    wide = {name: _wide(value) for name, value in inputs.items()}
    try:
        return run_parts(whole, parts, wide, names, _run)
    except _NotExact:
        return None


class _NotExact(Exception):
    """A part of a model that cannot be computed in float64."""


def _run(source: ModelSource, values: Mapping[str, Any]) -> Values:
    try:
        model = load(source, _HOST)
        if model.unsupported or model.proto is None:
            raise _NotExact
        proto = inline_local_functions(model.proto)
        widen(proto)
        with np.errstate(all="ignore"):
            found = Evaluator(proto).run(
                None, {value.name: values[value.name] for value in proto.graph.input}
            )
    except Exception as error:  # operators raise whatever numpy raises
        pass_interrupt(error)
        raise _NotExact from error
    return dict(zip([value.name for value in proto.graph.output], found, strict=True))


def _wide(value: Any) -> Any:
    is_float = isinstance(value, np.ndarray) and DType.from_numpy(value.dtype) in FLOATS
    return value.astype(np.float64) if is_float else value
