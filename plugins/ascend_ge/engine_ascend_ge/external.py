"""Weights in files beside an .om, which ATC makes with --external_weight=1.

A file is named after its content, so models that have a tensor in common have a file of one name.
On the device is one block for each model, of the tensors that were not there yet; a load is
given their addresses. A block may be another process's, opened by a key: see `lending`.

pyACL has no call for it: `aclmdlSetExternalWeightAddress` of libascendcl.so takes the handle that
pyACL gives, through ctypes.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable, Mapping
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from engine.errors import BackendUnavailable, ModelError
from engine.types import CompileOptions
from engine_ascend_ge.acl_call import HOST_TO_DEVICE, done, got, made
from engine_ascend_ge.loading import sizes
from engine_ascend_ge.memory import DeviceMemory
from engine_ascend_ge.om import Om

Bytes: TypeAlias = "np.ndarray[Any, Any]"

FOLDER: Final = "weight"
LIBRARY: Final = "libascendcl.so"
_ALIGNMENT = 512  # of each tensor in a block; CANN asks for sizes that are multiples of 32

# aclmdlConfigAttr, aclmdlLoadType
_LOAD_TYPE, _MEM_ADDR, _MEM_SIZE = 1, 3, 4
_WEIGHT_ADDR, _WEIGHT_SIZE, _WORKSPACE_ADDR, _WORKSPACE_SIZE = 5, 6, 7, 8
_FROM_MEM_WITH_MEM = 4


class Block:
    """Tensors on one device, by the names of their files: (offset, bytes).

    memory: ours or another process's; its owner keeps it.
    """

    def __init__(self, memory: Any, pointer: int, pieces: Mapping[str, tuple[int, int]]) -> None:
        self.memory = memory
        self.pointer = pointer
        self.pieces = dict(pieces)


_blocks: dict[int, weakref.WeakSet[Block]] = {}
"""Blocks of this process that models of a group may share, by ACL context."""

_lock = threading.Lock()


def is_wanted(wish: CompileOptions) -> bool:
    """Return whether a model is to be compiled with its weights outside: others have them, too."""
    return wish.lend != "" or wish.shared_weights is not None


def files_of(folder: Path) -> dict[str, Path]:
    """Return the weight files beside the compiled model in a folder, by name."""
    inside = folder / FOLDER
    return {path.name: path for path in sorted(inside.glob("weight_*")) if path.is_file()}


def opened(folder: Path) -> dict[str, Bytes]:
    """Return the contents of these files, mapped: they stay when the folder goes."""
    return {
        name: np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        for name, path in files_of(folder).items()
    }


def put(
    acl: Any, home: int, files: Mapping[str, Bytes], what: str, path: str, is_shared: bool
) -> list[Block]:
    """Return blocks that hold all files' tensors on the device, found there or copied.

    is_shared: take what other models of this process have, and let them have these.
    """
    with _lock:
        blocks: list[Block] = []
        missing = dict(files)
        if is_shared:
            for block in list(_blocks.get(home, ())):
                if not missing.keys().isdisjoint(block.pieces):
                    blocks.append(block)
                    for name in block.pieces:
                        missing.pop(name, None)
        if missing:
            block = _copied(acl, home, missing, what, path)
            blocks.append(block)
            if is_shared:
                _blocks.setdefault(home, weakref.WeakSet()).add(block)
        return blocks


def _copied(acl: Any, home: int, files: Mapping[str, Bytes], what: str, path: str) -> Block:
    pieces: dict[str, tuple[int, int]] = {}
    end = 0
    for name, data in files.items():
        nbytes = _rounded(data.nbytes)
        pieces[name] = end, nbytes
        end += nbytes
    memory = DeviceMemory.allocate(acl, home, end, what, path)
    try:
        for name, data in files.items():
            if data.nbytes:
                offset, nbytes = pieces[name]
                target = memory.pointer + offset
                code = acl.rt.memcpy(target, nbytes, data.ctypes.data, data.nbytes, HOST_TO_DEVICE)
                done(code, f"copy weights {name} to the device", path)
    except BaseException:
        memory.close()
        raise
    return Block(memory, memory.pointer, pieces)


class ExternalLoader:
    """An .om file whose weights are in blocks.

    names: of its weight files. is_shared: others have the blocks, too.
    """

    most = 0

    def __init__(
        self,
        acl: Any,
        home: int,
        om: Om,
        device: str,
        blocks: list[Block],
        names: Iterable[str],
        is_shared: bool,
    ) -> None:
        self._names = frozenset(names)
        self._acl = acl
        self._om = om
        self._device = device
        self.blocks = blocks
        self.work_bytes, self._inside = sizes(acl, om)
        self._weights: DeviceMemory | None = None
        if self._inside:  # what ATC has left in the file
            what = f"weights on {device}"
            self._weights = DeviceMemory.allocate(acl, home, self._inside, what, om.name)
        missing = self._names.difference(*(block.pieces for block in blocks))
        if missing:
            raise ModelError(
                f"{om.name}: what is lent lacks {len(missing)} of the model's {len(self._names)} "
                f"weights, {min(missing)} for one; build both from the same file",
                om.name,
            )
        outside = sum(
            nbytes
            for block in blocks
            for name, (_, nbytes) in block.pieces.items()
            if name in self._names
        )
        self.weight_bytes = self._inside + (0 if is_shared else outside)
        self.shared_bytes = outside if is_shared else 0
        self._set_address = _setter()

    def load(self, work: int) -> int:
        """See Loader."""
        acl, name = self._acl, self._om.name
        handle = made(acl.mdl.create_config_handle(), "create a configuration to load with", name)
        try:
            settings = [
                (_LOAD_TYPE, _FROM_MEM_WITH_MEM),
                (_MEM_ADDR, self._om.pointer),
                (_MEM_SIZE, self._om.nbytes),
                (_WORKSPACE_ADDR, work),
                (_WORKSPACE_SIZE, self.work_bytes),
                (_WEIGHT_ADDR, self._weights.pointer if self._weights is not None else 0),
                (_WEIGHT_SIZE, self._inside),
            ]
            for attribute, value in settings:
                code = acl.mdl.set_config_opt(handle, attribute, value)
                done(code, f"set attribute {attribute} of the load", name)
            for block in self.blocks:
                for file, (offset, nbytes) in block.pieces.items():
                    if file not in self._names:
                        continue
                    code = self._set_address(handle, file.encode(), block.pointer + offset, nbytes)
                    done(code, f"say where weights {file} are", name)
            answer = acl.mdl.load_with_config(handle)
            return int(got(answer, f"load the compiled model on {self._device}", name))
        finally:
            acl.mdl.destroy_config_handle(handle)

    def unload(self, model: int) -> int:
        """See Loader."""
        return int(self._acl.mdl.unload(model))

    def abandon(self) -> None:
        """See Loader."""
        for memory in (self._weights, *(block.memory for block in self.blocks)):
            if memory is not None:
                memory.abandon()

    def close(self) -> None:
        """See Loader. A block's memory goes with the last model that has it."""
        weights, self._weights = self._weights, None
        self.blocks = []
        if weights is not None:
            weights.close()


def is_there(acl: Any) -> str:
    """Return why weights cannot lie outside of models here; "" where they can."""
    if not hasattr(acl.mdl, "load_with_config"):
        return "pyACL has no acl.mdl.load_with_config: CANN is too old"
    try:
        _setter()
    except BackendUnavailable as error:
        return str(error)
    return ""


def _setter() -> Any:
    try:
        function = ctypes.CDLL(LIBRARY).aclmdlSetExternalWeightAddress
    except (OSError, AttributeError) as error:
        raise BackendUnavailable(
            f"{LIBRARY} has no aclmdlSetExternalWeightAddress, so weights cannot be shared: "
            f"{error}; use CANN 8.1 or newer",
            "ascend_ge",
        ) from error
    function.argtypes = (c_void_p, c_char_p, c_void_p, c_size_t)
    function.restype = c_int
    return function


def _rounded(nbytes: int) -> int:
    return max(_ALIGNMENT, (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT)
