"""Bundles: .om files of several models, which GE loads together because they share variables.

So a bundle is loaded once on a device, however many executables stand for its models, and each of
these has one context: CANN gives one model id for each.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Final

from engine.errors import ModelError
from engine_ascend_ge import runtime
from engine_ascend_ge.acl_call import done, got, recent_message

_TYPE_AT: Final = (
    82  # ModelFileHeader.modeltype: after magic, two numbers, 64 bytes, and three more
)
_BUNDLE: Final = 5  # MODEL_TYPE_BUNDLE_MODEL
_PARAMETER_INVALID: Final = 145000


def is_bundle(data: Path | bytes) -> bool:
    """Return whether an .om file holds several models, by its header."""
    if isinstance(data, bytes):
        start = data[: _TYPE_AT + 1]
    else:
        try:
            with data.open("rb") as file:
                start = file.read(_TYPE_AT + 1)
        except OSError:
            return False  # whoever reads it says why
    return len(start) > _TYPE_AT and start[:4] == b"IMOD" and start[_TYPE_AT] == _BUNDLE


class Bundle:
    """One load of a bundle, for all that stand for a model of it. Made by `opened`."""

    def __init__(self, acl: Any, home: int, path: Path, key: object) -> None:
        self._acl = acl
        self._home = home
        self._key = key
        self.users = 0
        self.is_stuck = False
        name = str(path)
        mdl = acl.mdl
        answer = mdl.bundle_load_from_file(name)
        # Elsewhere this code is a fault of ours. Here the file is all that CANN is given.
        if answer[1] == _PARAMETER_INVALID:
            said = recent_message()
            raise ModelError(
                f"{name}: could not load the bundle: ACL_ERROR_GE_PARAM_INVALID {answer[1]}"
                f"{f'; CANN says: {said}' if said else ''}; the file is damaged or of another "
                "CANN: make it anew with this machine's",
                name,
            )
        self._id: int = got(answer, "load the bundle", name)
        try:
            count = got(mdl.bundle_get_model_num(self._id), "count the bundle's models", name)
            self.models: list[int] = [
                got(mdl.bundle_get_model_id(self._id, index), f"find model {index}", name)
                for index in range(count)
            ]
        except BaseException:
            mdl.bundle_unload(self._id)
            raise
        runtime.keep(self)

    def leave(self) -> None:
        """Count one user less; the last one unloads it."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return
            _open.pop(self._key, None)
        self.close()

    def close(self) -> None:
        """Unload it; twice does nothing."""
        number, self._id = self._id, 0
        if number and not self.is_stuck and runtime.is_started():
            with runtime.borrowed(self._acl, self._home):
                done(self._acl.mdl.bundle_unload(number), "unload the bundle")


_lock = threading.RLock()
_open: dict[object, Bundle] = {}  # by ACL context and file


def opened(acl: Any, home: int, path: Path) -> Bundle:
    """Return the load of a bundle on a device, with one user more."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read as an .om file: {error}", str(path)) from error
    key = home, status.st_dev, status.st_ino, status.st_mtime_ns
    with _lock:
        bundle = _open.get(key)
        if bundle is None or not bundle._id:
            bundle = _open[key] = Bundle(acl, home, path, key)
        bundle.users += 1
        return bundle


class BundleLoader:
    """One model of a bundle; see loading.Loader."""

    work_bytes = weight_bytes = shared_bytes = 0  # GE allocates for all of them, and does not tell
    most = 1

    def __init__(self, bundle: Bundle, index: int) -> None:
        self._bundle: Bundle | None = bundle
        self._model = bundle.models[index]

    def load(self, work: int) -> int:
        """See Loader."""
        return self._model

    def unload(self, model: int) -> int:
        """See Loader: it goes with the bundle."""
        return 0

    def abandon(self) -> None:
        """See Loader."""
        if self._bundle is not None:
            self._bundle.is_stuck = True

    def close(self) -> None:
        """See Loader."""
        bundle, self._bundle = self._bundle, None
        if bundle is not None:
            bundle.leave()
