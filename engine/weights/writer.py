"""Write an entry of the compile cache: `python -m engine.weights.writer TURN < request`.

See engine.weights.writing. Its stderr is the lock of the entry. TURN: the path of the lock that one
writer of a cache holds at a time, so that several models that were built together take the memory
of one; while it waits it has imported as little as it can.
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

from engine.weights.locks import locked

if TYPE_CHECKING:
    from engine.weights.writing import Request

_NICENESS = 10  # not the lowest: a build that waits for the entry waits for this process
_LIMIT_S = 3600  # and then something is wrong


def main() -> None:
    """Write the entry that is asked for. Ends with an exception where that fails."""
    with suppress(OSError):  # not Linux, or a sandbox
        os.nice(_NICENESS)
        # Where memory runs out the kernel ends this process, and not one that serves.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    _heed_signals()
    request = sys.stdin.buffer.read()
    if _is_removed():
        return
    with locked(Path(sys.argv[1])):
        signal.alarm(_LIMIT_S)
        if not _is_removed():
            _write(pickle.loads(request))


def _heed_signals() -> None:
    """Let signals end this process that the one that has started it blocks or ignores."""
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _is_removed() -> bool:
    """Return whether the cache was removed with the lock: nobody wants it made anew."""
    return os.fstat(sys.stderr.fileno()).st_nlink == 0


def _write(request: Request) -> None:
    from engine.backends import open_backend
    from engine.formats import ModelFile
    from engine.weights.compile_cache import CompileCache, Mode
    from engine.weights.digests import SETTLED_NS
    from engine.weights.identity import identify, key_of
    from engine.weights.store import Store

    backend, options = open_backend(request.backend), request.options
    source = ModelFile(request.path)()
    youngest = max((version.mtime_ns for version in source.versions.values()), default=0)
    if 0 < (age_ns := time.time_ns() - youngest) < SETTLED_NS:
        time.sleep(1.1e-9 * (SETTLED_NS - age_ns))  # for its digest to be known to the next build
    store = Store(request.folder)
    identity = identify(store.digests, key_of(backend, options), source)
    if store.version(identity) is not None:
        return
    executable, _ = CompileCache(request.folder, Mode.WAIT).compiled(backend, source, options)
    if executable is not None:
        executable.close()


if __name__ == "__main__":
    main()
