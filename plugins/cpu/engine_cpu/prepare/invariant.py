"""Sum over middle axes in one order of adding for every size of the batch.

ONNX Runtime adds the rows of [1, length, width] one after the other, and multiplies those of
[batch, length, width] by ones, in another order. With the reduced axes first, every batch is summed
as a sample alone is: result by result the same additions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy

from onnx import ModelProto, NodeProto, TensorProto, helper

from engine_cpu.prepare.kind import Scope, attribute, free_names

OPERATORS = frozenset({"ReduceMean", "ReduceSum"})
"""Those whose kernels add float32 in an order that depends on the first axis."""

_NOTE = "computed with the reduced axes first: adds in one order for every size of the batch"


def sum_in_one_order(model: ModelProto, nodes: list[NodeProto], scope: Scope) -> Mapping[int, str]:
    """Rewrite sums of the main graph, in the list that is to be its nodes.

    nodes: one for each node of the model. Returns a note for each that is rewritten, by index.
    """
    batches = {
        value.type.tensor_type.shape.dim[0].dim_param
        for value in model.graph.input
        if value.type.tensor_type.shape.dim
    }
    names = free_names(model, "engine_cpu.ordered")
    result: list[NodeProto] = []
    notes: dict[int, str] = {}
    for index, node in enumerate(nodes):
        axes = _middle_axes(node, scope, batches)
        if axes:
            result += _with_axes_first(node, *axes, names)
            notes[index] = _NOTE
        else:
            result.append(node)
    nodes[:] = result
    return notes


def _middle_axes(node: NodeProto, scope: Scope, batches: set[str]) -> tuple[int, int] | None:
    """Return how many axes are reduced and the rank, for axes that come next to an open batch.

    None for any other node: where the last axis is reduced too, the order is one already.
    """
    kind = scope.types.get(node.input[0]) if node.input else None
    if node.op_type not in OPERATORS or node.domain not in ("", "ai.onnx") or kind is None:
        return None
    tensor = kind.tensor_type
    if tensor.elem_type != TensorProto.FLOAT or not tensor.HasField("shape"):
        return None
    dims = tensor.shape.dim
    axes = _axes(node, scope)
    if not dims or not axes or any(not -len(dims) <= axis < len(dims) for axis in axes):
        return None
    is_batch = not dims[0].HasField("dim_value") and dims[0].dim_param in {"", *batches}
    places = sorted(axis % len(dims) for axis in axes)
    count = len(places)
    if not is_batch or places != list(range(1, count + 1)) or count == len(dims) - 1:
        return None
    return count, len(dims)


def _axes(node: NodeProto, scope: Scope) -> list[int]:
    """Return the axes of a reduction; none where they are not constants."""
    if len(node.input) < 2 or not node.input[1]:
        return list(attribute(node, "axes") or ())
    return [int(axis) for axis in scope.values(node.input[1]) or ()]


def _with_axes_first(
    node: NodeProto, count: int, rank: int, names: Iterator[str]
) -> list[NodeProto]:
    """Return nodes that move axes 1 to `count` to the front, and reduce them there.

    The Reshape to its own shape keeps ONNX Runtime from taking the Transpose back into the sum.
    """
    order = [*range(1, count + 1), 0, *range(count + 1, rank)]
    moved, shape, held = next(names), next(names), next(names)
    nodes = [
        helper.make_node("Transpose", [node.input[0]], [moved], perm=order),
        helper.make_node("Shape", [moved], [shape]),
        helper.make_node("Reshape", [moved, shape], [held]),
    ]
    copy = deepcopy(node)
    copy.input[0] = held
    first = list(range(count))
    if len(node.input) > 1 and node.input[1]:
        axes = helper.make_tensor("axes", TensorProto.INT64, [count], first)
        copy.input[1] = next(names)
        nodes.append(helper.make_node("Constant", [], [copy.input[1]], value=axes))
    for item in copy.attribute:
        if item.name == "axes":
            item.ints[:] = first
    keepdims = attribute(node, "keepdims")
    if keepdims is not None and not keepdims:
        return [*nodes, copy]
    copy.output[0] = next(names)
    back = [order.index(axis) for axis in range(rank)]
    return [
        *nodes,
        copy,
        helper.make_node("Transpose", [copy.output[0]], [node.output[0]], perm=back),
    ]
