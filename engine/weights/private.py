"""Folders of one process beside the compile cache, for files that are shared but not kept.

    with private_cache() as forms:        # a CompileCache, whatever the user says of the cache
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
import shutil
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from engine.host import fork
from engine.weights.compile_cache import CompileCache
from engine.weights.location import CacheUnusable, default_folder, expanded

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from engine.weights.store import Store

_PRIVATE = "private"


class PrivateFolder:
    """An empty folder of this process's own, mode 0700, removed by `close` or with its owner.

    path: where it is. Also removed when this object is collected, when the process ends, and by
    others after it was killed; a forked child leaves it to its parent.
    parent: the cache that it is made beside; None for the default one.
    Raises CacheUnusable where it cannot be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        from engine.weights.store import Store

        store = Store(expanded(parent) if parent else default_folder())
        name = secrets.token_hex(16)
        self.path = store.folder / _PRIVATE / name
        with ExitStack() as on_failure:
            # The lock first: a folder that nobody holds is removed by whoever sees it.
            on_failure.enter_context(store.locked(name))
            try:
                self.path.parent.mkdir(mode=0o700, exist_ok=True)
                sweep(store)
                self.path.mkdir(mode=0o700)
            except OSError as error:
                text = f"{str(self.path)!r} cannot be made: {error.strerror or error}"
                raise CacheUnusable(text) from error
            lock = store.folder / "locks" / name
            on_failure.callback(_remove, self.path, lock)
            held = on_failure.pop_all()
        self._closing = weakref.finalize(self, _close, held, os.getpid())

    def close(self) -> None:
        """Remove it with all that is in it; twice does nothing."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class PrivateCache(CompileCache):
    """A compile cache in a `PrivateFolder`: for models of any size, and written by default.

    `close` removes it. Models that were built with it keep the files that they have mapped.
    """

    def __init__(self, folder: PrivateFolder) -> None:
        super().__init__(folder.path)
        self._owned = folder

    def close(self) -> None:
        """Remove it; twice does nothing."""
        self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def private_cache(parent: Path | None = None) -> PrivateCache:
    """Return a compile cache of this process's own, to be closed by whoever asked for it.

    parent: the cache that it lies beside; None for the default one. Raises CacheUnusable.
    """
    return PrivateCache(PrivateFolder(parent))


def sweep(store: Store) -> None:
    """Remove the private folders beside a cache whose processes have been killed."""
    try:
        names = os.listdir(store.folder / _PRIVATE)
    except OSError:
        return
    for name in names:
        with suppress(CacheUnusable), store.locked(name, wait=False) as is_left:
            if is_left:
                _remove(store.folder / _PRIVATE / name, store.folder / "locks" / name)


def _remove(folder: Path, lock: Path) -> None:
    """Remove a private folder and the name of its lock, which the caller holds."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        lock.unlink(missing_ok=True)


def _close(held: ExitStack, process: int) -> None:
    if os.getpid() == process:
        held.close()
    else:  # it is the parent's, and so is the descriptor's number
        fork.never_free(held)
