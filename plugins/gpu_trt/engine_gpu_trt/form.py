"""Compiled forms: an engine in a folder, with what a warm load needs instead of the parser.

    engine.plan    TensorRT's serialised engine
    form.json      what it was made with and its digest; names, specs and placement

An engine is code, and TensorRT does not survive each damaged or foreign one. So it is given one
only if it was made with the same TensorRT, driver and kind of device as are here, and its digest
is the recorded one.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import BackendUnavailable, CompiledFormError
from engine.types import CompileOptions, DType, NodeState, Placement, ShapeRange, TensorSpec
from engine_gpu_trt import vendor
from engine_gpu_trt.cuda import Gpu, open_gpu
from engine_gpu_trt.options import read_settings

PLAN_FILE = "engine.plan"
FORM_FILE = "form.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Form:
    """A compiled form's description of its engine; see TrtExecutable for the fields."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    names: Mapping[str, str]
    placement: tuple[Placement, ...]


def compiled_key(options: CompileOptions, plugin_version: str) -> Mapping[str, str]:
    """Give all that an engine depends on beside the model; see engine_compiled_key."""
    gpu = open_gpu(options.device.id)
    return {
        "gpu_trt": plugin_version,
        **made_with(gpu, vendor.usable_tensorrt()),
        **read_settings(options).key(),
        "shapes": _ranges(options.shapes),
        "profiles": "; ".join(map(_ranges, options.profiles)),
    }


def made_with(gpu: Gpu, trt: Any) -> dict[str, str]:
    """Return what an engine of this machine runs on, by name."""
    return {
        "tensorrt": str(trt.__version__),
        "driver": str(gpu.driver_version),
        "device": gpu.model,
        "compute_capability": gpu.compute_capability,
    }


def _ranges(shapes: Mapping[str, ShapeRange]) -> str:
    return " ".join(
        f"{name!r}:{list(ends.lowest)}..{list(ends.usual)}..{list(ends.highest)}"
        for name, ends in sorted(shapes.items())
    )


# ---------------------------------------------------------------------------------------- writing


def write(folder: Path, plan: Any, form: Form, made: Mapping[str, str]) -> None:
    """Write an engine and its form. Raises BackendUnavailable where the disk does not take it."""
    data = memoryview(plan)
    content = {
        "version": _VERSION,
        "made_with": dict(made),
        "plan_bytes": data.nbytes,
        "plan_sha256": hashlib.sha256(data).hexdigest(),
        "inputs": [_from_spec(spec) for spec in form.inputs],
        "outputs": [_from_spec(spec) for spec in form.outputs],
        "names": dict(form.names),
        "placement": [_from_placement(entry) for entry in form.placement],
    }
    try:
        (folder / PLAN_FILE).write_bytes(data)
        (folder / FORM_FILE).write_text(json.dumps(content, indent=1))
    except OSError as error:
        raise BackendUnavailable(
            f"the compiled form cannot be written to {folder}: {error.strerror or error}; "
            "free disk space there, or build without a compile cache",
            "gpu_trt",
        ) from error


def _from_spec(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "dtype": str(spec.dtype),
        "shape": None if spec.shape is None else list(spec.shape),
        "bounds": [None if ends is None else list(ends) for ends in spec.bounds],
    }


def _from_placement(entry: Placement) -> dict[str, Any]:
    return {
        "index": entry.index,
        "node": entry.node,
        "op_type": entry.op_type,
        "provider": entry.provider,
        "reason": entry.reason,
        "state": str(entry.state),
        "fused_into": entry.fused_into,
    }


# ---------------------------------------------------------------------------------------- reading


def read(folder: Path, options: CompileOptions, made: Mapping[str, str]) -> tuple[Form, mmap.mmap]:
    """Return a form and its engine's bytes, mapped.

    made: what is here. Raises CompiledFormError where the form is damaged or made for something
    else.
    """
    try:
        content = json.loads((folder / FORM_FILE).read_bytes())
        if content["version"] != _VERSION:
            raise CompiledFormError(
                f"{folder}: is a form of version {content['version']}, expected {_VERSION}"
            )
        _check_made_with(folder, content["made_with"], made)
        form = Form(
            _to_specs(content["inputs"]),
            _to_specs(content["outputs"]),
            {str(ours): str(theirs) for ours, theirs in content["names"].items()},
            tuple(_to_placement(entry, str(options.device)) for entry in content["placement"]),
        )
        with (folder / PLAN_FILE).open("rb") as file:
            plan = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        is_sound = (
            len(plan) == content["plan_bytes"]
            and hashlib.sha256(plan).hexdigest() == content["plan_sha256"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CompiledFormError):
            raise
        raise CompiledFormError(f"{folder}: cannot be read: {error}") from error
    if not is_sound:
        raise CompiledFormError(f"{folder / PLAN_FILE}: is not what was written there")
    return form, plan


def _check_made_with(folder: Path, recorded: Mapping[str, str], here: Mapping[str, str]) -> None:
    for name, value in here.items():
        if recorded.get(name) != value:
            raise CompiledFormError(
                f"{folder}: was made with {name} {recorded.get(name)!r}, here is {value!r}"
            )


def _to_specs(entries: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            spec["name"],
            DType(spec["dtype"]),
            None if spec["shape"] is None else tuple(spec["shape"]),
            bounds=tuple(None if ends is None else (ends[0], ends[1]) for ends in spec["bounds"]),
        )
        for spec in entries
    )


def _to_placement(entry: Mapping[str, Any], device: str) -> Placement:
    return Placement(
        entry["index"],
        entry["node"],
        entry["op_type"],
        "gpu_trt",
        device,  # the form does not depend on the device's number
        entry["provider"],
        entry["reason"],
        NodeState(entry["state"]),
        entry["fused_into"],
    )
