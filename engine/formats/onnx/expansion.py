"""Bounds on what a few bytes of a model expand into when a runtime loads it.

Two ways that can be seen in the file alone: constants computed from a constant shape, and
functions that call functions. Growth that takes shape inference to see (a tensor joined with
itself again and again) is for the backend to bound, with its runtime's own settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from engine.formats.onnx import limits
from engine.formats.onnx.reading import Invalid
from engine.formats.onnx.scope import Scope, title
from engine.formats.onnx.tensor import Tensor, read_ints
from engine.formats.onnx.work import Work
from engine.formats.protobuf import Budget
from engine.types import NodeInfo

FunctionId: TypeAlias = tuple[str, str, str]
"""A model's own function: domain, name, overload."""

SHAPE_INPUT = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1}
"""Operators whose output has at least the product of this input's elements."""


def expanded_bytes(node: NodeInfo, value: Tensor | None, scope: Scope, budget: Budget) -> int:
    """Return the bytes of a constant that `node` computes from a constant shape; 0 for none.

    value: the tensor attribute of the node. Raises Invalid where the node's output, constant or
    not, is absurdly large whatever else it reads.
    """
    position = SHAPE_INPUT.get(node.op_type)
    if position is None or node.domain not in ("", "ai.onnx") or len(node.inputs) <= position:
        return 0
    constant = scope.constant(node.inputs[position])
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
    if size > limits.EXPANDED_BYTES:
        raise Invalid(
            f"{title(node)} makes a tensor of {size:,} bytes from the shape {shape}; "
            f"at most {limits.EXPANDED_BYTES:,} bytes are allowed"
        )
    return size if fills else 0


def check_expanded(nbytes: int) -> None:
    """Raise Invalid where constants of `nbytes` bytes in all are more than any model needs."""
    if nbytes > limits.EXPANDED_BYTES:
        raise Invalid(
            f"constants of more than {limits.EXPANDED_BYTES:,} bytes would be computed while the "
            f"model loads"
        )


class Part(NamedTuple):
    """The size of a function's body, or of the main graph, and the functions that it calls.

    work: of its nodes that read nothing but constants.
    """

    nodes: int
    expanded: int
    calls: Counter[FunctionId]
    work: Work = Work()


def check_functions(functions: Mapping[FunctionId, Part], main: Part) -> Work:
    """Raise Invalid for functions that call themselves, nest too deep, or inline to too much.

    Returns the work of computing constants in functions once all are inlined.
    """
    written = sum(part.nodes for part in functions.values())
    nodes: dict[FunctionId, int] = {}
    expanded: dict[FunctionId, int] = {}
    works: dict[FunctionId, Work] = {}
    depth: dict[FunctionId, int] = {}

    def inlined(part: Part) -> tuple[int, int, Work]:
        return (
            sum(times * nodes[callee] for callee, times in part.calls.items()),
            sum(times * expanded[callee] for callee, times in part.calls.items()),
            Work.of((works[callee], times) for callee, times in part.calls.items()),
        )

    for function in _callees_first(functions):
        part = functions[function]
        depth[function] = 1 + max((depth[callee] for callee in part.calls), default=-1)
        if depth[function] > limits.FUNCTION_DEPTH:
            raise Invalid(
                f"function {_title(function)} nests more than {limits.FUNCTION_DEPTH} calls deep"
            )
        more_nodes, more_expanded, more_work = inlined(part)
        # Cut off: doubling a thousand times over would count with numbers of a thousand bits.
        nodes[function] = min(part.nodes + more_nodes, limits.NODES)
        expanded[function] = min(part.expanded + more_expanded, 2 * limits.EXPANDED_BYTES)
        works[function] = Work.of([(part.work, 1), (more_work, 1)])
    more_nodes, more_expanded, more_work = inlined(main)
    if more_nodes > limits.INLINED_NODES + written:
        raise Invalid(
            f"the model's functions inline to more than {limits.INLINED_NODES:,} nodes, written "
            f"as {written:,}"
        )
    check_expanded(main.expanded + more_expanded)
    return more_work


def _callees_first(functions: Mapping[FunctionId, Part]) -> list[FunctionId]:
    """Order functions so that each comes after those it calls; Invalid for a cycle, by name."""
    order: list[FunctionId] = []
    done: set[FunctionId] = set()
    for root in functions:
        path = [root] if root not in done else []
        ahead = [iter(functions[root].calls)]
        on_path = {root}
        while path:
            for callee in ahead[-1]:
                if callee in on_path:
                    names = " -> ".join(_title(f) for f in [*path[path.index(callee) :], callee])
                    raise Invalid(f"functions call themselves: {names}")
                if callee not in done:
                    path.append(callee)
                    ahead.append(iter(functions[callee].calls))
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
