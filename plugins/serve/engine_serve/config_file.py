"""config.pbtxt: Triton's configuration of a model, as far as it means something here."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format, text_format

from engine.errors import SettingError
from engine_serve.protocol import message

ModelConfig = message("ModelConfig")
_log = logging.getLogger("engine_serve")


def parse(text: str, path: str) -> Any:
    """Return the ModelConfig of a text; warn of fields that mean nothing here.

    Raises SettingError for what is not a text of the format.
    """
    try:
        config = text_format.Parse(text, ModelConfig(), allow_unknown_field=True)
        unknown = sorted(set(_unknown(text)))
    except text_format.ParseError as error:
        raise SettingError(
            f"{path}: not a configuration in protobuf's text format: {error}"
        ) from error
    if unknown:
        _log.warning("%s: without meaning here, and ignored: %s", path, ", ".join(unknown))
    return config


def of_json(text: object) -> Any:
    """Return the ModelConfig of a request's JSON. Raises SettingError."""
    try:
        if not isinstance(text, str):
            raise json_format.ParseError(f"it must be text, got {type(text).__name__}")
        return json_format.Parse(text, ModelConfig(), ignore_unknown_fields=True)
    except (json_format.ParseError, RecursionError) as error:
        raise SettingError(f"parameter 'config': not a configuration in JSON: {error}") from error


def _unknown(text: str) -> Iterator[str]:
    """Yield the fields of a text, as "optimization.graph", that ModelConfig does not have."""
    tokens = text_format.Tokenizer(text.splitlines())
    path: list[tuple[str, Any]] = []  # of messages, each with its descriptor; None for unknown
    descriptor: Any = ModelConfig.DESCRIPTOR
    name, is_value = "", False
    while not tokens.AtEnd():
        token = tokens.token
        if token in ("{", "<"):
            path.append((name, descriptor))
            field = descriptor.fields_by_name.get(name) if descriptor is not None else None
            descriptor = field.message_type if field is not None else None
            is_value = False
        elif token in ("}", ">"):
            if path:
                _, descriptor = path.pop()
            is_value = False
        elif token == ":":
            is_value = True
        elif token in ("[", "]", ",", ";"):
            is_value = token == "[" or (token == "," and is_value)
        elif is_value:
            is_value = token == "-"
        else:
            name = token
            if descriptor is not None and name not in descriptor.fields_by_name:
                yield ".".join([*(part for part, _ in path), name])
        tokens.NextToken()


def completed(model: Any) -> Any:
    """Return a loaded model's configuration, with what its file says of inputs and outputs."""
    config = ModelConfig()
    config.CopyFrom(model.config)
    config.name, config.platform = model.name, model.platform
    config.backend = config.backend or "onnxruntime"
    skip = 1 if config.max_batch_size else 0  # of a batch, dims do not say the first axis
    for field, specs in ((config.input, model.inputs), (config.output, model.outputs)):
        if not field:
            for spec in specs.values():
                added = field.add(name=spec.name, dims=spec.shape[skip:])
                added.data_type = config_type(spec.datatype)
    return config


def config_type(datatype: str) -> int:
    """Return the number of a datatype in a configuration; 0 for what it has no name for."""
    name = "STRING" if datatype == "BYTES" else datatype
    found = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_name
    return found[f"TYPE_{name}"].number if f"TYPE_{name}" in found else 0
