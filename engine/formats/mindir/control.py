"""Functions that call each other, as ONNX says it: nodes in place, If, and Loop.

A `while` of the source is a set of functions that call each other in tail position: a header, a
body, what follows an `if` in it. Entering such a set from outside opens a Loop. Within it every
function ends in one of a few ways (`Exits`): it calls the header again, it calls a function beyond
the loop, or it returns. An If gives which way was taken and what goes along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.formats.mindir.emit import Scope, Unsupported
from engine.formats.mindir.values import NEVER, Choice, Closure, DType, Shape, Value, leaves
from engine.formats.onnx.writer import Graph, Node, ValueInfo

if TYPE_CHECKING:
    from engine.formats.mindir.lower import Lowering

State = dict[str, Value]
RETURN = ""  # the way out that is no call
ROUNDS = 64  # of finding out what changes in a loop
RECURSION = (
    "a function that calls itself and goes on afterwards (recursion); write it as a loop, or let "
    "the number of calls be known when the model is exported"
)


@dataclass(slots=True)
class Exits:
    """Exits of a loop's function. ways: values passed on, by the name of the function called.

    index: which of the ways (their order) is taken: a number, or a tensor without axes.
    """

    index: int | Value
    ways: dict[str, tuple[Any, State]]


@dataclass(slots=True)
class Loop:
    """A loop that is being lowered. carried: its header's arguments within one turn, flat."""

    header: str
    members: frozenset[str]
    carried: list[Any] = field(default_factory=list)
    state: State = field(default_factory=dict)


def select(
    low: Lowering, condition: Value, chosen: Callable[[], Any], other: Callable[[], Any]
) -> Any:
    """The result of one of two functions, as an If."""
    before = low.state
    changes = low.changes()
    sides: list[tuple[Scope, Any, State]] = []
    made: set[str] = set()
    for side in (chosen, other):
        low.state = dict(before)
        low.change_back(changes)
        with low.inner() as scope:
            outcome = low.held(side())
        made |= low.changed_since(changes)
        if outcome is NEVER:  # ONNX raises no errors: the other side is what happens
            low.state = dict(before)
            low.change_back(changes)
            return (other if side is chosen else chosen)()
        sides.append((scope, outcome, low.state))
    low.state = dict(before)
    low.change_back(changes, made)
    merge = _Merge(low, condition, sides[0][0], sides[1][0])
    (_, left, left_state), (_, right, right_state) = sides
    if isinstance(left, Exits) or isinstance(right, Exits):
        result = _merge_exits(merge, left, left_state, right, right_state)
    else:
        result = merge.both(left, right)
        low.state = merge.states(left_state, right_state)
    merge.finish()
    return result


def _merge_exits(
    merge: _Merge, left: Any, left_state: State, right: Any, right_state: State
) -> Exits:
    if not isinstance(left, Exits):
        left = Exits(0, {RETURN: (left, left_state)})
    if not isinstance(right, Exits):
        right = Exits(0, {RETURN: (right, right_state)})
    ways: dict[str, tuple[Any, State]] = {}
    for name in (*left.ways, *(name for name in right.ways if name not in left.ways)):
        if name in left.ways and name in right.ways:
            (one, one_state), (two, two_state) = left.ways[name], right.ways[name]
            ways[name] = (merge.both(one, two), merge.states(one_state, two_state))
        else:
            of_left = name in left.ways
            value, state = (left if of_left else right).ways[name]
            ways[name] = merge.only(of_left, name, value, state)
    order = list(ways)
    return Exits(merge.index(left, right, order), ways)


class _Merge:
    """The outputs of an If that is being made."""

    def __init__(self, low: Lowering, condition: Value, left: Scope, right: Scope) -> None:
        self.low = low
        self.condition = condition
        self.left = left
        self.right = right
        self.depth = low.g.scope.depth
        self.outputs: list[tuple[Value, Value, Value]] = []
        self._made: dict[tuple[int, int], Value] = {}

    def both(self, one: Any, two: Any) -> Any:
        """Return the value that is `one` in the left branch and `two` in the right branch."""
        if same(one, two) and not self._is_inner(one):
            return one
        if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
            return tuple(self.both(*pair) for pair in zip(one, two, strict=True))
        if isinstance(one, Closure) and isinstance(two, Closure):
            if one.graph == two.graph and len(one.bound) == len(two.bound):
                return Closure(one.graph, self.both(one.bound, two.bound))
            return Choice(self.condition, self._out(one, True), self._out(two, False))
        if isinstance(one, Closure | Choice) or isinstance(two, Closure | Choice):
            return Choice(self.condition, self._out(one, True), self._out(two, False))
        first, second = self._tensor(one, self.left), self._tensor(two, self.right)
        if first.dtype is not second.dtype:
            raise Unsupported(f"branches that give {first.dtype} and {second.dtype}")
        return self._output(first, second, joined(first.shape, second.shape))

    def only(self, of_left: bool, name: str, value: Any, state: State) -> tuple[Any, State]:
        """Return the values passed on along an exit that only one branch takes."""
        loop = self.low.loop
        defaults: list[Any] = []
        changed: Mapping[str, Value] = {}
        if loop is not None and name == loop.header:
            defaults, changed = loop.carried, loop.state
        flat = list(leaves(value))
        fallback = defaults if len(defaults) == len(flat) else [None] * len(flat)
        exported = [
            self._out(item, of_left, default) for item, default in zip(flat, fallback, strict=True)
        ]
        kept = {key: self._out(item, of_left, changed.get(key)) for key, item in state.items()}
        return rebuilt(value, iter(exported)), kept

    def states(self, one: State, two: State) -> State:
        """The parameters' values after the If."""
        return {
            key: self.both(self.low.current(key, one), self.low.current(key, two))
            for key in {**one, **two}
        }

    def index(self, left: Exits, right: Exits, order: list[str]) -> int | Value:
        """Return the exit that is taken, as its index in `order`."""
        places = [self._place(left, order, self.left), self._place(right, order, self.right)]
        if isinstance(places[0], int) and places[0] == places[1]:
            return places[0]
        first = self._tensor(places[0], self.left)
        return self._output(first, self._tensor(places[1], self.right), ())

    def finish(self) -> None:
        """Write the If node."""
        low = self.low
        if not self.outputs:
            return
        bodies = []
        for side, scope in enumerate((self.left, self.right)):
            results = [triple[side] for triple in self.outputs]
            names = [low.produced(scope, value, set()) for value in results]
            # A value that is given out twice needs two names.
            seen: set[str] = set()
            for place, name in enumerate(names):
                if name in seen:
                    names[place] = low.produced(scope, results[place], {name})
                seen.add(names[place])
            infos = [
                ValueInfo(name, value.dtype, value.shape)
                for name, value in zip(names, results, strict=True)
            ]
            bodies.append(Graph(low.g.fresh(), scope.nodes, [], infos))
        low.g.add(
            Node(
                "If",
                [low.g.scalar(self.condition, DType.BOOL).name],
                [triple[2].name for triple in self.outputs],
                {"then_branch": bodies[0], "else_branch": bodies[1]},
                low.g.title(),
            )
        )

    def _place(self, exits: Exits, order: list[str], scope: Scope) -> int | Value:
        places = [order.index(name) for name in exits.ways]
        if isinstance(exits.index, int):
            return places[exits.index]
        if places == list(range(len(places))):
            return exits.index
        g = self.low.g
        with self.low.within(scope):
            return g.node("Gather", g.ints(tuple(places)), exits.index, axis=0, shape=())

    def _is_inner(self, item: Any) -> bool:
        return any(isinstance(leaf, Value) and leaf.depth > self.depth for leaf in leaves(item))

    def _out(self, item: Any, of_left: bool, default: Any = None) -> Any:
        """A value of one side, seen from outside; `default` or zeros on the other side."""
        if isinstance(item, tuple):
            return tuple(self._out(part, of_left) for part in item)
        if isinstance(item, Closure):
            return Closure(item.graph, self._out(item.bound, of_left))
        if isinstance(item, Choice):
            return Choice(
                self._out(item.condition, of_left),
                self._out(item.chosen, of_left),
                self._out(item.other, of_left),
            )
        if default is not None and not same(item, default):
            scope = self.left if of_left else self.right
            other = self.right if of_left else self.left
            value = self._tensor(item, scope)
            if not isinstance(default, Value) or default.dtype is value.dtype:
                back = self._tensor(default, other)
                pair = (value, back) if of_left else (back, value)
                return self._output(*pair, joined(value.shape, back.shape))
        if not isinstance(item, Value) or item.depth <= self.depth:
            return item
        other = self.right if of_left else self.left
        with self.low.within(other):
            back = self.low.zeros(item)
        pair = (item, back) if of_left else (back, item)
        return self._output(*pair, item.shape)

    def _tensor(self, item: Any, scope: Scope) -> Value:
        with self.low.within(scope):
            return self.low.g.constant(item) if not isinstance(item, Value) else item

    def _output(self, one: Value, two: Value, shape: Shape) -> Value:
        key = (id(one), id(two))
        if key not in self._made:
            out = Value(self.low.g.fresh(), one.dtype, shape, depth=self.depth)
            self.outputs.append((one, two, out))
            self._made[key] = out
        return self._made[key]


def loop(low: Lowering, header: str, members: frozenset[str], args: tuple[Any, ...]) -> Exits:
    """Enter a loop by calling its header; how it ends."""
    initial = list(leaves(args))
    before, changes = dict(low.state), low.changes()
    types: dict[int, tuple[DType, Shape]] = {}
    changed: dict[str, tuple[DType, Shape]] = {}
    for _ in range(ROUNDS):
        frame = Loop(header, members)
        low.change_back(changes)
        with low.inner() as scope:
            frame.carried = [
                Value(low.g.fresh(), *types[place], depth=scope.depth) if place in types else item
                for place, item in enumerate(initial)
            ]
            frame.state = {
                key: Value(low.g.fresh(), *kind, depth=scope.depth) for key, kind in changed.items()
            }
            low.state = {**before, **frame.state}
            exits = low.lower_iteration(frame, rebuilt(args, iter(frame.carried)))
        low.state = dict(before)
        if header not in exits.ways:  # it never comes back: no loop at all
            return low.lower_iteration(frame, args)
        again, state = exits.ways[header]
        if not _grow(low, initial, before, frame, list(leaves(again)), state, types, changed):
            return _emit(low, scope, frame, exits, initial, before, types, changed)
    raise Unsupported("a loop whose values change their shapes in every turn")


def _grow(
    low: Lowering,
    initial: list[Any],
    before: State,
    frame: Loop,
    again: list[Any],
    state: State,
    types: dict[int, tuple[DType, Shape]],
    changed: dict[str, tuple[DType, Shape]],
) -> bool:
    """Note what one more turn would change. Whether that is more than was known."""
    if len(again) != len(initial):
        raise Unsupported("a loop that calls its header with another number of values")
    grown = False
    for place, (now, new) in enumerate(zip(frame.carried, again, strict=True)):
        if same(now, new):
            continue
        start = low.g.constant(initial[place])
        value = low.g.constant(new, start.dtype) if not isinstance(new, Value) else new
        if value.dtype is not start.dtype:
            raise Unsupported(f"a loop that turns {start.dtype} into {value.dtype}")
        grown |= _widen(types, place, start, value)
    for key, new in state.items():
        if not same(low.current(key, frame.state), new):
            grown |= _widen(changed, key, low.current(key, before), new)
    return grown


def _widen(types: dict[Any, tuple[DType, Shape]], key: Any, start: Value, new: Value) -> bool:
    known = types.get(key)
    shape = joined(known[1] if known else start.shape, new.shape)
    types[key] = (start.dtype, shape)
    return known is None or known[1] != shape


def _emit(
    low: Lowering,
    scope: Scope,
    frame: Loop,
    exits: Exits,
    initial: list[Any],
    before: State,
    types: dict[int, tuple[DType, Shape]],
    changed: dict[str, tuple[DType, Shape]],
) -> Exits:
    """Write the Loop node of a turn that is known by now."""
    g = low.g
    order = list(exits.ways)
    again, again_state = exits.ways[frame.header]
    flat = list(leaves(again))
    # name in the body, first value, value for the next turn, value after the loop
    slots: list[tuple[Value, Value, Value, Value]] = []
    after: dict[str, Value] = {}

    def carry(inside: Value, first: Value, following: Value) -> Value:
        result = Value(g.fresh(), inside.dtype, inside.shape, depth=g.scope.depth)
        slots.append((inside, first, following, result))
        after[inside.name] = result
        return result

    with low.within(scope):
        place = order.index(frame.header)
        turns = (
            g.node("Equal", exits.index, place, dtype=DType.BOOL, shape=())
            if isinstance(exits.index, Value)
            else g.constant(True)
        )
    for place, (dtype, _) in types.items():
        inside = frame.carried[place]
        following = flat[place]
        carry(
            inside,
            g.constant(initial[place], dtype),
            following if isinstance(following, Value) else g.constant(following, dtype),
        )
    for key in changed:
        carry(frame.state[key], low.current(key, before), low.current(key, again_state))

    def leaving(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(map(leaving, item))
        if isinstance(item, Closure):
            return Closure(item.graph, leaving(item.bound))
        if isinstance(item, Choice):
            return Choice(leaving(item.condition), leaving(item.chosen), leaving(item.other))
        if not isinstance(item, Value) or item.depth < scope.depth:
            return item
        if item.name not in after:
            inside = Value(g.fresh(), item.dtype, item.shape, depth=scope.depth)
            after[item.name] = carry(inside, low.zeros(item), item)
        return after[item.name]

    ways = {
        name: (leaving(value), {key: leaving(item) for key, item in state.items()})
        for name, (value, state) in exits.ways.items()
        if name != frame.header
    }
    if not ways:
        raise Unsupported("a loop without an end")
    taken: Value | None = leaving(exits.index) if len(ways) > 1 else None

    names: set[str] = set()
    outputs = []
    for value in (turns, *(slot[2] for slot in slots)):
        name = low.produced(scope, value, names)
        names.add(name)
        outputs.append(ValueInfo(name, value.dtype, value.shape))
    inputs = [
        ValueInfo(g.fresh(), DType.INT64, ()),
        ValueInfo(g.fresh(), DType.BOOL, ()),
        *(ValueInfo(s[0].name, s[0].dtype, s[0].shape) for s in slots),
    ]
    body = Graph(g.fresh(), scope.nodes, inputs, outputs)
    g.add(
        Node(
            "Loop",
            ["", "", *(slot[1].name for slot in slots)],
            [slot[3].name for slot in slots],
            {"body": body},
            g.title(),
        )
    )
    index: int | Value = 0
    if taken is not None:
        numbers = iter(range(len(ways)))
        places = tuple(0 if name == frame.header else next(numbers) for name in order)
        index = g.node("Gather", g.ints(places), taken, axis=0, shape=())
    return Exits(index, ways)


def same(one: Any, two: Any) -> bool:
    """Return True if two values are known to be equal."""
    if one is two:
        return True
    if isinstance(one, Value) or isinstance(two, Value):
        return isinstance(one, Value) and isinstance(two, Value) and one.name == two.name
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, Closure) and isinstance(two, Closure):
        return one.graph == two.graph and same(one.bound, two.bound)
    return type(one) is type(two) and bool(one == two)


def rebuilt(template: Any, flat: Any) -> Any:
    """A nested tuple like `template` with other leaves."""
    if isinstance(template, tuple):
        return tuple(rebuilt(item, flat) for item in template)
    return next(flat)


def joined(one: Shape, two: Shape) -> Shape:
    """The shape that both have; None where they differ."""
    if one is None or two is None or len(one) != len(two):
        return None
    return tuple(a if a == b else None for a, b in zip(one, two, strict=True))
