"""ModelProto: the whole of an ONNX file, read into `GraphInfo`."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from engine.errors import ModelError
from engine.formats.onnx import limits, schema
from engine.formats.onnx.expansion import FunctionId, Part, check_functions
from engine.formats.onnx.external import ExternalFiles
from engine.formats.onnx.graph import Graph, State, read_attributes, read_graph, read_nodes
from engine.formats.onnx.node import NodeReader
from engine.formats.onnx.reading import Invalid, ReadingBudget, Repairable, text
from engine.formats.onnx.regular import REGULAR
from engine.formats.onnx.scope import Scope
from engine.formats.onnx.tensor import Tensor
from engine.formats.onnx.value import read_spec
from engine.formats.onnx.work import Work, check_work
from engine.formats.opened import FileVersion
from engine.formats.protobuf import Budget, TooManyFields, WireError, fields, signed
from engine.types import GraphInfo, NodeInfo, ParameterInfo, TensorSpec
from engine.wings import wing

_NOTHING: Mapping[str, Sized] = {}
LINEAR = frozenset(("QuantizeLinear", "DequantizeLinear"))
"""Operators that say what the integers of an input or output stand for."""


class OnnxModel(NamedTuple):
    """A valid ONNX model.

    linked_out, versions: see `ExternalFiles`; external: it has external data. repaired: its bytes
    where those in the file break a rule (see `repair`), else None. folds_too_much: see folding.py.
    """

    graph: GraphInfo
    external: bool
    linked_out: bool
    versions: Mapping[Path, FileVersion]
    folds_too_much: bool = False
    repaired: bytes | None = None


def read_model(
    view: memoryview, path: Path | None, name: str, held: Mapping[str, Sized] = _NOTHING
) -> OnnxModel:
    """Read a serialized ModelProto and check everything that can be checked without a runtime.

    view: its bytes, in memory or mapped; they are not copied. path: its file, beside which
    external data lies; None for bytes. name: what errors call it. held: external data that is in
    memory instead, by location.
    Raises ModelError.
    """
    where = str(path) if path is not None else ""
    try:
        with _without_collector():
            try:
                return _read(view, ExternalFiles(path, held))
            except Repairable as error:
                data = _repaired(view, error)
                return _read(memoryview(data), ExternalFiles(path, held))._replace(repaired=data)
    except (Invalid, TooManyFields) as error:
        what = str(error)
        if len(what) > 1000:  # names may be long, and they come from a stranger
            what = f"{what[:1000]} ..."
        raise ModelError(f"{name}: not a valid ONNX model: {what}", where) from None
    except WireError as error:
        position = error.offset(view)
        raise ModelError(
            f"{name}: damaged ONNX file: {error}, at byte {position:,} of {len(view):,}; "
            f"copy or download it again",
            where,
        ) from None
    except UnicodeDecodeError as error:
        shown = bytes(error.object[:40])
        raise ModelError(
            f"{name}: not a valid ONNX model: the name {shown!r} is not UTF-8", where
        ) from None


def read_part(
    data: bytes, folder: Path | None, name: str, held: Mapping[str, Sized] = _NOTHING
) -> OnnxModel:
    """Read a model in memory as `read_model` does. folder: where its external data lies."""
    beside = None if folder is None else folder / "part"  # a name; nothing is read there
    return read_model(memoryview(data), beside, name, held)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Stop the garbage collector meanwhile, for all threads.

    Reading makes some hundred thousand objects, none of which is garbage, and the collector would
    look at all of the process's again and again: a third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _repaired(view: memoryview, error: Repairable) -> bytes:
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise Invalid(
            f"{error}; with the onnx package it can be repaired: pip install onnx"
        ) from None
    try:
        return REGULAR.rewrite(bytes(view)) or bytes(view)
    except Exception as cause:  # protobuf's: it reads texts that are passed over here
        raise error from cause


class _Header:
    """The fields of a ModelProto beside its graph."""

    def __init__(self) -> None:
        self.ir_version = 0
        self.producer = ["", ""]
        self.opsets: dict[str, int] = {}
        self.metadata: dict[str, str] = {}
        self.functions: list[memoryview] = []
        self.graph: memoryview | None = None

    def read(self, view: memoryview, budget: ReadingBudget) -> None:
        for tag, value in fields(view, budget):
            if tag == schema.MODEL_GRAPH:
                # Readers merge a second graph into the first; only the sum would be checked.
                if self.graph is not None:
                    raise Invalid("two graphs; expected one")
                self.graph = value
            elif tag == schema.MODEL_IR_VERSION:
                self.ir_version = signed(value)
            elif tag == schema.MODEL_OPSET_IMPORT:
                budget.take()
                self._read_opset(value, budget)
            elif tag == schema.MODEL_METADATA_PROPS:
                budget.take()
                key = entry = ""
                for part, payload in fields(value, budget):
                    if part == schema.STRING_STRING_ENTRY_KEY:
                        key = text(payload)
                    elif part == schema.STRING_STRING_ENTRY_VALUE:
                        entry = str(payload, "utf-8")
                self.metadata[key] = entry
            elif tag == schema.MODEL_FUNCTIONS:
                budget.take(limits.FUNCTION_PARTS)
                self.functions.append(value)
            elif tag == schema.MODEL_PRODUCER_NAME:
                self.producer[0] = text(value)
            elif tag == schema.MODEL_PRODUCER_VERSION:
                self.producer[1] = text(value)

    def check(self) -> memoryview:
        if self.graph is None:
            raise Invalid("no graph in it")
        if not 1 <= self.ir_version <= limits.IR_VERSION:
            raise Invalid(
                f"IR version {self.ir_version}; expected a number from 1 to {limits.IR_VERSION:,}"
            )
        if not self.opsets:
            if self.ir_version >= 3:
                raise Invalid("no opset_import; expected the versions of the operator sets")
            self.opsets[""] = 1  # what the first two IR versions mean by saying nothing
        return self.graph

    def _read_opset(self, view: memoryview, budget: Budget) -> None:
        domain = ""
        version = 0
        for tag, value in fields(view, budget):
            if tag == schema.OPERATOR_SET_ID_DOMAIN:
                domain = text(value)
            elif tag == schema.OPERATOR_SET_ID_VERSION:
                version = signed(value)
        if domain == "ai.onnx":
            domain = ""
        if not 1 <= version <= limits.OPSET_VERSION:
            raise Invalid(
                f"version {version} of operator set {domain!r}; expected a number from 1 to "
                f"{limits.OPSET_VERSION:,}"
            )
        if self.opsets.setdefault(domain, version) != version:
            raise Invalid(
                f"versions {self.opsets[domain]} and {version} of operator set {domain!r}; "
                f"expected one"
            )


def _read(view: memoryview, files: ExternalFiles) -> OnnxModel:
    if len(view) > limits.MODEL_BYTES:
        raise Invalid(
            f"{len(view):,} bytes; protobuf's limit is {limits.MODEL_BYTES:,} bytes, larger "
            f"models keep their weights in external data"
        )
    budget = ReadingBudget(len(view))
    header = _Header()
    header.read(view, budget)
    graph_view = header.check()

    state = State(files, budget, NodeReader(budget))
    bodies = {_identify(body, budget): body for body in header.functions}
    if len(bodies) != len(header.functions):
        raise Invalid("two functions of one domain, name and overload")
    state.functions = frozenset(bodies)
    functions: dict[FunctionId, Part] = {}
    for function, body in bodies.items():
        _read_function(function, body, state, len(view))
        functions[function] = _take_part(state)
    graph = read_graph(graph_view, state, "graph")
    growth, captured = state.growth, state.captured
    main = _take_part(state)
    called = check_functions(functions, main)
    weights_bytes = sum(tensor.nbytes for tensor in graph.initializers.values())
    file_bytes = max(len(view), files.nbytes)
    check_work(main.work, called, file_bytes)
    if growth is not None:
        growth.check_unused(graph.nodes, (name for name, _ in graph.outputs), captured, file_bytes)
    if not graph.outputs:
        raise Invalid("the graph has no outputs; expected at least one")
    twice = [
        name for name, times in Counter(name for name, _ in graph.outputs).items() if times > 1
    ]
    if twice:
        raise Invalid(f"the graph lists its output {twice[0]!r} twice; expected unique names")
    if state.repairable:
        raise Repairable(state.repairable)
    inputs = tuple(
        _spec(name, kind, f"input {name!r}", graph, budget)
        for name, kind in graph.inputs
        if name not in graph.initializers
    )
    outputs = tuple(
        _spec(name, kind, f"output {name!r}", graph, budget) for name, kind in graph.outputs
    )
    inputs, outputs = _with_quantization(inputs, outputs, graph, captured, budget)
    info = GraphInfo(
        name=graph.name,
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(graph.nodes),
        parameters=tuple(
            ParameterInfo(t.name, t.dtype, t.shape, t.nbytes, t.location)
            for t in graph.initializers.values()
        ),
        opsets=header.opsets,
        ir_version=header.ir_version,
        producer=" ".join(part for part in header.producer if part),
        metadata=header.metadata,
    )
    folds_too_much = limits.folds_too_much(main.work.cost + called.cost, weights_bytes)
    return OnnxModel(info, files.used, files.linked_out, files.versions, folds_too_much)


def _take_part(state: State) -> Part:
    """Return the counts since the last part."""
    part = Part(state.nodes - state.counted, state.expanded, state.calls, state.work)
    state.counted, state.expanded, state.calls, state.work = state.nodes, 0, Counter(), Work()
    state.growth, state.captured = None, set()
    state.constants.clear()
    state.values.clear()
    return part


def _spec(
    name: str, kind: memoryview | None, what: str, graph: Graph, budget: Budget
) -> TensorSpec:
    if kind is None and name in graph.initializers:
        tensor = graph.initializers[name]
        return TensorSpec(name, tensor.dtype, tensor.shape)
    if kind is None:
        # Tools that expose an inner value as an output often leave its type where it was.
        kind = graph.known_types(budget).get(name)
    spec = read_spec(name, kind if kind is not None else memoryview(b""), what, budget)
    if spec is not None:
        return spec
    text = f"{what} has no type; add it with onnx.shape_inference.infer_shapes"
    # Of an output it follows from the nodes; an input is a caller's to choose.
    raise Repairable(text) if name not in dict(graph.inputs) else Invalid(text)


def _with_quantization(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    graph: Graph,
    captured: Collection[str],
    budget: Budget,
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return inputs and outputs with what their integers stand for, where the nodes say it."""
    if not any(node.op_type in LINEAR for node in graph.nodes):
        return inputs, outputs

    def constant(name: str) -> Tensor | None:
        return graph.initializers.get(name) or graph.constants.get(name)

    # An input that is an output as well has a reader that no node is.
    hidden = {*captured, *(spec.name for spec in outputs)}
    found = wing("Quantizations")(graph.nodes, constant, hidden, budget)
    return (
        tuple(replace(spec, quantization=found.of_input(spec)) for spec in inputs),
        tuple(replace(spec, quantization=found.of_output(spec)) for spec in outputs),
    )


def _identify(view: memoryview, budget: Budget) -> FunctionId:
    parts = {schema.FUNCTION_DOMAIN: "", schema.FUNCTION_NAME: "", schema.FUNCTION_OVERLOAD: ""}
    for tag, value in fields(view, budget, parts):
        parts[tag] = text(value)
    domain, name, overload = parts.values()
    if not name:
        raise Invalid("a function has no name")
    return domain, name, overload


def _read_function(function: FunctionId, view: memoryview, state: State, file_bytes: int) -> None:
    domain, name, _ = function
    where = f"function {f'{domain}.{name}'!r}"
    scope = Scope()
    nodes: list[memoryview] = []
    outputs: list[str] = []
    defaults: list[memoryview] = []
    for tag, value in fields(view, state.budget):
        if tag == schema.FUNCTION_NODE:
            state.budget.take()
            nodes.append(value)
        elif tag == schema.FUNCTION_INPUT:
            scope.names.add(text(value))
        elif tag == schema.FUNCTION_OUTPUT:
            outputs.append(text(value))
        elif tag == schema.FUNCTION_ATTRIBUTE_PROTO:
            state.budget.take()
            defaults.append(value)
    read_attributes(defaults, state, scope, NodeInfo(0, name, name, domain, (), ()))
    known: list[NodeInfo] = []
    read_nodes(nodes, state, scope, where, 0, known)
    if state.growth is not None:
        state.growth.check_unused(known, outputs, state.captured, file_bytes)
    for output in outputs:
        if output not in scope.names:
            raise Invalid(f"the {where} promises the output {output!r}, which no node defines")
