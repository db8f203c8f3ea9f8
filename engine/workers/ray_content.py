"""A model file for nodes that cannot read it: its bytes in Ray's memory."""

from __future__ import annotations

import hashlib
import threading
import weakref
from typing import Any

import numpy as np


class Content:
    """The bytes of a file in Ray's memory, for as long as somebody holds this."""

    def __init__(self, ray: Any, path: str) -> None:
        self.reference = ray.put(np.fromfile(path, np.uint8))  # bytes would be copied once more

    @classmethod
    def of(cls, ray: Any, path: str, digest: str) -> Content:
        """Return the content of a file, once for all workers that build at the same time."""
        with _lock:
            known = _known.get((path, digest))
            if known is None:
                known = _known[path, digest] = cls(ray, path)
            return known


_known: weakref.WeakValueDictionary[tuple[str, str], Content] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file; "" where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
