"""Keep what a conversion declares for later: weights that vary, sizes to compile for, executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.config import declared
from engine.config.split_graph import KEY, SECTION, Block, blocks_of
from engine.config.text import did_you_mean
from engine.config.variable_weights import declaration_of
from engine.config.wording import prefixed
from engine.converter.job import Job
from engine.errors import InputError
from engine.formats import ModelFile
from engine.tensor.enums import FmkType

if TYPE_CHECKING:
    from onnx import ModelProto

    from engine.plan.partition import Graph


def keep(model: ModelProto, job: Job) -> list[str]:
    """Write what the configuration declares into the model's metadata; return notes on that.

    Raises InputError for a name that is no weight, and for executors that cannot be; ModelError
    for a file of names that cannot be read.
    """
    from engine.converter.graphs import drop_metadata  # needs onnx

    drop_metadata(model, (declared.KEY,))
    if not job.config:
        return []
    weights, notes = _weights(model, job)
    executors, more = _executors(model, job)
    notes += more
    if text := declared.written(job.config, weights, executors):
        model.metadata_props.add(key=declared.KEY, value=text)
    return notes


def _weights(model: ModelProto, job: Job) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the user's name of each declared weight with that in the result, and notes."""
    asked = declaration_of(job.config)
    if not asked.names:
        return [], []
    own_names = {name: own for own, name in asked.own_names.items()}
    meant = {name: name for name in asked.names}
    if job.framework is FmkType.MINDIR:  # it knows its nodes by more names than the result
        file = ModelFile(
            job.model_file,
            dec_key=job.decrypt_key,
            dec_mode=job.decrypt_mode,
            variable_weights=asked.names,
        )
        meant.update({name: slot.name for slot in file().variables for name in slot.declared_as})
    here = {tensor.name for tensor in model.graph.initializer}
    readers = {name for node in model.graph.node for name in (node.name, *node.output[:1])}
    found, gone = [], []
    for name in asked.names:
        if meant[name] in here | readers:
            found.append((own_names.get(name, name), meant[name]))
        else:
            gone.append(name)
    notes = [f"variable weights {', '.join(name for name, _ in found)}: kept"] if found else []
    if gone:
        notes.append(
            f"variable weights {', '.join(gone)}: part of others in the result, or not there; "
            "declare them when the model is built from what it was converted from"
        )
    return found, notes


def _executors(model: ModelProto, job: Job) -> tuple[declared.Executors | None, list[str]]:
    """Return the executors that [SplitGraph] declares, by the result's values, and a note."""
    asked = blocks_of(job.config)
    if not asked:
        return None, []
    from engine.plan.division import divide
    from engine.plan.extract import fixed_nodes, partition_graph

    graph = partition_graph(model.graph)
    values: dict[str, tuple[str, ...]] = {}
    try:
        for name in dict.fromkeys(name for block in asked for names in block for name in names):
            values[name] = _values(model, graph, name)
        blocks = tuple(
            Block(*(tuple(dict.fromkeys(v for n in names for v in values[n])) for names in block))
            for block in asked
        )
        division = divide(graph, fixed_nodes(model, graph), blocks)
    except InputError as error:
        raise prefixed(error, f"configuration key [{SECTION}] {KEY}: ") from error
    known = {*graph.inputs, *graph.constants, *(n for node in graph.nodes for n in node.writes)}
    own: dict[str, str] = {}
    for name, [value, *others] in values.items():
        if not others and name not in known and value not in own:
            own[value] = name
    note = (
        f"{len(division.executors)} executors of {len(division.parts)} parts are declared: "
        "engine.MultiModelRunner runs them"
    )
    return declared.Executors(blocks, own), [note]


def _values(model: ModelProto, graph: Graph, name: str) -> tuple[str, ...]:
    """Return the values that a name of [SplitGraph] stands for. Raises InputError."""
    if name in graph.inputs:
        return (name,)
    nodes = [node for node in model.graph.node if node.name == name]
    if len(nodes) > 1:
        raise InputError(f"{len(nodes)} nodes are called {name!r}; name the value of one", name)
    if not nodes:
        made = [value for node in graph.nodes for value in node.writes]
        if name in made:
            return (name,)
        names = [*graph.inputs, *(node.name for node in model.graph.node), *made]
        hint = did_you_mean(name, names) or f"its inputs are {', '.join(graph.inputs)}"
        raise InputError(
            f"expected an input of the model, a node or a value, got {name!r}; {hint}", name
        )
    wanted = set(graph.outputs).union(*(node.reads for node in graph.nodes))
    return tuple(value for value in nodes[0].output if value in wanted) or (nodes[0].output[0],)
