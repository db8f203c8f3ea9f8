"""Rewrite models that ONNX Runtime refuses as they are, or find the nodes that it cannot run.

    opsets.py    which versions ONNX Runtime reads; whether a node means the same in another one
    kind.py      a node by itself: its operator, attributes and types
    trial.py     whether ONNX Runtime takes a model
    rewrites.py  equivalents of a node by other nodes
    special.py   those that are written by hand
    rewriter.py  all of it, for the nodes of one model

Needs onnx; imported only when ONNX Runtime has refused a model, or has a kernel in it that
known_issues.py names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from engine.types import DType, ModelSource
from engine_cpu.prepare import opsets
from engine_cpu.prepare.kind import (
    SMALL,
    Opsets,
    Scope,
    elements,
    inferred,
    names_in,
    scope_of,
    subgraphs,
)
from engine_cpu.prepare.rewriter import DOMAIN, Refused, Rewriter
from engine_cpu.values import CARRIERS


@dataclass(frozen=True)
class Prepared:
    """What becomes of a model.

    data: the model for ONNX Runtime; b"" where some node cannot run, or where it takes the model
        as it is. folder: where its external data lies. unsupported: the nodes that cannot run,
        by index, and why. rewritten: those that are computed otherwise than by a kernel of their
        own, and how.
    """

    data: bytes = b""
    folder: Path | None = None
    unsupported: Mapping[int, str] = field(default_factory=dict)
    rewritten: Mapping[int, str] = field(default_factory=dict)


def prepare(source: ModelSource, is_taken: bool = False, carried: Collection[str] = ()) -> Prepared:
    """Rewrite a model in terms that ONNX Runtime takes.

    is_taken: ONNX Runtime takes it as it is, and only kernels with known issues matter.
    carried: outputs to be given as a type of values.CARRIERS.
    """
    model = _read(source)
    written = {_domain(opset.domain): opset.version for opset in model.opset_import} or {"": 1}
    written.setdefault("", opsets.newest(""))  # what is added needs one
    functions = {
        (function.domain, function.name, function.overload): function
        for function in model.functions
    }
    scope = scope_of(inferred(_light(model)).graph)
    versions = written if is_taken else _versions(written)
    results, rewriter = _rewrite(model, scope, Rewriter(functions, versions, is_taken), written)
    unsupported = {
        i: str(result) for i, result in enumerate(results) if isinstance(result, Refused)
    }
    if unsupported:
        return Prepared(unsupported=unsupported)
    nodes = [result for result in results if isinstance(result, NodeProto)]
    called = {i: rewriter.used([node]) for i, node in enumerate(nodes)}
    rewritten = {i: rewriter.notes[calls[0].name] for i, calls in called.items() if calls}
    if is_taken and not rewritten and not carried:
        return Prepared()
    folder = _relocate(model, source)
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
        other = Rewriter(rewriter.functions, {**rewriter.versions, "": version})
        results = list(other.nodes(nodes, scope.inner(), written))
        count = sum(isinstance(result, Refused) for result in results)
        if count < best[0]:
            best = count, results, other
    return best[1:]


def _read(source: ModelSource) -> ModelProto:
    if source.data is not None:
        return onnx.load_model_from_string(source.data)
    return onnx.load(str(source.path), load_external_data=False)


def _relocate(model: ModelProto, source: ModelSource) -> Path | None:
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


def _light(model: ModelProto) -> ModelProto:
    """Return the model without its weights, for inference: their types are all that counts."""
    light = ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph, whole = light.graph, model.graph
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
    return light


def _write(model: ModelProto, nodes: list[NodeProto], rewriter: Rewriter, versions: Opsets) -> None:
    """Put the nodes into the model, with the functions that they call."""
    graph = model.graph
    del graph.node[:]
    graph.node.extend(nodes)
    if model.ir_version < 4:
        # Up to there an initializer was named among the inputs too, and was a constant all the
        # same; from then on it would be one that a caller may change.
        constants = {tensor.name for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in constants]
        del graph.input[:]
        graph.input.extend(inputs)
    model.ir_version = min(max(model.ir_version, 8), opsets.newest_ir())
    if not rewriter.is_taken:
        del model.functions[:]
    model.functions.extend(rewriter.used(nodes))
    del model.opset_import[:]
    model.opset_import.extend(
        helper.make_opsetid(*opset) for opset in {**versions, DOMAIN: 1}.items()
    )


def _carry(graph: GraphProto, output: ValueInfoProto) -> None:
    """Give an output in the type that carries it; it keeps its name, what makes it gets another."""
    kind = output.type.tensor_type
    carrier = CARRIERS[DType.from_onnx(kind.elem_type)].onnx
    name = f"{DOMAIN}.{output.name}"
    for node in graph.node:
        _rename(node, output.name, name)
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
