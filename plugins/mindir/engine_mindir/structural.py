"""Structural primitives: evaluated while lowering, they emit no ONNX node of their own.

Tuples; monads, Load and Depend; Partial, Switch and SwitchLayer, which bind and select functions.
MindIR orders effects by data dependencies: a monad (`U`, `IO`) is a token that each effect takes
and UpdateState returns. Nodes are lowered in the file's order, which respects these dependencies,
so the tokens are dropped. All other primitives write ONNX nodes: primitives/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine_mindir.control import RECURSION, Exits, lower_select
from engine_mindir.emit import Unsupported
from engine_mindir.messages import DecodeError
from engine_mindir.values import MONAD, NEVER, Choice, Closure, DType, Value, leaves

if TYPE_CHECKING:
    from engine_mindir.lower import Lowering

Handler = Callable[["Lowering", list[Any], Mapping[str, Any]], Any]
STRUCTURAL: dict[str, Handler] = {}


# Half of a file's nodes. None of these can fail if it has an input, so the interpreter calls them
# without preparing an error's context.
PASS_THROUGH = ("Load", "UpdateState", "Depend")


def _structural(*names: str) -> Callable[[Handler], Handler]:
    def enter(function: Handler) -> Handler:
        STRUCTURAL.update(dict.fromkeys(names, function))
        return function

    return enter


@_structural("Load")
def _load(low: Lowering, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    return low.current_value(_first(inputs))


@_structural("Depend", "depend", "Return", "return")
def _depend(low: Lowering, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    return _first(inputs)


def _first(inputs: list[Any]) -> Any:
    if not inputs:
        raise DecodeError("a node without the input that it passes on")
    return inputs[0]


@_structural("UpdateState", "U", "IsolatedNode", "Print", "Assert")
def _update_state(low: Lowering, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    return MONAD


@_structural("MakeTuple", "make_tuple", "MakeList", "make_list", "RealMakeTuple")
def _make_tuple(low: Lowering, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    return low.tuples.check(tuple(inputs))


@_structural("TupleGetItem", "tuple_getitem", "ListGetItem", "list_getitem", "RealTupleGetItem")
def _get_item(low: Lowering, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    if len(inputs) != 2:
        raise DecodeError(f"{len(inputs)} inputs; expected a tuple and an index")
    items, index = inputs
    if isinstance(items, Exits):
        raise Unsupported(RECURSION)
    if isinstance(items, Value):
        return low.g.node("Gather", items, low.g.scalar(index, DType.INT64), axis=0)
    if isinstance(index, Value):
        array = index.array()
        if array is None:
            raise Unsupported("a tuple indexed by a computed number")
        index = int(array)
    if not isinstance(items, tuple) or not isinstance(index, int):
        raise DecodeError("it does not take an element out of a tuple")
    if not -len(items) <= index < len(items):
        raise DecodeError(f"element {index} of a tuple of {len(items)}")
    return items[index]


@_structural("raise", "Raise")
def _raise(low: Lowering, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    return NEVER


@_structural("Partial", "partial")
def _partial(low: Lowering, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    def bind(target: Any, args: tuple[Any, ...]) -> Any:
        if isinstance(target, Choice):
            return Choice(target.condition, bind(target.chosen, args), bind(target.other, args))
        if not isinstance(target, Closure):
            raise DecodeError("it binds arguments to what is no function")
        return low.tuples.check(Closure(target.graph, (*target.bound, *args)))

    if not inputs:
        raise DecodeError("no inputs; expected a function")
    return bind(inputs[0], tuple(inputs[1:]))


@_structural("Switch", "switch")
def _switch(low: Lowering, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    if len(inputs) < 3:
        raise DecodeError(f"{len(inputs)} inputs; expected a condition and two values")
    condition, chosen, other = inputs[:3]
    low.tuples.visit((chosen, other))
    condition = low.current_value(condition)
    if not isinstance(condition, Value):
        return chosen if condition else other
    array = condition.array()
    if array is not None and array.size == 1:
        return chosen if array.any() else other
    if any(isinstance(leaf, Closure | Choice) for leaf in leaves((chosen, other))):
        return _choice(condition, chosen, other)
    return lower_select(
        low, condition, lambda: low.current_value(chosen), lambda: low.current_value(other)
    )


def _choice(condition: Value, chosen: Any, other: Any) -> Any:
    if isinstance(chosen, tuple) and isinstance(other, tuple) and len(chosen) == len(other):
        return tuple(_choice(condition, *pair) for pair in zip(chosen, other, strict=True))
    return Choice(condition, chosen, other)


@_structural("SwitchLayer", "switch_layer")
def _switch_layer(low: Lowering, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    if len(inputs) < 2 or not isinstance(inputs[1], tuple) or not inputs[1]:
        raise DecodeError("expected an index and a tuple of functions")
    index, branches = low.current_value(inputs[0]), inputs[1]
    if not isinstance(index, Value):
        return branches[index]
    count = len(branches)
    # ONNX has no switch over more than two branches: the functions become a chain of choices, and
    # calling it writes nested Ifs. As in Python, -1 is the last branch.
    position = low.g.cast(low.g.reshape(index, ()), DType.INT64)
    zero = low.g.node("Less", position, 0, dtype=DType.BOOL, shape=())
    position = low.g.node(
        "Where", zero, low.g.node("Add", position, count), position, like=position, shape=()
    )
    target = branches[-1]
    for number in range(count - 2, -1, -1):
        is_chosen = low.g.node("Equal", position, number, dtype=DType.BOOL, shape=())
        target = Choice(is_chosen, branches[number], target)
    return target
