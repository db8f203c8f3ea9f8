"""A model whose initializers a session's options give: their values, or the files they lie in."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError
from engine.formats.opened import FileVersion
from engine.host.paths import absolute
from engine.onnxruntime.values import given

if TYPE_CHECKING:
    from engine.onnxruntime.options import Noted

_LARGEST = 2 << 30


def replaced(model: str | bytes, noted: Noted) -> tuple[bytes, dict[str, FileVersion]]:
    """Return a model with the initializers that options give in place of the file's own.

    Also the files that it was read from, by absolute paths, as they were before.

    Raises ModelError for a name that the model has no initializer of, for other external data, and
    above 2 GB, which is the most that a model in memory can have.
    """
    import onnx  # rare
    from onnx import external_data_helper, numpy_helper

    files: dict[str, FileVersion] = {}
    if isinstance(model, bytes):
        proto, folder = onnx.load_model_from_string(model), ""
    else:
        _note(files, model)
        proto, folder = onnx.load(model, load_external_data=False), os.path.dirname(model)
    left = dict(noted.initializers)
    for tensor in proto.graph.initializer:
        if tensor.name in left:
            value = given(left.pop(tensor.name))
            tensor.CopyFrom(numpy_helper.from_array(_array(value), tensor.name))
        elif external_data_helper.uses_external_data(tensor):
            _inline(tensor, noted, folder, files)
    if left:
        raise ModelError(f"the model has no initializer {', '.join(map(repr, left))}")
    if proto.ByteSize() >= _LARGEST:
        raise ModelError("a model above 2 GB cannot have initializers of its options")
    data: bytes = proto.SerializeToString()
    return data, files


def _note(files: dict[str, FileVersion], path: str) -> None:
    with suppress(OSError):  # said by whoever reads it
        files[str(absolute(Path(path)))] = FileVersion.of(os.stat(path))


def _array(value: Any) -> Any:
    return value.get_data_to_numpy() if hasattr(value, "get_data_to_numpy") else value


def _inline(tensor: Any, noted: Noted, folder: str, files: dict[str, FileVersion]) -> None:
    """Put a tensor's data into it, from a file that options give, or one in the folder."""
    from onnx import external_data_helper

    where = external_data_helper.ExternalDataInfo(tensor)
    content = noted.files.get(where.location)
    if content is None:
        _note(files, os.path.join(folder, where.location))
        external_data_helper.load_external_data_for_tensor(tensor, folder)
    else:
        begin = where.offset or 0
        tensor.raw_data = content[begin : begin + where.length if where.length else None]
    tensor.data_location = 0
    del tensor.external_data[:]
