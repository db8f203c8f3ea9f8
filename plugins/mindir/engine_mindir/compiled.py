"""Find models in a .mindir that are compiled for Ascend: converter_lite's with ascend_oriented.

Such a file computes nothing: a node holds a whole model as an .om file of CANN. With the setting
split_node_name of section [SplitGraph] there are several, one for each sub-graph, and attributes of
the graph say which of them run one after the other, as an executor each (MultiModelRunner).

From MindSpore Lite's sources, 2.7.1 and later (multi_model_runner.cc, graph_split_pass.cc,
custom_ascend_utils.cc, mindir_exporter.cc):
* The node is primitive Custom with the attribute uniq_name "CustomAscend". Its inputs are those of
  the graph and, behind them, a parameter of uint8 with the .om file. Every node but the first has
  one input more behind that, which its reader drops unseen.
* The i-th such node is sub-graph i. No other node computes anything.
* subgraph_input_names, subgraph_output_names: of each sub-graph, in the order of its .om file,
  whose own names do not count. graph_input_names: of the whole.
* subgraph_infer_path: of each executor, the first and the last sub-graph that it runs.
  extended_subgraph_input_output: of each executor, its inputs and its outputs; where it has no
  inputs, they are those of its sub-graphs that are the whole's, too.
* Names bind tensors: an input of a sub-graph is what the executor was given under that name, else
  what an earlier one computed.
* All have a workspace in common, and nothing else: weights are in each .om file.

Inferred, since no file of this kind was at hand: the nodes of a file are in the order in which they
are numbered, as everything that MindSpore exports is, and attributes of the graph are encoded as
those of primitives are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from engine.formats.description import CompiledModels, Executor, SubGraph
from engine.types import DType
from engine_mindir import constants, decode
from engine_mindir.messages import DecodeError, ModelProto, NodeProto, TensorProto, too_many
from engine_mindir.names import local, primitive_named
from engine_mindir.storage import Storage

COMPILED = "CustomAscend"
# Limits, far above any real file: each executor looks at its models and at all names.
MODELS = EXECUTORS = 1_000
NAMES = 10_000
# Nodes that may stand beside: they tie values together, and compute none.
_TIES = frozenset(
    {"Constant", "MakeTuple", "make_tuple", "TupleGetItem", "tuple_getitem", "Depend", "depend",
     "Load", "UpdateState", "U", "Return", "return"}
)  # fmt: skip


def compiled_models(model: ModelProto) -> CompiledModels | None:
    """Return the compiled models of a file; None for one of a graph, as nearly all are.

    Raises DecodeError for a file of such models that is damaged.
    """
    found = _nodes(model)
    if not found:
        return None
    main = model.graph
    assert main is not None
    for node in main.nodes:
        name = kernel_of(model, node)
        if name not in _TIES and name != COMPILED:
            raise DecodeError(
                f"node {node.name!r} is {name or 'a call'} beside one that is compiled for Ascend; "
                "expected all of the model to be compiled: convert it again"
            )
    if len(found) > MODELS:
        raise too_many(MODELS, "compiled models")
    parameters = {parameter.name: parameter for parameter in main.parameters}
    sizes = [constants.size_of(_parameter(parameters, node))[2] for node in found]
    attributes = {decode.name_at(model.source, span): span for span in main.attributes}
    if len(found) == 1 and _PATHS not in attributes:
        return CompiledModels((SubGraph(sizes[0]),), ())

    def read(name: str, form: Form, told: str) -> Any:
        if name not in attributes:
            raise DecodeError(
                f"the graph has no attribute {name!r}, without which nobody can tell its "
                f"{len(found)} compiled models apart; convert the model again"
            )
        value = constants.value_of(decode.attribute(model.source, attributes[name]))
        if not _is_of(value, form):
            raise DecodeError(
                f"attribute {name!r} of the graph: expected {told}, got {value!r:.80}"
            )
        return value

    inputs = read("subgraph_input_names", ((str,),), _NAMES)
    outputs = read("subgraph_output_names", ((str,),), _NAMES)
    for name, lists in (("subgraph_input_names", inputs), ("subgraph_output_names", outputs)):
        if len(lists) != len(found):
            raise DecodeError(
                f"attribute {name!r} is of {len(lists)} models; the graph has {len(found)}"
            )
    graphs = tuple(map(SubGraph, sizes, inputs, outputs))
    whole = read("graph_input_names", (str,), "a list of names")
    paths = read(_PATHS, ((int,),), "two numbers for each executor")
    if len(paths) > EXECUTORS:
        raise too_many(EXECUTORS, "executors")
    if sum(map(len, (*inputs, *outputs, whole))) > NAMES:
        raise too_many(NAMES, "names of inputs and outputs of compiled models")
    ends = read(_ENDS, (((str,),),), "two lists of names for each executor")
    if len(ends) < len(paths):
        raise DecodeError(
            f"attribute {_ENDS!r} is of {len(ends)} executors; there are {len(paths)}"
        )
    known = frozenset(whole)
    executors = [
        _executor(number, path, pair, graphs, known)
        for number, (path, pair) in enumerate(zip(paths, ends))
    ]
    if not executors:
        raise DecodeError(f"attribute {_PATHS!r} names no executor; convert the model again")
    return CompiledModels(graphs, tuple(executors))


def read_om(model: ModelProto, storage: Storage, number: int) -> bytes:
    """Return the .om file of a sub-graph. Raises DecodeError for what is none."""
    assert model.graph is not None
    node = _nodes(model)[number]
    parameters = {parameter.name: parameter for parameter in model.graph.parameters}
    proto = _parameter(parameters, node)
    data = storage.read(storage.parameter(proto, proto.name)).data
    assert isinstance(data, bytes), "read gives it bytes of its own"
    if not data.startswith(_OM):
        raise DecodeError(
            f"its compiled model {number} begins with {data[:8]!r}; an .om file of CANN begins "
            f"with {_OM!r}: convert the model again, not for provider 'ge'"
        )
    return data


def kernel_of(model: ModelProto, node: NodeProto) -> str:
    """Return the primitive of a node; of a custom one its own name."""
    name, primitive = primitive_named(model, node.op_type)
    if name != "Custom":
        return name
    source = model.source
    span = decode.attribute_at(node, "uniq_name")
    if span is None and primitive is not None:
        span = decode.settings_of(source, primitive).get("uniq_name")
    if span is None:
        return name
    return str(constants.value_of(decode.attribute(source, span)))


_OM = b"IMOD"
_PATHS, _ENDS = "subgraph_infer_path", "extended_subgraph_input_output"
_NAMES = "a list of names for each model"

Form: TypeAlias = "type | tuple[Form]"
"""The type of a value; in a tuple, that of each item of a tuple."""


def _is_of(value: Any, form: Any) -> bool:
    if isinstance(form, tuple):
        return isinstance(value, tuple) and all(_is_of(item, form[0]) for item in value)
    return type(value) is form


def _executor(
    number: int,
    path: Sequence[int],
    ends: Sequence[Sequence[str]],
    graphs: Sequence[SubGraph],
    whole: frozenset[str],
) -> Executor:
    """Return an executor, checked: each name is of one of its sub-graphs."""
    if len(path) != 2 or not 0 <= path[0] <= path[1] < len(graphs):
        raise DecodeError(
            f"attribute {_PATHS!r}: executor {number} runs models {list(path)}; expected the first "
            f"and the last, of 0 to {len(graphs) - 1}"
        )
    if len(ends) != 2:
        raise DecodeError(
            f"attribute {_ENDS!r}: executor {number} has {len(ends)} lists of names; expected its "
            "inputs and its outputs"
        )
    run = graphs[path[0] : path[1] + 1]
    taken = dict.fromkeys(name for graph in run for name in graph.inputs)
    given = dict.fromkeys(name for graph in run for name in graph.outputs)
    inputs, outputs = tuple(dict.fromkeys(ends[0])), tuple(dict.fromkeys(ends[1]))
    if not inputs:
        inputs = tuple(name for name in taken if name in whole)
    for names, known, what in ((inputs, taken, "input"), (outputs, given, "output")):
        for name in names:
            if name not in known:
                raise DecodeError(
                    f"executor {number} has the {what} {name!r}, which none of its models has; "
                    f"they have: {', '.join(map(repr, known))}"
                )
    if not outputs:
        raise DecodeError(f"executor {number} has no outputs; convert the model again")
    return Executor(path[0], path[1], inputs, outputs)


def _nodes(model: ModelProto) -> list[NodeProto]:
    """Return the nodes that hold compiled models. A glance at most files."""
    main = model.graph
    assert main is not None
    primitives = [*model.primitives.values()]
    if primitives and not any(row.op_type in ("Custom", COMPILED) for row in primitives):
        return []
    return [node for node in main.nodes if kernel_of(model, node) == COMPILED]


def _parameter(parameters: Mapping[str, TensorProto], node: NodeProto) -> TensorProto:
    """Return the parameter that holds a node's model: the last one among its inputs."""
    named = next((name for name in reversed(node.inputs) if name in parameters), None)
    if named is None:
        raise DecodeError(
            f"node {node.name!r} is compiled for Ascend, but none of its inputs is a parameter "
            "with the compiled model; convert the model again"
        )
    proto = parameters[named]
    if constants.dtype_of(proto) not in (DType.UINT8, DType.INT8):
        raise DecodeError(
            f"the parameter {local(named)!r} is to hold a compiled model; expected uint8, got "
            f"{constants.dtype_of(proto)}"
        )
    return proto
