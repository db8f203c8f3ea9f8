"""Integers that rounding decides: what a model gives for them when the floats before them are
others by a rounding.

A slice rounds in its own way, so ArgMax may choose the other of two equal scores, and a quantizer
the next step. Such an integer is another in the model itself, too, when what it is made of changes
by so much; one that is not is an error of the slicer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from engine.context import Context
from engine.converter.sample_inputs import FLOATS
from engine.formats import ModelFile
from engine.formats.onnx.infer import types_of
from engine.plan.extract import Whole
from engine.plan.partition import live
from engine.sharding.slicing.emulate import constant_nodes, cut, run_part, run_parts
from engine.types import DType

Array: TypeAlias = "np.ndarray[Any, Any]"

_TRIES = 16
_FLOATS = {dtype.onnx for dtype in FLOATS}
_CHOICES = (DType.INT64, DType.BOOL, DType.STRING)
"""Indices, decisions and labels: each is one of those that were seen, or wrong."""


def explained(seen: Sequence[Array], expected: Array, got: Array) -> Array:
    """Return which elements rounding explains.

    seen: what the model gave when it was rounded otherwise. A quantity may go beyond what was seen
    by as much as that goes apart.
    """
    fine = got == expected
    for other in seen:
        if other.shape == got.shape:
            fine = fine | (got == other)
    if seen and DType.from_numpy(expected.dtype) not in _CHOICES:
        every = np.stack([expected, *(o for o in seen if o.shape == got.shape)]).astype(np.float64)
        low, high = every.min(0), every.max(0)
        fine |= (got >= low - (high - low)) & (got <= high + (high - low))
    return np.asarray(fine)


def rounded_otherwise(
    path: Path, names: Collection[str], inputs: Mapping[str, Any], limit: float, context: Context
) -> dict[str, list[Array]]:
    """Return results that are no floats, as the model gives them after other roundings.

    limit: of a rounding, as a part of a tensor's largest value. Nothing where no float is before
    such a result but those that the caller gives.
    """
    whole = Whole(ModelFile(path)())
    nodes = whole.graph.nodes
    constants = constant_nodes(whole)
    makers = {name: i for i, node in enumerate(nodes) if i not in constants for name in node.writes}
    types = types_of(whole.proto, makers, guess=True)
    floats: set[str] = set()
    tail: set[int] = set()
    pending = [name for name in names if name in makers]
    while pending:
        index = makers[pending.pop()]
        if index in tail:
            continue
        tail.add(index)
        for name in nodes[index].reads & makers.keys():
            kind = types.get(name)
            is_float = kind is not None and kind.tensor_type.elem_type in _FLOATS
            if is_float:
                floats.add(name)
            else:
                pending.append(name)
    if not floats:
        return {}
    order = [index for index in live(whole.graph) if index not in constants]
    values = dict(inputs)
    run = partial(run_part, context=context)
    values |= run_parts(whole, cut(whole, order, floats, [*inputs]), inputs, floats, run)
    parts = cut(whole, sorted(tail), {*names}, [*inputs, *sorted(floats)])
    chance = np.random.default_rng(0)
    seen: dict[str, list[Array]] = {name: [] for name in names}
    for _ in range(_TRIES):
        others = {name: _rounded(values[name], limit, chance) for name in floats}
        for name, value in run_parts(whole, parts, values | others, names, run).items():
            seen[name].append(value)
    return seen


def _rounded(array: Array, limit: float, chance: np.random.Generator) -> Array:
    largest = float(np.max(np.abs(array), where=np.isfinite(array), initial=0))
    noise = chance.uniform(-limit * largest, limit * largest, array.shape)
    return np.asarray(array + noise).astype(array.dtype)
