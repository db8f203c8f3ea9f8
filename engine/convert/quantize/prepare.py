"""Prepare a model for quantizers: named nodes, plain weights, an opset that has int8."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import ModelProto, version_converter

from engine.convert.graphs import Names, add_weights
from engine.convert.job import Job
from engine.convert.quantize.runtime import LARGEST, open_session
from engine.convert.scratch import scratch_file
from engine.convert.weights import total_bytes
from engine.errors import ModelError, one_line
from engine.formats.onnx.graphs import inputs, light
from engine.formats.onnx.infer import types_of

_MARKS = ("onnx.infer", "onnx.quant.pre_process")


def regular(model: ModelProto, bits: int) -> ModelProto:
    """Return a copy of the model with the same results, ready to be quantized.

    Every node has a name of its own, weights are initializers, no inputs and not described again
    (a quantizer transposes some, and checks them against that), and the opset has what stores
    weights of that many bits. Raises ModelError where the opset cannot be raised.
    """
    model = _raise_opset(model, 21 if bits == 4 else 13)
    graph = model.graph
    if model.ir_version < 4:  # before, every weight stood among the inputs too
        given = inputs(graph)
        del graph.input[:]
        graph.input.extend(given)
    model.ir_version = max(model.ir_version, 10 if bits == 4 else 8)
    names = Names(model)
    for node in graph.node:
        node.name = node.name or names.free(node.op_type)
    constants = [node for node in graph.node if _is_weight(node)]
    for node in constants:
        tensor = next(attribute.t for attribute in node.attribute if attribute.name == "value")
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = node.output[0]
    if constants:
        rest = [node for node in graph.node if not _is_weight(node)]
        del graph.node[:]
        graph.node.extend(rest)
    weights = {initializer.name for initializer in graph.initializer}
    described = [info for info in graph.value_info if info.name not in weights]
    del graph.value_info[:]
    graph.value_info.extend(described)
    return model


def folded(model: ModelProto, keep: Collection[str], job: Job) -> ModelProto:
    """Simplify a model by ONNX Runtime: constant folding, BatchNormalization folded into Conv.

    keep: nodes that must be there afterwards; if one is not, the model comes back as it was.
    job: says where the file may be that ONNX Runtime writes; it gives the result in no other way.
    """
    import onnxruntime

    with scratch_file(job) as (file, path):
        open_session(
            model,
            "the model",
            graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
            optimized_model_filepath=path,
        )
        simple: ModelProto = ModelProto.FromString(file.read())
    if not {node.name for node in simple.graph.node} >= set(keep):
        return model
    used = {node.domain for node in simple.graph.node} | {
        opset.domain for opset in model.opset_import
    }
    opsets = [opset for opset in simple.opset_import if opset.domain in used]
    del simple.opset_import[:]
    simple.opset_import.extend(opsets)
    del simple.metadata_props[:]
    simple.metadata_props.extend(model.metadata_props)
    simple.producer_name, simple.doc_string = model.producer_name, model.doc_string
    return simple


def infer(model: ModelProto) -> None:
    """Write the type of every value of the main graph into the model, as far as it can be told."""
    graph = model.graph
    known = {info.name for info in (*graph.value_info, *graph.output, *graph.input)}
    made = [name for node in graph.node for name in node.output if name and name not in known]
    for name, kind in types_of(model, made, guess=True).items():
        graph.value_info.add(name=name).type.CopyFrom(kind)


def mark(model: ModelProto) -> None:
    """Tell ONNX Runtime's quantizers that types are inferred, or they do it again through files.

    And that the model was prepared, or they advise it.
    """
    for key in _MARKS:
        model.metadata_props.add(key=key, value="onnxruntime.quant")


def unmark(model: ModelProto) -> None:
    """Take these marks away again."""
    others = [entry for entry in model.metadata_props if entry.key not in _MARKS]
    del model.metadata_props[:]
    model.metadata_props.extend(others)


def _raise_opset(model: ModelProto, minimum: int) -> ModelProto:
    """Return a copy of the model of at least this opset."""
    current = next(
        (opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), 0
    )
    if current >= minimum:
        return add_weights(light(model), model)
    try:
        if total_bytes(model) > LARGEST:
            raise ModelError("it is too large to be rewritten")
        raised = version_converter.convert_version(model, minimum)
        del raised.metadata_props[:]
        raised.metadata_props.extend(model.metadata_props)
        return raised
    except Exception as error:  # the converter's own, of no common base
        raise ModelError(
            f"quantizing needs opset {minimum}, the model has {current}, and it cannot be raised: "
            f"{one_line(error)}; export the model with opset {minimum} or newer"
        ) from error


def _is_weight(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and any(
        attribute.name == "value" for attribute in node.attribute
    )
