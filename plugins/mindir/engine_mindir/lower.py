"""Lower a decoded .mindir to ONNX by symbolic execution (abstract interpretation).

The main graph is interpreted node by node in the file's order, which is topological and keeps the
order of effects. Each name is bound to a symbolic value: a tensor (`Value`), a tuple of them, a
function (`Closure`). Structural primitives (tuples, monads, Load, Depend, calls: structural.py) are
evaluated here and emit nothing; functions are inlined; all other primitives are looked up in the
table (primitives/) and emit ONNX nodes. Conditional calls become If and recursive tail calls become
Loop: control.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engine.errors import Cancelled
from engine.formats.protobuf import WireError
from engine.types import CancelToken
from engine_mindir import constants, decode
from engine_mindir.control import RECURSION, RETURN, Exits, Loop, State, lower_loop, lower_select
from engine_mindir.declared import apply_abstract, check_value
from engine_mindir.emit import Emitter, Scope, Unsupported
from engine_mindir.functions import Functions
from engine_mindir.in_place import Updates
from engine_mindir.messages import DecodeError, GraphProto, ModelProto, NodeProto
from engine_mindir.names import local, primitive_named, primitives_of
from engine_mindir.primitives import primitive_table
from engine_mindir.structural import PASS_THROUGH, STRUCTURAL
from engine_mindir.tuples import TupleLimits
from engine_mindir.values import COMPLEX, MONAD, Abstract, Choice, Closure, DType, Value

# Inlining can grow a small file exponentially; these limits stop one that was made to do so.
STEPS = 100_000  # nodes interpreted, each as often as its function is called; and more in
BYTES_PER_STEP = 50  # larger files: real ones take 600 to 1,000 bytes for a node
MAX_CALL_DEPTH = 100  # nesting of inlined calls


ARGUMENT_ERRORS = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError,
    RuntimeError,
)  # fmt: skip
"""Exceptions that malformed node arguments cause."""


class LoweringError(ValueError):
    """A node cannot be lowered. The message names the node and the reason."""


class Lowering:
    """Lowering state of one model.

    parameters: by the name in the file. state: what parameters hold that the model has assigned to
    so far, by their ONNX name. in_place: tensors that it has changed. tuples: limits on them.
    loop: the innermost loop that is being lowered. cancel: stops it, with Cancelled.
    """

    def __init__(
        self,
        model: ModelProto,
        parameters: Mapping[str, Value],
        cancel: CancelToken | None = None,
    ) -> None:
        assert model.graph is not None
        self.g = Emitter(len(model.source.view))
        self.state: State = {}
        self.loop: Loop | None = None
        self.in_place = Updates()
        self.tuples = TupleLimits()
        self._model = model
        self._cancel = cancel
        self._functions = Functions(model.functions)
        self._table = primitive_table()
        self._structural = {
            f"REF::{key}": STRUCTURAL[row.op_type]
            for key, row in model.primitives.items()
            if row.op_type in PASS_THROUGH
        }
        self._parameters = parameters
        self._frames: list[dict[str, Any]] = []
        self._headers: list[str] = []
        self._steps = 0
        self._max_steps = STEPS + len(model.source.view) // BYTES_PER_STEP
        self._calls = 0
        self._by_own_name = {parameter.name: parameter for parameter in parameters.values()}
        self._snapshots: dict[str, Value] = {}
        self._primitives: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._own_attributes: dict[int, Mapping[str, Any]] = {}  # by node
        self._has_writes = any(
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
        """Interpret a function's body on symbolic arguments and return its result."""
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
            cancel = self._cancel
            tail = _tail_node(graph)
            self._steps += len(graph.nodes)
            if self._steps > self._max_steps:
                raise DecodeError(f"the graph unfolds into more than {self._max_steps:,} nodes")
            for node in graph.nodes:
                if cancel is not None and cancel.cancelled:
                    cancel.check()
                kind = node.op_type
                if kind == "Constant":
                    continue
                inputs = [
                    frame[name] if name in frame else self._resolve_free_name(name)
                    for name in node.inputs
                ]
                handler = self._structural.get(kind)
                if handler is not None and inputs:  # half of a file's nodes
                    frame[node.output] = handler(self, inputs, {})
                else:
                    frame[node.output] = self._node(graph, node, inputs, node.output == tail)
            names = [output.name for output in graph.outputs]
            results = [
                frame[name] if name in frame else self._resolve_free_name(name) for name in names
            ]
            return results[0] if len(results) == 1 else tuple(results)
        finally:
            self._frames.pop()

    def call(self, target: Any, args: tuple[Any, ...], is_tail: bool) -> Any:
        """Call a closure, or the one that a Choice selects, and return the result.

        is_tail: the result is that of the calling function too. Such a call may jump back to a
        loop's header or leave the loop, and then returns Exits.
        """
        if isinstance(target, Choice):
            return lower_select(
                self,
                target.condition,
                lambda: self.call(target.chosen, args, is_tail),
                lambda: self.call(target.other, args, is_tail),
            )
        if not isinstance(target, Closure):
            raise Unsupported("it calls what is no function")
        name = target.graph
        args = (*target.bound, *args)
        self.tuples.visit((args,))
        if self.loop is not None and is_tail:
            if name not in self.loop.members or name == self.loop.header:
                return Exits(0, {name: (self.in_place.applied_to(args), dict(self.state))})
        elif name in self._headers:
            raise Unsupported(RECURSION)
        members = self._functions.component_of(name, self._headers)
        if members:
            return self._enter(name, members, self.in_place.applied_to(args), is_tail)
        return self._inline(name, args, is_tail)

    def lower_iteration(self, frame: Loop, args: Any) -> Exits:
        """Lower one iteration of a loop: its header, and what that calls within the loop."""
        outer, self.loop = self.loop, frame
        self._headers.append(frame.header)
        try:
            outcome = self.in_place.applied_to(self._inline(frame.header, args, True))
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
            exits = lower_loop(self, name, members, args)
            self.loop = outer if is_tail else None
            return self._leave(exits)
        finally:
            self.loop = outer

    def _leave(self, exits: Exits) -> Any:
        """Continue after a loop, with a branch for each of its exits."""
        targets = list(exits.targets.items())

        def take(index: int) -> Any:
            name, (value, state) = targets[index]
            self.state = dict(state)
            if name == RETURN:
                return value
            return self.call(Closure(name), value, self.loop is not None)

        def among(first: int) -> Any:
            if first == len(targets) - 1 or not isinstance(exits.index, Value):
                return take(first)
            condition = self.g.node("Equal", exits.index, first, dtype=DType.BOOL, shape=())
            return lower_select(self, condition, lambda: take(first), lambda: among(first + 1))

        return among(0 if isinstance(exits.index, Value) else exits.index)

    def _inline(self, name: str, args: tuple[Any, ...], is_tail: bool) -> Any:
        graph = self._model.functions.get(name)
        if graph is None:
            raise DecodeError(f"a call of {name!r}, which is no function of the file")
        self._calls += 1
        if self._calls > MAX_CALL_DEPTH:
            raise Unsupported(f"functions that call each other {MAX_CALL_DEPTH} deep")
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
            primitive = self._primitives.get(kind)
            if primitive is None:
                target = self._target(node)
                if target is not None:
                    return self.call(target, tuple(inputs), is_tail)
                primitive = self._primitive(node)
            kind, attributes = primitive
            handler = STRUCTURAL.get(kind)
            if handler is not None:
                return handler(self, inputs, attributes)
            g.result = constants.abstract_of(node)
            return apply_abstract(g, self._lower(kind, inputs, attributes), g.result)
        except (Unsupported, DecodeError) as error:
            raise LoweringError(
                f"primitive {kind!r} at node {local(node.name or node.output)!r} "
                f"(scope {node.domain or graph.name!r}): {error}"
            ) from error
        finally:
            g.origin, g.result = outer

    def _lower(self, kind: str, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
        row = self._table.get(kind)
        if row is None:
            raise Unsupported(_advice(kind, attributes))
        self.tuples.visit(inputs)
        declared = self.g.result
        if not isinstance(declared, Abstract) or declared.dtype in COMPLEX:
            check_value(declared)
        args = []
        for value in inputs:
            if value is MONAD:  # orders effects, and is no argument of an operator
                continue
            if not isinstance(value, Value) or value.dtype in COMPLEX:
                check_value(value)
            args.append(self.current_value(value))
        target = (
            next((value for value in inputs if value is not MONAD), None) if row.writes else None
        )
        try:
            result = row(self.g, args, attributes)
        except (Unsupported, DecodeError, WireError, RecursionError, Cancelled):
            raise
        except ARGUMENT_ERRORS as error:  # a file may give a primitive anything for an argument
            raise DecodeError(
                f"its arguments do not fit: {type(error).__name__}: {error}"
            ) from error
        self.tuples.check(result)
        if isinstance(target, Value):
            return self._write(target, result)
        if self._has_writes and isinstance(result, Value) and result.data is not None:
            return self._distinct_constant(result)
        return result

    def _write(self, target: Value, result: Any) -> Any:
        """Bind a parameter or tensor to the value that was assigned to it.

        A parameter's new value becomes state, an output of the model. Another tensor's is seen by
        later readers, if it is of this scope: a value of an If's or Loop's body is not visible
        outside.
        """
        written = self.g.cast(result[0] if isinstance(result, tuple) else result, target.dtype)
        if target.is_parameter:
            self.state[target.name] = written
        elif target.depth == self.g.scope.depth:
            self.in_place.write(target.name, written)
            return (target, *result[1:]) if isinstance(result, tuple) else target
        else:
            self.in_place.mark_outdated(target.name)
        return result

    def _distinct_constant(self, value: Value) -> Value:
        """Give a constant a name of its own: equal constants are shared, and one may be updated."""
        if value.is_parameter:
            return value
        return self.g.register(Value("", value.dtype, value.shape, value.data))

    def _target(self, node: NodeProto) -> Any:
        """Return the function, closure or choice that a node calls; None for a primitive."""
        key = node.op_type
        if key.startswith("REF::"):
            key = key[5:]
            if key in self._model.primitives:
                return None
            if key not in self._model.functions:
                target = self._find(key)
                if isinstance(target, Closure | Choice):
                    return target
                if target is not None:
                    raise Unsupported("it calls what is no function")
        return Closure(key) if key in self._model.functions else None

    def _primitive(self, node: NodeProto) -> tuple[str, Mapping[str, Any]]:
        """Return the primitive's name and attributes, in any dialect of the format."""
        name, row = primitive_named(self._model, node.op_type)
        if row is not None:
            settings = constants.Settings(self._model.source, row, self.g.register_all)
            self._primitives[node.op_type] = name, settings  # all nodes that name it share it
            return name, settings
        if node.op_type.startswith("REF::"):
            if not name:
                raise DecodeError(f"it names {node.op_type[5:]!r}, which the file does not define")
            return name, {}
        own = self._own_attributes.get(id(node))
        if own is None:
            own = self._own_attributes[id(node)] = {
                attribute.name: self.g.register_all(constants.value_of(attribute))
                for attribute in decode.attributes_of(node)
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
        value = self._parameters.get(name)
        if value is not None:
            return value
        if name in self._constants:
            value = self._constants[name]
            if isinstance(value, NodeProto):
                value = self._constants[name] = self._constant(value)
            return value
        if name in self._model.functions:
            return Closure(name)
        for frame in reversed(self._frames):
            if name in frame:
                return frame[name]
        raise DecodeError(f"the input {name!r} is defined nowhere before it is used")

    def _constant(self, node: NodeProto) -> Any:
        span = decode.attribute_at(node, "value") or next(decode.attribute_spans(node), None)
        if span is None:
            raise DecodeError(f"the constant {node.output!r} has no value")
        attribute = decode.attribute(node.source, span)
        return self.g.register_all(constants.value_of(attribute))

    def parameter_value(self, name: str, state: State) -> Value:
        """Return the value of a parameter in a state."""
        value = state.get(name) or self._snapshots.get(name)
        if value is None:
            parameter = self._by_own_name[name]
            value = self._snapshots[name] = Value(
                name, parameter.dtype, parameter.shape, parameter.data
            )
        return value

    def current_value(self, value: Any) -> Any:
        """Return the value, each parameter in it read as it is at this point of the model."""
        if isinstance(value, Value):
            if value.is_parameter:
                return self.parameter_value(value.name, self.state)
            return self.in_place.latest(value)
        if isinstance(value, tuple) and _contains(value, Value):
            return tuple(map(self.current_value, value))
        return value

    def zeros(self, like: Value) -> Value:
        """Emit a placeholder of the same type, for a branch that does not produce the value."""
        sizes = [dim or 0 for dim in like.shape or ()]
        if not sizes:
            return self.g.constant("" if like.dtype is DType.STRING else 0, like.dtype)
        zero = self.g.constant(0, like.dtype)
        return self.g.node("Expand", zero, self.g.ints(tuple(sizes)), shape=like.shape)

    # ------------------------------------------------------------------------------------ scopes

    @contextmanager
    def nested_scope(self) -> Iterator[Scope]:
        """Emit nodes into a new scope within the current one: a body of If or Loop."""
        with self.in_scope(Scope(self.g.scope.depth + 1)) as scope:
            yield scope

    @contextmanager
    def in_scope(self, scope: Scope) -> Iterator[Scope]:
        """Emit nodes into this scope."""
        outer, self.g.scope = self.g.scope, scope
        try:
            yield scope
        finally:
            self.g.scope = outer

    def name_in_scope(self, scope: Scope, value: Value, used: set[str]) -> str:
        """Return a name, not in `used`, by which a node of `scope` itself produces the value.

        The outputs of an ONNX subgraph must be distinct and produced in it: others get an Identity.
        """
        if value.name in scope.names and value.name not in used:
            return value.name
        with self.in_scope(scope):
            return self.g.node("Identity", value, shape=value.shape).name


def _contains(value: Any, kind: type) -> bool:
    """Return True if a value, or one in it, is of that class."""
    if isinstance(value, tuple):
        for part in value:
            if _contains(part, kind):
                return True
        return False
    return isinstance(value, kind)


def _tail_node(graph: GraphProto) -> str:
    """Return the name of the function's result, before any Depend: a call there is a tail call."""
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
        "one, or add a function for it to plugins/mindir/engine_mindir/primitives"
    )
