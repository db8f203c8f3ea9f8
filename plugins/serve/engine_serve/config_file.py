"""config.pbtxt: Triton's configuration of a model, as far as it means something here."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import json_format, text_format

from engine.errors import SettingError
from engine.options import nearest
from engine_serve.protocol import message

ModelConfig = message("ModelConfig")
_REFUSED = {
    "sequence_batching": "this server keeps no state between the requests of a sequence; "
    "serve a model that takes its state as an input and gives it as an output",
    "ensemble_scheduling": "this server runs no ensembles; merge the models into one file, as "
    "onnx.compose.merge_models does, or have clients call one after the other",
}
"""Fields without which a model would not answer as its author means it, each with the reason."""
_LIKE = 0.8  # so that "batch_input", a field of Triton's, is no "input"
_log = logging.getLogger("engine_serve")

_CAPITAL = re.compile("[A-Z]")

# A string or a comment, else the end of a field's name that a list follows without a colon.
_LIST = re.compile(r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#.*)|(?<=\w)(\s*)\[""")


def parse(text: str, path: str) -> Any:
    """Return the ModelConfig of a text; warn of fields that mean nothing here.

    Raises SettingError for what is not a text of the format.
    """
    # protobuf skips an unknown field's list of messages only after a colon.
    text = _LIST.sub(lambda found: found[1] or f":{found[2].removeprefix(' ')}[", text)
    try:
        config = text_format.Parse(text, ModelConfig(), allow_unknown_field=True)
        unknown = sorted({*_unknown(text), *_unknown_parameters(config)})
    except text_format.ParseError as error:
        raise SettingError(
            f"{path}: not a configuration in protobuf's text format: {error}"
        ) from error
    _refuse(unknown, path)
    if config.backend not in ("", "onnxruntime"):
        _log.warning(
            "%s: backend %r is not used: the server's --target chooses what runs the model",
            path,
            config.backend,
        )
    if unknown:
        _log.warning("%s: without meaning here, and ignored: %s", path, ", ".join(unknown))
    return config


def _refuse(fields: Iterable[str], where: str) -> None:
    for field in _REFUSED.keys() & fields:
        raise SettingError(f"{where}: {field}: {_REFUSED[field]}")


def with_own_parameters(given: Any, own: Any) -> Any:
    """Return a client's configuration with the parameters of the folder's, or that without one.

    Raises SettingError for a client's that has others: they say where a model runs.
    """
    if given is None:
        return own
    said = [{key: value.string_value for key, value in c.parameters.items()} for c in (given, own)]
    if said[0] and said[0] != said[1]:
        raise SettingError(
            f"parameters: only config.pbtxt says them, expected {said[1]} or none, got {said[0]}"
        )
    for key, value in said[1].items():
        given.parameters[key].string_value = value
    return given


def _unknown_parameters(config: Any) -> Iterator[str]:
    yield from (f"parameters {key!r}" for key in config.parameters if key != "workers")


def of_json(text: object) -> Any:
    """Return the ModelConfig of a request's JSON. Raises SettingError."""
    try:
        if not isinstance(text, str):
            raise json_format.ParseError(f"it must be text, got {type(text).__name__}")
        config = json_format.Parse(text, ModelConfig(), ignore_unknown_fields=True)
    except (json_format.ParseError, RecursionError) as error:
        raise SettingError(f"parameter 'config': not a configuration in JSON: {error}") from error
    given = json.loads(text)
    names = {_CAPITAL.sub(r"_\g<0>", key).lower() for key, it in given.items() if it is not None}
    _refuse(names, "parameter 'config'")
    return config


def _unknown(text: str) -> Iterator[str]:
    """Yield the fields of a text, as "optimization.graph", that ModelConfig does not have.

    One that is like another that it has is followed by a hint.
    """
    tokens = text_format.Tokenizer(text.splitlines())
    path: list[tuple[str, Any]] = []  # of messages, each with its descriptor; None for unknown
    descriptor: Any = ModelConfig.DESCRIPTOR
    name, is_value, is_listed = "", False, False
    while not tokens.AtEnd():
        token = tokens.token
        if token in ("{", "<"):
            path.append((name, descriptor))
            field = descriptor.fields_by_name.get(name) if descriptor is not None else None
            descriptor = field.message_type if field is not None else None
            is_value = is_listed = False
        elif token in ("}", ">"):
            if path:
                _, descriptor = path.pop()
            is_value = False
        elif token == ":":
            is_value = True
        elif token in ("[", "]"):
            is_value, is_listed = False, token == "["
        elif token in (",", ";"):
            is_value = False
        elif is_value or is_listed or token[0] in "\"'":  # a second string continues the first
            is_value = token == "-"
        else:
            name = token
            if descriptor is not None and name not in descriptor.fields_by_name:
                near = nearest(name, descriptor.fields_by_name, _LIKE)
                hint = f" (did you mean {near}?)" if near else ""
                yield ".".join([*(part for part, _ in path), name]) + hint
        tokens.NextToken()


def completed(model: Any) -> Any:
    """Return a loaded model's configuration, with what its file says of inputs and outputs.

    Its backend is what runs the model here: the engine's, the one with the most nodes first.
    """
    config = ModelConfig()
    config.CopyFrom(model.config)
    config.name, config.platform = model.name, model.platform
    config.backend = ", ".join(dict.fromkeys(part["backend"] for part in model.placement))
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


def type_name(number: int) -> str:
    """Return the name of a datatype in a configuration, as "TYPE_FP32"."""
    found = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    return found[number].name if number in found else str(number)
