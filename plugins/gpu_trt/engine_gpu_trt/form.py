"""Compiled forms: an engine in a folder, with what a warm load needs instead of the parser.

    engine.plan    TensorRT's serialised engine
    form.json      what it was made with and its digest; names, specs and placement
    weights.bin    weights outside the engine, where there are any

An engine is code, and TensorRT does not survive each damaged or foreign one. So it is given one
only if it was made with the same TensorRT, driver and kind of device as are here, and its digest
is the recorded one.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import BackendUnavailable, CompiledFormError
from engine.types import CompileOptions, DType, NodeState, Placement, ShapeRange, TensorSpec
from engine_gpu_trt import vendor
from engine_gpu_trt.cuda import Gpu, as_bytes, open_gpu
from engine_gpu_trt.options import read_settings
from engine_gpu_trt.outside import Weight, described, is_wanted

PLAN_FILE = "engine.plan"
FORM_FILE = "form.json"
WEIGHTS_FILE = "weights.bin"
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Form:
    """A compiled form's description of its engine; see TrtExecutable for the fields."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    names: Mapping[str, str]
    placement: tuple[Placement, ...]
    outside: Mapping[str, Weight] = field(default_factory=dict)
    collectives: tuple[str, ...] = ()


def compiled_key(options: CompileOptions, plugin_version: str) -> Mapping[str, str]:
    """Give all that an engine depends on beside the model; see engine_compiled_key."""
    gpu, settings = open_gpu(options.device.id), read_settings(options)
    return {
        "gpu_trt": plugin_version,
        **made_with(gpu, vendor.usable_tensorrt(settings.provider)),
        **settings.key(),
        "shapes": _ranges(options.shapes),
        "profiles": "; ".join(map(_ranges, options.profiles)),
        "variable_weights": " ".join(sorted(map(repr, options.variable_weights))),
        "weights": "outside" if is_wanted(options) else "inside",
        "ranks": str(options.world_size) if settings.in_graph_collectives else "",
    }


def made_with(gpu: Gpu, trt: Any) -> dict[str, str]:
    """Return what an engine of this machine runs on, by name."""
    return {
        "provider": str(trt.__name__),
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


def write(folder: Path, plan: Any, form: Form, made: Mapping[str, str]) -> str:
    """Write an engine and its form; return the digest of the engine.

    Raises BackendUnavailable where the disk does not take it."""
    data = memoryview(plan)
    digest = hashlib.sha256(data).hexdigest()
    content = {
        "version": _VERSION,
        "made_with": dict(made),
        "plan_bytes": data.nbytes,
        "plan_sha256": digest,
        "inputs": [_from_spec(spec) for spec in form.inputs],
        "outputs": [_from_spec(spec) for spec in form.outputs],
        "names": dict(form.names),
        "placement": [_from_placement(entry) for entry in form.placement],
        "collectives": list(form.collectives),
    }
    try:
        content["outside"] = _write_weights(folder / WEIGHTS_FILE, form.outside)
        (folder / PLAN_FILE).write_bytes(data)
        (folder / FORM_FILE).write_text(json.dumps(content, indent=1))
    except OSError as error:
        raise BackendUnavailable(
            f"the compiled form cannot be written to {folder}: {error.strerror or error}; "
            "free disk space there, or build without a compile cache",
            "gpu_trt",
        ) from error
    return digest


def _write_weights(path: Path, weights: Mapping[str, Weight]) -> list[dict[str, Any]]:
    if not weights:
        return []
    offsets = {}
    with path.open("wb") as file:
        for name, weight in weights.items():
            offsets[name] = file.tell()
            file.write(as_bytes(weight.array).data)
    return described(weights, offsets)


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


def read(
    folder: Path, options: CompileOptions, made: Mapping[str, str]
) -> tuple[Form, mmap.mmap, str]:
    """Return a form, its engine's bytes, mapped, and their digest.

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
            _read_weights(folder / WEIGHTS_FILE, content["outside"]),
            tuple(map(str, content["collectives"])),
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
    return form, plan, content["plan_sha256"]


def _read_weights(path: Path, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Weight]:
    """Return the weights outside the engine, mapped. They are compared when they are read."""
    if not entries:
        return {}
    data = np.memmap(path, np.uint8, "r")
    found = {}
    for entry in entries:
        dtype = DType(entry["dtype"]).numpy
        start, nbytes = entry["offset"], dtype.itemsize * math.prod(entry["shape"])
        if not 0 <= start <= start + nbytes <= data.nbytes:
            raise CompiledFormError(f"{path}: ends before weight {entry['name']!r} does")
        array = data[start : start + nbytes].view(dtype).reshape(entry["shape"])
        found[entry["name"]] = Weight(entry["sha256"], array)
    return found


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
