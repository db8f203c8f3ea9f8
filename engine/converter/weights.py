"""External data: load weights from files beside a model, and write them there."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from engine.converter.job import Job
from engine.errors import ModelError
from engine.types import DType

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

_LEAST_BYTES = 1024  # smaller tensors stay in the model
_ALIGNMENT = 4096  # a page, so that runtimes can map each tensor
_PART_BYTES = 64 << 20


def total_bytes(model: ModelProto) -> int:
    """Return the size of all tensors, without serializing them: beyond 2 GB that fails."""
    from engine.formats.onnx.graphs import tensors

    return sum(map(_nbytes, tensors(model)))


def data_file(file: Path) -> Path:
    """Return the path of a large result's weights: beside its file."""
    return file.with_name(f"{file.name}.data")


def bring_in(model: ModelProto, folder: Path | None, job: Job) -> None:
    """Read external data, of which open_source has checked where it lies and that it is there.

    Raises ModelError where it cannot be read or a result's weights could replace it, and Cancelled.
    """
    from onnx import TensorProto

    from engine.formats.onnx.graphs import tensors

    outside = [tensor for tensor in tensors(model) if tensor.data_location == TensorProto.EXTERNAL]
    replaced = data_file(job.output_file)
    for done, tensor in enumerate(outside):
        job.cancel.check()
        job.progress("reading weights", done, len(outside))
        entry = {entry.key: entry.value for entry in tensor.external_data}
        assert folder is not None
        file = folder / entry["location"]
        try:
            if replaced.exists() and replaced.samefile(file):
                raise ModelError(
                    f"output_file {str(job.output_file)!r}: {replaced.name} beside it holds "
                    "weights of model_file, which the result's could replace; choose another name"
                )
            with file.open("rb") as opened:
                opened.seek(int(entry.get("offset", 0)))
                tensor.raw_data = opened.read(_nbytes(tensor))
        except OSError as error:
            text = f"{file}: cannot be read: {error.strerror}"
            raise ModelError(text, str(job.model_file)) from error
        del tensor.external_data[:]
        tensor.ClearField("data_location")
    if outside:
        job.progress("reading weights", len(outside), len(outside))


def move_out(model: ModelProto, file: Path, job: Job) -> None:
    """Write the large tensors of `model` to `file`, which it then names as lying beside it.

    Raises OSError where the file cannot be written, and Cancelled.
    """
    from onnx import TensorProto

    from engine.converter.graphs import raw_data, refer
    from engine.formats.onnx.graphs import tensors

    large = [
        tensor
        for tensor in tensors(model)
        if _nbytes(tensor) >= _LEAST_BYTES and tensor.data_type != TensorProto.STRING
    ]
    with file.open("wb") as opened:
        for done, tensor in enumerate(large):
            job.progress("writing weights", done, len(large))
            data = raw_data(tensor)
            opened.seek(-opened.tell() % _ALIGNMENT, 1)
            offset = opened.tell()
            for start in range(0, len(data), _PART_BYTES):
                job.cancel.check()
                opened.write(memoryview(data)[start : start + _PART_BYTES])
            for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data",
                          "uint64_data"):  # fmt: skip
                tensor.ClearField(field)
            refer(tensor, file, offset, len(data))
    job.progress("writing weights", len(large), len(large))


def _nbytes(tensor: TensorProto) -> int:
    return int(DType.from_onnx(tensor.data_type).bits * prod(tensor.dims) + 7) // 8
