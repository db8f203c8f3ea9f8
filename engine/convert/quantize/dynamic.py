"""Dynamic quantization: int8 weights; activations by their range in each predict."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import onnx
from onnx import ModelProto

from engine.convert.job import Job
from engine.convert.quantize import prepare
from engine.convert.quantize.runtime import LARGEST, needed, quiet, temporary_files_in
from engine.convert.quantize.settings import Settings
from engine.convert.weights import total_bytes
from engine.errors import ModelError, one_line

_OPERATORS = ("MatMul", "Gemm", "Attention", "LSTM", "Gather", "EmbedLayerNormalization")
"""Convolutions are not among them: with a range found in each predict they only get slower."""


def quantize_dynamic(
    model: ModelProto, settings: Settings, job: Job, folder: Path
) -> tuple[ModelProto, list[str]]:
    """Return a form of a regular model, which is changed, with int8 products; and notes.

    folder: for temporary files. Raises ModelError where ONNX Runtime cannot quantize the model.
    """
    quantization = needed("onnxruntime.quantization", "quantizing a model")
    skipped = settings.common.skip_quant_node
    notes: list[str] = []
    path = folder / "dynamic.onnx"
    prepare.mark(model)
    _unshare(model)
    temporaries = temporary_files_in(folder) if job.is_secret else nullcontext()
    try:
        with quiet(notes), temporaries:
            quantization.quantize_dynamic(
                model,
                path,
                op_types_to_quantize=list(_OPERATORS),
                per_channel=True,
                weight_type=quantization.QuantType.QInt8,
                # A Gemm is taken apart first, under this name.
                nodes_to_exclude=[*skipped, *(f"{name}_MatMul" for name in skipped)],
                use_external_data_format=total_bytes(model) > LARGEST,
            )
        result = onnx.load(path)
    except Exception as error:  # the quantizer's own, of no common base
        raise ModelError(f"the model cannot be quantized: {one_line(error)}") from error
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
