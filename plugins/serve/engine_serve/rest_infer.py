"""One inference over REST: the body to an Inference, and results to a body. The hot path."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from engine_serve.answer import outputs_of
from engine_serve.datatypes import BYTES, numpy_of
from engine_serve.errors import RequestError
from engine_serve.loaded import LoadedModel
from engine_serve.request import (
    Inference,
    Output,
    classes_of,
    priority_of,
    timeout_of,
)
from engine_serve.shared_memory import Regions
from engine_serve.tensors import Array, Raw, from_json, from_raw, to_json, to_raw

_JOINED = 65536  # what is shorter is one write
_LENIENT = 1 << 20  # json takes ten times as long as orjson, while nothing else runs


def request_of(
    body: memoryview, header_length: int | None, model: LoadedModel, regions: Regions
) -> Inference:
    """Return the request that a body holds.

    header_length: of its JSON; None for all of it. 0 for none: the body is the only input's bytes.
    Raises RequestError.
    """
    if header_length == 0:
        return _raw(body, model)
    if header_length is None:
        header_length = len(body)
    if header_length > len(body):
        raise RequestError(
            f"Inference-Header-Content-Length is {header_length}, but the body is {len(body)} long"
        )
    head = object_of(body[:header_length])
    rest = body[header_length:]
    parameters = _parameters(head, "the request")
    request_id = head.get("id", "")
    if not isinstance(request_id, str) or not _is_text(request_id):
        raise RequestError(f"id must be text, got {request_id!r}")
    inputs: dict[str, Array] = {}
    at = 0
    for tensor in _list(head, "inputs"):
        name = _name(tensor, "inputs")
        if name in inputs:
            raise RequestError(f"input {name!r} is there twice", name)
        own = _parameters(tensor, f"input {name!r}")
        datatype, shape = tensor.get("datatype"), tensor.get("shape")
        nbytes = own.get("binary_data_size")
        place = regions.place_of(own, name)
        if (nbytes is not None) + (place is not None) + ("data" in tensor) != 1:
            raise RequestError(
                f"input {name!r}: takes one of 'data', the parameter 'binary_data_size' and a "
                "place in shared memory",
                name,
            )
        if place is not None:
            inputs[name] = from_raw(datatype, shape, place.read(name), name)
        elif nbytes is None:
            inputs[name] = from_json(datatype, shape, tensor["data"], name)
        else:
            if type(nbytes) is not int or nbytes < 0 or at + nbytes > len(rest):
                raise RequestError(
                    f"input {name!r}: binary_data_size is {nbytes!r}, "
                    f"but {len(rest) - at} bytes are left in the body",
                    name,
                )
            inputs[name] = from_raw(datatype, shape, rest[at : at + nbytes], name)
            at += nbytes
    if at != len(rest):
        raise RequestError(f"{len(rest) - at} bytes are left in the body behind the inputs")
    all_binary = parameters.get("binary_data_output") is True
    return Inference(
        request_id,
        inputs,
        _outputs(head, all_binary, regions),
        timeout_of(parameters),
        priority_of(parameters, model.default_level, model.highest_level),
        all_binary,
        parameters,
    )


def _raw(body: memoryview, model: LoadedModel) -> Inference:
    """Return the request whose body is nothing but the bytes of the only input."""
    if len(model.inputs) != 1:
        raise RequestError(
            f"a request without JSON needs a model of one input, not {[*model.inputs]}"
        )
    [spec] = model.inputs.values()
    shape = [1 if size < 0 else size for size in spec.shape]
    if spec.datatype == BYTES:
        raw: Raw = len(body).to_bytes(4, "little") + bytes(body)
        return Inference("", {spec.name: from_raw(BYTES, shape, raw, spec.name)}, all_binary=True)
    open_axes = [axis for axis, size in enumerate(spec.shape) if size < 0]
    if len(open_axes) > 1 and open_axes[0] == 0:
        del open_axes[0]  # the batch: such a request is one sample
    if len(open_axes) > 1:
        raise RequestError(
            f"input {spec.name!r}: {spec} has several open axes; give its shape in JSON", spec.name
        )
    if open_axes:
        element = numpy_of(spec.datatype, spec.name).itemsize * math.prod(shape)
        shape[open_axes[0]] = len(body) // element if element else 0
    value = from_raw(spec.datatype, shape, body, spec.name)
    return Inference("", {spec.name: value}, all_binary=True)


def _is_text(value: str) -> bool:
    """Return False for half of a pair of surrogates, which JSON can write and UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def object_of(text: Raw) -> dict[str, Any]:
    """Return the object of a JSON text. Raises RequestError."""
    try:
        found = orjson.loads(text)
    except ValueError as error:
        found = _lenient(bytes(text), error)
    if not isinstance(found, dict):
        raise RequestError(f"the request must be a JSON object, got {type(found).__name__}")
    return found


def _lenient(text: bytes, error: ValueError) -> Any:
    """Return what json reads where orjson does not: NaN, Infinity, numbers above 64 bits."""
    if len(text) > _LENIENT:
        raise RequestError(f"the request's JSON cannot be read: {error}") from error
    try:
        return json.loads(text, parse_float=_finite)
    except (ValueError, RecursionError) as worse:
        raise RequestError(f"the request's JSON cannot be read: {worse}") from worse


def _finite(digits: str) -> float:
    """Return the value of a JSON number. Raises ValueError for one above float64's largest."""
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:80]} is beyond FP64; write Infinity for infinity")
    return value


def _text_of(head: Mapping[str, Any]) -> bytes:
    """Return an answer's JSON; NaN and Infinity as most readers take them, for JSON has none."""
    finite = all("data" not in tensor or isinstance(tensor["data"], np.ndarray) or
                 not _has_floats(tensor["data"]) for tensor in head["outputs"])  # fmt: skip
    if finite:
        return orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    return json.dumps(head, separators=(",", ":"), default=np.ndarray.tolist).encode()


def _has_floats(data: list[Any]) -> bool:
    return bool(data) and type(data[0]) is float


def _list(head: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = head.get(key)
    if found is None:
        raise RequestError(
            f"the request has no {key!r}; expected "
            f'{{"{key}": [{{"name": ..., "shape": [...], "datatype": "FP32", "data": [...]}}]}}'
        )
    if not isinstance(found, list) or not all(isinstance(tensor, dict) for tensor in found):
        raise RequestError(f"{key!r} must be a list of objects, got {type(found).__name__}")
    return found


def _name(tensor: Mapping[str, Any], key: str) -> str:
    name = tensor.get("name")
    if not isinstance(name, str):
        raise RequestError(f"{key!r}: name must be text, got {name!r}")
    return name


def _parameters(tensor: Mapping[str, Any], whose: str) -> dict[str, Any]:
    found = tensor.get("parameters", {})
    if not isinstance(found, dict):
        raise RequestError(f"{whose}: parameters must be an object, got {type(found).__name__}")
    return found


def _outputs(head: Mapping[str, Any], all_binary: bool, regions: Regions) -> list[Output] | None:
    if head.get("outputs") in (None, []):
        return None
    found = []
    for tensor in _list(head, "outputs"):
        name = _name(tensor, "outputs")
        own = _parameters(tensor, f"output {name!r}")
        is_binary = own.get("binary_data", all_binary) is True
        found.append(Output(name, classes_of(own, name), is_binary, regions.place_of(own, name)))
    return found


def answer_of(
    inference: Inference, results: Mapping[str, Array], model: LoadedModel
) -> tuple[int | None, list[Raw]]:
    """Return the length of an answer's JSON, None where there is nothing else, and its parts."""
    outputs: list[dict[str, Any]] = []
    parts: list[Raw] = [b""]
    for output, datatype, values in outputs_of(results, inference, model):
        tensor: dict[str, Any] = {
            "name": output.name,
            "datatype": datatype,
            "shape": [*values.shape],
        }
        if output.place is not None:
            raw = to_raw(values)
            output.place.write(raw, output.name)
            tensor["parameters"] = {
                "shared_memory_region": output.place.region.name,
                "shared_memory_offset": output.place.offset,
                "shared_memory_byte_size": len(raw),
            }
        elif output.is_binary:
            raw = to_raw(values)
            tensor["parameters"] = {"binary_data_size": len(raw)}
            parts.append(raw)
        else:
            tensor["data"] = to_json(values)
        outputs.append(tensor)
    head: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
    if inference.id:
        head["id"] = inference.id
    head["outputs"] = outputs
    parts[0] = _text_of(head)
    return (len(parts[0]) if len(parts) > 1 else None), parts


def joined(parts: list[Raw]) -> list[Raw]:
    """Return the parts of a body as those of its writes."""
    total = sum(len(part) for part in parts)
    return [b"".join(parts)] if total < _JOINED else parts
