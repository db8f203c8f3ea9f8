"""Primitives that assign to parameters; each returns the parameter's new value."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive, primitive_table
from engine_mindir.primitives.casts import common
from engine_mindir.primitives.scatter import REDUCTIONS, register_scatter, scatter_into
from engine_mindir.values import DType, Value


@primitive("Assign", "assign", "InplaceCopy", writes=True)
def assign(g: Emitter, parameter: Value, value: Any) -> Value:
    new = g.cast(value, parameter.dtype)
    if new.shape != parameter.shape and parameter.shape is not None and new.rank != parameter.rank:
        new = g.node("Expand", new, g.shape(parameter))
    return g.node("Identity", new, shape=parameter.shape)


def _in_place(op_type: str, *names: str) -> None:
    @primitive(*names, writes=True)
    def lower(g: Emitter, parameter: Value, value: Any) -> Value:
        left, right = common(g, parameter, value)
        return g.node(op_type, left, right, shape=parameter.shape)


_in_place("Add", "AssignAdd", "assign_add")
_in_place("Sub", "AssignSub", "assign_sub")


# Primitives that write their result into their first argument, by the one that computes it.
_IN_PLACE = {
    "InplaceAddExt": "AddExt", "InplaceAddsExt": "AddExt", "InplaceSubExt": "SubExt",
    "InplaceSubScalar": "SubExt", "InplaceMul": "Mul", "InplaceMuls": "Mul", "InplaceDiv": "Div",
    "InplaceDivs": "Div", "InplaceDivMod": "DivMod", "InplaceDivMods": "DivMod",
    "InplaceFloorDivide": "FloorDiv", "InplaceFloorDivides": "FloorDiv",
    "InplaceRemainderTensorTensor": "FloorMod", "InplaceRemainderTensorScalar": "FloorMod",
    "InplaceExp": "Exp", "InplaceLog": "Log", "InplaceFloor": "Floor", "InplaceSign": "Sign",
    "InplaceTanh": "Tanh", "InplaceSigmoid": "Sigmoid", "InplaceReLU": "ReLU",
    "InplaceSiLU": "SiLU", "InplaceElu": "Elu", "InplaceHardtanh": "Hardtanh",
    "InplaceThreshold": "Threshold", "InplaceClampScalar": "ClampScalar",
    "InplaceClampTensor": "ClampTensor", "InplaceMaskedFillScalar": "MaskedFill",
    "InplaceMaskedFillTensor": "MaskedFill", "InplaceStopGradient": "Identity",
    "InplaceToDevice": "Identity", "InplaceScatterSrc": "Scatter",
    "InplaceScatterSrcReduce": "Scatter", "InplaceScatterValue": "ScatterValue",
    "InplaceScatterValueReduce": "ScatterValue", "InplaceScatterAdd": "ScatterAddExt",
    "InplaceIndexFillScalar": "IndexFill", "InplaceIndexFillTensor": "IndexFill",
    "InplaceAddmm": "Addmm", "InplaceErfinv": "Erfinv",
}  # fmt: skip


def _like(name: str, other: str) -> None:
    @primitive(name, writes=True)
    def lower(g: Emitter, x: Value, *rest: Any) -> Value:
        result = primitive_table()[other](g, (x, *rest), {})
        return g.node("Identity", g.cast(result, x.dtype), shape=x.shape)


for _name, _other in _IN_PLACE.items():
    _like(_name, _other)


@primitive("InplaceFillScalar", "InplaceFillTensor", writes=True)
def fill_in_place(g: Emitter, x: Value, value: Any) -> Value:
    return g.node("Expand", g.scalar(value, x.dtype), g.shape(x), shape=x.shape)


@primitive("InplaceZero", writes=True)
def zero_in_place(g: Emitter, x: Value) -> Value:
    return fill_in_place(g, x, 0)


@primitive("InplaceIndexAddExt", writes=True)
def index_add_in_place(
    g: Emitter, x: Value, dim: Any, index: Value, source: Value, alpha: Any = 1
) -> Value:
    result: Value = primitive_table()["IndexAddExt"](g, (x, index, source, dim, alpha), {})
    return result


@primitive("ApplyMomentum", writes=True)
def apply_momentum(
    g: Emitter, parameter: Value, accumulation: Value, *rest: Any, use_nesterov: Any = False
) -> Any:
    raise Unsupported("a step of training; export the network without its optimizer")


def _scatter(reduction: str, name: str) -> None:
    """Register a primitive that updates whole rows of a parameter, by index."""

    @primitive(name, writes=True)
    def lower(g: Emitter, parameter: Value, indices: Value, updates: Value) -> Value:
        ids = g.unsqueeze(g.cast(indices, DType.INT64), (-1,))
        return scatter_into(g, parameter, ids, updates, reduction)


for _how, _suffix in REDUCTIONS:
    _scatter(_how, f"Scatter{_suffix}")
    register_scatter(_how, f"ScatterNd{_suffix}", writes=True)
