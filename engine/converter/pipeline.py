"""The converter's pipeline: read a model, apply the job's passes, write ONNX."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.converter.job import Job, Report, name_of
from engine.errors import ModelError, one_line

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Job", "Report", "convert"]


def convert(job: Job) -> Report:
    """Do what the job says, and return what was done.

    Raises ModelError for a model that cannot be read, changed or written, InputError for shapes
    that its inputs cannot have, BackendError where a trial run has no backend, Cancelled; then
    nothing was written.
    """
    try:
        return _convert(job)
    except OSError as error:  # a folder that may not be read, a disk that is full ...
        raise ModelError(
            f"{error.filename or job.model_file}: {error.strerror or error}", str(job.model_file)
        ) from error
    except MemoryError as error:
        raise job.error(
            f"its conversion needs more memory than there is: {one_line(error)}"
        ) from error


def _convert(job: Job) -> Report:
    from engine.converter import declared, sources, unused_settings
    from engine.converter.dump import dump
    from engine.converter.write import check_output, write

    begin = time.perf_counter()
    check_output(job)
    _require_onnx()
    notes = unused_settings.warn(job.config)
    with job.phase("reading"):
        model, pass_notes = sources.read(job)
    notes += pass_notes
    notes += dump(model, job, "0_read")
    size_before = _size_before(model, job)
    model, pass_notes, accuracy = _apply_passes(model, job)
    notes += pass_notes
    _sign(model, job)
    notes += declared.keep(model, job)
    if not job.is_secret:
        notes += dump(model, job, "1_converted")
    with job.phase("writing"):
        written = write(model, job)
    if len(written.files) > 1:
        notes.append(f"keep the weights, {written.files[1].name}, beside the model")
    return Report(
        files=written.files,
        size_before=size_before,
        size_after=sum(map(_size, written.files)),
        nodes=len(written.graph.nodes),
        inputs=written.graph.inputs,
        outputs=written.graph.outputs,
        notes=(*job.notes, *notes),
        accuracy=accuracy,
        seconds=time.perf_counter() - begin,
        trial=written.trial,
    )


def _apply_passes(
    model: ModelProto, job: Job
) -> tuple[ModelProto, list[str], Mapping[str, Mapping[str, float]]]:
    """Apply the job's passes in order: shapes, quantization, float16, edges.

    Returns the model, notes on what was done, and the accuracy of a quantized one.
    """
    from engine.converter import unused_settings

    notes = list(unused_settings.unread(job))
    accuracy: Mapping[str, Mapping[str, float]] = {}

    if job.input_shape:
        from engine.converter import shapes

        with job.phase("input shapes"):
            model, pass_notes = shapes.fix(model, job)
        notes += pass_notes
    if job.config:
        from engine.converter import quantize

        if quantize.asked(job.config):
            with job.phase("quantizing"):
                model, pass_notes, accuracy = quantize.quantize(model, job)
            notes += pass_notes
    if job.weight_fp16:
        from engine.converter import half

        with job.phase("float16"):
            model, pass_notes = half.store(model, job)
        notes += pass_notes
    if any((job.input_dtype, job.output_dtype, job.input_format, job.output_format)):
        from engine.converter import edges  # last: calibration data is what the model itself takes

        with job.phase("inputs and outputs"):
            model, pass_notes = edges.adapt(model, job)
        notes += pass_notes
    return model, notes, accuracy


def _sign(model: ModelProto, job: Job) -> None:
    """Write into the model where it comes from, and what a later conversion must know."""
    from engine.converter.edges import LAYOUT_KEYS, layouts
    from engine.converter.graphs import drop_metadata
    from engine.host.version import __version__
    from engine.tensor.enums import Format

    # A file's name need not be text, what a model holds has to be.
    source = os.fsencode(job.model_file.name).decode(errors="replace")
    origin = {
        "converted_by": f"inference-engine {__version__}",
        "converted_from": f"{name_of(job.framework)} {source}",
    }
    if job.optimize not in ("none", "general"):
        origin["optimized_for"] = job.optimize
    asked = job.input_format, job.output_format
    for key, own, wanted in zip(LAYOUT_KEYS, layouts(model, job.framework), asked, strict=True):
        if (wanted or own) is Format.NHWC:
            origin[key] = "NHWC"
    drop_metadata(model, {*origin, *LAYOUT_KEYS})
    for key, value in origin.items():
        model.metadata_props.add(key=key, value=value)


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ModelError(
            'converting models needs onnx; run: pip install "inference-engine[convert]"'
        ) from error


def _size_before(model: ModelProto, job: Job) -> int:
    from engine.converter.weights import total_bytes
    from engine.tensor.enums import FmkType

    size = _size(job.model_file)
    if job.framework in (FmkType.ONNX, FmkType.MINDIR):
        return max(size, total_bytes(model))  # weights may lie beside the file
    return size


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
