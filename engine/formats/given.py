"""The forms in which users give a model: a path, a folder with one, bytes, a file, a ModelProto."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import ModelError, ModelNotFound
from engine.formats.files import SUFFIXES, beside, inside

_PARTS = ("onnx",)  # where exporters for the hub put models that other frameworks are beside
_DEFAULT = "model"  # as the hub names the model that is meant where there are several


def given(model: object) -> str | bytes:
    """Return the path of a model's file, or the model itself where it is in memory.

    model: a path, also one with "~" or of a folder that holds one model; bytes; an open binary
    file, read from where it stands; a ModelProto of the onnx package.
    Raises TypeError for anything else, ModelError for an address, a folder without one model, and
    a ModelProto that is too large for bytes.
    """
    if isinstance(model, str | os.PathLike):
        return os.fspath(found(os.fsdecode(model)))
    if isinstance(model, bytes | bytearray | memoryview):
        return _not_empty(bytes(model), "the bytes of the model")
    if callable(read := getattr(model, "read", None)):
        try:
            data = read()
        except UnicodeDecodeError:  # of a file that was opened to read text
            data = ""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"model must be a file that was opened to read bytes, as open(path, 'rb'), but "
                f"read() of {model!r} returns {type(data)}."
            )
        return _not_empty(bytes(data), "what is left to read in the model's file")
    if callable(serialize := getattr(model, "SerializeToString", None)):
        return _not_empty(_serialized(serialize), "the ModelProto")
    expected = "a path, bytes, an open binary file or an onnx.ModelProto"
    raise wrong_type(model, "model", expected)


def wrong_type(model: object, name: str, expected: str) -> TypeError:
    """Return the error for an argument that is no model, with what makes one of it.

    name: the argument's. expected: what it may be.
    """
    todo = ""
    if hasattr(type(model), "model_proto"):  # not the object's: torch's ONNXProgram builds it
        todo = " Pass its .model_proto"
    elif isinstance(model, Mapping) or (hasattr(model, "forward") and hasattr(model, "state_dict")):
        # Of torch: a module, or its state_dict, which has weights without a graph.
        todo = " Export it: torch.onnx.export(model, example_inputs, 'model.onnx')"
    return TypeError(f"{name} must be {expected}, but got {type(model)}.{todo}")


def found(text: str) -> Path | str:
    """Return the path that a user means, unchanged where it is a file's or nothing is there.

    "~" is expanded where the shell has not, and a folder stands for the one model in it. Raises
    ModelError for an address, and a folder without one model.
    """
    if re.match(r"[a-z]+:/", text) and not os.path.exists(text):
        raise ModelError(
            f"{text}: is an address; download the model and give the path of a model", text
        )
    if text.startswith("~") and not os.path.exists(text):
        text = os.path.expanduser(text)
    return _in_folder(Path(text)) if os.path.isdir(text) else text


def absent(path: str, failure: str) -> ModelNotFound:
    """Return the error for a path where no file is, with the file that it may have meant.

    failure: what the message says before the path.
    """
    try:
        hint = beside(Path(path)) if path else ""
    except ValueError:  # a NUL in the path
        hint = ""
    if not hint and not os.path.isabs(path):
        try:
            hint = f" in {os.getcwd()}"
        except FileNotFoundError:
            hint = ": the working folder was deleted; go to another one"
    return ModelNotFound(f"{failure}{path!r}{hint}", path)


def models_in(folder: Path) -> tuple[Path, list[Path]]:
    """Return the models of a folder, or of the one in it where exporters put them, and that folder.

    Raises ModelError for a folder that cannot be read.
    """
    for place in (folder, *(folder / part for part in _PARTS)):
        models = sorted(path for path in _files(place) if path.suffix.lower() in SUFFIXES)
        if models:
            return place, models
    return folder, []


def _in_folder(folder: Path) -> Path:
    place, models = models_in(folder)
    if len(models) == 1:
        return models[0]
    named = [path for path in models if path.stem == _DEFAULT]
    if len(named) == 1:
        return named[0]
    if models:
        names = ", ".join(repr(path.name) for path in models[:5])
        raise ModelError(
            f"{folder}: expected a folder with one model, or one of them named "
            f"{_DEFAULT!r}, but {place} has {len(models)}: {names}"
            f"{' and others' * (len(models) > 5)}; give the path of one",
            str(folder),
        )
    raise ModelError(f"{folder}: is a folder without a model; {inside(folder)}", str(folder))


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ModelError(f"{folder}: cannot be read: {error.strerror}", str(folder)) from error


def _serialized(serialize: Any) -> bytes:
    try:
        return bytes(serialize())
    except Exception as error:  # protobuf's, which differ by version, for more than 2 GiB
        raise ModelError(
            f"the ModelProto cannot be written as bytes ({error}); save it with "
            "onnx.save(model, path, save_as_external_data=True) and load the path"
        ) from error


def _not_empty(data: bytes, what: str) -> bytes:
    if not data:
        raise ModelError(f"{what}: empty; expected a whole model")
    return data
