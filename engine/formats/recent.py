"""Keep a few models that were read lately: programs make sessions of one file again and again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from engine.formats.onnx import OnnxModel
from engine.formats.opened import FileVersion
from engine.host.interrupts import pass_interrupt

ROOM, EACH = 16_000, 200
"""The most nodes of all files that are remembered; each file counts as so many more."""

SETTLED_NS = 3_000_000_000
"""Age of a file's last change from which on another change bears another time."""

_models: dict[tuple[int, ...], OnnxModel] = {}


def read_once(path: Path, version: FileVersion, read: Callable[[], OnnxModel]) -> OnnxModel:
    """Return a file's model, as it was read before if the file is the same.

    version: of the file as it was opened. read: reads the model. One with external data is read
    each time, which checks these files too, and so is one that breaks a rule.
    """
    try:
        status = os.stat(path)
    except OSError as error:  # it is no longer there
        pass_interrupt(error)
        return read()
    # Unlike the time of the last write, nobody can set that of the last change.
    is_settled = time.time_ns() - status.st_ctime_ns > SETTLED_NS
    if FileVersion.of(status) != version or not is_settled:
        return read()
    key = (*version, status.st_ctime_ns)
    found = _models.pop(key, None) or read()
    if not found.external and found.repaired is None and len(found.graph.nodes) <= ROOM // 8:
        _models[key] = found  # the latest come last
        while sum(EACH + len(each.graph.nodes) for each in [*_models.values()]) > ROOM:
            _models.pop([*_models, ()][0], None)
    return found
