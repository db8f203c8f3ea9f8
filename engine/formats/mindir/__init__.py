"""MindIR, MindSpore's format: read without MindSpore and lowered to ONNX.

decode.py      the file's messages
crypto.py      encrypted files, whatever they hold
constants.py   what constants and inferred types mean, in every dialect
lower.py       runs the graph on symbols; control.py: its functions, loops and branches
primitives/    the table: one function a primitive, which writes ONNX nodes
emit.py        what those functions write with; inferred.py: shapes that the file leaves open
fold.py        tidies the nodes; assemble.py: the ONNX model
described.py   what is in a file, for people
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError
from engine.formats.files import SMALL_BYTES, read_file
from engine.formats.mindir import crypto, decode
from engine.formats.mindir.assemble import StateSlot, Storage, lower
from engine.formats.mindir.decode import Damaged, ModelProto
from engine.formats.mindir.described import Description, describe
from engine.formats.mindir.emit import Unsupported
from engine.formats.mindir.lower import ILL_FITTING, Fault
from engine.formats.onnx import read_model
from engine.formats.wire import TooManyFields, WireError
from engine.types import ModelSource

__all__ = ["Description", "MindirSource", "StateSlot", "describe", "open_mindir"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MindirSource(ModelSource):
    """A .mindir lowered to ONNX.

    state: parameters that the model assigns to. Each is the last but some of the ONNX model's
    inputs and outputs; whoever runs it passes on what the output was, see `engine.plan`.
    """

    state: tuple[StateSlot, ...] = ()


def open_mindir(
    path: Path | None,
    data: bytes | mmap.mmap,
    *,
    dec_key: bytes | None = None,
    dec_mode: str = "AES-GCM",
    folder: Path | None = None,
    weights: bytes | None = None,
) -> MindirSource:
    """Read a MindIR model as an ONNX model.

    path: its file; None for a model in memory. data: what is in the file, decrypted. dec_key,
    dec_mode: what the file is encrypted with, and with it the data files of a split model; None
    for a plain one. folder: where those data files are, None for the folder of `path`; also
    [model_file] mindir_path. weights: the data file of a split model in memory.
    Weights are not copied. The ONNX model names those of a large file in the .mindir or its data
    files, which must not change while a model is built, others in `files`: see ModelSource, and
    `engine.formats.onnx.inline` for who wants all of it in `data`. Raises ModelError.
    """
    name = str(path) if path is not None else "model bytes"
    where = str(path or "")
    view = memoryview(data)
    base = folder if folder is not None else path.parent if path is not None else None
    try:
        proto = decode.model(view)
        if not proto.little_endian:
            raise Damaged("its numbers are big endian; export it on a little-endian machine")
        storage = Storage(view, _readable(path, data, dec_key, folder), base)
        _open_data(proto, storage, base, dec_key, dec_mode, weights)
        lowered = lower(proto, storage)
    except crypto.Locked as error:
        raise ModelError(f"{name}: {error}", where) from None
    except (Damaged, Unsupported, TooManyFields) as error:
        raise ModelError(f"{name}: not a valid MindIR model: {_short(error)}", where) from None
    except Fault as error:
        raise ModelError(f"{name}: {_short(error)}", where) from None
    except WireError as error:
        raise ModelError(
            f"{name}: damaged MindIR file: {error}, at byte {error.offset(view):,} of "
            f"{len(view):,}; copy or download it again",
            where,
        ) from None
    except RecursionError:
        raise ModelError(
            f"{name}: not a valid MindIR model: functions or tuples nested too deep", where
        ) from None
    except ILL_FITTING as error:  # a damaged file may put anything anywhere
        raise ModelError(
            f"{name}: not a valid MindIR model: its parts do not fit: {type(error).__name__}: "
            f"{_short(error)}",
            where,
        ) from error
    graph = lowered.info
    if graph is None:
        beside = base / (path.name if path is not None else "part") if base is not None else None
        graph = read_model(memoryview(lowered.data), beside, name, lowered.files).graph
    return MindirSource(
        format="onnx",
        path=path,
        data=lowered.data,
        folder=base,
        graph=graph,
        is_secret=dec_key is not None,
        files=lowered.files,
        state=lowered.state,
    )


def _readable(
    path: Path | None, data: bytes | mmap.mmap, dec_key: bytes | None, folder: Path | None
) -> Path | None:
    """The model's file where tensors may stay in it and be read from there, else None."""
    # Only those of a large file are left there: small models are the bytes that were checked.
    is_large = isinstance(data, mmap.mmap) or len(data) > SMALL_BYTES
    if path is None or dec_key is not None or not is_large or folder not in (None, path.parent):
        return None
    return path if not set(path.name) & set("\\*") else None


def _open_data(
    proto: ModelProto,
    storage: Storage,
    base: Path | None,
    dec_key: bytes | None,
    dec_mode: str,
    weights: bytes | None,
) -> None:
    """Put data files into memory where they cannot be read in place."""
    assert proto.graph is not None
    locations = {each.location for each in proto.graph.parameters if each.location}
    if not locations:
        return
    if weights is not None:
        if len(locations) != 1:
            raise Damaged(f"its weights are in {len(locations)} files; give the model's path")
        storage.data_files[locations.pop()] = memoryview(weights)
        return
    if base is None:
        raise Damaged(
            f"its weights are in {min(locations)!r}, but a model given as bytes has no folder to "
            "find that in; give the model's path, or weight_bytes"
        )
    for location in sorted(locations):
        file = base / location
        if Path(location).is_absolute() or ".." in Path(location).parts:
            raise Damaged(f"its weights are in {location!r}, outside of its folder")
        if dec_key is not None:
            held = memoryview(read_file(file))
            try:
                storage.data_files[location] = memoryview(crypto.decrypt(held, dec_key, dec_mode))
            except crypto.Locked as error:
                raise crypto.Locked(f"its data file {location!r}: {error}") from None
            continue
        first = _first_byte(file)
        if first not in (b"\x00", b"\x01"):
            raise Damaged(f"the data file {location!r} does not begin as one; is it encrypted?")
        if first == b"\x00":
            raise Damaged(f"the data file {location!r} is big endian")


def _first_byte(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(1)
    except OSError as error:
        raise Damaged(
            f"its weights are in {file.name!r}, which cannot be read: {error.strerror} (looked in "
            f"{str(file.parent)!r}); keep it beside the model, or set [model_file] mindir_path"
        ) from None


def _short(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= 1000 else f"{text[:1000]} ..."
