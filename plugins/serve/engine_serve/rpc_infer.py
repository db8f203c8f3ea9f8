"""One inference over gRPC: the message to an Inference, and results to a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine_serve.answer import outputs_of
from engine_serve.datatypes import BYTES, numpy_of
from engine_serve.errors import RequestError
from engine_serve.loaded import LoadedModel
from engine_serve.protocol import message
from engine_serve.request import Inference, Output, classes_of, priority_of, timeout_of
from engine_serve.shared_memory import Regions
from engine_serve.tensors import Array, from_raw, shape_of, text_of, to_raw

ModelInferResponse = message("ModelInferResponse")

_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""The field of InferTensorContents for each datatype that has one; the others are raw only."""


def parameters_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's parameters as plain values."""
    found = {}
    for key, value in fields.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            found[key] = getattr(value, kind)
    return found


def request_of(
    request: Any, model: LoadedModel, regions: Regions, left_s: float | None
) -> Inference:
    """Return the request that a ModelInferRequest holds. left_s: until the call's deadline.

    Raises RequestError.
    """
    raws = request.raw_input_contents
    inputs: dict[str, Array] = {}
    at = 0
    for tensor in request.inputs[:]:  # a slice takes a fifth of the time that its elements do
        name = tensor.name
        if name in inputs:
            raise RequestError(f"input {name!r} is there twice", name)
        place = (
            regions.place_of(parameters_of(tensor.parameters), name) if tensor.parameters else None
        )
        shape = tensor.shape[:]
        if place is not None:
            inputs[name] = from_raw(tensor.datatype, shape, place.read(name), name)
        elif not raws:
            inputs[name] = _typed(tensor, shape)
        elif tensor.HasField("contents"):
            raise RequestError(f"input {name!r}: has contents, beside raw_input_contents", name)
        elif at == len(raws):
            raise RequestError(
                f"input {name!r}: is not among the {len(raws)} raw_input_contents", name
            )
        else:
            inputs[name] = from_raw(tensor.datatype, shape, raws[at], name)
            at += 1
    if at != len(raws):
        raise RequestError(f"raw_input_contents has {len(raws)} elements for {at} inputs")
    # An answer is raw, but for a request that is typed throughout.
    is_raw = bool(raws) or any(tensor.parameters for tensor in request.inputs)
    outputs = []
    for wanted in request.outputs[:]:
        name = wanted.name
        own = parameters_of(wanted.parameters) if wanted.parameters else {}
        outputs.append(Output(name, classes_of(own, name), is_raw, regions.place_of(own, name)))
    parameters = parameters_of(request.parameters) if request.parameters else {}
    timeout_s = timeout_of(parameters)
    if left_s is not None:
        timeout_s = min(timeout_s or left_s, left_s)
    priority = priority_of(parameters, model.default_level, model.highest_level)
    return Inference(request.id, inputs, outputs or None, timeout_s, priority, is_raw, parameters)


def _typed(tensor: Any, shape: list[int]) -> Array:
    name, datatype = tensor.name, tensor.datatype
    dtype = numpy_of(datatype, name)
    if datatype not in _FIELDS:
        raise RequestError(f"input {name!r}: {datatype} must be in raw_input_contents", name)
    wanted = _FIELDS[datatype]
    for field, _ in tensor.contents.ListFields():
        if field.name != wanted:
            raise RequestError(f"input {name!r}: {datatype} is in {wanted}, not {field.name}", name)
    values = getattr(tensor.contents, wanted)
    sizes = shape_of(shape, name)
    count = int(np.prod(sizes, dtype=object))
    if len(values) != count:
        raise RequestError(
            f"input {name!r}: shape {list(sizes)} takes {count} elements, got {len(values)}", name
        )
    if datatype == BYTES:
        array = np.empty(count, object)
        array[:] = [text_of(value, name, place) for place, value in enumerate(values)]
        return array.reshape(sizes)
    try:
        return np.array([*values], dtype).reshape(sizes)
    except OverflowError as error:  # int_contents is wider than INT8
        raise RequestError(f"input {name!r}: {datatype} cannot hold it: {error}", name) from error


def answer_of(inference: Inference, results: Mapping[str, Array], model: LoadedModel) -> Any:
    """Return the ModelInferResponse of results."""
    answer = ModelInferResponse(model_name=model.name, model_version=model.version, id=inference.id)
    found = [*outputs_of(results, inference, model)]
    is_raw = inference.all_binary or any(
        output.place is not None or datatype not in _FIELDS for output, datatype, _ in found
    )
    for output, datatype, values in found:
        tensor = answer.outputs.add(name=output.name, datatype=datatype, shape=values.shape)
        if not is_raw:
            field = getattr(tensor.contents, _FIELDS[datatype])
            field.extend(_elements(values))
            continue
        raw = to_raw(values)
        if output.place is not None:
            output.place.write(raw, output.name)
            tensor.parameters["shared_memory_region"].string_param = output.place.region.name
            tensor.parameters["shared_memory_byte_size"].int64_param = len(raw)
            if output.place.offset:
                tensor.parameters["shared_memory_offset"].int64_param = output.place.offset
            raw = b""  # clients count the outputs and these alike
        answer.raw_output_contents.append(bytes(raw))
    if inference.parameters.get("triton_enable_empty_final_response"):
        answer.parameters["triton_final_response"].bool_param = True
    return answer


def _elements(values: Array) -> list[Any]:
    if values.dtype.kind in "OUST":
        return [x if isinstance(x, bytes) else str(x).encode() for x in values.flat]
    elements: list[Any] = values.ravel().tolist()
    return elements
