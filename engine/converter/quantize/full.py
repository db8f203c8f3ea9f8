"""Static (full) quantization: int8 weights and activations as QDQ nodes, ranges by calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, TensorProto

from engine.converter.job import Job
from engine.converter.quantize import prepare
from engine.converter.quantize.calibration import Samples
from engine.converter.quantize.runtime import needed, open_session, quiet
from engine.converter.quantize.settings import Settings
from engine.errors import InputError, ModelError, one_line
from engine.formats.arrays import Array

_Range: TypeAlias = tuple[Any, Any]  # lowest and highest, each a scalar of the tensor's type
# Counts by bin, the bins' edges, the lowest and highest value, the end of the last bin.
_Histogram: TypeAlias = tuple[Array, Array, Any, Any, float]

_NOT_QUANTIZED = frozenset(
    {
        # Their results need more than 256 levels.
        "Softmax", "ArgMax", "TopK", "CumSum",
        # There are no integer kernels of these: int8 would only cost them accuracy.
        "LayerNormalization", "InstanceNormalization", "BatchNormalization",
        "EmbedLayerNormalization", "Attention",
    }
)  # fmt: skip
"""Operators that are not quantized."""

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators whose kernels multiply and add integers."""

_MASK_VALUE = 1e30
"""Values beyond it are no measurements but masks ("minus infinity")."""

_BINS = {"KL": 512, "REMOVAL_OUTLIER": 2048}
"""Bins of a histogram; the search for KL's threshold takes time with their square."""

_PERCENTILE = 99.99
"""Percent of the values that REMOVAL_OUTLIER keeps."""


def quantize_full(
    model: ModelProto, settings: Settings, samples: Samples, chosen: Sequence[int], job: Job
) -> tuple[ModelProto, list[str]]:
    """Return an int8 form of a regular model, and notes.

    chosen: the samples that calibrate.
    Raises ModelError where ONNX Runtime cannot run or quantize the model, InputError for a sample
    that does not fit, Cancelled.
    """
    quantization = needed("onnxruntime.quantization", "quantizing a model")
    skipped = settings.common.skip_quant_node
    job.progress("preparing", 0, None)
    model = prepare.folded(model, skipped, job)
    prepare.infer(model)
    ranges = _ranges(model, settings.full.activation_quant_method, samples, chosen, job)
    notes: list[str] = []
    unbounded = {name for name, (low, high) in ranges.items() if not _is_bounded(low, high)}
    masks = [node.name for node in model.graph.node if unbounded & {*node.input, *node.output}]
    if masks:
        notes.append(
            f"{len(masks)} nodes stay as they are: their values are not finite or beyond "
            f"{_MASK_VALUE:g}, such as {masks[0]!r}"
        )
    calibrate = needed("onnxruntime.quantization.calibrate", "quantizing a model")
    data = calibrate.TensorsData(
        calibrate.CalibrationMethod.MinMax,
        {name: bounds for name, bounds in ranges.items() if name not in unbounded},
    )
    registry = needed("onnxruntime.quantization.registry", "quantizing a model")
    known = {*registry.QLinearOpsRegistry, *registry.QDQRegistry}
    target, is_symmetric = settings.full.target_device, settings.is_for_accelerator
    prepare.mark(model)
    job.progress("quantizing", 0, None)
    try:
        with quiet(notes):
            quantizer = quantization.QDQQuantizer(
                model,
                per_channel=settings.full.per_channel,
                reduce_range=settings.has_reduced_range,
                weight_qType=quantization.QuantType.QInt8,
                # On x86, ONNX Runtime's quick kernels take uint8 with int8 weights. It makes uint8
                # of int8 itself, but for values that several nodes read: those stay in floats.
                activation_qType=(
                    quantization.QuantType.QInt8 if is_symmetric else quantization.QuantType.QUInt8
                ),
                tensors_range=data,
                nodes_to_quantize=[],
                nodes_to_exclude=[*skipped, *masks],
                op_types_to_quantize=sorted(known - _NOT_QUANTIZED),
                extra_options={
                    # These devices have no zero point.
                    "ActivationSymmetric": is_symmetric,
                    # TensorRT wants float biases, and a pair of its own at each input.
                    "QuantizeBias": target != "NVGPU",
                    "DedicatedQDQPair": target == "NVGPU",
                    "TensorQuantOverrides": _of_full_range(model),
                },
            )
            quantizer.quantize_model()
            quantizer.model.topological_sort()
    except Exception as error:  # the quantizer's own, of no common base
        raise ModelError(f"the model cannot be quantized: {one_line(error)}") from error
    result: ModelProto = quantizer.model.model
    prepare.unmark(result)
    if target in ("DSP", "KIRIN"):
        notes.append(f"[full_quant_param] target_device={target} has no effect")
    return result, notes


def _of_full_range(model: ModelProto) -> dict[str, list[dict[str, bool]]]:
    """Return the quantizer's overrides by which constants that no product reads keep 8 bits."""
    weights = {
        name for node in model.graph.node if node.op_type in _PRODUCTS for name in node.input
    }
    names = {initializer.name for initializer in model.graph.initializer}
    return {name: [{"reduce_range": False}] for name in sorted(names - weights)}


def _ranges(
    model: ModelProto, method: str, samples: Samples, chosen: Sequence[int], job: Job
) -> dict[str, _Range]:
    """Return the range of every float tensor that nodes read or make, over the chosen samples."""
    ranges: dict[str, _Range] = {}
    for values in _observe(model, samples, chosen, job, "calibrating"):
        for name, array in values.items():
            if array.size:
                low, high = ranges.get(name, (array.max(), array.min()))
                ranges[name] = (np.minimum(low, array.min()), np.maximum(high, array.max()))
    # A tensor that was empty in each sample has no range; any will do.
    for name in _float_activations(model):
        ranges.setdefault(name, (np.float32(0), np.float32(1)))
    if method == "MAX_MIN":
        return ranges
    return _clip_outliers(model, method, ranges, samples, chosen, job)


def _clip_outliers(
    model: ModelProto,
    method: str,
    ranges: Mapping[str, _Range],
    samples: Samples,
    chosen: Sequence[int],
    job: Job,
) -> dict[str, _Range]:
    """Clip ranges to leave out outliers, by a histogram of each tensor.

    A second pass over the samples: histograms of unknown range grow without bound, and keeping
    all values would take their memory times the number of samples.
    """
    histograms: dict[str, _Histogram] = {}
    for values in _observe(model, samples, chosen, job, "calibrating (histograms)"):
        for name, array in values.items():
            low, high = ranges[name]
            reach = float(max(abs(low), abs(high)))
            if array.size and reach > 0 and _is_bounded(low, high):
                counts, edges = np.histogram(array, _BINS[method], (-reach, reach))
                counts = counts + (histograms[name][0] if name in histograms else 0)
                histograms[name] = (counts, edges.astype(array.dtype), low, high, reach)
    narrow = dict(ranges)
    for done, (name, histogram) in enumerate(histograms.items()):
        job.cancel.check()
        job.progress("finding thresholds", done, len(histograms))
        narrow[name] = _entropy_range(histogram) if method == "KL" else _percentile_range(histogram)
    job.progress("finding thresholds", len(histograms), len(histograms))
    return narrow


def _entropy_range(histogram: _Histogram) -> _Range:
    """Return the range of least Kullback-Leibler divergence at 128 levels (entropy calibration)."""
    calibrate = needed("onnxruntime.quantization.calibrate", "quantizing a model")
    finder = calibrate.HistogramCollector(
        method="entropy",
        symmetric=False,
        num_bins=_BINS["KL"],
        num_quantized_bins=128,
        percentile=_PERCENTILE,
        scenario="same",
    )
    low, high = finder.get_entropy_threshold(histogram, 128)
    return low, high


def _percentile_range(histogram: _Histogram) -> _Range:
    """Return the range of _PERCENTILE percent of the values, symmetric in their number."""
    counts, edges, low, high, _ = histogram
    share, rest = np.cumsum(counts) / counts.sum(), (100 - _PERCENTILE) / 200
    first, last = np.searchsorted(share, (rest, 1 - rest))
    return max(low, edges[first]), min(high, edges[last + 1])


def _observe(
    model: ModelProto, samples: Samples, chosen: Sequence[int], job: Job, phase: str
) -> Iterator[dict[str, Array]]:
    """Yield every float tensor's value, sample by sample."""
    import onnxruntime

    names = _float_activations(model)
    open_model = ModelProto()
    open_model.CopyFrom(model)
    graph = open_model.graph
    types = {info.name: info for info in graph.value_info}
    outputs = {output.name for output in graph.output}
    inputs = {value.name for value in graph.input}
    graph.output.extend(types[name] for name in names if name not in outputs | inputs)
    session = open_session(
        open_model,
        "the model",
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    )
    fetched = [name for name in names if name not in inputs]
    for done, index in enumerate(chosen):
        job.cancel.check()
        job.progress(phase, done, len(chosen))
        sample = samples.read(index)
        try:
            values = dict(zip(fetched, session.run(fetched, dict(sample)), strict=True))
        except Exception as error:  # onnxruntime's own, of no common base
            files = ", ".join(map(str, samples.rows[index]))
            raise InputError(f"{files}: the model cannot run on it: {one_line(error)}") from error
        yield values | {name: sample[name] for name in names if name in sample}
    job.progress(phase, len(chosen), len(chosen))


def _float_activations(model: ModelProto) -> list[str]:
    graph = model.graph
    floats = {
        value.name
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
    } - {initializer.name for initializer in graph.initializer}
    seen = dict.fromkeys(name for node in graph.node for name in (*node.input, *node.output))
    return [name for name in seen if name in floats]


def _is_bounded(low: float, high: float) -> bool:
    return -_MASK_VALUE < float(low) <= float(high) < _MASK_VALUE
