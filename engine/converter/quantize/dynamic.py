"""Dynamic quantization: int8 weights; activations by their range in each predict."""

from __future__ import annotations

from collections import Counter

from onnx import ModelProto

from engine.converter.quantize import prepare
from engine.converter.quantize.runtime import needed, quiet
from engine.converter.quantize.settings import Settings
from engine.errors import ModelError, one_line

_OPERATORS = ("MatMul", "Gemm", "Attention", "LSTM", "Gather", "EmbedLayerNormalization")
"""Convolutions are not among them: with a range found in each predict they only get slower."""


def quantize_dynamic(model: ModelProto, settings: Settings) -> tuple[ModelProto, list[str]]:
    """Return a form of a regular model, which is changed, with int8 products; and notes.

    As `onnxruntime.quantization.quantize_dynamic` does it, without the files that this writes.
    Raises ModelError where ONNX Runtime cannot quantize the model.
    """
    quantization = needed("onnxruntime.quantization", "quantizing a model")
    quantizers = needed("onnxruntime.quantization.onnx_quantizer", "quantizing a model")
    models = needed("onnxruntime.quantization.onnx_model", "quantizing a model")
    skipped = settings.common.skip_quant_node
    notes: list[str] = []
    _unshare(model)
    models.ONNXModel(model).replace_gemm_with_matmul()
    prepare.infer(model)
    prepare.mark(model)
    try:
        with quiet(notes):
            quantizer = quantizers.ONNXQuantizer(
                model,
                per_channel=True,
                reduce_range=settings.has_reduced_range,
                mode=quantization.quant_utils.QuantizationMode.IntegerOps,
                static=True,  # or it infers types once more, through files
                weight_qType=quantization.QuantType.QInt8,
                activation_qType=quantization.QuantType.QUInt8,  # all that the kernels take
                tensors_range=None,
                nodes_to_quantize=[],
                # A Gemm is taken apart first, under this name.
                nodes_to_exclude=[*skipped, *(f"{name}_MatMul" for name in skipped)],
                op_types_to_quantize=list(_OPERATORS),
                extra_options={"MatMulConstBOnly": True},
            )
            quantizer.static = False
            quantizer.quantize_model()
            quantizer.model.topological_sort()
    except Exception as error:  # the quantizer's own, of no common base
        raise ModelError(f"the model cannot be quantized: {one_line(error)}") from error
    result: ModelProto = quantizer.model.model
    prepare.unmark(result)
    convolutions = sum(node.op_type.startswith("Conv") for node in model.graph.node)
    if convolutions:
        notes.append(
            f"{convolutions} convolutions stay float32: DYNAMIC_QUANT is for matrix products, "
            "FULL_QUANT quantizes convolutions too"
        )
    return result, notes


def _unshare(model: ModelProto) -> None:
    """Give every Gemm whose weight is read elsewhere too one of its own.

    The quantizer transposes it where it stands, for all that read it.
    """
    graph = model.graph
    readers = Counter(name for node in graph.node for name in node.input)
    weights = {initializer.name: initializer for initializer in graph.initializer}
    for node in graph.node:
        if node.op_type == "Gemm" and node.input[1] in weights and readers[node.input[1]] > 1:
            graph.initializer.add().CopyFrom(weights[node.input[1]])
            node.input[1] = graph.initializer[-1].name = f"{node.input[1]}_of_{node.name}"
