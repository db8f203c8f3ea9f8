"""One recorded request as a file: an .npz archive of its arrays, and `request.json`.

`numpy.load` opens it: an input "x" is `inputs.x`, an output "y" is `outputs.y`, the second element
of a sequence "s" `inputs.s[1]`. Types that numpy's files do not have are there as their bits, text
is in `request.json`. The archive has checksums, so that a damaged one is seen.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from engine.errors import EngineError, one_line
from engine.types import DType, RequestEvent, Status, TensorSpec

VERSION = 1
_REQUEST = "request.json"

Array: TypeAlias = "np.ndarray[Any, Any]"
Named: TypeAlias = Mapping[str, Any]
"""Values by the names of a model's inputs or outputs."""


class RecordError(EngineError, ValueError):
    """A recorded request cannot be read. path: its file."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class Record:
    """A request as it was recorded.

    number: its place among the recorded ones, from 1. inputs, outputs: by name, None where there
    were none to record. updated: the model's weights had been exchanged since it was built.
    """

    path: Path
    number: int
    model: str
    status: str
    updated: bool
    inputs: Named | None
    outputs: Named | None


def to_bytes(event: RequestEvent, begin_ns: int, updated: bool) -> bytes:
    """Return the file of a request. begin_ns: since 1970."""
    arrays: dict[str, Array] = {}
    model = event.model
    facts = {
        "version": VERSION,
        "model": {
            "name": model.name,
            "id": model.id,
            "path": model.path,
            "backends": model.backends,
            "devices": [str(device) for device in model.devices],
            "inputs": [str(spec) for spec in model.inputs],
            "outputs": [str(spec) for spec in model.outputs],
            "updated": updated,
        },
        "id": event.id,
        "status": event.status,
        "error": event.error,
        "begin_ns": begin_ns,
        "queue_s": event.queue_s,
        "compute_s": event.compute_s,
        "batch_size": event.batch_size,
        "devices": [str(device) for device in event.devices],
        "run_id": event.run_id,
        "inputs": _named("inputs", model.inputs, event.inputs, arrays),
        "outputs": _named("outputs", model.outputs, event.outputs, arrays),
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_REQUEST, json.dumps(facts))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return file.getvalue()


def read(path: Path, number: int, with_values: bool = True) -> Record:
    """Read a recorded request; without its values, if they are not wanted.

    Raises RecordError for a file that is none or is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            facts = json.loads(archive.read(_REQUEST))
            if facts["version"] > VERSION:
                raise RecordError(
                    f"{path}: recorded in format {facts['version']}, this version reads up to "
                    f"{VERSION}; run: pip install -U inference-engine-telemetry",
                    str(path),
                )
            return Record(
                path,
                number,
                str(facts["model"]["name"]),
                str(Status(facts["status"])),
                bool(facts["model"]["updated"]),
                _values(facts["inputs"], archive) if with_values else None,
                _values(facts["outputs"], archive) if with_values else None,
            )
    except RecordError:
        raise
    except Exception as error:  # a damaged archive raises from zipfile, zlib, json and numpy
        raise RecordError(
            f"{path}: not a recorded request, or a damaged one: {one_line(error)}; without the "
            "file, the others can be replayed",
            str(path),
        ) from error


def flat(name: str, value: Any) -> dict[str, Array]:
    """Return the arrays of a value by name: those of a sequence "s" are "s[0]", "s[1]" and so on.

    Keys and values of a map are arrays too. An absent optional has none.
    """
    if value is None:
        return {}
    if isinstance(value, dict):
        keys = [*value]
        of_keys = object if any(isinstance(key, str) for key in keys) else np.int64
        return {
            f"{name}.keys": np.array(keys, of_keys),
            f"{name}.values": np.array([*value.values()]),
        }
    if isinstance(value, list | tuple):
        parts = [flat(f"{name}[{index}]", element) for index, element in enumerate(value)]
        return {key: array for part in parts for key, array in part.items()}
    return {name: np.asarray(value)}


def _named(
    side: str, specs: Sequence[TensorSpec], values: Sequence[Any] | None, arrays: dict[str, Array]
) -> dict[str, Any] | None:
    if values is None:
        return None
    return {
        spec.name: _told(f"{side}.{spec.name}", value, arrays)
        for spec, value in zip(specs, values, strict=True)
    }


def _told(name: str, value: Any, arrays: dict[str, Array]) -> Any:
    """Return what JSON says of a value; its arrays go to `arrays`."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {"map": [[key, np.asarray(number).item()] for key, number in value.items()]}
    if isinstance(value, list | tuple):
        return {
            "sequence": [
                _told(f"{name}[{index}]", part, arrays) for index, part in enumerate(value)
            ]
        }
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"{name}: cannot record a {type(value).__name__}; expected a host array")
    array = np.asarray(value)
    if array.dtype.kind in "OUT":
        texts = [str(text) for text in array.ravel()]  # numpy's own text loses zeros at its end
        return {"text": texts, "shape": array.shape}
    while name in arrays:
        name += "_"
    is_own = array.dtype.isbuiltin != 1  # ml_dtypes'
    arrays[name] = array.view(f"u{array.dtype.itemsize}") if is_own else array
    return {"array": name, "dtype": str(DType.from_numpy(array.dtype))}


def _values(told: Mapping[str, Any] | None, archive: zipfile.ZipFile) -> Named | None:
    if told is None:
        return None
    return {name: _value(value, archive) for name, value in told.items()}


def _value(told: Any, archive: zipfile.ZipFile) -> Any:
    if told is None:
        return None
    if "map" in told:
        return dict(told["map"])
    if "sequence" in told:
        return [_value(part, archive) for part in told["sequence"]]
    if "text" in told:
        return np.array(told["text"], object).reshape(told["shape"])
    data = io.BytesIO(archive.read(f"{told['array']}.npy"))
    array = np.lib.format.read_array(data, allow_pickle=False)
    dtype = DType(told["dtype"]).numpy
    return array if array.dtype == dtype else array.view(dtype)
