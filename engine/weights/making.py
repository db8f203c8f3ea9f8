"""Use an entry of the cache, or make it: one process does, others wait for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from engine.backends import warn_once
from engine.errors import BackendUnavailable, CompiledFormError, EngineError
from engine.host.interrupts import raise_interrupt, raised_by_handler
from engine.weights.store import Damaged, Identity, Outdated, Store

T = TypeVar("T")

# An entry holds weights raw and packed, and no disk is filled to its last byte.
_FREE_FOR_WEIGHTS = 4


def _is_of_disk(error: BaseException) -> bool:
    """Return whether a backend's error may come from writing its form."""
    return isinstance(error, OSError) or (
        isinstance(error, EngineError) and isinstance(error.__cause__, OSError)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[T]):
    """Purpose of an entry.

    title: of the model, in messages. nbytes: of its weights. read: makes what is wanted of the
    form; Damaged or CompiledFormError where it is of no use. make: makes it without, and writes
    the form into the folder that it is given; it may leave that empty. check: called while
    waiting for another process; may raise. sketched: see `engine.weights.identity.sketch`; "" for
    what always has a form. is_of_disk: whether an error of `make` may come from writing; it is
    then made once more, without.
    """

    identity: Identity
    title: str
    nbytes: int
    read: Callable[[Path], T]
    make: Callable[[Path | None], T]
    check: Callable[[], None] | None = None
    sketched: str = ""
    is_of_disk: Callable[[BaseException], bool] = _is_of_disk


def found_or_made(store: Store, may_write: bool, work: Work[T]) -> T:
    """Return what is read from the entry; or what is made, making the entry where it may.

    A fault of the entry, or of the disk, is a warning. Raises CacheUnusable.
    """
    identity = work.identity
    if not may_write and store.version(identity) is None:  # a read-only disk has no lock of it
        return work.make(None)
    while True:
        damaged = None
        with store.locked(identity.name, shared=True, check=work.check):
            try:
                if entry := store.find(identity):
                    return work.read(entry.form)
            except (Damaged, CompiledFormError) as error:
                raise_interrupt(error)
                damaged = store.version(identity)
                if not isinstance(error, Outdated):
                    import logging  # rare

                    logging.getLogger("engine").warning(
                        "%s: its entry in the compile cache is not used, and it is compiled anew: "
                        "%s", work.title, error,
                    )  # fmt: skip
        if not may_write or _is_formless(store, work):
            return work.make(None)
        with store.locked(identity.name, check=work.check):
            if store.version(identity) != damaged or _is_formless(store, work):
                continue  # another has been here meanwhile
            store.remove(identity.name)
            with store.sharing(work.check):
                return _made(store, work)


def _is_formless(store: Store, work: Work[T]) -> bool:
    return bool(work.sketched) and store.is_formless(work.sketched)


def _made(store: Store, work: Work[T]) -> T:
    """Make it and its entry, under the entry's lock."""
    identity = work.identity
    try:
        folder = store.begin(identity) if has_room(store, work.title, work.nbytes) else None
    except OSError as error:
        warn_once(f"the compile cache is not written: {error}")
        folder = None
    if folder is None:
        return work.make(None)
    try:
        made = work.make(folder)
    except BaseException as error:
        store.abandon(identity)
        if not work.is_of_disk(error) or raised_by_handler(error):
            raise
        warn_once(f"the compile cache is not written: {_reason(error)}")
        return work.make(None)  # which raises the same where it was not about the cache
    try:
        if not store.commit(identity, work.title) and work.sketched:
            store.note_formless(work.sketched)
    except OSError as error:  # what was made stays good: it has its files open
        store.abandon(identity)
        raise_interrupt(error)
        warn_once(f"the compile cache is not written: {error}")
    return made


def _reason(error: BaseException) -> BaseException:
    """Return what a backend has raised, without blame: a disk that fails is not its fault."""
    cause = error.__cause__
    is_wrapped = isinstance(error, BackendUnavailable) and isinstance(cause, OSError)
    return cause if is_wrapped and cause is not None and str(cause) in str(error) else error


def has_room(store: Store, title: str, nbytes: int) -> bool:
    """Return whether the disk has room for an entry; warn where it has not.

    title: of the model, in the warning. nbytes: of its weights. Raises OSError.
    """
    import shutil

    free_bytes = shutil.disk_usage(store.folder).free
    if free_bytes >= _FREE_FOR_WEIGHTS * nbytes:
        return True
    warn_once(
        f"{title}: not kept in the compile cache: {str(store.folder)!r} has {free_bytes:,} "
        f"bytes left, and the model's weights are {nbytes:,} bytes; make room with "
        "engine cache prune --max-size SIZE, or set ENGINE_CACHE_DIR"
    )
    return False
