"""Lower control flow: conditional calls to If, recursive tail calls to Loop.

MindIR has functions and calls, ONNX has structured control flow. A `while` of the source is a
strongly connected set of functions that call each other in tail position: a header, a body, what
follows an `if` in it. Calling its header from outside opens a Loop. Within it every function ends
in one of a few exits (`Exits`): a jump back to the header, a call of a function outside of the
loop, or a return. Branches with different exits are merged by an If that also returns the index of
the exit taken, and the arguments of each exit (zeros for those not taken).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.formats.onnx.writer import Graph, Node, ValueInfo
from engine_mindir.emit import Scope, Unsupported
from engine_mindir.values import NEVER, Choice, Closure, DType, Shape, Value, leaves

if TYPE_CHECKING:
    from engine_mindir.lower import Lowering

State = dict[str, Value]
RETURN = ""  # the exit that is a return, not a call
MAX_PASSES = 64  # of the fixed-point iteration over a loop's types
RECURSION = (
    "a function that calls itself and goes on afterwards (recursion); write it as a loop, or let "
    "the number of calls be known when the model is exported"
)


@dataclass(slots=True)
class Exits:
    """Exits of a function within a loop.

    targets: arguments and state passed on, by the name of the function called or RETURN.
    index: the exit taken, as its index in `targets`: an int, or a scalar tensor.
    """

    index: int | Value
    targets: dict[str, tuple[Any, State]]


@dataclass(slots=True)
class Loop:
    """A loop that is being lowered.

    carried: its header's arguments in one iteration, flat; those that change are loop-carried
    values. state: loop-carried parameters.
    """

    header: str
    members: frozenset[str]
    carried: list[Any] = field(default_factory=list)
    state: State = field(default_factory=dict)


def lower_select(
    low: Lowering, condition: Value, chosen: Callable[[], Any], other: Callable[[], Any]
) -> Any:
    """Lower two branches into an If and return the merged result."""
    before = low.state
    low.tuples.add_work(len(before) + len(low.in_place))  # they are copied
    changes = low.in_place.snapshot()
    sides: list[tuple[Scope, Any, State]] = []
    made: set[str] = set()
    for side in (chosen, other):
        low.state = dict(before)
        low.in_place.restore(changes)
        with low.nested_scope() as scope:
            outcome = low.in_place.applied_to(side())
        made |= low.in_place.since(changes)
        if outcome is NEVER:  # ONNX raises no errors: the other side is what happens
            low.state = dict(before)
            low.in_place.restore(changes)
            return (other if side is chosen else chosen)()
        sides.append((scope, outcome, low.state))
    low.state = dict(before)
    low.in_place.restore(changes, made)
    merge = _Merge(low, condition, sides[0][0], sides[1][0])
    (_, left, left_state), (_, right, right_state) = sides
    if isinstance(left, Exits) or isinstance(right, Exits):
        result = _merge_exits(merge, left, left_state, right, right_state)
    else:
        result = merge.merge(left, right)
        low.state = merge.merge_states(left_state, right_state)
    merge.finish()
    return result


def _merge_exits(
    merge: _Merge, left: Any, left_state: State, right: Any, right_state: State
) -> Exits:
    if not isinstance(left, Exits):
        left = Exits(0, {RETURN: (left, left_state)})
    if not isinstance(right, Exits):
        right = Exits(0, {RETURN: (right, right_state)})
    targets: dict[str, tuple[Any, State]] = {}
    for name in (*left.targets, *(name for name in right.targets if name not in left.targets)):
        if name in left.targets and name in right.targets:
            (left_value, left_target_state), (right_value, right_target_state) = (
                left.targets[name],
                right.targets[name],
            )
            targets[name] = (
                merge.merge(left_value, right_value),
                merge.merge_states(left_target_state, right_target_state),
            )
        else:
            of_left = name in left.targets
            value, state = (left if of_left else right).targets[name]
            targets[name] = merge.one_sided(of_left, name, value, state)
    order = list(targets)
    return Exits(merge.index(left, right, order), targets)


class _Merge:
    """An If under construction: merges the results of its branches into outputs."""

    def __init__(self, low: Lowering, condition: Value, left: Scope, right: Scope) -> None:
        self.low = low
        self.condition = condition
        self.left = left
        self.right = right
        self.depth = low.g.scope.depth
        self.outputs: list[tuple[Value, Value, Value]] = []
        self._made: dict[tuple[int, int], Value] = {}

    def merge(self, left: Any, right: Any) -> Any:
        """Return the value that is `one` in the left branch and `two` in the right branch."""
        if is_same(left, right) and not self._is_nested(left):
            return left
        if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
            return tuple(self.merge(*pair) for pair in zip(left, right, strict=True))
        if isinstance(left, Closure) and isinstance(right, Closure):
            if left.graph == right.graph and len(left.bound) == len(right.bound):
                return Closure(left.graph, self.merge(left.bound, right.bound))
            return Choice(self.condition, self._export(left, True), self._export(right, False))
        if isinstance(left, Closure | Choice) or isinstance(right, Closure | Choice):
            return Choice(self.condition, self._export(left, True), self._export(right, False))
        first, second = self._tensor(left, self.left), self._tensor(right, self.right)
        if first.dtype is not second.dtype:
            raise Unsupported(f"branches that give {first.dtype} and {second.dtype}")
        return self._output(first, second, merge_shapes(first.shape, second.shape))

    def one_sided(self, of_left: bool, name: str, value: Any, state: State) -> tuple[Any, State]:
        """Return the values passed on along an exit that only one branch takes."""
        lower_loop = self.low.loop
        defaults: list[Any] = []
        changed: Mapping[str, Value] = {}
        if lower_loop is not None and name == lower_loop.header:
            defaults, changed = lower_loop.carried, lower_loop.state
        flat = list(leaves(value))
        fallback = defaults if len(defaults) == len(flat) else [None] * len(flat)
        exported = [
            self._export(leaf, of_left, default)
            for leaf, default in zip(flat, fallback, strict=True)
        ]
        kept = {key: self._export(leaf, of_left, changed.get(key)) for key, leaf in state.items()}
        return unflatten(value, iter(exported)), kept

    def merge_states(self, left: State, right: State) -> State:
        """Merge the parameters' values of both branches."""
        return {
            key: self.merge(
                self.low.parameter_value(key, left), self.low.parameter_value(key, right)
            )
            for key in {**left, **right}
        }

    def index(self, left: Exits, right: Exits, order: list[str]) -> int | Value:
        """Return the exit that is taken, as its index in `order`."""
        indices = [
            self._exit_index(left, order, self.left),
            self._exit_index(right, order, self.right),
        ]
        if isinstance(indices[0], int) and indices[0] == indices[1]:
            return indices[0]
        first = self._tensor(indices[0], self.left)
        return self._output(first, self._tensor(indices[1], self.right), ())

    def finish(self) -> None:
        """Write the If node."""
        low = self.low
        if not self.outputs:
            return
        bodies = []
        for side, scope in enumerate((self.left, self.right)):
            results = [triple[side] for triple in self.outputs]
            names = [low.name_in_scope(scope, value, set()) for value in results]
            # A value that is given out twice needs two names.
            seen: set[str] = set()
            for index, name in enumerate(names):
                if name in seen:
                    names[index] = low.name_in_scope(scope, results[index], {name})
                seen.add(names[index])
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

    def _exit_index(self, exits: Exits, order: list[str], scope: Scope) -> int | Value:
        indices = [order.index(name) for name in exits.targets]
        if isinstance(exits.index, int):
            return indices[exits.index]
        if indices == list(range(len(indices))):
            return exits.index
        g = self.low.g
        with self.low.in_scope(scope):
            return g.node("Gather", g.ints(tuple(indices)), exits.index, axis=0, shape=())

    def _is_nested(self, value: Any) -> bool:
        return any(isinstance(leaf, Value) and leaf.depth > self.depth for leaf in leaves(value))

    def _export(self, value: Any, of_left: bool, default: Any = None) -> Any:
        """Make a value of one branch an output of the If; the other one gives default or zeros."""
        if isinstance(value, tuple):
            return tuple(self._export(part, of_left) for part in value)
        if isinstance(value, Closure):
            return Closure(value.graph, self._export(value.bound, of_left))
        if isinstance(value, Choice):
            return Choice(
                self._export(value.condition, of_left),
                self._export(value.chosen, of_left),
                self._export(value.other, of_left),
            )
        if default is not None and not is_same(value, default):
            scope = self.left if of_left else self.right
            other = self.right if of_left else self.left
            tensor = self._tensor(value, scope)
            if not isinstance(default, Value) or default.dtype is tensor.dtype:
                back = self._tensor(default, other)
                pair = (tensor, back) if of_left else (back, tensor)
                return self._output(*pair, merge_shapes(tensor.shape, back.shape))
        if not isinstance(value, Value) or value.depth <= self.depth:
            return value
        other = self.right if of_left else self.left
        with self.low.in_scope(other):
            back = self.low.zeros(value)
        pair = (value, back) if of_left else (back, value)
        return self._output(*pair, value.shape)

    def _tensor(self, value: Any, scope: Scope) -> Value:
        with self.low.in_scope(scope):
            return self.low.g.constant(value) if not isinstance(value, Value) else value

    def _output(self, left: Value, right: Value, shape: Shape) -> Value:
        key = (id(left), id(right))
        if key not in self._made:
            out = Value(self.low.g.fresh(), left.dtype, shape, depth=self.depth)
            self.outputs.append((left, right, out))
            self._made[key] = out
        return self._made[key]


def lower_loop(low: Lowering, header: str, members: frozenset[str], args: tuple[Any, ...]) -> Exits:
    """Lower a loop that is entered by calling its header, and return its exits.

    Which arguments change, and to which shapes, is known only once the body has been lowered. So it
    is lowered again, with what changed as loop-carried values of widened shapes, until nothing more
    changes (a fixed point: two passes for most loops). Arguments that stay the same are not
    carried: constants among them can be folded in the body.
    """
    initial = list(leaves(args))
    before, changes = dict(low.state), low.in_place.snapshot()
    types: dict[int, tuple[DType, Shape]] = {}
    changed: dict[str, tuple[DType, Shape]] = {}
    for _ in range(MAX_PASSES):
        frame = Loop(header, members)
        low.in_place.restore(changes)
        first_name = low.g.count
        with low.nested_scope() as scope:
            frame.carried = [
                Value(low.g.fresh(), *types[position], depth=scope.depth)
                if position in types
                else value
                for position, value in enumerate(initial)
            ]
            frame.state = {
                key: Value(low.g.fresh(), *kind, depth=scope.depth) for key, kind in changed.items()
            }
            low.state = {**before, **frame.state}
            exits = low.lower_iteration(frame, unflatten(args, iter(frame.carried)))
        low.state = dict(before)
        if header not in exits.targets:  # it never jumps back: no loop after all
            return low.lower_iteration(frame, args)
        next_args, state = exits.targets[header]
        if not _widen_carried(
            low, initial, before, frame, list(leaves(next_args)), state, types, changed
        ):
            _check_in_place(low, frame, initial, types, low.in_place.since(changes), first_name)
            return _emit_loop(low, scope, frame, exits, initial, before, types, changed)
    raise Unsupported("a loop whose values change their shapes in every turn")


def _check_in_place(
    low: Lowering,
    frame: Loop,
    initial: list[Any],
    types: Mapping[int, tuple[DType, Shape]],
    written: set[str],
    first_name: int,
) -> None:
    """Refuse what a loop changes in place where other names of the tensor would miss it.

    written: the tensors that the body changes. first_name: the count of names before the body.
    A tensor from outside that is not loop-carried would be as before the loop in each iteration.
    One that is carried also changes under its name outside, which then must not be read any more.
    """
    carried = {frame.carried[position].name: initial[position] for position in types}
    for name in written - carried.keys():
        if not name.startswith("%") or int(name[1:]) <= first_name:
            raise Unsupported(
                "a loop changes a tensor in place that it does not pass on to its next iteration; "
                "assign the new tensor to a variable of the loop instead"
            )
    for name in written & carried.keys():
        start = carried[name]
        if isinstance(start, Value) and start.data is None:
            if sum(is_same(start, other) for other in initial) > 1:
                raise Unsupported(
                    "a loop changes a tensor in place that it has under two names; copy it first"
                )
            low.in_place.mark_outdated(start.name)


def _widen_carried(
    low: Lowering,
    initial: list[Any],
    before: State,
    frame: Loop,
    next_args: list[Any],
    state: State,
    types: dict[int, tuple[DType, Shape]],
    changed: dict[str, tuple[DType, Shape]],
) -> bool:
    """Record what one more iteration would change; return True if that is more than before."""
    if len(next_args) != len(initial):
        raise Unsupported("a loop that calls its header with another number of values")
    grown = False
    for position, (carried, new) in enumerate(zip(frame.carried, next_args, strict=True)):
        if is_same(carried, new):
            continue
        start = low.g.constant(initial[position])
        value = low.g.constant(new, start.dtype) if not isinstance(new, Value) else new
        if value.dtype is not start.dtype:
            raise Unsupported(f"a loop that turns {start.dtype} into {value.dtype}")
        grown |= _widen_type(types, position, start, value)
    for key, new in state.items():
        if not is_same(low.parameter_value(key, frame.state), new):
            grown |= _widen_type(changed, key, low.parameter_value(key, before), new)
    return grown


def _widen_type(types: dict[Any, tuple[DType, Shape]], key: Any, start: Value, new: Value) -> bool:
    known = types.get(key)
    shape = merge_shapes(known[1] if known else start.shape, new.shape)
    types[key] = (start.dtype, shape)
    return known is None or known[1] != shape


def _emit_loop(
    low: Lowering,
    scope: Scope,
    frame: Loop,
    exits: Exits,
    initial: list[Any],
    before: State,
    types: dict[int, tuple[DType, Shape]],
    changed: dict[str, tuple[DType, Shape]],
) -> Exits:
    """Write the Loop node around the body that has been lowered."""
    g = low.g
    order = list(exits.targets)
    next_args, next_state = exits.targets[frame.header]
    flat = list(leaves(next_args))
    # loop-carried: value in the body, initial value, value for the next iteration, value after it
    slots: list[tuple[Value, Value, Value, Value]] = []
    after: dict[str, Value] = {}

    def carry(inside: Value, first: Value, following: Value) -> Value:
        result = Value(g.fresh(), inside.dtype, inside.shape, depth=g.scope.depth)
        slots.append((inside, first, following, result))
        after[inside.name] = result
        return result

    with low.in_scope(scope):
        position = order.index(frame.header)
        continues = (
            g.node("Equal", exits.index, position, dtype=DType.BOOL, shape=())
            if isinstance(exits.index, Value)
            else g.constant(True)
        )
    for position, (dtype, _) in types.items():
        inside = frame.carried[position]
        following = flat[position]
        carry(
            inside,
            g.constant(initial[position], dtype),
            following if isinstance(following, Value) else g.constant(following, dtype),
        )
    for key in changed:
        carry(
            frame.state[key], low.parameter_value(key, before), low.parameter_value(key, next_state)
        )

    def export(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(export, value))
        if isinstance(value, Closure):
            return Closure(value.graph, export(value.bound))
        if isinstance(value, Choice):
            return Choice(export(value.condition), export(value.chosen), export(value.other))
        if not isinstance(value, Value) or value.depth < scope.depth:
            return value
        if value.name not in after:
            inside = Value(g.fresh(), value.dtype, value.shape, depth=scope.depth)
            after[value.name] = carry(inside, low.zeros(value), value)
        return after[value.name]

    targets = {
        name: (export(value), {key: export(value) for key, value in state.items()})
        for name, (value, state) in exits.targets.items()
        if name != frame.header
    }
    if not targets:
        raise Unsupported("a loop without an end")
    exit_index: Value | None = export(exits.index) if len(targets) > 1 else None

    names: set[str] = set()
    outputs = []
    for value in (continues, *(slot[2] for slot in slots)):
        name = low.name_in_scope(scope, value, names)
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
    if exit_index is not None:
        numbers = iter(range(len(targets)))
        indices = tuple(0 if name == frame.header else next(numbers) for name in order)
        index = g.node("Gather", g.ints(indices), exit_index, axis=0, shape=())
    return Exits(index, targets)


def is_same(left: Any, right: Any) -> bool:
    """Return True if two values are known to be equal."""
    if left is right:
        return True
    if isinstance(left, Value) or isinstance(right, Value):
        return isinstance(left, Value) and isinstance(right, Value) and left.name == right.name
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(left, Closure) and isinstance(right, Closure):
        return left.graph == right.graph and is_same(left.bound, right.bound)
    return type(left) is type(right) and bool(left == right)


def unflatten(template: Any, flat: Any) -> Any:
    """Return a nested tuple of the structure of `template` with the leaves of `flat`."""
    if isinstance(template, tuple):
        return tuple(unflatten(part, flat) for part in template)
    return next(flat)


def merge_shapes(left: Shape, right: Shape) -> Shape:
    """Return the most specific shape that holds for both; None for what differs."""
    if left is None or right is None or len(left) != len(right):
        return None
    return tuple(a if a == b else None for a, b in zip(left, right, strict=True))
