"""Write a result: check, try and encrypt it before it replaces an earlier one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.converter.job import Job
from engine.converter.weights import data_file, move_out, total_bytes
from engine.errors import ModelError
from engine.formats import ModelFile
from engine.host.folder import temporary_folder
from engine.types import GraphInfo

if TYPE_CHECKING:
    from onnx import ModelProto

INLINE_BYTES = 1_500_000_000
"""Larger results have their weights in a file beside them: protobuf ends at 2 GB."""
_LIMIT_BYTES = 2_000_000_000
_PART_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """files: what was written, the model first. graph: as Model's reader sees it. trial: outputs
    of the trial run by name.
    """

    files: tuple[Path, ...]
    graph: GraphInfo
    trial: Mapping[str, Any] = field(default_factory=dict)


def check_output(job: Job) -> None:
    """Raise ModelError where the result could not be written: before the work, not after it."""
    file = job.output_file
    folder = file.parent
    if not folder.is_dir():
        raise ModelError(f"output_file {str(file)!r}: no folder {str(folder)!r}; make it first")
    if file.is_dir():
        raise ModelError(f"output_file {str(file)!r}: is a folder; name a file")
    if file.exists() and os.path.samefile(file, job.model_file):
        raise ModelError(
            f"output_file {str(file)!r}: is model_file itself, which it would replace; choose "
            "another name"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ModelError(f"output_file {str(file)!r}: the folder {str(folder)!r} is not writable")


def write(model: ModelProto, job: Job) -> Written:
    """Write the model to `job.output_file`, which appears whole or not at all.

    The weights of a large one are taken out of `model`, and lie beside the file in one of its
    name and ".data". Where the result is to be encrypted, nothing is written in clear.
    Raises ModelError, Cancelled, and BackendError where a trial run has no backend.
    """
    is_large = total_bytes(model) > INLINE_BYTES
    if job.encrypt_key is not None and total_bytes(model) > _LIMIT_BYTES:
        raise ModelError(
            f"the result has {total_bytes(model):,} bytes of weights, and an encrypted one is a "
            f"single file of less than {_LIMIT_BYTES:,}; store them as float16 (weight_fp16), or "
            "leave encryption out"
        )
    file = job.output_file
    try:
        if is_large and job.encrypt_key is None:
            return _in_two_files(model, job)
        return _in_one_file(model, job)
    except OSError as error:
        raise ModelError(f"{file}: cannot be written: {error.strerror}", str(file)) from error


def _in_one_file(model: ModelProto, job: Job) -> Written:
    content = _serialized(model)
    file = ModelFile.of_bytes(content)
    graph = file().graph
    assert graph is not None
    outputs = _tried(file, job)
    if job.encrypt_key is not None:
        from engine.formats.encryption import encrypt

        content = encrypt(content, job.encrypt_key)
    with _beside(job.output_file) as folder:
        aside = folder / job.output_file.name
        with aside.open("wb") as opened:
            for start in range(0, len(content), _PART_BYTES):
                job.cancel.check()
                opened.write(memoryview(content)[start : start + _PART_BYTES])
        aside.replace(job.output_file)
    return Written((job.output_file,), graph, outputs)


def _in_two_files(model: ModelProto, job: Job) -> Written:
    file = job.output_file
    data = data_file(file)
    with _beside(file) as folder:
        aside = folder / file.name
        move_out(model, aside.with_name(data.name), job)
        aside.write_bytes(_serialized(model))
        written = ModelFile(aside)
        graph = written().graph
        assert graph is not None
        outputs = _tried(written, job)
        job.cancel.check()
        aside.with_name(data.name).replace(data)
        aside.replace(file)
    return Written((file, data), graph, outputs)


def _beside(file: Path) -> AbstractContextManager[Path]:
    """Yield a folder on the output's file system: a finished result is moved by one rename.

    However this process ends, the folder goes with it.
    """
    return temporary_folder(".converting-", file.parent)


def _tried(file: ModelFile, job: Job) -> dict[str, Any]:
    if not job.infer:
        return {}
    from engine.converter import trial

    with job.phase("trial run"):
        return trial.run(file, job)


def _serialized(model: ModelProto) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except Exception as error:  # protobuf's own, which share no base
        raise ModelError(f"the result cannot be stored: {type(error).__name__}: {error}") from error
