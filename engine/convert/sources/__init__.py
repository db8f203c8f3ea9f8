"""Frontends: one file for each framework, which reads its models into ONNX."""

from __future__ import annotations

from importlib import import_module

from engine.convert.job import Job, Read
from engine.enums import FmkType
from engine.errors import ModelError
from engine.formats import ModelFile, kinds

# Imported when such a model is converted: most need a heavy package.
_READERS = {
    FmkType.TF: "tensorflow",
    FmkType.CAFFE: "caffe",
    FmkType.ONNX: "onnx",
    FmkType.MINDIR: "mindir",
    FmkType.TFLITE: "tflite",
    FmkType.PYTORCH: "pytorch",
}
# What a file's content says. Others, as "zip", say nothing: the framework's own reader decides.
_FRAMEWORKS = {
    kinds.ONNX: FmkType.ONNX,
    kinds.MINDIR: FmkType.MINDIR,
    kinds.ENCRYPTED_MINDIR: FmkType.MINDIR,
    "tensorflow": FmkType.TF,
    "keras": FmkType.TF,
    "hdf5": FmkType.TF,
    "tflite": FmkType.TFLITE,
    "pytorch": FmkType.PYTORCH,
}
_SAVED_MODEL = "saved_model.pb"


def read(job: Job) -> Read:
    """Return the model as ONNX, all its weights in memory, and notes on how it was read.

    Raises ModelError for what cannot be read, is of another framework than the job says, or needs
    a package that is not installed.
    """
    detected = framework_of(job.file)
    # What this converter writes is ONNX under MindIR's name, so that one is read as the other.
    if detected not in (None, job.framework) and (detected, job.framework) != (
        FmkType.ONNX,
        FmkType.MINDIR,
    ):
        assert detected is not None
        raise ModelError(
            f"{job.model_file}: holds {_named(detected)}, but fmk_type is {job.framework}; pass "
            f"{detected} (on the command line: --fmk {detected.name})",
            str(job.model_file),
        )
    module = import_module(f"engine.convert.sources.{_READERS[job.framework]}")
    result: Read = module.read(job)
    return result


def framework_of(file: ModelFile) -> FmkType | None:
    """Return the framework that a file's content tells of; None where it tells of none.

    Raises ModelError for what cannot be read, and for a folder that is no SavedModel.
    """
    path = file.path
    assert path is not None
    if path.is_dir():
        if (path / _SAVED_MODEL).is_file():
            return FmkType.TF
        raise ModelError(
            f"{path}: is a folder without a {_SAVED_MODEL}; expected a model's file, or the folder "
            "of a TensorFlow SavedModel",
            str(path),
        )
    return _FRAMEWORKS.get(file.kind)


def _named(framework: FmkType) -> str:
    return {
        FmkType.TF: "a TensorFlow model",
        FmkType.ONNX: "an ONNX model",
        FmkType.MINDIR: "a MindIR model",
        FmkType.TFLITE: "a TensorFlow Lite model",
        FmkType.PYTORCH: "a PyTorch model",
    }[framework]
