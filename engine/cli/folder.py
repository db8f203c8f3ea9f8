"""A folder of models, as `engine inspect` shows it: a line for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.cli.input_files import by_number
from engine.cli.output import as_json, attributes, size, table
from engine.errors import ModelError
from engine.report.inspection import inspect
from engine.report.summary import ModelSummary
from engine.types import TensorSpec


def show(folder: Path, is_json: bool) -> None:
    """Print what the models of a folder take and give; of one that cannot be read, why."""
    from engine.formats.given import models_in

    _, paths = models_in(folder)
    found = [_read(path) for path in sorted(paths, key=by_number)]
    if is_json:
        models = [
            {"model": str(path), "error": str(summary)}
            if isinstance(summary, ModelError)
            else {**values(summary), "model": str(path)}
            for path, summary in found
        ]
        as_json({"folder": str(folder), "models": models})
        return
    table(
        "",
        ("model", "format", ">size", "inputs", "outputs"),
        [_row(path, summary) for path, summary in found],
    )


def _read(path: Path) -> tuple[Path, ModelSummary | ModelError]:
    try:
        return path, inspect(path)
    except ModelError as error:
        return path, error


def _row(path: Path, found: ModelSummary | ModelError) -> tuple[object, ...]:
    if isinstance(found, ModelError):
        return path.name, "unreadable", size(path.stat().st_size), str(found), ""
    return (
        path.name,
        found.format,
        "" if found.size_bytes is None else size(found.size_bytes),
        _listed(found.inputs),
        _listed(found.outputs),
    )


def _listed(specs: Sequence[TensorSpec] | None) -> tuple[str, ...]:
    return tuple(f"{spec.name}: {type_text(spec)} {shape_text(spec)}" for spec in specs or ())


def values(found: ModelSummary) -> dict[str, Any]:
    """Return what is known of every file as plain values."""
    return {
        **attributes(found, "model", "format", "size_bytes"),
        "encryption": found.encryption or None,
        "inputs": found.inputs and [spec_values(spec) for spec in found.inputs],
        "outputs": found.outputs and [spec_values(spec) for spec in found.outputs],
    }


def type_text(spec: TensorSpec) -> str:
    """Return a type for people: "float32", "sequence of float32"."""
    return str(spec.dtype) if spec.kind == "tensor" else f"{spec.kind} of {spec.dtype}"


def shape_text(spec: TensorSpec) -> str:
    """Return a shape for people: "[batch, 3, ?]"."""
    if spec.shape is None:
        return "[...]"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in spec.shape)}]"


def spec_values(spec: TensorSpec) -> dict[str, Any]:
    """Return an input or output as plain values."""
    found = spec.quantization
    quantization = found and attributes(found, "scale", "zero_point", "axis")
    found_too = {"quantization": quantization} if quantization else {}
    return {**attributes(spec, "name", "kind", "dtype", "shape"), **found_too}


def quantization_text(spec: TensorSpec) -> str:
    """Return what a tensor's integers stand for, for people; "" where the model does not say it."""
    found = spec.quantization
    if found is None:
        return ""
    if found.axis is not None:
        return f"{len(found.scale)} scales along axis {found.axis}"
    return f"scale {found.scale[0]:g}, zero point {found.zero_point[0]}"
