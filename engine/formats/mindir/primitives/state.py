"""Writing to parameters. What is returned is what the parameter holds afterwards."""

from __future__ import annotations

from typing import Any

from engine.formats.mindir.emit import Emitter
from engine.formats.mindir.primitives import primitive
from engine.formats.mindir.primitives.arithmetic import common
from engine.formats.mindir.values import DType, Value


@primitive("Assign", "assign", "InplaceCopy", writes=True)
def assign(g: Emitter, parameter: Value, value: Any) -> Value:
    new = g.cast(value, parameter.dtype)
    if new.shape != parameter.shape and parameter.shape is not None and new.rank != parameter.rank:
        new = g.node("Expand", new, g.shape(parameter))
    return g.node("Identity", new, shape=parameter.shape)


def _in_place(op_type: str, *names: str) -> None:
    @primitive(*names, writes=True)
    def lower(g: Emitter, parameter: Value, value: Any) -> Value:
        one, two = common(g, parameter, value)
        return g.node(op_type, one, two, shape=parameter.shape)


_in_place("Add", "AssignAdd", "assign_add")
_in_place("Sub", "AssignSub", "assign_sub")


@primitive("InplaceAddExt", "InplaceAddsExt", writes=True)
def add_in_place(g: Emitter, x: Value, y: Any, alpha: Any = 1) -> Value:
    if alpha != 1:
        y = g.node("Mul", *common(g, y, alpha))
    return g.node("Add", *common(g, x, y), shape=x.shape)


def _scatter(reduction: str, *names: str) -> None:
    """Whole rows, by their numbers."""

    @primitive(*names, writes=True)
    def lower(g: Emitter, parameter: Value, indices: Value, updates: Value) -> Value:
        ids = g.unsqueeze(g.cast(indices, DType.INT64), (-1,))
        return _scattered(g, parameter, ids, updates, reduction)


def _scatter_nd(reduction: str, *names: str) -> None:
    @primitive(*names, writes=True)
    def lower(g: Emitter, parameter: Value, indices: Value, updates: Value) -> Value:
        return _scattered(g, parameter, g.cast(indices, DType.INT64), updates, reduction)


def _scattered(g: Emitter, x: Value, ids: Value, updates: Value, reduction: str) -> Value:
    if reduction == "sub":
        updates, reduction = g.node("Neg", updates), "add"
    return g.node("ScatterND", x, ids, updates, reduction=reduction, shape=x.shape)


for _how, _suffix in (
    ("none", "Update"), ("add", "Add"), ("sub", "Sub"), ("mul", "Mul"), ("max", "Max"),
    ("min", "Min"),
):  # fmt: skip
    _scatter(_how, f"Scatter{_suffix}")
    _scatter_nd(_how, f"ScatterNd{_suffix}")
