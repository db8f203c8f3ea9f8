"""Rewrites the nodes of a model in terms that ONNX Runtime takes, or reports those it cannot run.

A node that must be rewritten becomes a call of a function that is added to the model, so that
everything around it stays as it is; ONNX Runtime inlines the function's body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, helper

from engine.host.interrupts import pass_interrupt
from engine_cpu.errors import explained, is_lack
from engine_cpu.known_issues import OPERATORS, known_issue
from engine_cpu.node_rules import breaches
from engine_cpu.prepare import opsets
from engine_cpu.prepare.kind import (
    Kind,
    Opsets,
    Scope,
    has_subgraphs,
    inferred,
    info_of,
    kind_of,
    reads,
    refill,
    scope_of,
    subgraphs,
    type_named,
)
from engine_cpu.prepare.rewrites import (
    FunctionId,
    converted,
    expanded,
    special,
    widened,
    wider_types,
)
from engine_cpu.prepare.trial import take

DOMAIN = "engine_cpu"
DEPTH = 30
"""Functions in functions, and wider types in those, that are followed."""


class Refused(Exception):
    """ONNX Runtime has no way to run a node; the text says why.

    is_damaged: the node breaks a rule of ONNX, so that nobody is to run it.
    """

    def __init__(self, reason: str, is_damaged: bool = False) -> None:
        super().__init__(reason)
        self.is_damaged = is_damaged


@dataclass(frozen=True)
class Answer:
    """Rewriting of nodes of one kind.

    drop: attributes to leave out. call: the name of the function to call instead, "" for none.
    nested: the node itself with its subgraphs rewritten; None where it has none.
    outputs: the types of the outputs as ONNX Runtime infers them.
    """

    drop: frozenset[str] = frozenset()
    call: str = ""
    nested: NodeProto | None = None
    outputs: tuple[TypeProto | None, ...] = ()

    def apply(self, node: NodeProto) -> NodeProto:
        """Rewrite a node of this kind."""
        if self.call:
            outputs = [name for name in node.output if name]
            return helper.make_node(
                self.call, list(reads(node)), outputs, name=node.name, domain=DOMAIN
            )
        if self.nested is None and not self.drop:
            return node
        copy = deepcopy(node if self.nested is None else self.nested)
        copy.name = node.name
        kept = [item for item in copy.attribute if item.name not in self.drop]
        refill(copy.attribute, kept)
        return copy


class Rewriter:
    """For one model and one choice of opset versions.

    functions: the model's own. versions: the opset versions to write for, by domain.
    is_taken: ONNX Runtime takes the model as it is, so that only kernels with known issues
        are looked at. workarounds: False for those alone that end the process.
    """

    def __init__(
        self,
        functions: Mapping[FunctionId, FunctionProto],
        versions: Opsets,
        is_taken: bool = False,
        workarounds: bool = True,
    ) -> None:
        self.functions = functions
        self.versions = versions
        self.is_taken = is_taken
        self.workarounds = workarounds
        self.calls: dict[str, FunctionProto] = {}
        self.notes: dict[str, str] = {}
        self._answers: dict[tuple[object, ...], Answer | Refused] = {}
        self._depth = 0

    def nodes(
        self, nodes: Iterable[NodeProto], scope: Scope, opsets: Opsets, is_safe: bool = False
    ) -> Iterator[NodeProto | Refused]:
        """Yield each node in turn as rewritten, or why it cannot be.

        scope: what is known of values; what is learned on the way is added.
        is_safe: they are special.py's, which keeps kernels from what these cannot do.
        """
        for node in nodes:
            try:
                yield self._node(node, scope, opsets, is_safe)
            except Refused as refusal:
                yield refusal

    def used(self, nodes: Iterable[NodeProto]) -> list[FunctionProto]:
        """Return the functions that these nodes call, and those that these call in turn."""
        used: dict[str, FunctionProto] = {}
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if node.domain == DOMAIN and node.op_type not in used:
                used[node.op_type] = self.calls[node.op_type]
                pending += used[node.op_type].node
            for graph in subgraphs(node):
                pending += graph.node
        return list(used.values())

    def _node(self, node: NodeProto, scope: Scope, opsets: Opsets, is_safe: bool) -> NodeProto:
        issue = None if is_safe else known_issue(node, scope, self.workarounds)
        if self.is_taken and not self._depth and not issue and not self._hides_known_issue(node):
            return node
        kind = kind_of(node, scope, opsets, issue)
        key = kind.key
        if key not in self._answers:
            try:
                self._answers[key] = self._answer(kind)
            except Refused as refusal:
                self._answers[key] = refusal
        answer = self._answers[key]
        if isinstance(answer, Refused):
            raise Refused(str(answer), answer.is_damaged)
        for name, output_type in zip(filter(None, node.output), answer.outputs, strict=False):
            if output_type is not None:
                scope.types.setdefault(name, output_type)
        return answer.apply(node)

    def _hides_known_issue(self, node: NodeProto) -> bool:
        """Return True where a node's subgraphs or function may hold an operator of the table."""
        inner = [part for graph in subgraphs(node) for part in graph.node]
        if self._is_own(node):
            inner += self.functions[node.domain, node.op_type, node.overload].node
        return any(part.op_type in OPERATORS or self._hides_known_issue(part) for part in inner)

    def _answer(self, kind: Kind) -> Answer:
        try:
            return self._as_it_is(kind)
        except Refused as refusal:
            if refusal.is_damaged:
                raise
            reason = str(refusal)
        self._depth += 1
        try:
            for way in self._ways(kind) if self._depth <= DEPTH else ():
                model = _tried(way.make)
                if model is None:
                    continue
                try:
                    name = self._call(kind, model, way)
                except Refused as refusal:
                    if self._is_own(kind.node):
                        reason = f"in function {kind.node.op_type!r}: {refusal}"
                else:
                    return Answer(call=name)
        finally:
            self._depth -= 1
        raise Refused(reason)

    def _is_own(self, node: NodeProto) -> bool:
        """Return True where a node calls a function of the model's own."""
        return (node.domain, node.op_type, node.overload) in self.functions

    def _as_it_is(self, kind: Kind) -> Answer:
        """Return the node itself, perhaps with less attributes and other subgraphs."""
        node = kind.node
        if self._is_own(node):
            raise Refused(f"it calls function {node.op_type!r}, which leads too deep")
        if kind.known_issue:
            raise Refused(kind.known_issue.reason)
        try:
            drop = opsets.dropped(kind, self.versions.get(kind.domain, kind.version))
        except opsets.Changed as change:
            raise Refused(str(change)) from None
        nested = self._with_subgraphs(kind) if has_subgraphs(node) else None
        if self.is_taken and not self._depth:
            return Answer(drop, nested=nested)
        answer = Answer(drop, nested=nested)
        model = kind.model(answer.apply(node), {**kind.opsets, **self.versions, DOMAIN: 1})
        model.functions.extend(self.used(model.graph.node))
        model.ir_version = opsets.newest_ir()
        trial = take(model.SerializeToString())
        if trial.is_taken:
            return replace(answer, outputs=tuple(map(type_named, trial.outputs)))
        if kind.guessed and not trial.is_unknown:
            return answer  # it may do for the types that there really are
        raise Refused(explained(trial.refusal), not is_lack(trial.refusal))

    def _with_subgraphs(self, kind: Kind) -> NodeProto:
        copy = deepcopy(kind.node)
        outer = Scope(dict(kind.types), dict(kind.constants))
        for graph in subgraphs(copy):
            results = list(self.nodes(graph.node, scope_of(graph, outer), kind.opsets))
            for node, result in zip(graph.node, results, strict=True):
                if isinstance(result, Refused):
                    raise Refused(f"{node.op_type!r} in its subgraph {graph.name!r}: {result}")
            refill(graph.node, results)
        return copy

    def _ways(self, kind: Kind) -> Iterator[_Way]:
        """Yield equivalents of a node of this kind, the quickest first."""
        by_function = _Way(
            partial(expanded, kind, self.functions), "computed by the operators it is of"
        )
        if self._is_own(kind.node):
            yield by_function
            return
        # Of these too little is known: a kind does not hold all of a large constant.
        if kind.guessed or opsets.is_too_new(kind) or kind.node.op_type == "Constant":
            return
        for wider in kind.known_issue.wider if kind.known_issue else wider_types(kind):
            yield _Way(partial(widened, kind, wider), "computed in wider types")
        yield _Way(
            partial(special, kind, self.versions), "computed by other operators", is_safe=True
        )
        yield by_function
        newer = partial(converted, kind, self.versions[""])
        yield _Way(newer, "computed as in a newer operator set")

    def _call(self, kind: Kind, model: ModelProto, way: _Way) -> str:
        """Return the name of a function with this model's nodes, to call for nodes of this kind."""
        for text in breaches(map(info_of, model.graph.node)):
            raise Refused(text)  # as where sizes of 0 become a number of groups
        model.functions.extend(self.functions.values())
        graph = inferred(model).graph
        opsets = {opset.domain: opset.version for opset in model.opset_import}
        body = []
        for node in self.nodes(graph.node, scope_of(graph), opsets, way.is_safe):
            if isinstance(node, Refused):
                raise node
            body.append(node)
        name = f"{kind.node.op_type}_{len(self.calls)}"
        self.calls[name] = helper.make_function(
            DOMAIN,
            name,
            list(reads(kind.node)),
            [output for output in kind.node.output if output],
            body,
            [helper.make_opsetid(*o) for o in {**opsets, **self.versions, DOMAIN: 1}.items()],
        )
        issue = kind.known_issue
        self.notes[name] = f"{way.how}: {issue.reason}" if issue else way.how
        return name


@dataclass(frozen=True)
class _Way:
    """An equivalent of a node, made when it is tried. how: what placements call it.

    is_safe: its own nodes need not be looked up in known_issues.py.
    """

    make: Callable[[], ModelProto | None]
    how: str
    is_safe: bool = False


def _tried(make: Callable[[], ModelProto | None]) -> ModelProto | None:
    """Return an equivalent; None where onnx, which may know the operator otherwise, fails."""
    try:
        return make()
    except MemoryError:
        raise
    except Exception as error:  # its exceptions have no common base
        pass_interrupt(error)
        return None
