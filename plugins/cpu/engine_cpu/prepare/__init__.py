"""Rewrite models that ONNX Runtime refuses as they are, or find the nodes that it cannot run.

    opsets.py    which versions ONNX Runtime reads; whether a node means the same in another one
    kind.py      a node by itself: its operator, attributes and types
    trial.py     whether ONNX Runtime takes a model
    rewrites.py  equivalents of a node by other nodes
    special.py   those that are written by hand; forest.py: of ensembles of trees
    ranks.py     inputs of no declared rank
    rewriter.py  all of it, for the nodes of one model
    unfuse.py    nodes that are not to be fused into a kernel on integers
    invariant.py sums in an order of adding that does not depend on the batch's size

Needs onnx; imported only when ONNX Runtime has refused a model, or has a kernel in it that
known_issues.py names.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from copy import deepcopy
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, inliner

from engine.errors import ModelError
from engine.types import DType, ModelSource
from engine_cpu.node_rules import AXES, COUNTS_INPUTS, MAX_RANK, NAMED_OUTPUTS, breaches
from engine_cpu.prepare import opsets
from engine_cpu.prepare.invariant import sum_in_one_order
from engine_cpu.prepare.kind import (
    SMALL,
    Opsets,
    Scope,
    elements,
    free_names,
    inferred,
    info_of,
    names_in,
    nodes_of,
    refill,
    scope_of,
    subgraphs,
    type_named,
)
from engine_cpu.prepare.rewriter import DOMAIN, Refused, Rewriter
from engine_cpu.prepare.trial import take
from engine_cpu.prepare.unfuse import unfuse_inner, unfuse_main
from engine_cpu.prepared import NOTHING, Prepared
from engine_cpu.values import CARRIERS


def prepare(
    source: ModelSource,
    is_taken: bool = False,
    carried: Collection[str] = (),
    workarounds: bool = True,
    guard: Prepared = NOTHING,
) -> Prepared:
    """Rewrite a model in terms that ONNX Runtime takes.

    is_taken: ONNX Runtime takes it as it is, as far as is known, and only kernels with known issues
        matter.
    carried: outputs to be given as a type of values.CARRIERS. workarounds: False where known issues
    matter only if they end the process. guard: what is to be computed otherwise though ONNX
        Runtime takes it.
    """
    unfused = guard.unfused
    model = read(source)
    if unfused:
        unfuse_inner(model, unfused)
    is_tidied = tidy(model)
    written = {_domain(opset.domain): opset.version for opset in model.opset_import} or {"": 1}
    written.setdefault("", opsets.newest(""))  # what is added needs one
    is_taken = is_taken and _is_readable(model, written)
    functions = {
        (function.domain, function.name, function.overload): function
        for function in model.functions
    }
    _check_axes(model, source.name)
    bare = light(model)
    _check_rules(bare, source.name)
    scope = scope_of(inferred(bare).graph)
    _ask_for_types(model, bare, scope)
    versions = written if is_taken else _versions(written)
    results, rewriter = _rewrite(
        model, scope, Rewriter(functions, versions, is_taken, workarounds), written
    )
    unsupported = {}
    for i, result in enumerate(results):
        if isinstance(result, Refused):
            if result.is_damaged:
                title = f"node {model.graph.node[i].name or i!r} ({model.graph.node[i].op_type})"
                raise ModelError(f"{source.name}: {title}: {result}", source.name)
            unsupported[i] = str(result)
    if unsupported:
        return Prepared(unsupported=unsupported)
    nodes = [result for result in results if isinstance(result, NodeProto)]
    called = {i: rewriter.used([node]) for i, node in enumerate(nodes)}
    rewritten = {i: rewriter.notes[calls[0].name] for i, calls in called.items() if calls}
    if guard.is_invariant:
        rewritten |= sum_in_one_order(model, nodes, scope)
    if is_taken and not (rewritten or carried or is_tidied or unfused):
        return Prepared()
    folder = relocate(model, source)
    if unfused:
        unfuse_main(model, nodes, unfused)
    _write(model, nodes, rewriter, {**written, **rewriter.versions})
    for output in model.graph.output:
        if output.name in carried:
            _carry(model.graph, output)
    return Prepared(model.SerializeToString(), folder, rewritten=rewritten)


def _rewrite(
    model: ModelProto, scope: Scope, rewriter: Rewriter, written: Opsets
) -> tuple[list[NodeProto | Refused], Rewriter]:
    """Rewrite every node, in the operator sets that leave the fewest refused."""
    nodes = model.graph.node
    results = list(rewriter.nodes(nodes, scope.inner(), written))
    refused = [
        node for node, result in zip(nodes, results, strict=True) if isinstance(result, Refused)
    ]
    if rewriter.is_taken or not refused:
        return results, rewriter
    best = len(refused), results, rewriter
    for version in sorted({_former(node, rewriter.versions) for node in refused} - {0}):
        versions = {**rewriter.versions, "": version}
        other = Rewriter(rewriter.functions, versions, workarounds=rewriter.workarounds)
        results = list(other.nodes(nodes, scope.inner(), written))
        count = sum(isinstance(result, Refused) for result in results)
        if count < best[0]:
            best = count, results, other
    return best[1:]


def read(source: ModelSource) -> ModelProto:
    """Return a model as it is in the file, external data left where it is."""
    if source.data is not None:
        return onnx.load_model_from_string(source.data)
    return onnx.load(str(source.path), load_external_data=False)


def _check_axes(model: ModelProto, name: str) -> None:
    """Raise ModelError for an axis that no tensor has."""
    for node in nodes_of(model):
        for item in node.attribute if opsets.is_official(_domain(node.domain)) else ():
            if item.name not in AXES:
                continue
            for value in (*item.ints, item.i):
                if not -MAX_RANK <= value <= MAX_RANK - 1:
                    title = f"node {node.name!r} ({node.op_type})"
                    text = f"expected {-MAX_RANK}..{MAX_RANK - 1}"
                    raise ModelError(f"{name}: {title}: {item.name!r} is {value}, {text}", name)


def _check_rules(model: ModelProto, name: str) -> None:
    """Raise ModelError for a node that ONNX Runtime's kernels are not to see.

    Functions are put in the place of their calls, which give their nodes' attributes the values.
    """
    whole = inliner.inline_local_functions(model) if model.functions else model
    for text in breaches(info_of(node) for node in nodes_of(whole)):
        raise ModelError(f"{name}: {text}", name)


def tidy(model: ModelProto) -> bool:
    """Say what is left out as ONNX Runtime's kernels take it; return whether there was anything.

    An output that is left out of a list gets a name where they write into each of these. An
    optional input that is left out at the end is dropped: some count inputs.
    """
    nodes = [node for node in nodes_of(model) if not _domain(node.domain)]
    unnamed = [node for node in nodes if node.op_type in NAMED_OUTPUTS and "" in node.output]
    counted = [
        node
        for node in nodes
        if node.op_type in COUNTS_INPUTS and node.input and not node.input[-1]
    ]
    names = free_names(model, f"{DOMAIN}.unused")
    for node in unnamed:
        node.output[:] = [name or next(names) for name in node.output]
    for node in counted:
        while node.input and not node.input[-1]:
            node.input.pop()
    return bool(unnamed or counted)


def _ask_for_types(model: ModelProto, bare: ModelProto, scope: Scope) -> None:
    """Have ONNX Runtime say of which types divisors are that onnx's inference does not know.

    It knows what its own operators give. Where it takes no part of the model, they stay unknown.
    """
    names = {
        name
        for node in model.graph.node
        if node.op_type in ("Div", "Mod") and not any(name in scope.types for name in node.input)
        for name in node.input
    }
    if not names:
        return
    asked = deepcopy(bare)
    del asked.graph.output[:]
    for name in sorted(names):
        asked.graph.output.add(name=name)
    for name, text in zip(sorted(names), take(asked.SerializeToString()).outputs, strict=False):
        kind = type_named(text)
        if kind is not None:
            scope.types[name] = kind


def relocate(model: ModelProto, source: ModelSource) -> Path | None:
    """Return the folder of external data, to which links may lead: see ModelSource.folder."""
    if source.folder is None or source.data is not None or source.path is None:
        return source.folder
    folder = Path(os.path.realpath(source.path)).parent
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                real = os.path.realpath(source.folder / entry.value)
                entry.value = os.path.relpath(real, folder)
    return folder


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _versions(written: Opsets) -> dict[str, int]:
    """Return the opset versions to write for: the model's, as far as ONNX Runtime reads them."""
    versions = {
        domain: min(version, opsets.newest(domain))
        for domain, version in written.items()
        if opsets.is_official(domain)
    }
    return {**versions, "": max(versions[""], opsets.OLDEST)}


def _is_readable(model: ModelProto, written: Opsets) -> bool:
    """Return True where a file is not too new for ONNX Runtime, whatever is in it."""
    return model.ir_version <= opsets.newest_ir() and all(
        version <= opsets.newest(domain)
        for domain, version in written.items()
        if opsets.is_official(domain)
    )


def _former(node: NodeProto, versions: Opsets) -> int:
    """Return the last opset in which a node's operator has its former version; 0 for none."""
    if _domain(node.domain):
        return 0
    try:
        schema = onnx.defs.get_schema(node.op_type, versions[""])
    except onnx.defs.SchemaError:
        return 0
    version = schema.since_version - 1
    return version if version >= opsets.OLDEST else 0


def light(model: ModelProto) -> ModelProto:
    """Return the model without its weights, for inference: their types are all that counts."""
    bare = ModelProto(ir_version=max(model.ir_version, 4))
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    graph, whole = bare.graph, model.graph
    graph.name = whole.name
    graph.node.extend(whole.node)
    graph.input.extend(whole.input)
    graph.output.extend(whole.output)
    graph.value_info.extend(whole.value_info)
    given = {value.name for value in whole.input}
    for tensor in whole.initializer:
        if elements(tensor) <= SMALL and tensor.data_location != tensor.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in given:
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    for sparse in whole.sparse_initializer:
        if sparse.values.name not in given:
            graph.input.append(
                helper.make_tensor_value_info(
                    sparse.values.name, sparse.values.data_type, sparse.dims
                )
            )
    return bare


def _write(model: ModelProto, nodes: list[NodeProto], rewriter: Rewriter, versions: Opsets) -> None:
    """Put the nodes into the model, with the functions that they call."""
    graph = model.graph
    refill(graph.node, nodes)
    if model.ir_version < 4:
        # Up to there an initializer was named among the inputs too, and was a constant all the
        # same; from then on it would be one that a caller may change.
        constants = {tensor.name for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in constants]
        refill(graph.input, inputs)
    model.ir_version = min(max(model.ir_version, 8), opsets.newest_ir())
    if not rewriter.is_taken:
        del model.functions[:]
    model.functions.extend(rewriter.used(nodes))
    opsets_used = {**versions, DOMAIN: 1}
    refill(model.opset_import, (helper.make_opsetid(*opset) for opset in opsets_used.items()))


def _carry(graph: GraphProto, output: ValueInfoProto) -> None:
    """Give an output in the type that carries it; it keeps its name, what makes it gets another."""
    kind = output.type.tensor_type
    carrier = CARRIERS[DType.from_onnx(kind.elem_type)].onnx
    name = f"{DOMAIN}.{output.name}"
    for node in graph.node:
        _rename(node, output.name, name)
    for tensor in graph.initializer:  # which may be an output itself
        tensor.name = name if tensor.name == output.name else tensor.name
    graph.node.append(helper.make_node("Cast", [name], [output.name], to=carrier))
    kind.elem_type = carrier


def _rename(node: NodeProto, old: str, new: str) -> None:
    for names in (node.input, node.output):
        names[:] = [new if name == old else name for name in names]
    for graph in subgraphs(node):
        if old not in names_in(graph):
            for inner in graph.node:
                _rename(inner, old, new)
            for output in graph.output:
                output.name = new if output.name == old else output.name
