"""Write an entry of the compile cache: `python -m engine.weights.writer`, a Request in its stdin.

See engine.weights.writing. Its stderr is the lock of the entry. One writer of a cache works at a
time, so that several models that were built together take the memory of one.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.weights.store import Store
    from engine.weights.writing import Request

_NICENESS = 10  # not the lowest: a build that waits for the entry waits for this process
_LIMIT_S = 3600  # and then something is wrong


def main() -> None:
    """Write the entry that is asked for. Ends with an exception where that fails."""
    request: Request = pickle.load(sys.stdin.buffer)
    os.nice(_NICENESS)
    with suppress(OSError):  # not Linux
        # Where memory runs out the kernel ends this process, and not one that serves.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if _is_removed():
        return
    from engine.weights.store import TURN, Store

    store = Store(request.folder)
    with store.locked(TURN):
        signal.alarm(_LIMIT_S)
        if not _is_removed():
            _write(store, request)


def _is_removed() -> bool:
    """Return whether the cache was removed with the lock: nobody wants it made anew."""
    return os.fstat(sys.stderr.fileno()).st_nlink == 0


def _write(store: Store, request: Request) -> None:
    from engine.backends import open_backend
    from engine.formats import ModelFile
    from engine.weights.compile_cache import CompileCache, Mode
    from engine.weights.digests import SETTLED_NS
    from engine.weights.identity import identify, key_of

    backend, options = open_backend(request.backend), request.options
    source = ModelFile(request.path)()
    youngest = max((version.mtime_ns for version in source.versions.values()), default=0)
    if 0 < (age_ns := time.time_ns() - youngest) < SETTLED_NS:
        time.sleep(1.1e-9 * (SETTLED_NS - age_ns))  # for its digest to be known to the next build
    identity = identify(store.digests, key_of(backend, options), source)
    if store.version(identity) is not None:
        return
    executable, _ = CompileCache(request.folder, Mode.WAIT).compiled(backend, source, options)
    if executable is not None:
        executable.close()


if __name__ == "__main__":
    main()
