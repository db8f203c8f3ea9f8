"""Collectives inside the engines of the emulated TensorRT: their shapes, and what they compute.

What the parser says of them, and the shapes, are what TensorRT's real parser and builder said
(tensorrt_rtx 1.7.1, which builds them without a device).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference.op_run import OpRun

OPERATOR = "DistCollective"
_OPERATIONS = ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter")
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_REDUCTIONS = ("sum", "prod", "max", "min", "avg", "none")

Exchange = Callable[[str, str, int, "np.ndarray[Any, Any]"], "np.ndarray[Any, Any]"]
_running = threading.local()


def is_inside(node: onnx.NodeProto) -> bool:
    return node.op_type == OPERATOR and node.domain in ("", "ai.onnx")


def refusal(node: onnx.NodeProto) -> str:
    """Return the parser's text where it does not take a node; "" where it does."""
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    operation, reduction = (
        given.get(name, b"").decode() for name in ("collective_operation", "reduce_op")
    )
    if operation not in _OPERATIONS:
        return f"Unknown CollectiveOperation: {operation}"
    if reduction not in _REDUCTIONS:
        return f"Invalid Node - {node.name}"
    if (operation in _REDUCING) == (reduction == "none"):
        return (
            f"Invalid Node - {node.name}\nINetworkDefinition::addDistCollective: Error Code 3: API "
            "Usage Error (Parameter check failed, condition: elem(distCollectiveOp, "
            "{CO::kALL_REDUCE, CO::kREDUCE, CO::kREDUCE_SCATTER}) ? reduceOp != RO::kNONE : "
            "reduceOp == RO::kNONE.)"
        )
    return ""


def stand_in(model: onnx.ModelProto, ranks: Mapping[int, int]) -> onnx.ModelProto:
    """Return a model of ONNX's own operators whose tensors have the same types and shapes."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    opset = next(each.version for each in model.opset_import if not each.domain)
    for index, node in enumerate(model.graph.node):
        if not is_inside(node):
            continue
        count = ranks.get(index, 1)
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        operation = given["collective_operation"].decode()
        operator, takes, gives = "Identity", [*node.input], [*node.output]
        attributes: dict[str, int] = {}
        if operation == "all_gather":
            operator, takes, attributes = "Concat", takes * count, {"axis": 0}
        elif operation == "reduce_scatter":
            operator, attributes = "Split", {"axis": 0}
            attributes |= {"num_outputs": count} if opset >= 18 else {}
            gives += [f"{gives[0]} of {rank}" for rank in range(1, count)]
        made = helper.make_node(operator, takes, gives, node.name, **attributes)
        result.graph.node[index].CopyFrom(made)
    return result


@contextmanager
def exchanging(exchange: Exchange) -> Iterator[None]:
    """Let the collectives that this thread computes be done by `exchange`."""
    _running.exchange = exchange
    try:
        yield
    finally:
        del _running.exchange


class DistCollective(OpRun):
    """The operator, for onnx's reference evaluator."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]  # as onnx calls it
        self, x, collective_operation=None, reduce_op=None, root=None
    ):
        return (_running.exchange(collective_operation, reduce_op, root, x),)
