"""One of two sides: its graph, and runs of parts of it as its backend builds them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, numpy_helper

from engine.config.declared import Sections
from engine.context import Context
from engine.errors import ModelError
from engine.formats import ModelFile, source_of_part
from engine.formats.onnx.graphs import RANDOM, Body, is_small, subgraphs
from engine.formats.onnx.infer import types_of
from engine.formats.onnx.weights import with_weights_apart
from engine.formats.opened import OpenedSource
from engine.model import Model
from engine.model.build import from_model_file
from engine.model.model import model_state
from engine.plan.extract import Whole, fixed_nodes
from engine.plan.partition import Segment, live
from engine.report.comparison import outputs_of
from engine.tensor.description import Array
from engine.types import CancelToken
from engine.weights.compile_cache import without_cache
from engine.wings import wing

Values: TypeAlias = "dict[str, Array]"
Open: TypeAlias = "Callable[[ModelFile], Model]"
Naming: TypeAlias = "Callable[[], AbstractContextManager[None]]"


class Side:
    """A model on a target. order: the nodes that its outputs depend on and that are no constants.

    types: of the values that may go between parts: tensors whose type is known. held: the first
    values of its state, inputs that no caller gives. inputs, outputs: those of a caller.
    builds: how many models were built of it.
    """

    def __init__(
        self,
        file: ModelFile,
        open_model: Open,
        timeout_s: float | None = None,
        naming: Naming = nullcontext,
    ) -> None:
        """Read the graph. open_model: builds a model, or a part of one, for the side's target.

        naming: says in an error that comes out of its block which side it is of.
        Raises ModelError for a model without nodes that can be run alone and again.
        """
        self._open, self._timeout_s, self._naming = open_model, timeout_s, naming
        with naming():
            self.source = _source(file)
            self.whole = Whole(self.source)
            self.graph = self.whole.graph
            self.nodes: Sequence[NodeProto] = self.whole.proto.graph.node
            self.makers = {
                name: index for index, node in enumerate(self.graph.nodes) for name in node.writes
            }
            fixed = fixed_nodes(self.whole.proto, self.graph)
            self.order = [index for index in live(self.graph) if index not in fixed]
            self.constants = self.graph.constants.union(
                *(self.graph.nodes[index].writes for index in fixed)
            )
            self._refuse()
        names = {*self.makers, *self.graph.inputs, *self.graph.outputs}
        self._types = types_of(self.whole.proto, names, guess=True)
        self.types = {
            name: kind for name, kind in self._types.items() if kind.HasField("tensor_type")
        }
        self.held = {
            slot.name: slot.initial for slot in (*self.source.state, *self.source.variables)
        }
        self.inputs = [name for name in self.graph.inputs if name not in self.held]
        self.outputs = self.graph.outputs[: len(self.graph.outputs) - len(self.source.state)]
        self.builds = 0

    def _refuse(self) -> None:
        functions = {function.name: function for function in self.whole.proto.functions}
        off = _false(self.whole.proto.graph)
        for index in self.order:
            node = self.nodes[index]
            if self.graph.nodes[index].is_collective:
                raise ModelError(
                    f"{self.source.name}: {node.op_type} {node.name!r} waits for other ranks; diff "
                    "runs parts of a model alone, so give the model before it was sliced",
                    self.source.name,
                )
            if drawn := _random([node], functions, off):
                raise ModelError(
                    f"{self.source.name}: {drawn.op_type} {drawn.name or drawn.output[0]!r} gives "
                    "another result in each run, so no two runs of it can be told apart from a "
                    "fault; give diff a model that ends before it, or has its numbers as an input",
                    self.source.name,
                )

    def cone(self, outputs: Iterable[str], known: Collection[str]) -> list[int]:
        """Return the nodes that make `outputs` from what is known, the inputs and constants."""
        pending, found = [*outputs], set[int]()
        while pending:
            name = pending.pop()
            index = self.makers.get(name)
            if name not in known and index is not None and index not in found:
                found.add(index)
                pending += self.graph.nodes[index].reads
        return sorted(found)

    def read_by(self, names: Iterable[str], known: Set[str]) -> set[str]:
        """Return all that the last steps to each of `names` read, from values that are known on."""
        steps = {index for name in names for index in self.cone([name], known - {name})}
        return {name for index in steps for name in self.graph.nodes[index].reads}

    def part(self, outputs: Sequence[str], known: Collection[str]) -> OpenedSource:
        """Return the model that makes `outputs` from `known` values."""
        nodes = self.cone(outputs, known)
        read = {name for index in nodes for name in self.graph.nodes[index].reads}
        inside = {name for index in nodes for name in self.graph.nodes[index].writes}
        given = [*self.graph.inputs, *(name for name in known if name not in self.graph.inputs)]
        inputs = tuple(name for name in given if name in read and name not in inside)
        return self.whole.part(Segment(0, tuple(nodes), inputs, tuple(outputs)), self._types)

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Any]) -> Values:
        """Return `outputs`, made by a model of its own from `feeds`: all that is known.

        Values that are fed are returned as they are. Raises what building and running raise.
        """
        wanted = [name for name in dict.fromkeys(outputs) if name not in feeds]
        found = self.run_source(self.part(wanted, feeds), feeds) if wanted else {}
        return {name: feeds[name] if name in feeds else found[name] for name in outputs}

    def run_source(self, source: OpenedSource, feeds: Mapping[str, Any]) -> Values:
        """Return the outputs of a part on what it reads of `feeds`."""
        self.builds += 1
        with self._naming(), self._open(ModelFile.of_part(source)) as model:
            values = [as_type(feeds[spec.name], spec.dtype.numpy) for spec in model.inputs]
            return outputs_of(model, values, self._timeout_s)

    def each(self, names: Sequence[str], known: Set[str], feeds: Mapping[str, Any]) -> Values:
        """Return each of `names` as its last steps alone make it of `feeds`, in one run.

        known: where these steps begin: values that are in `feeds` but for `names` themselves.
        """
        whole = self.part(names, ())
        proto = ModelProto.FromString(whole.data or b"")
        del proto.graph.node[:], proto.graph.input[:], proto.graph.output[:]
        del proto.graph.value_info[:]
        read = set[str]()
        for number, name in enumerate(names):
            nodes = self.cone([name], known - {name})
            inside = {output for index in nodes for output in self.graph.nodes[index].writes}
            read.update(*(self.graph.nodes[index].reads - inside for index in nodes))
            own = {output: f"{output}/own{number}" for output in inside}
            for index in nodes:
                node = proto.graph.node.add()
                node.CopyFrom(self.nodes[index])
                node.name = ""  # a node may be among the last steps to several values
                rename(node, own)
            proto.graph.output.add(name=own[name]).type.CopyFrom(self.types[name])
        for name in feeds:
            if name in read and name not in self.graph.constants:
                proto.graph.input.add(name=name).type.CopyFrom(self._types[name])
        source = source_of_part(proto.SerializeToString(), whole, whole.folder)
        found = self.run_source(source, feeds)
        return {name: found[f"{name}/own{number}"] for number, name in enumerate(names)}


def settled(file: ModelFile, context: Context, config: Sections) -> tuple[Context, Sections]:
    """Return a context and a configuration for parts of a model, as they are for the whole.

    What was tuned for the whole does not name its parts. Raises ValueError as a build does.
    """
    if "tuned" not in config:
        return context, config
    accepted: tuple[Context, Sections] = wing("tuned")(file, context, config)
    return accepted


def opener(context: Context, config: Sections, cancel: CancelToken | None = None) -> Open:
    """Return what builds parts of a model as a whole one is built, without the compile cache."""
    config = without_cache(config)

    def opened(file: ModelFile) -> Model:
        model = Model()
        from_model_file(model_state(model), file, context, config, None, cancel)
        return model

    return opened


def rename(node: NodeProto, own: Mapping[str, str]) -> None:
    """Give other names to values that a node, or a body in it, reads or makes."""
    for names in (node.input, node.output):
        for place, name in enumerate(names):
            names[place] = own.get(name, name)
    for body in subgraphs(node):
        inner = {value.name for value in body.input}
        inner.update(tensor.name for tensor in body.initializer)
        outside = {name: new for name, new in own.items() if name not in inner}
        for child in body.node:
            rename(child, outside)
        for value in body.output:
            value.name = outside.get(value.name, value.name)


def _source(file: ModelFile) -> OpenedSource:
    source = with_weights_apart(file())
    assert isinstance(source, OpenedSource)
    if source.graph is None:
        raise ModelError(
            f"{source.name}: is a compiled form, whose nodes only its backend knows; give the "
            "model that it was compiled from",
            source.name,
        )
    return source


def _random(
    nodes: Iterable[NodeProto], functions: Mapping[str, FunctionProto], off: Set[str]
) -> NodeProto | None:
    """Return a node that gives another result in each run, also one inside a body.

    off: constants that are false: a Dropout whose training_mode is one of them is not random.
    """
    for node in nodes:
        is_training = node.op_type == "Dropout" and {*node.input[2:]} - {"", *off}
        if is_training or node.op_type in RANDOM:
            return node
        bodies: list[tuple[Body, Set[str]]] = [(body, off) for body in subgraphs(node)]
        if (function := functions.get(node.op_type)) is not None:
            given = zip(function.input, node.input, strict=False)
            bodies.append((function, {inner for inner, outer in given if outer in off}))
        for body, outside in bodies:
            if found := _random(body.node, functions, outside | _false(body)):
                return found
    return None


def _false(body: Body) -> set[str]:
    """Return the names of the body's own constants that are false."""
    tensors = {tensor.name: tensor for tensor in getattr(body, "initializer", ())}
    for node in body.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    return {
        name
        for name, tensor in tensors.items()
        if tensor.data_type == TensorProto.BOOL
        and is_small(tensor)
        and not numpy_helper.to_array(tensor).any()
    }


def as_type(value: Any, dtype: Any) -> Any:
    """Return an array in the type that a side takes: the other's may be another precision."""
    has_other = getattr(value, "dtype", dtype) != dtype and value.dtype.kind not in "OUTS"
    return value.astype(dtype) if has_other else value
