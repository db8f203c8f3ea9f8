"""The entries of a compile cache: found, written aside and renamed in, verified, removed.

    <folder>/v1/entries/<name>/form/       what the backend wrote; never changed
                              /entry.json  what it is of, and the digest of each of its files
               /building/<name>/           being written, under the entry's lock
               /locks/<name>
               /digests/                   of files, see `Digests`
               /shared/<backend>/          the backend's: what its forms of several models share
                               /linked/    files of entries, removed when no entry has them any more
               /formless/<sketch>          the backend wrote nothing for this model
               /private/<name>/            a process's own, see `private`

An entry's name is made of what its contents depend on, so it is right or not there. Whoever opens
one holds its lock shared, whoever writes or removes one holds it alone.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.weights.digests import Digests, read_regular, remove_old, write_aside
from engine.weights.location import CacheUnusable, private_folder
from engine.weights.locks import locked

FORM, RECORD = "form", "entry.json"
PRIVATE = "private"
TURN = "writer"
"""Name of the lock that processes hold which write entries in the background: one at a time."""

_SHARED, _LINKED = "shared", "linked"
_FOLDERS = ("entries", "building", "locks", "digests", _SHARED, "formless")

# A backend writes nothing for a model that it has no form of; or because the disk was full.
_FORMLESS_S = 86400


@dataclass(frozen=True, slots=True)
class Identity:
    """All that an entry depends on.

    model: digest of the model's content. key: what else, as text by name.
    """

    model: str
    key: Mapping[str, str]

    @property
    def name(self) -> str:
        """The entry's name: 64 hex digits, half of them the model's."""
        text = json.dumps(dict(self.key), sort_keys=True)
        return f"{self.model[:32]}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry as its record says it; nothing of it is verified.

    title: the model's file when it was made. created, used: seconds since the epoch. sizes: of its
    files, by device and inode: entries share files. digests: SHA-256 of each file, by its path in
    the form.
    """

    folder: Path
    identity: Identity
    title: str
    created: float
    used: float
    sizes: Mapping[tuple[int, int], int]
    digests: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        """The size of its files, those that it shares included."""
        return sum(self.sizes.values())

    @property
    def form(self) -> Path:
        """The folder that the backend wrote."""
        return self.folder / FORM


class _SharedFile:
    """A file that a backend keeps for several models. used: when it was written to last."""

    def __init__(self, path: Path, status: os.stat_result) -> None:
        self.path = path
        self.used = status.st_mtime
        self.sizes = {(status.st_dev, status.st_ino): status.st_size}


class Damaged(Exception):
    """An entry is not what was written; the text says what is wrong."""


class Outdated(Damaged):
    """An entry is whole, but what it was made of is no more; that is nobody's fault."""


class Store:
    """The entries in one folder, for any number of threads and processes.

    Raises CacheUnusable where the folder cannot be made or trusted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder)
        try:
            for name in _FOLDERS:
                (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            is_empty = not self.folder.exists()  # and read-only
            if not is_empty and error.errno not in (errno.EROFS, errno.EACCES):  # others are read
                raise CacheUnusable(f"{str(self.folder)!r} cannot be written: {error}") from error
        self.digests = Digests(self.folder / "digests")

    @property
    def is_read_only(self) -> bool:
        """True where no entry can be made or removed."""
        return not all(os.access(self.folder / name, os.W_OK) for name in _FOLDERS)

    # ------------------------------------------------------------------------------- one entry

    def locked(
        self,
        name: str,
        *,
        shared: bool = False,
        wait: bool = True,
        check: Callable[[], object] | None = None,
    ) -> AbstractContextManager[bool]:
        """Hold the lock of an entry: see `engine.weights.locks.locked`."""
        return locked(self.lock(name), shared=shared, wait=wait, check=check)

    def lock(self, name: str) -> Path:
        """Return the path of the lock of that name."""
        return self.folder / "locks" / name

    def is_held(self, name: str) -> bool:
        """Return whether another holds the lock of that name alone. Raises CacheUnusable."""
        if not os.path.lexists(self.lock(name)):
            return False
        with self.locked(name, shared=True, wait=False) as is_free:
            return not is_free

    def wait(self, check: Callable[[], object] | None = None) -> None:
        """Wait until all that is being written now, or is about to be, is written.

        check: called while waiting; may raise. Raises CacheUnusable.
        """
        for name in _listed(self.folder / "locks"):
            if self.is_held(name):
                with self.locked(name, shared=True, check=check):
                    pass

    def version(self, identity: Identity) -> tuple[int, int] | None:
        """Return what tells an entry from one made later, whatever its state; None for no entry."""
        try:
            status = os.lstat(self.folder / "entries" / identity.name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CacheUnusable(f"{str(self.folder)!r} cannot be read: {error}") from error
        return status.st_ino, status.st_ctime_ns

    def note_formless(self, name: str) -> None:
        """Remember for a while that the backend wrote nothing for a model. Raises OSError."""
        write_aside(self.folder / "formless" / name, "")

    def is_formless(self, name: str) -> bool:
        """Return whether the backend wrote nothing for a model when it was built lately.

        name: see `engine.weights.identity.sketch`.
        """
        try:
            written = os.lstat(self.folder / "formless" / name).st_mtime
        except OSError:
            return False
        return 0 <= time.time() - written < _FORMLESS_S

    def find(self, identity: Identity) -> Entry | None:
        """Return the entry, verified; None where there is none. Raises Damaged.

        To be called under its lock, which is to be held until the form is open.
        """
        folder = self.folder / "entries" / identity.name
        if self.version(identity) is None:
            return None
        entry = read_entry(folder)
        if entry.identity != identity:
            raise Damaged("it is of another model or another key")
        self.verify(entry)
        with suppress(OSError):
            os.utime(folder / RECORD)
        return entry

    def verify(self, entry: Entry, *, anew: bool = False) -> None:
        """Hold the files of an entry against its record. Raises Damaged.

        A file is hashed once, and then for as long as it stays untouched known by its times.
        anew: all are hashed, whatever is known.
        """
        names = set(_files(entry.form))
        if names != set(entry.digests):
            missing = sorted(set(entry.digests) - names)
            more = sorted(names - set(entry.digests))
            raise Damaged(f"missing files: {missing}" if missing else f"unknown files: {more}")
        for name, digest in entry.digests.items():
            path = entry.form / name
            try:
                actual = self.digests.of(path, anew=anew, is_ours=True)
            except OSError as error:
                raise Damaged(f"{name} cannot be read: {error}") from error
            if actual != digest:
                raise Damaged(f"{name} is not what was written: its SHA-256 is {actual}")

    def verified(self, name: str) -> str:
        """Hash an entry anew; remove it where it is damaged, and return what is wrong with it.

        "" for a whole one, and for one that is gone meanwhile. Raises CacheUnusable where a
        damaged one cannot be removed.
        """
        with self.locked(name, shared=True):  # enough for a whole one, also in a read-only folder
            reason = self._damage(name)
        if not reason:
            return ""
        try:
            with self.locked(name):
                if reason := self._damage(name):  # not made anew meanwhile
                    self.remove(name)
        except CacheUnusable as error:
            raise CacheUnusable(f"entry {name} is damaged ({reason}) and stays: {error}") from error
        return reason

    def _damage(self, name: str) -> str:
        folder = self.folder / "entries" / name
        if not os.path.lexists(folder):
            return ""
        try:
            self.verify(read_entry(folder), anew=True)
        except Damaged as error:
            return str(error)
        return ""

    def begin(self, identity: Identity) -> Path:
        """Return an empty folder for the backend to write into, under the lock, held alone.

        `commit` or `abandon` is to follow. Raises OSError where it cannot be made.
        """
        self.abandon(identity)  # what a process has left that was killed
        form = self._building(identity) / FORM
        for folder in (form.parent, form):
            folder.mkdir(mode=0o700)
        return form

    def commit(self, identity: Identity, title: str) -> bool:
        """Make what was written the entry; False where nothing was. Raises OSError.

        Nothing waits for the disk (fsync): should the machine crash before it is written, what is
        left is found out by its digest, since no digest is remembered beyond that (see Digests).
        """
        building = self._building(identity)
        form = building / FORM
        names = _files(form)
        if names:
            for name in names:
                # Nobody writes to it any more, nor do other processes that get it to read.
                (form / name).chmod(0o400)  # before it is hashed: this sets a time of the file
            digests = {name: self.digests.of(form / name, is_ours=True) for name in names}
            record = {
                "model": identity.model,
                "key": dict(identity.key),
                "title": title,
                "created": time.time(),
                "files": digests,
            }
            write_aside(building / RECORD, json.dumps(record, indent=1))
            building.rename(self.folder / "entries" / identity.name)
        self.abandon(identity)
        return bool(names)

    def abandon(self, identity: Identity) -> None:
        """Remove what was written, if it has not become the entry."""
        shutil.rmtree(self._building(identity), ignore_errors=True)

    def _building(self, identity: Identity) -> Path:
        return self.folder / "building" / identity.name

    def shared(self, backend: str) -> Path:
        """Return the folder for what a backend's forms of several models share. Raises OSError."""
        (self.folder / _SHARED).mkdir(mode=0o700, exist_ok=True)  # prune removes an empty cache's
        folder = self.folder / _SHARED / backend
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def sharing(self, check: Callable[[], object] | None = None) -> AbstractContextManager[bool]:
        """Hold what is shared against being pruned, while a backend writes to it."""
        return self.locked(_SHARED, shared=True, check=check)

    def remove(self, name: str) -> None:
        """Remove an entry, under its lock; who has its files open or mapped keeps them.

        Raises CacheUnusable where it cannot be removed.
        """
        folder = self.folder / "entries" / name
        gone = self.folder / "building" / f"{name}.removed"
        _delete(gone)
        try:
            folder.rename(gone)  # at once: nobody finds half of it
        except FileNotFoundError:
            return
        except OSError as error:
            raise CacheUnusable(f"{str(folder)!r} cannot be removed: {error.strerror}") from error
        _delete(gone)

    # ------------------------------------------------------------------------------ all of them

    def entries(self) -> list[Entry]:
        """Return the entries whose record can be read, the latest used first."""
        found = []
        with suppress(OSError):
            for folder in (self.folder / "entries").iterdir():
                with suppress(Damaged):
                    found.append(read_entry(folder))
        return sorted(found, key=lambda entry: -entry.used)

    def names(self) -> list[str]:
        """Return the names of all entries, also of those whose record cannot be read."""
        return sorted(_listed(self.folder / "entries"))

    @property
    def nbytes(self) -> int:
        """The bytes on disk of all entries and of what is shared, each file once."""
        sizes: dict[tuple[int, int], int] = {}
        forms = (self.folder / "entries" / name / FORM for name in self.names())
        for folder in (*forms, self.folder / _SHARED):
            for name in _files(folder):
                with suppress(OSError):  # pruned meanwhile
                    _add_size(sizes, folder / name)
        return sum(sizes.values())

    def prune(self, max_bytes: int) -> list[Entry]:
        """Remove the entries that were not used for longest until the rest fits; return them.

        A file that several have counts once. Files that backends share between models go by the
        same rule, and also what killed processes have left. An entry that is being opened or
        written stays.
        """
        kept: dict[tuple[int, int], int] = {}
        removed = []
        items: list[Entry | _SharedFile] = [*self.entries(), *self._shared_files()]
        for item in sorted(items, key=lambda item: -item.used):
            if sum({**kept, **item.sizes}.values()) > max_bytes:
                name = item.folder.name if isinstance(item, Entry) else _SHARED
                with suppress(CacheUnusable), self.locked(name, wait=False) as is_ours:
                    if is_ours and isinstance(item, Entry):
                        self.remove(name)
                        removed.append(item)
                        continue
                    if is_ours and isinstance(item, _SharedFile):
                        item.path.unlink(missing_ok=True)
                        continue
            kept.update(item.sizes)
        self._sweep()
        return removed

    def _shared_files(self) -> list[_SharedFile]:
        """Return what backends keep for several models, such as timings of kernels.

        Not what entries link to, nor the table of it, which go with the last of these.
        """
        found = []
        for folder in self.folder.glob(f"{_SHARED}/*"):
            linked = {Path(name).stem for name in _files(folder / _LINKED)}
            for name in _files(folder):
                path = folder / name
                if path.parent.name != _LINKED and path.stem not in linked:
                    with suppress(OSError):
                        found.append(_SharedFile(path, path.lstat()))
        return found

    def _sweep(self) -> None:
        """Remove what nobody works on: half-written entries, damaged records, unused locks."""
        names = {path.partition(".")[0] for path in _listed(self.folder / "building")}
        names |= {name for name in self.names() if not _is_read(self.folder / "entries" / name)}
        names |= set(_listed(self.folder / "locks"))
        for name in names:
            with suppress(CacheUnusable), self.locked(name, wait=False) as is_ours:
                if not is_ours:
                    continue
                for rest in (self.folder / "building").glob(f"{name}*"):
                    _delete(rest)
                folder = self.folder / "entries" / name
                if os.path.lexists(folder) and not _is_read(folder):
                    self.remove(name)
                if not os.path.lexists(folder):
                    (self.folder / "locks" / name).unlink(missing_ok=True)
        for path in self.folder.glob(f"{_SHARED}/*/{_LINKED}/*"):
            with suppress(OSError):
                if path.lstat().st_nlink == 1:  # its entries are gone
                    path.unlink()
        with suppress(CacheUnusable), self.locked(_SHARED, wait=False) as is_ours:
            if is_ours and not self.names():
                shutil.rmtree(self.folder / _SHARED, ignore_errors=True)
                (self.folder / "locks" / _SHARED).unlink(missing_ok=True)
        self.sweep_private()
        remove_old(self.folder / "formless", _FORMLESS_S)
        remove_old(self.folder / "digests", 90 * 86400)

    def sweep_private(self) -> None:
        """Remove the folders that processes had for themselves and left when they were killed."""
        for name in _listed(self.folder / PRIVATE):
            with suppress(CacheUnusable), self.locked(name, wait=False) as is_left:
                if is_left:
                    self.remove_private(name)

    def remove_private(self, name: str) -> None:
        """Remove a process's own folder and the name of its lock, which the caller holds."""
        shutil.rmtree(self.folder / PRIVATE / name, ignore_errors=True)
        with suppress(OSError):
            (self.folder / "locks" / name).unlink(missing_ok=True)


def read_entry(folder: Path) -> Entry:
    """Return an entry as its record says it. Raises Damaged."""
    record = folder / RECORD
    try:
        said: dict[str, Any] = json.loads(read_regular(record))
        digests = {str(name): str(digest) for name, digest in said["files"].items()}
        return Entry(
            folder=folder,
            identity=Identity(
                str(said["model"]), {str(name): str(text) for name, text in said["key"].items()}
            ),
            title=str(said["title"]),
            created=float(said["created"]),
            used=record.stat().st_mtime,
            sizes=_sizes(folder / FORM, digests),
            digests=digests,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"its record cannot be read: {error!r}") from error


def _is_read(folder: Path) -> bool:
    try:
        read_entry(folder)
    except Damaged:
        return False
    return True


def _listed(folder: Path) -> list[str]:
    """Return the names in a folder; none where it cannot be read."""
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _sizes(folder: Path, names: Iterable[str]) -> dict[tuple[int, int], int]:
    sizes: dict[tuple[int, int], int] = {}
    for name in names:
        _add_size(sizes, folder / name)
    return sizes


def _add_size(sizes: dict[tuple[int, int], int], path: Path) -> None:
    status = path.lstat()
    sizes[status.st_dev, status.st_ino] = status.st_size


def _delete(path: Path) -> None:
    """Remove a folder, or a file that stands in its place, as far as that can be had."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _files(folder: Path) -> list[str]:
    """Return the files below a folder, by their path in it."""
    return sorted(
        os.path.relpath(os.path.join(top, name), folder)
        for top, _, names in os.walk(folder)
        for name in names
    )
