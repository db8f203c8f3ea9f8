"""What a few bytes of a model would unfold into when a runtime loads it.

Two ways that can be seen in the file alone: constants computed from a constant shape, and
functions that call functions. What takes shape inference to see (a tensor joined with itself
again and again) is for the backend to bound, with its runtime's own settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from engine.formats.onnx import limits
from engine.formats.onnx.reading import Invalid
from engine.formats.onnx.scope import Scope
from engine.formats.onnx.tensor import Tensor, read_ints
from engine.formats.wire import Budget
from engine.types import NodeInfo

FunctionId: TypeAlias = tuple[str, str, str]
"""A model's own function: domain, name, overload."""

# Operators whose output has at least the product of this input's elements.
_SHAPE_INPUT = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1}


def unfolded_bytes(
    node: NodeInfo, value: Tensor | None, scope: Scope, what: str, budget: Budget
) -> int:
    """Bytes of a constant that `node` computes from a constant shape; 0 where it computes none.

    value: the tensor attribute of the node. Raises Invalid where the node's output, constant or
    not, is absurdly large whatever else it reads.
    """
    place = _SHAPE_INPUT.get(node.op_type)
    if place is None or node.domain not in ("", "ai.onnx") or len(node.inputs) <= place:
        return 0
    constant = scope.constant(node.inputs[place])
    shape = read_ints(constant, budget) if constant is not None else None
    if not shape:
        return 0
    fills = node.op_type == "ConstantOfShape"
    # Only the fill says its type; of the others every element takes a byte or more, nearly always.
    bits = (value.dtype.bits if value is not None else 32) if fills else 8
    size = bits
    for dim in shape:
        size *= max(dim, 0)
    size //= 8
    if size > limits.UNFOLDED_BYTES:
        raise Invalid(
            f"{what} makes a tensor of {size:,} bytes from the shape {shape}; "
            f"at most {limits.UNFOLDED_BYTES:,} bytes are allowed"
        )
    return size if fills else 0


def check_functions(
    sizes: Mapping[FunctionId, int],
    calls: Mapping[FunctionId, Counter[FunctionId]],
    main: Counter[FunctionId],
) -> None:
    """Raise Invalid for functions that call themselves, nest too deep, or inline to too much.

    sizes: nodes that each function's body has in the file. calls: how often it calls which
    others. main: the calls of the main graph.
    """
    total = dict.fromkeys(sizes, 0)
    depth = dict.fromkeys(sizes, 0)
    for function in _callees_first(calls):
        total[function] = sizes[function]
        for callee, times in calls[function].items():
            depth[function] = max(depth[function], depth[callee] + 1)
            # Cut off: doubling a thousand times over would count with numbers of a thousand bits.
            total[function] = min(total[function] + times * total[callee], 2 * limits.INLINED_NODES)
        if depth[function] > limits.FUNCTION_DEPTH:
            raise Invalid(
                f"function {_title(function)} nests more than {limits.FUNCTION_DEPTH} calls deep"
            )
    inlined = sum(times * total[function] for function, times in main.items())
    if inlined > limits.INLINED_NODES + sum(sizes.values()):
        raise Invalid(
            f"the model's functions inline to more than {limits.INLINED_NODES:,} nodes, written "
            f"as {sum(sizes.values()):,}"
        )


def _callees_first(calls: Mapping[FunctionId, Counter[FunctionId]]) -> list[FunctionId]:
    """Order functions so that each comes after those it calls; Invalid for a cycle, by name."""
    order: list[FunctionId] = []
    done: set[FunctionId] = set()
    for root in calls:
        path = [root] if root not in done else []
        ahead = [iter(calls[root])]
        on_path = {root}
        while path:
            for callee in ahead[-1]:
                if callee in on_path:
                    names = " -> ".join(_title(f) for f in [*path[path.index(callee) :], callee])
                    raise Invalid(f"functions call themselves: {names}")
                if callee not in done:
                    path.append(callee)
                    ahead.append(iter(calls[callee]))
                    on_path.add(callee)
                    break
            else:
                done.add(path[-1])
                on_path.discard(path[-1])
                order.append(path.pop())
                ahead.pop()
    return order


def _title(function: FunctionId) -> str:
    domain, name, overload = function
    return repr(".".join(part for part in (domain, name) if part) + (overload and f":{overload}"))
