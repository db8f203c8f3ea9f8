"""Folders of one process beside the compile cache, for files that are shared but not kept.

    with PrivateCache() as forms:         # a CompileCache, whatever the user says of the cache
        ...                               # models built with it map its files, and keep them
    # here its files have no name any more; what is mapped stays as long as it is mapped

They lie on the file system of the compile cache, so that its files and theirs can be one by a hard
link, in `<cache>/v1/private/<name>`, under a lock that their process holds. One whose process was
killed has a lock that nobody holds: it is removed when the next one is made, or by
`engine cache prune`.
"""

from __future__ import annotations

import os
import secrets
import weakref
from contextlib import ExitStack
from pathlib import Path

from engine.host import fork
from engine.host.blocks import Closing
from engine.weights.compile_cache import CompileCache
from engine.weights.location import CacheUnusable, default_folder, expanded
from engine.weights.store import PRIVATE, Store


class PrivateFolder(Closing):
    """An empty folder of this process's own, mode 0700, removed by `close` or with its owner.

    path: where it is. Also removed when this object is collected, when the process ends, and by
    others after it was killed; a forked child leaves it to its parent.
    parent: the cache that it is made beside; None for the default one.
    Raises CacheUnusable where it cannot be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        store = Store(expanded(parent) if parent else default_folder())
        name = secrets.token_hex(16)
        self.path = store.folder / PRIVATE / name
        with ExitStack() as on_failure:
            # The lock first: a folder that nobody holds is removed by whoever sees it.
            on_failure.enter_context(store.locked(name))
            try:
                self.path.parent.mkdir(mode=0o700, exist_ok=True)
                store.sweep_private()
                self.path.mkdir(mode=0o700)
            except OSError as error:
                text = f"{str(self.path)!r} cannot be made: {error.strerror or error}"
                raise CacheUnusable(text) from error
            on_failure.callback(store.remove_private, name)
            held = on_failure.pop_all()
        self._closing = weakref.finalize(self, _close, held, os.getpid())

    def close(self) -> None:
        """Remove it with all that is in it; twice does nothing."""
        self._closing()


class PrivateCache(Closing, CompileCache):
    """A compile cache in a `PrivateFolder`: for models of any size, and written by default.

    `close` removes it. Models that were built with it keep the files that they have mapped.
    parent: the cache that it lies beside; None for the default one. Raises CacheUnusable.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._owned = PrivateFolder(parent)
        super().__init__(self._owned.path)

    def close(self) -> None:
        """Remove it; twice does nothing."""
        self._owned.close()


def _close(held: ExitStack, process: int) -> None:
    if os.getpid() == process:
        held.close()
    else:  # it is the parent's, and so is the descriptor's number
        fork.never_free(held)
