"""Post-training quantization: int8 weights and activations, by the converter's configuration."""

from __future__ import annotations

import math
from pathlib import Path

from onnx import ModelProto, TensorProto

from engine.config.text import counted, did_you_mean
from engine.converter.job import Job
from engine.converter.quantize import accuracy, calibration, prepare
from engine.converter.quantize.dynamic import quantize_dynamic
from engine.converter.quantize.full import quantize_full
from engine.converter.quantize.runtime import LARGEST
from engine.converter.quantize.settings import SECTIONS, Config, Kind, Settings, read_settings
from engine.converter.quantize.weights import quantize_weights
from engine.converter.weights import total_bytes
from engine.errors import InputError, ModelError
from engine.types import TensorSpec

__all__ = ["asked", "quantize"]

_INTEGERS = (TensorProto.INT4, TensorProto.INT8, TensorProto.UINT8)


def asked(config: Config) -> bool:
    """Return True if a configuration has a section that asks for quantization."""
    return any(config.get(section) for section in SECTIONS)


def quantize(model: ModelProto, job: Job) -> tuple[ModelProto, list[str], accuracy.Accuracy]:
    """Quantize a model as `job.config` says; `model` itself stays as it is.

    Its weights are in it, not in other files. Returns the quantized model, notes for the user, and
    by output how near it comes to the original: max_abs_error, mean_abs_error, cosine, snr_db,
    and top1_agreement where an output holds scores of classes, [samples, classes].
    Raises ModelError for settings, folders and models that cannot be used, InputError for a
    sample that does not fit, Cancelled; ModelError with the command where a package is missing.
    """
    settings = read_settings(job.config)
    kind, notes = settings.kind, list(settings.notes)
    specs = calibration.input_specs(model)
    _check_weights(model)
    _check_nodes(model, settings)
    samples, parts = None, None
    if settings.data.calibrate_path:
        samples = calibration.find_samples(settings.data, specs)
        parts = calibration.split(len(samples), settings.data.calibrate_size)
    original = prepare.regular(model, settings.common.bit_num)
    if kind is Kind.FULL and samples is not None and parts is not None:
        notes.append(parts.note)
        result, more = quantize_full(original, settings, samples, parts.calibrate, job)
    elif kind is Kind.DYNAMIC:
        job.progress("quantizing", 0, None)
        result, more = quantize_dynamic(original, settings)
    else:
        result, more = original, quantize_weights(original, settings, job)
    notes += more
    job.cancel.check()
    notes.append(_summary(model, result, kind))
    is_exact = kind is not Kind.WEIGHT and not settings.has_reduced_range
    if is_exact:
        notes.append(
            "weights have 8 bits: on x86 processors without VNNI their products saturate, which "
            "[common_quant_param] reduce_range=true avoids; the accuracy is of exact products"
        )
    if samples is not None and parts is not None:
        chosen = parts.compare if kind is Kind.FULL else tuple(range(len(samples)))
        measured = accuracy.measure(model, result, samples.read, chosen, job, is_exact=is_exact)
        notes += accuracy.doubts(measured)
    else:
        measured = _measured_without_data(model, result, specs, job, notes, is_exact)
    if settings.common.debug_info_save_path:
        path = accuracy.write_table(measured, Path(settings.common.debug_info_save_path))
        notes.append(f"accuracy is in {path}")
    return result, notes, measured


def _measured_without_data(
    original: ModelProto,
    quantized: ModelProto,
    specs: tuple[TensorSpec, ...],
    job: Job,
    notes: list[str],
    is_exact: bool,
) -> accuracy.Accuracy:
    """Compare on made-up inputs; a model that they do not suit is not compared, and a note."""
    if total_bytes(original) > LARGEST:
        notes.append("accuracy was not measured: the model is too large")
        return {}
    try:
        read, chosen = accuracy.generated(original, specs), range(accuracy.GENERATED)
        measured = accuracy.measure(original, quantized, read, chosen, job, is_exact=is_exact)
    except (ModelError, InputError) as error:
        notes.append(
            f"accuracy was not measured: {error}; give data with [data_preprocess_param] "
            "calibrate_path"
        )
        return {}
    notes.append(
        f"accuracy is of {accuracy.GENERATED} random inputs, which says little; give real ones "
        "with [data_preprocess_param] calibrate_path"
    )
    return measured


def _check_weights(model: ModelProto) -> None:
    """Raise ModelError for a model of float16: quantizers start from float32."""
    kinds = {tensor.data_type for tensor in model.graph.initializer if len(tensor.dims) > 1}
    if TensorProto.FLOAT16 in kinds and TensorProto.FLOAT not in kinds:
        raise ModelError(
            "the model's weights are float16: expected float32 to quantize; convert the original "
            "float32 model"
        )


def _check_nodes(model: ModelProto, settings: Settings) -> None:
    """Raise ModelError for a name in skip_quant_node that no node has."""
    names = {node.name for node in model.graph.node}
    for name in settings.common.skip_quant_node:
        if name not in names:
            hint = did_you_mean(name, names) or "`engine inspect` lists the nodes"
            raise ModelError(
                f"[common_quant_param] skip_quant_node: the model has no node {name!r}; {hint}"
            )


def _summary(model: ModelProto, result: ModelProto, kind: Kind) -> str:
    """Count what was quantized, as notes. Raises ModelError where nothing was."""
    before = {tensor.name for tensor in model.graph.initializer}
    weights = [
        tensor
        for tensor in result.graph.initializer
        if tensor.data_type in _INTEGERS
        and tensor.name not in before
        and len(tensor.dims) > 1
        and math.prod(tensor.dims) > 1
    ]
    if not weights:
        operators = {node.op_type for node in model.graph.node}
        if any("Quantize" in name or "Integer" in name for name in operators):
            raise ModelError(
                f"{kind} finds nothing to quantize in the model: it is quantized already; convert "
                "the original float32 model"
            )
        instead = {
            Kind.FULL: "it has no convolutions or matrix products with constant weights",
            Kind.DYNAMIC: "it has no matrix products with constant weights; try FULL_QUANT",
            Kind.WEIGHT: "no weight is above min_quant_weight_size and min_quant_weight_channel",
        }
        raise ModelError(f"{kind} finds nothing to quantize in the model: {instead[kind]}")
    return (
        f"{kind}: {counted(len(weights), 'weight')} quantized; {total_bytes(model)} bytes of "
        f"weights before, {total_bytes(result)} after"
    )
