"""Weights on a device that other processes use too, by `acl.rt.ipc_mem_*` with the list of pids.

The exporter must outlive its borrowers: their memory is the exporter's. A driver knows a
process by its number outside of containers; the master and its slaves share a pid namespace.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, Final

from engine.errors import BackendUnavailable
from engine.types import Device, SharedWeights
from engine_ascend_ge import runtime
from engine_ascend_ge.acl_call import done, got
from engine_ascend_ge.external import Block

_KEY_BYTES = 65
_NO_FLAGS: Final = 0  # the driver keeps the list of pids


_own: dict[str, Block] = {}
"""Loans of this process, by key: here each is simply used, a driver may not open it twice."""


class Export:
    """Blocks that are lent, until it is closed. pids: None within this process."""

    def __init__(
        self, acl: Any, home: int, blocks: Sequence[Block], pids: Sequence[int] | None
    ) -> None:
        self._acl = acl
        self._home = home
        self._blocks = tuple(blocks)  # they stay while somebody may open them
        self.keys: list[str] = []
        self._is_exported = pids is not None
        if pids is None:
            self.keys = [uuid.uuid4().hex for _ in blocks]
            _own.update(zip(self.keys, blocks, strict=True))
            return
        try:
            for block in blocks:
                end = max(offset + nbytes for offset, nbytes in block.pieces.values())
                doing = "lend the weights to other processes"
                key = got(
                    acl.rt.ipc_mem_get_export_key(block.pointer, end, _KEY_BYTES, _NO_FLAGS),
                    doing,
                    otherwise=BackendUnavailable,
                )
                self.keys.append(key)
                _own[key] = block
                code = acl.rt.ipc_mem_set_import_pid(key, list(pids))
                done(code, doing, otherwise=BackendUnavailable)
        except BaseException:
            self.close()
            raise
        runtime.keep(self)

    def close(self) -> None:
        """End the loan; twice does nothing. Borrowers must be closed by then."""
        keys, self.keys = self.keys, []
        for key in keys:
            _own.pop(key, None)
        if keys and self._is_exported and runtime.is_started():
            with runtime.borrowed(self._acl, self._home):
                for key in keys:
                    self._acl.rt.ipc_mem_close(key)
        self._blocks = ()


class Import:
    """A block of another process, open here until nothing refers to it."""

    def __init__(self, acl: Any, home: int, key: str) -> None:
        self._acl = acl
        self._home = home
        self._key = ""
        doing = "open the weights of another process"
        answer = acl.rt.ipc_mem_import_by_key(key, _NO_FLAGS)
        self.pointer = int(got(answer, doing, otherwise=BackendUnavailable))
        self._key = key
        runtime.keep(self, is_memory=True)

    def abandon(self) -> None:
        """Leave it open: something that could not be stopped may still read it."""
        self._key = ""

    def close(self) -> None:
        """Close it; twice does nothing."""
        key, self._key = self._key, ""
        if key and runtime.is_started():
            with runtime.borrowed(self._acl, self._home):
                self._acl.rt.ipc_mem_close(key)

    def __del__(self) -> None:
        if getattr(self, "_key", ""):
            self.close()


def lend(
    acl: Any, home: int, device: Device, blocks: Sequence[Block], pids: Sequence[int] | None
) -> SharedWeights:
    """Lend blocks to processes; engine_share_weights says how."""
    if not blocks:
        raise BackendUnavailable("the model has no weights to lend", "ascend_ge")
    export = Export(acl, home, blocks, pids)
    lent = [
        {"key": key, "pieces": block.pieces} for key, block in zip(export.keys, blocks, strict=True)
    ]
    return SharedWeights(
        backend="ascend_ge",
        device=device,
        nbytes=sum(nbytes for block in blocks for _, nbytes in block.pieces.values()),
        token=json.dumps(lent).encode(),
        owner=export,
    )


def borrow(acl: Any, home: int, shared: SharedWeights) -> list[Block]:
    """Return the blocks that another process lends."""
    blocks = []
    for part in json.loads(shared.token):
        if part["key"] in _own:
            blocks.append(_own[part["key"]])
            continue
        memory = Import(acl, home, part["key"])
        pieces = {name: (int(offset), int(nbytes)) for name, (offset, nbytes) in
                  part["pieces"].items()}  # fmt: skip
        blocks.append(Block(memory, memory.pointer, pieces))
    return blocks
