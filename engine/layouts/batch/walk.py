"""Follow the batch through a graph, its bodies and its functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)
from onnx.defs import OpSchema, get_schema
from onnx.defs import SchemaError as NoSchema

from engine.formats.onnx.graphs import RANDOM
from engine.layouts.batch.node import Node, only_data
from engine.layouts.batch.sizes import Symbols, TooComplicated
from engine.layouts.batch.values import MOST_ELEMENTS, Kind, Mixes, Value, whole

Rule: TypeAlias = Callable[[Node], list[Value]]
Rules: TypeAlias = Mapping[str, Mapping[str, Rule]]
Scope: TypeAlias = "dict[str, Value | Mixed | None]"
"""Knowledge of tensors by name; None for one that a function's caller has left out."""

_MOST_TIMES = 16
"""Visits of nodes, in multiples of the model's nodes: bodies of loops are visited several times."""
_FREE = 20_000
_UNFORESEEN = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError)
"""Errors of a rule for a node that is not as its operator has it."""
_MOST_NUMBERS = 64  # of a constant that is no count: scales of a Resize
_COUNTS = frozenset((TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL))
_DEEPEST = 64

_RESHAPES = frozenset(("Reshape", "Flatten", "Shape", "Size"))
"""Operators that look at where along its axis a sample lies; to all others each entry is alike."""
_TRAINED = frozenset(("Dropout", "BatchNormalization"))


@dataclass(frozen=True, slots=True)
class Mixed:
    """A tensor in which samples may have met, should anybody read it. reason: where and why."""

    reason: str


class Blamed(Exception):
    """The samples of a batch may meet. The text begins with the node where they do.

    Also one whose results nobody reads: where it fails for some batches, so does the model.
    """


class Endless(Exception):
    """A graph whose bodies would take too long to follow."""


@dataclass
class Walk:
    """One proof under way.

    of_any_kind: operators whose rules also take what is not data: sizes, and numbers of samples.
    """

    rules: Rules
    of_any_kind: Collection[str]
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], FunctionProto]
    left: int
    symbols: Symbols = field(default_factory=Symbols)
    depth: int = 0

    @classmethod
    def of(cls, model: ModelProto, rules: Rules, of_any_kind: Collection[str]) -> Walk:
        """Prepare a walk through a model."""
        functions = {
            ("" if one.domain == "ai.onnx" else one.domain, one.name, one.overload): one
            for one in model.functions
        }
        nodes = len(model.graph.node) + sum(len(one.node) for one in model.functions)
        opsets = _opsets(model.opset_import)
        return cls(rules, of_any_kind, opsets, functions, _FREE + _MOST_TIMES * nodes)

    def graph(
        self,
        graph: GraphProto,
        scope: Scope,
        opsets: Mapping[str, int] | None = None,
        given: dict[str, AttributeProto] | None = None,
    ) -> None:
        """Add to a scope, which has a graph's inputs, all that its nodes make.

        opsets, given: of the function that the graph is in, and the attributes of its call.
        """
        self.depth += 1
        if self.depth > _DEEPEST:
            raise Endless("bodies are nested deeper than they are followed")
        for tensor in graph.initializer:
            scope[tensor.name] = _constant(tensor)
        for sparse in graph.sparse_initializer:
            scope[sparse.values.name] = whole(tuple(sparse.dims), sparse.values.data_type)
        self._nodes(graph.node, scope, opsets or self.opsets, given or {})
        self.depth -= 1

    def _nodes(
        self,
        nodes: Sequence[NodeProto],
        scope: Scope,
        opsets: Mapping[str, int],
        given: dict[str, AttributeProto],
    ) -> None:
        for proto in nodes:
            self.left -= 1
            if self.left < 0:
                raise Endless("its loops and functions take too long to follow")
            inputs = [_read(proto, name, scope) if name else None for name in proto.input]
            try:
                made = self._node(proto, inputs, scope, opsets, given)
            except Mixes as error:
                raise Blamed(f"{title(proto)}: {error}") from error
            except TooComplicated as error:
                raise Blamed(f"{title(proto)}: {error}") from error
            except _UNFORESEEN as error:
                # The model is one that its operators' rules do not foresee, or is wrong.
                raise Blamed(f"{title(proto)} is not understood ({error})") from error
            for place, name in enumerate(proto.output):
                if name and place < len(made):
                    scope[name] = made[place]
                elif name:
                    scope[name] = Mixed(f"{title(proto)} has an output that is not followed")

    def _node(
        self,
        proto: NodeProto,
        inputs: list[Value | None],
        scope: Scope,
        opsets: Mapping[str, int],
        given: dict[str, AttributeProto],
    ) -> Sequence[Value]:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        function = self.functions.get((domain, proto.op_type, proto.overload))
        if function is not None and _is_built_in(domain):
            # A backend with an operator of that name takes its own, and not the function.
            raise Mixes("a function stands for it in a domain of operators")
        if function is not None:
            return self._function(function, proto, inputs, given)
        if proto.op_type == "Constant" and domain == "":
            return [self._constant_node(proto, given)]

        def run(body: GraphProto, values: Sequence[Value]) -> list[Value]:
            inner = dict(scope)
            own = {name for node in body.node for name in node.output}
            given_twice = {info.name for info in body.input} & {t.name for t in body.initializer}
            if given_twice:
                raise Mixes("an input of its body has a value of its own")
            for name in own - {""}:
                inner.pop(name, None)  # not that of the graph around it
            inner.update(zip((info.name for info in body.input), values, strict=True))
            self.graph(body, inner, opsets, given)
            found = [_read(proto, info.name, inner) for info in body.output]
            return [value for value in found if value is not None]

        version = opsets.get(domain, 1)
        node = Node(proto, inputs, version, self.symbols, given, run)
        rule = self.rules.get(domain, {}).get(proto.op_type)
        has_body = any(attribute.type == AttributeProto.GRAPH for attribute in proto.attribute)
        is_whole = not has_body and all(value.is_whole for value in node.given)
        if proto.op_type in RANDOM:
            raise Mixes("it draws random numbers, others in each run")
        if is_whole and _is_deterministic(proto.op_type, domain, version, rule is not None):
            made = []
            if rule is not None:
                try:
                    made = rule(node)
                except (Mixes, TooComplicated, *_UNFORESEEN):
                    made = []  # then nothing but that is known of it
            return [*made, *(whole() for _ in range(node.count - len(made)))]
        if rule is None:
            raise Mixes("its operator has no rule")
        if not has_body and proto.op_type not in _RESHAPES:
            if any(value.kind is Kind.BLOCKS for value in node.given):
                return in_blocks(node, rule)
            if proto.op_type not in self.of_any_kind:
                only_data(node.given)
        return rule(node)

    def _function(
        self,
        function: FunctionProto,
        proto: NodeProto,
        inputs: list[Value | None],
        given: dict[str, AttributeProto],
    ) -> Sequence[Value]:
        own = {attribute.name: attribute for attribute in function.attribute_proto}
        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                own[attribute.name] = attribute
            elif attribute.ref_attr_name in given:
                own[attribute.name] = given[attribute.ref_attr_name]
        scope: Scope = dict.fromkeys(function.input)  # also those that are left out
        scope.update(zip(function.input, inputs))
        self.depth += 1
        if self.depth > _DEEPEST:
            raise Endless("functions call each other deeper than they are followed")
        self._nodes(function.node, scope, _opsets(function.opset_import) or self.opsets, own)
        self.depth -= 1
        found = [_read(proto, name, scope) for name in function.output]
        return [value for value in found if value is not None]

    def _constant_node(self, proto: NodeProto, given: dict[str, AttributeProto]) -> Value:
        attribute = proto.attribute[0]
        if attribute.ref_attr_name:
            attribute = given[attribute.ref_attr_name]
        if attribute.type == AttributeProto.TENSOR:
            return _constant(attribute.t)
        held = helper.get_attribute_value(attribute)
        if attribute.type in (AttributeProto.INT, AttributeProto.INTS):
            return _from_array(np.array(held, np.int64), TensorProto.INT64)
        if attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS):
            return _from_array(np.array(held, np.float32), TensorProto.FLOAT)
        return whole()


def _constant(tensor: TensorProto) -> Value:
    shape = tuple(tensor.dims)
    if (
        prod(shape) > MOST_ELEMENTS
        or (prod(shape) > _MOST_NUMBERS and tensor.data_type not in _COUNTS)
        or tensor.data_location == TensorProto.EXTERNAL
        or tensor.data_type in (TensorProto.STRING, TensorProto.COMPLEX64)
    ):
        return whole(shape, tensor.data_type)
    return _from_array(numpy_helper.to_array(tensor), tensor.data_type)


def _is_built_in(domain: str) -> bool:
    return not domain or domain.startswith(("ai.onnx", "com.microsoft", "com.ms."))


def in_blocks(node: Node, rule: Rule) -> list[Value]:
    """Apply a rule to what is divided in blocks: it treats each entry along the axis alike."""
    for value in node.given:
        if value.kind not in (Kind.WHOLE, Kind.BLOCKS):
            raise Mixes("its inputs have their samples in different orders")
    found = [value for value in node.given if value.kind is Kind.BLOCKS]
    if len({(value.blocks, value.size) for value in found}) > 1:
        raise Mixes("its inputs have their samples in different orders")
    node.inputs = [
        replace(value, kind=Kind.DIVIDED, blocks=1)
        if value is not None and value.kind is Kind.BLOCKS
        else value
        for value in node.inputs
    ]
    made = rule(node)
    for value in made:
        if value.is_divided and value.size != found[0].size:
            raise Mixes("it changes the axis of the batch")
    return [
        replace(value, kind=Kind.BLOCKS, blocks=found[0].blocks) if value.is_divided else value
        for value in made
    ]


def _read(proto: NodeProto, name: str, scope: Scope) -> Value | None:
    """Return what is known of a tensor that a node reads. Raises Blamed for nothing."""
    value = scope.get(name)
    if isinstance(value, Mixed):
        raise Blamed(value.reason)
    if value is None and name not in scope:
        raise Blamed(f"{title(proto)} reads {name!r}, which is not known")
    return value


def title(proto: NodeProto) -> str:
    """Return what messages call a node."""
    name = proto.name or next(filter(None, proto.output), "")
    return f"{proto.op_type} {name[:200]!r}"


def _from_array(array: np.ndarray[Any, Any], dtype: int) -> Value:
    elements = np.empty(array.shape, object)
    flat: list[Any]
    if array.dtype.kind in "iu":
        flat = [int(x) for x in array.flat]
    elif array.dtype.kind == "b":
        flat = [bool(x) for x in array.flat]
    elif array.dtype.kind == "f":
        flat = [float(x) for x in array.flat]
    else:
        return whole(array.shape, dtype)
    elements.reshape(-1)[:] = flat
    return whole(array.shape, dtype, elements)


def _opsets(imports: Sequence[object]) -> dict[str, int]:
    return {
        "" if one.domain == "ai.onnx" else one.domain: one.version  # type: ignore[attr-defined]
        for one in imports
    }


def _is_deterministic(op_type: str, domain: str, version: int, has_rule: bool) -> bool:
    """Return whether an operator gives the same for the same, always."""
    if op_type in _TRAINED:
        return False  # its rule looks at the mode
    if has_rule:
        return True
    if domain not in ("", "ai.onnx.ml"):
        return False
    try:
        schema = get_schema(op_type, version, domain)
    except NoSchema:
        return False
    said: Any = getattr(schema, "node_determinism", None)
    return bool(said == OpSchema.NodeDeterminism.Deterministic)
