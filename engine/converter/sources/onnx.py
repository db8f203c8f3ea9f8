"""ONNX models: checked by the reader that every model goes through, and taken as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.converter.job import Job, Read
from engine.converter.weights import bring_in
from engine.formats.kinds import ONNX
from engine.formats.onnx.inline import inlined
from engine.types import ModelSource

if TYPE_CHECKING:
    from onnx import ModelProto

title = "an ONNX model"
kinds = (ONNX,)
suffixes = (".onnx",)


def read(job: Job) -> Read:
    """See engine.converter.sources.read."""
    job.file.unlock(None, job.decrypt_mode)  # it takes no key: that one is given is only noted
    return whole(job.file(), job), []


def whole(source: ModelSource, job: Job) -> ModelProto:
    """Return the model that `source` is, its external data in it.

    Raises ModelError where the data cannot be read, and Cancelled.
    """
    from onnx import load_model_from_string

    source = inlined(source)
    data = source.data
    if data is None:
        assert source.path is not None
        data = source.path.read_bytes()
    model = load_model_from_string(data)
    bring_in(model, source.folder, job)
    return model
