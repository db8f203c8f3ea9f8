"""Parameters as MindSpore's functions take and give them, and single checkpoint files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from engine.config.checks import require
from engine.errors import InputError, ModelError
from engine.sharding.checkpoint import FORMATS, SUFFIXES, open_checkpoint, write_checkpoint
from engine.sharding.files import NotAFolder, aside
from engine.sharding.stored import Array, Checkpoint, ToWrite
from engine.types import DType
from engine.typing import CheckpointFormat, DecMode


@dataclass(frozen=True, eq=False)
class Parameter:
    """A named tensor. data: an array; of a loaded checkpoint it is a view of the file."""

    data: Array
    name: str
    requires_grad: bool = True
    layerwise_parallel: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the data."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type of the data."""
        dtype: np.dtype[Any] = self.data.dtype
        return dtype

    def asnumpy(self) -> Array:
        """Return the data."""
        return self.data


def array_of(value: object, name: str) -> Array:
    """Return the array in a Parameter, a Tensor of any library or an array. Raises TypeError."""
    for method in ("asnumpy", "get_data_to_numpy"):
        if hasattr(value, method):
            value = getattr(value, method)()
            break
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(
            f"parameter {name!r} must be an array, a Tensor or a Parameter, but got {type(value)}."
        )
    return np.asarray(value)


def load_checkpoint(
    ckpt_file_name: str | os.PathLike[str],
    *,
    dec_key: bytes | None = None,
    dec_mode: DecMode = "AES-GCM",
    choice_func: Callable[[str], bool] | None = None,
    crc_check: bool = False,
) -> dict[str, Parameter | str]:
    """Return what a checkpoint holds, by name: Parameters, and texts as str.

    Arrays are views of the file, which is mapped: nothing is read before it is used.
    dec_key, dec_mode: of an encrypted one. choice_func: says of a name whether it is wanted.
    crc_check: compare the file's checksum, if it has one.
    Raises ModelError for a file that is missing, damaged or encrypted.
    """
    opened = open_checkpoint(Path(ckpt_file_name), dec_key, dec_mode, crc_check=crc_check)
    found = _held(opened, choice_func)
    if not found:
        raise InputError(
            f"{ckpt_file_name}: choice_func chose none of its {len(opened.tensors)} parameters"
        )
    return found


def load_segmented_checkpoints(
    ckpt_file_dir: str | os.PathLike[str],
    *,
    dec_key: bytes | None = None,
    dec_mode: DecMode = "AES-GCM",
    choice_func: Callable[[str], bool] | None = None,
) -> dict[str, Parameter | str]:
    """Return what all checkpoints of one folder hold together; see load_checkpoint.

    Of a name that is in several files the last one's counts, by the order of their names.
    """
    folder = Path(ckpt_file_dir)
    if not folder.is_dir():
        raise NotAFolder(f"{folder}: no such folder; expected one of checkpoints", str(folder))
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not files:
        raise ModelError(f"{folder}: holds no .ckpt or .safetensors file", str(folder))
    found: dict[str, Parameter | str] = {}
    for file in files:
        found |= _held(open_checkpoint(file, dec_key, dec_mode), choice_func)
    return found


def _held(
    opened: Checkpoint, is_wanted: Callable[[str], bool] | None
) -> dict[str, Parameter | str]:
    """Return what a checkpoint holds. Raises ModelError naming its file."""
    found: dict[str, Parameter | str] = {}
    for name, stored in opened.tensors.items():
        if is_wanted is None or is_wanted(name):
            text = stored.text
            try:
                found[name] = Parameter(stored.array(), name) if text is None else text
            except ModelError as error:
                raise ModelError(f"{opened.path}: {error}", str(opened.path)) from error
    return found


def save_checkpoint(
    save_obj: Mapping[str, object] | Sequence[Mapping[str, object]],
    ckpt_file_name: str | os.PathLike[str],
    *,
    crc_check: bool = False,
    format: CheckpointFormat | Literal[""] = "",
) -> None:
    """Write parameters to a file that only its owner may read, in place of an earlier one.

    save_obj: arrays, Tensors or Parameters by name, or MindSpore's list of {"name": ..., "data":
    ...}. crc_check: add a checksum (.ckpt). format: "ckpt" or "safetensors"; "" goes by the name.
    Raises TypeError, and ModelError where the file cannot be written.
    """
    if format not in ("", *FORMATS):
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, but got {format!r}.")
    path = Path(ckpt_file_name)
    items = [(require("name", name, str), value) for name, value in _items(save_obj)]
    arrays = {name: array_of(value, name) for name, value in items}
    specs = [
        ToWrite(name, DType.from_numpy(array.dtype), array.shape) for name, array in arrays.items()
    ]
    with aside(path.parent, path) as folder:
        write_checkpoint(
            folder / path.name, specs, lambda spec: arrays[spec.name], format, crc_check=crc_check
        )
        (folder / path.name).replace(path)


def _items(save_obj: object) -> Iterable[tuple[object, object]]:
    if isinstance(save_obj, Mapping):
        return save_obj.items()
    if not isinstance(save_obj, Iterable):
        raise TypeError(
            "save_obj must be a dict of arrays by name, or a list of {'name': ..., 'data': ...}, "
            f"but got {type(save_obj)}."
        )
    found = list(save_obj)
    for index, item in enumerate(found):
        if not isinstance(item, Mapping) or not {"name", "data"} <= item.keys():
            raise TypeError(
                "save_obj must be a dict of arrays by name, or a list of {'name': ..., 'data': "
                f"...}}, but got {type(item)} at index {index}."
            )
    return [(item["name"], item["data"]) for item in found]
