"""Lowers a decoded .mindir to ONNX by running it on symbols.

Each node of the main graph is looked at in the file's order. What only arranges values - tuples,
monads, Load, Depend, functions that are called - is done here and leaves nothing behind; other
primitives are looked up in the table and write ONNX nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from engine.formats.mindir import constants
from engine.formats.mindir.control import RECURSION, RETURN, Exits, Loop, State, loop, select
from engine.formats.mindir.decode import DecodeError, GraphProto, ModelProto, NodeProto
from engine.formats.mindir.emit import Emitter, Scope, Unsupported
from engine.formats.mindir.functions import Functions
from engine.formats.mindir.names import local, primitive_named, primitives_of
from engine.formats.mindir.primitives import known
from engine.formats.mindir.structural import QUICK, STRUCTURAL
from engine.formats.mindir.values import (
    COMPLEX,
    MONAD,
    Abstract,
    Choice,
    Closure,
    DType,
    Value,
    leaves,
)
from engine.formats.protobuf import WireError

Changes: TypeAlias = "tuple[dict[str, Value], set[str]]"

STEPS = 300_000  # nodes looked at, each as often as its function is called
NESTED = 100_000  # values in one tuple and the tuples in it
CALLS = 100  # functions that call each other, one inside the other


ILL_FITTING = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError,
    RuntimeError,
)  # fmt: skip
"""Exceptions that malformed node arguments cause."""


class LoweringError(ValueError):
    """A node that cannot be lowered: the message says which and why."""


class Lowering:
    """One model on its way. parameters: by the name in the file. loop: the innermost one."""

    def __init__(self, model: ModelProto, parameters: Mapping[str, Value]) -> None:
        assert model.graph is not None
        self.g = Emitter()
        self.state: State = {}
        self.loop: Loop | None = None
        self._model = model
        self._functions = Functions(model.functions)
        self._table = known()
        self._structural = {
            f"REF::{key}": STRUCTURAL[row.op_type]
            for key, row in model.primitives.items()
            if row.op_type in QUICK
        }
        self._parameters = parameters
        self._frames: list[dict[str, Any]] = []
        self._headers: list[str] = []
        self._steps = 0
        self._weights: dict[int, tuple[int, Any]] = {}
        self._calls = 0
        self._by_own_name = {parameter.name: parameter for parameter in parameters.values()}
        self._snapshots: dict[str, Value] = {}
        self._written: dict[str, Value] = {}  # what tensors hold that were changed in place
        self._outdated: set[str] = set()  # tensors changed in a branch or loop that they are not of
        self._primitives: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._is_writing = any(
            row is not None and row.writes for row in map(self._table.get, primitives_of(model))
        )
        self._constants: dict[str, Any] = {
            node.output: node
            for graph in (model.graph, *model.functions.values())
            for node in graph.nodes
            if node.op_type == "Constant"
        }

    # ------------------------------------------------------------------------------------ graphs

    def run(self, graph: GraphProto, args: Sequence[Any]) -> Any:
        """The result of a function for these arguments."""
        if len(args) < len(graph.inputs):
            raise DecodeError(
                f"function {graph.name!r} takes {len(graph.inputs)} values, and a call gives "
                f"{len(args)}"
            )
        frame: dict[str, Any] = {
            value.name: arg for value, arg in zip(graph.inputs, args, strict=False)
        }
        self._frames.append(frame)
        try:
            tail = _tail(graph)
            self._steps += len(graph.nodes)
            if self._steps > STEPS:
                raise DecodeError(f"the graph unfolds into more than {STEPS:,} nodes")
            for node in graph.nodes:
                kind = node.op_type
                if kind == "Constant":
                    continue
                inputs = [
                    frame[e] if e in frame else self._resolve_free_name(e) for e in node.inputs
                ]
                handler = self._structural.get(kind)
                if handler is not None and inputs:  # half of a file's nodes
                    frame[node.output] = handler(self, inputs, {})
                else:
                    frame[node.output] = self._node(graph, node, inputs, node.output == tail)
            names = [output.name for output in graph.outputs]
            results = [frame[e] if e in frame else self._resolve_free_name(e) for e in names]
            return results[0] if len(results) == 1 else tuple(results)
        finally:
            self._frames.pop()

    def call(self, target: Any, args: tuple[Any, ...], is_tail: bool) -> Any:
        """The result of calling a closure."""
        if isinstance(target, Choice):
            return select(
                self,
                target.condition,
                lambda: self.call(target.chosen, args, is_tail),
                lambda: self.call(target.other, args, is_tail),
            )
        if not isinstance(target, Closure):
            raise Unsupported("it calls what is no function")
        name = target.graph
        args = (*target.bound, *args)
        if self.loop is not None and is_tail:
            if name not in self.loop.members or name == self.loop.header:
                return Exits(0, {name: (self.held(args), dict(self.state))})
        elif name in self._headers:
            raise Unsupported(RECURSION)
        members = self._functions.around(name, self._headers)
        if members:
            return self._enter(name, members, self.held(args), is_tail)
        return self._inline(name, args, is_tail)

    def lower_iteration(self, frame: Loop, args: Any) -> Exits:
        """One turn of a loop: its header, and what that calls within the loop."""
        outer, self.loop = self.loop, frame
        self._headers.append(frame.header)
        try:
            outcome = self.held(self._inline(frame.header, args, True))
        finally:
            self._headers.pop()
            self.loop = outer
        return (
            outcome
            if isinstance(outcome, Exits)
            else Exits(0, {RETURN: (outcome, dict(self.state))})
        )

    def _enter(
        self, name: str, members: frozenset[str], args: tuple[Any, ...], is_tail: bool
    ) -> Any:
        outer, self.loop = self.loop, None
        try:
            exits = loop(self, name, members, args)
            self.loop = outer if is_tail else None
            return self._leave(exits)
        finally:
            self.loop = outer

    def _leave(self, exits: Exits) -> Any:
        """Go on after a loop, the way it ended."""
        ways = list(exits.ways.items())

        def take(place: int) -> Any:
            name, (value, state) = ways[place]
            self.state = dict(state)
            if name == RETURN:
                return value
            return self.call(Closure(name), value, self.loop is not None)

        def among(first: int) -> Any:
            if first == len(ways) - 1 or not isinstance(exits.index, Value):
                return take(first)
            condition = self.g.node("Equal", exits.index, first, dtype=DType.BOOL, shape=())
            return select(self, condition, lambda: take(first), lambda: among(first + 1))

        return among(0 if isinstance(exits.index, Value) else exits.index)

    def _inline(self, name: str, args: tuple[Any, ...], is_tail: bool) -> Any:
        graph = self._model.functions.get(name)
        if graph is None:
            raise DecodeError(f"a call of {name!r}, which is no function of the file")
        self._calls += 1
        if self._calls > CALLS:
            raise Unsupported(f"functions that call each other {CALLS} deep")
        outer = self.loop
        if outer is not None and not (is_tail and name in outer.members):
            self.loop = None
        try:
            return self.run(graph, args)
        finally:
            self.loop = outer
            self._calls -= 1

    # ------------------------------------------------------------------------------------- nodes

    def _node(self, graph: GraphProto, node: NodeProto, inputs: list[Any], is_tail: bool) -> Any:
        g = self.g
        outer = g.origin, g.result
        g.origin = node.domain or local(node.name)
        kind = node.op_type
        try:
            known = self._primitives.get(kind)
            if known is None:
                target = self._target(node)
                if target is not None:
                    return self.call(target, tuple(inputs), is_tail)
                known = self._primitive(node)
            kind, attributes = known
            handler = STRUCTURAL.get(kind)
            if handler is not None:
                return handler(self, inputs, attributes)
            g.result = constants.abstract_of(node)
            return settled(g, self._lower(kind, inputs, attributes), g.result)
        except (Unsupported, DecodeError) as error:
            raise LoweringError(
                f"primitive {kind!r} at node {local(node.name or node.output)!r} "
                f"(scope {node.domain or graph.name!r}): {error}"
            ) from error
        finally:
            g.origin, g.result = outer

    def weighed(self, item: Any) -> Any:
        """The item, unless it nests too many values: what holds one twice doubles it."""
        if isinstance(item, tuple | Closure):
            self._weigh(item)
        return item

    def _weigh(self, item: Any) -> int:
        if isinstance(item, Closure):
            item = item.bound
        parts = (item.chosen, item.other) if isinstance(item, Choice) else item
        if not isinstance(parts, tuple):
            return 1
        known = self._weights.get(id(item))
        if known is None:
            count = 1 + sum(map(self._weigh, parts))
            if count > NESTED:
                raise DecodeError(f"tuples that nest more than {NESTED:,} values")
            known = self._weights[id(item)] = (count, item)  # kept, so that its id stays its own
        return known[0]

    def _lower(self, kind: str, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
        row = self._table.get(kind)
        if row is None:
            raise Unsupported(_advice(kind, attributes))
        told = self.g.result
        if not isinstance(told, Abstract) or told.dtype in COMPLEX:
            _check(told)
        taken = []
        for one_value in inputs:
            if one_value is MONAD:
                continue
            if not isinstance(one_value, Value) or one_value.dtype in COMPLEX:
                _check(one_value)
            taken.append(self.now(one_value))
        target = (
            next((value for value in inputs if value is not MONAD), None) if row.writes else None
        )
        try:
            result = row(self.g, taken, attributes)
        except (Unsupported, DecodeError, WireError, RecursionError):
            raise
        except ILL_FITTING as error:  # a file may give a primitive anything for an argument
            raise DecodeError(
                f"its arguments do not fit: {type(error).__name__}: {error}"
            ) from error
        self.weighed(result)
        if isinstance(target, Value):
            return self._write(target, result)
        if self._is_writing and isinstance(result, Value) and result.data is not None:
            return self._own(result)
        return result

    def _write(self, target: Value, result: Any) -> Any:
        """Let a parameter or tensor be what was assigned to it."""
        written = self.g.cast(result[0] if isinstance(result, tuple) else result, target.dtype)
        if target.is_parameter:
            self.state[target.name] = written
        elif target.depth == self.g.scope.depth:
            self._written[target.name] = written
            return (target, *result[1:]) if isinstance(result, tuple) else target
        else:
            self._outdated.add(target.name)
        return result

    def changes(self) -> Changes:
        """Return the tensors that have been changed in place so far."""
        return dict(self._written), set(self._outdated)

    def change_back(self, to: Changes, outdated: Iterable[str] = ()) -> None:
        """Take the tensors as they were, for another branch or turn; `outdated` are not to be used.

        outdated: what a branch has changed that may not have been taken.
        """
        self._written, self._outdated = dict(to[0]), {*to[1], *outdated}

    def changed_since(self, then: Changes) -> set[str]:
        """The tensors that have been changed in place since."""
        now = {name for name, value in self._written.items() if then[0].get(name) is not value}
        return now | (self._outdated - then[1])

    def _own(self, value: Value) -> Value:
        """A constant that is another one than its equals: a later node may assign to it."""
        if value.is_parameter:
            return value
        return self.g.stored(Value("", value.dtype, value.shape, value.data))

    def _target(self, node: NodeProto) -> Any:
        """Return the function, closure or choice that a node calls; None for a primitive."""
        key = node.op_type
        if key.startswith("REF::"):
            key = key[5:]
            if key in self._model.primitives:
                return None
            if key not in self._model.functions:
                found = self._find(key)
                if isinstance(found, Closure | Choice):
                    return found
                if found is not None:
                    raise Unsupported("it calls what is no function")
        return Closure(key) if key in self._model.functions else None

    def _primitive(self, node: NodeProto) -> tuple[str, Mapping[str, Any]]:
        """The primitive's name and settings, in any of the dialects."""
        name, row = primitive_named(self._model, node.op_type)
        if row is not None:
            settings = constants.Settings(self._model.source, row.attributes, self.g.all_stored)
            self._primitives[node.op_type] = name, settings  # all nodes that name it share it
            return name, settings
        if node.op_type.startswith("REF::"):
            if not name:
                raise DecodeError(f"it names {node.op_type[5:]!r}, which the file does not define")
            return name, {}
        own = {
            attribute.name: self.g.all_stored(constants.value_of(attribute))
            for attribute in node.decoded()
            if attribute.name not in ("shape", "") and attribute.form[:6] != "shape:"
        }
        return name, own

    # ------------------------------------------------------------------------------------ values

    def _find(self, name: str) -> Any:
        for frame in reversed(self._frames):
            if name in frame:
                return frame[name]
        return None

    def _resolve_free_name(self, name: str) -> Any:
        """Return the value of a name that the function itself does not define."""
        found = self._parameters.get(name)
        if found is not None:
            return found
        if name in self._constants:
            found = self._constants[name]
            if isinstance(found, NodeProto):
                found = self._constants[name] = self._constant(found)
            return found
        if name in self._model.functions:
            return Closure(name)
        for frame in reversed(self._frames):
            if name in frame:
                return frame[name]
        raise DecodeError(f"the input {name!r} is defined nowhere before it is used")

    def _constant(self, node: NodeProto) -> Any:
        attribute = node.attribute("value")
        if attribute is None:
            decoded = node.decoded()
            if not decoded:
                raise DecodeError(f"the constant {node.output!r} has no value")
            attribute = decoded[0]
        return self.g.all_stored(constants.value_of(attribute))

    def current(self, name: str, state: State) -> Value:
        """Return the value of a parameter in a state."""
        found = state.get(name) or self._snapshots.get(name)
        if found is None:
            its = self._by_own_name[name]
            found = self._snapshots[name] = Value(name, its.dtype, its.shape, its.data)
        return found

    def now(self, value: Any) -> Any:
        """The value with parameters read."""
        if isinstance(value, Value):
            if value.is_parameter:
                return self.current(value.name, self.state)
            return self._present(value)
        if isinstance(value, tuple) and _holds(value, Value):
            return tuple(map(self.now, value))
        return value

    def held(self, value: Any) -> Any:
        """The value with what tensors hold that were changed in place."""
        if not self._written and not self._outdated:
            return value
        if isinstance(value, Value):
            return self._present(value)
        if isinstance(value, tuple):
            return tuple(map(self.held, value))
        if isinstance(value, Closure):
            return Closure(value.graph, self.held(value.bound))
        if isinstance(value, Choice):
            return Choice(value.condition, self.held(value.chosen), self.held(value.other))
        return value

    def _present(self, value: Value) -> Value:
        if value.name in self._outdated:
            raise Unsupported(
                "a tensor that a branch or a loop has changed in place is used after it; let the "
                "branch give the new tensor instead"
            )
        return self._written.get(value.name, value)

    def zeros(self, like: Value) -> Value:
        """A tensor for where no value is needed, only its type."""
        sizes = [dim or 0 for dim in like.shape or ()]
        if not sizes:
            return self.g.constant("" if like.dtype is DType.STRING else 0, like.dtype)
        zero = self.g.constant(0, like.dtype)
        return self.g.node("Expand", zero, self.g.ints(tuple(sizes)), shape=like.shape)

    # ------------------------------------------------------------------------------------ scopes

    @contextmanager
    def inner(self) -> Iterator[Scope]:
        """Fill a new scope inside the present one."""
        with self.within(Scope(self.g.scope.depth + 1)) as scope:
            yield scope

    @contextmanager
    def within(self, scope: Scope) -> Iterator[Scope]:
        """Fill this scope."""
        outer, self.g.scope = self.g.scope, scope
        try:
            yield scope
        finally:
            self.g.scope = outer

    def produced(self, scope: Scope, value: Value, taken: set[str]) -> str:
        """A name by which a node of `scope` itself gives the value, none of `taken`."""
        own = any(value.name in node.outputs for node in scope.nodes)
        if own and value.name not in taken:
            return value.name
        with self.within(scope):
            return self.g.node("Identity", value, shape=value.shape).name


def _holds(value: Any, kind: type) -> bool:
    """Return True if a value, or one in it, is of that class."""
    if isinstance(value, tuple):
        for item in value:
            if _holds(item, kind):
                return True
        return False
    return isinstance(value, kind)


def _check(item: Any) -> None:
    """Unsupported for what no primitive takes or gives."""
    for leaf in leaves(item):
        if isinstance(leaf, Exits):
            raise Unsupported(RECURSION)
        if isinstance(leaf, Value | Abstract) and leaf.dtype in COMPLEX:
            raise Unsupported(
                "it computes with complex numbers, which runtimes have no operators for; keep real "
                "and imaginary parts apart in the source"
            )


def settled(g: Emitter, result: Any, abstract: Any) -> Any:
    """A result with the type that the file says it has."""
    if isinstance(result, Value) and isinstance(abstract, Abstract):
        if result.dtype is not abstract.dtype:
            result = g.cast(result, abstract.dtype)
        if result.data is None and not result.is_parameter:
            result.shape = _narrower(result.shape, abstract.shape)
    elif isinstance(result, tuple) and isinstance(abstract, tuple):
        # A tuple of open length has the type of one element in the file.
        typed = [settled(g, *pair) for pair in zip(result, abstract, strict=False)]
        return (*typed, *result[len(typed) :])
    return result


def _narrower(own: Any, told: Any) -> Any:
    if told is None:
        return own
    if own is None or None not in told or len(own) != len(told):
        return told
    return tuple(b if b is not None else a for a, b in zip(own, told, strict=True))


def _tail(graph: GraphProto) -> str:
    """The node whose result is the function's, seen through Depend."""
    if len(graph.outputs) != 1:
        return ""
    nodes = {node.output: node for node in graph.nodes}
    name = graph.outputs[0].name
    for _ in range(len(nodes)):
        node = nodes.get(name)
        key = node.op_type.removeprefix("REF::") if node is not None else ""
        if node is None or not node.inputs or key.partition(":")[0] not in ("Depend", "Return"):
            break
        name = node.inputs[0]
    return name


_SOME_CODE = "another vendor's code"


def _advice(kind: str, attributes: Mapping[str, Any]) -> str:
    if kind == "Custom":
        names = [name for name in ("type", "reg_op_name") if name in attributes]
        what = next((attributes[name] for name in names if attributes[name]), _SOME_CODE)
        return (
            f"holds code compiled for one device ({what}), which nothing else can run; export the "
            "model from its source without converting it for that device"
        )
    if kind.endswith("Grad"):
        return "a gradient, which is a step of training; export the network without its loss"
    return (
        "this version has no ONNX form for it; replace it in the source by operators that have "
        "one, or add a function for it to engine/formats/mindir/primitives"
    )
