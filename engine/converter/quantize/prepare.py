"""Prepare a model for quantizers: named nodes, plain weights, an opset that has int8."""

from __future__ import annotations

from collections.abc import Collection

from onnx import ModelProto, NodeProto, TensorProto, version_converter

from engine.converter.graphs import Names, add_weights, drop_metadata, refill
from engine.converter.job import Job
from engine.converter.quantize.runtime import LARGEST, open_session
from engine.converter.scratch import scratch_file
from engine.converter.weights import total_bytes
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
        refill(graph.input, inputs(graph))
    model.ir_version = max(model.ir_version, 10 if bits == 4 else 8)
    names = Names(model)
    for node in graph.node:
        node.name = node.name or names.free(node.op_type)
    rest = []
    for node in graph.node:
        if (tensor := _weight(node)) is None:
            rest.append(node)
        else:
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = node.output[0]
    refill(graph.node, rest)
    weights = {initializer.name for initializer in graph.initializer}
    refill(graph.value_info, [info for info in graph.value_info if info.name not in weights])
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
    refill(simple.opset_import, [opset for opset in simple.opset_import if opset.domain in used])
    refill(simple.metadata_props, model.metadata_props)
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
    drop_metadata(model, _MARKS)


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
        refill(raised.metadata_props, model.metadata_props)
        return raised
    except Exception as error:  # the converter's own, of no common base
        raise ModelError(
            f"quantizing needs opset {minimum}, the model has {current}, and it cannot be raised: "
            f"{one_line(error)}; export the model with opset {minimum} or newer"
        ) from error


def _weight(node: NodeProto) -> TensorProto | None:
    values = node.attribute if node.op_type == "Constant" else ()
    return next((attribute.t for attribute in values if attribute.name == "value"), None)
