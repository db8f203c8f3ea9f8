"""Weights that several executables have: what the null backend lacks for the level of sharing.

Lent to other processes they are a file in memory that has no name; in this process, arrays that
are taken where equal ones are there already.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import BackendUnavailable, ModelError
from engine.types import CompileOptions, Device, DType, MemoryReport, SharedWeights

_FILE = "weights"

Weights = Mapping[str, Any]

_lock = threading.Lock()
_common: weakref.WeakValueDictionary[tuple[str, str], Any] = weakref.WeakValueDictionary()
"""Weights of executables that were compiled with `lend`, by their type and content."""


class Loan:
    """A file with weights, in memory, until it is closed; who has mapped it keeps what it has."""

    def __init__(self, weights: Weights) -> None:
        if not hasattr(os, "memfd_create"):
            raise BackendUnavailable("this system has no files in memory", "null")
        mark = uuid.uuid4().bytes  # a descriptor's number may be another file's by and by
        self._file = os.fdopen(os.memfd_create("weights"), "wb")
        self._file.write(mark)
        entries = []
        for name, array in weights.items():
            if array.dtype != object:  # texts are no memory to map
                entries.append((name, str(DType.from_numpy(array.dtype)), array.shape))
                self._file.write(np.ascontiguousarray(array).tobytes())
        self._file.flush()
        self.nbytes = self._file.tell() - len(mark)
        self.token = json.dumps([mark.hex(), entries]).encode()
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}")

    def close(self) -> None:
        """End the loan; twice does nothing."""
        self._file.close()


def lend(weights: Weights, device: Device) -> SharedWeights:
    """Lend weights; see engine_share_weights."""
    loan = Loan(weights)
    return SharedWeights(
        backend="null",
        device=device,
        nbytes=loan.nbytes,
        files={_FILE: loan.path},
        token=loan.token,
        owner=loan,
    )


def borrow(shared: SharedWeights, own: Weights, name: str) -> dict[str, Any]:
    """Return weights that are lent, mapped. own: those that the model has; name: the model's.

    Raises BackendUnavailable where nothing is lent any more, ModelError for another model's.
    """
    mark, entries = json.loads(shared.token)
    try:
        data = np.memmap(shared.files[_FILE], np.uint8, "r")
    except (OSError, ValueError) as error:
        raise BackendUnavailable(f"{name}: nobody lends its weights: {error}", "null") from error
    end = len(mark) // 2
    if data[:end].tobytes().hex() != mark:
        raise BackendUnavailable(f"{name}: nobody lends its weights any more", "null")
    taken = dict(own)
    for title, dtype, shape in entries:
        start, kind = end, DType(dtype).numpy
        end = start + kind.itemsize * int(np.prod(shape))
        mapped = data[start:end].view(kind).reshape(shape)
        if title not in own or (own[title].dtype, own[title].shape) != (kind, mapped.shape):
            raise ModelError(f"{name}: what is lent is another model's: it has {title!r}")
        taken[title] = mapped
    return taken


def in_common(weights: Weights) -> dict[str, Any]:
    """Return weights, those in place of them that other executables of this process have."""
    found = {}
    with _lock:
        for name, array in weights.items():
            if array.dtype == object:
                found[name] = array
                continue
            kind = f"{array.dtype}{array.shape}"
            digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
            found[name] = _common.setdefault((kind, digest), array)
    return found


def prepare(inner: Any, options: CompileOptions) -> None:
    """Give an executable of the null backend the weights that it is to have."""
    evaluator = inner.inner.evaluator
    if options.shared_weights is not None:
        own = evaluator.rt_inits_
        evaluator.rt_inits_ = borrow(options.shared_weights, own, inner.inner.name)
    elif options.lend:
        evaluator.rt_inits_ = in_common(evaluator.rt_inits_)


def report(memory: MemoryReport, options: CompileOptions) -> MemoryReport:
    """Return what an executable says of its memory that was prepared so."""
    size = memory.weights_bytes
    if options.shared_weights is not None:
        return replace(memory, weights_bytes=0, mapped_bytes=size)
    return replace(memory, weights_bytes=0, shared_bytes=size) if options.lend else memory
