"""TensorFlow Lite models through tf2onnx, quantized ones included (as QuantizeLinear and such).

TensorFlow Lite's own interpreter looks at the file first: it tells a damaged one, and knows the
names that the author gave inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.converter.job import Job, Read
from engine.converter.sources.exporter import exported
from engine.converter.sources.tensorflow import OPSET, quieten
from engine.errors import ModelError, one_line

title = "a TensorFlow Lite model"
kinds = ("tflite",)
suffixes = (".tflite",)
packages = ("tensorflow", "tf2onnx")
extra = "tensorflow"

_MARK = b"TFL3"


def read(job: Job) -> Read:
    """See engine.converter.sources.read."""
    with job.model_file.open("rb") as file:
        head = file.read(8)
    if head[4:] != _MARK:
        raise job.error(
            f"is no TensorFlow Lite model: expected {_MARK!r} at byte 4, got "
            f"{head[4:]!r}; check fmk_type and that the file is complete"
        )
    return exported(job, __name__, "TensorFlow Lite", extra, packages)


def export(request: Mapping[str, Any], step: Callable[[], None]) -> None:
    """See `exporter.exported`."""
    quieten()
    import tensorflow as tf
    from tf2onnx import convert

    step()
    path = request["model"]
    try:
        interpreter = tf.lite.Interpreter(path)
    except ValueError as error:
        raise ModelError(f"the file is damaged: {one_line(error)}") from error
    step()
    model, _ = convert._convert_common(
        None,
        tflite_path=path,
        name=Path(path).stem,
        opset=OPSET,
        tensors_to_rename=_names(interpreter),
    )
    Path(request["result"]).write_bytes(model.SerializeToString())


def _names(interpreter: Any) -> dict[str, str]:
    """Return the names of inputs and outputs by tensor: the signature's, else those without ":0".

    A tensor of two names keeps the input's.
    """
    tensors = [*interpreter.get_input_details(), *interpreter.get_output_details()]
    names = {tensor["name"]: tensor["name"].removesuffix(":0") for tensor in tensors}
    signatures = interpreter.get_signature_list()
    if len(signatures) == 1:
        runner = interpreter.get_signature_runner(*signatures)
        details = [*runner.get_output_details().items(), *runner.get_input_details().items()]
        names |= {detail["name"]: name for name, detail in details}
    if len(set(names.values())) < len(names):
        return {}
    return names
