"""SHA-256 of files, remembered on disk for as long as they stay as they are.

Hashing a model's weights takes a third of the time that ONNX Runtime takes to start with them; so
a file is hashed once, and known again by its device, inode, size and times.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from contextlib import suppress
from functools import cache
from io import FileIO
from pathlib import Path

from engine.formats.opened import FileVersion

# A file that was written to less than this ago may be written to again without another time: the
# clock of a file system ticks in up to 2 s (FAT).
SETTLED_NS = 2_000_000_000


class Unhashed(Exception):
    """A file's digest is not remembered yet, and would be once it was hashed."""


class Digests:
    """Digests of files. folder: where they are remembered; it must be private to the user.

    only_known: raise Unhashed instead of hashing a file whose digest can be remembered.
    For any number of threads and processes.
    """

    def __init__(self, folder: Path, *, only_known: bool = False) -> None:
        self._folder = folder
        self._only_known = only_known

    def known(self) -> Digests:
        """Return the same digests, of which only the known ones are given."""
        return Digests(self._folder, only_known=True)

    def of(
        self,
        path: Path,
        *,
        anew: bool = False,
        is_ours: bool = False,
        checked: FileVersion | None = None,
    ) -> str:
        """Return the SHA-256 of a regular file, in hex. Raises OSError where it cannot be read.

        Also where it is a link, or changes meanwhile. anew: whatever is remembered.
        is_ours: nobody writes to it any more, but links to it come and go: it is remembered however
        young it is, and known by its size and time of writing, until the machine starts anew: what
        was not on the disk when it crashed may be gone, and the file be of zeros. It is hashed once
        more where something of it has changed that is not the number of its links. checked: the
        version that it must have; OSError for another file under its name.
        """
        with _opened(path) as file:
            status = os.fstat(file.fileno())
            if checked is not None and FileVersion.of(status) != checked:
                raise OSError(f"{path}: is not the file that was checked")
            version = _version(status, is_ours)
            record = self._folder / f"{status.st_dev:x}-{status.st_ino:x}.json"
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                known = {} if anew else json.loads(read_regular(record))
                digest = str(known["sha256"]) if known["version"] == version else ""
                names, changed = known.get("names"), known.get("changed")
                if digest and (not is_ours or changed == status.st_ctime_ns):
                    return digest
                if digest and names != status.st_nlink:  # what was changed is the number of links
                    self._remember(record, version, digest, status)
                    return digest
            age_ns = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns)
            if self._only_known and age_ns > SETTLED_NS:
                raise Unhashed(str(path))
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if _version(os.fstat(file.fileno()), is_ours) != version:
                raise OSError(f"{path}: changed while it was read")
        if is_ours or age_ns > SETTLED_NS:
            self._remember(record, version, digest, status)
        return digest

    def _remember(
        self, record: Path, version: list[int | str], digest: str, status: os.stat_result
    ) -> None:
        text = json.dumps(
            {
                "version": version,
                "sha256": digest,
                "names": status.st_nlink,
                "changed": status.st_ctime_ns,
            }
        )
        with suppress(OSError):  # a full disk: it is hashed again next time
            write_aside(record, text)


def _opened(path: Path) -> FileIO:
    """Open a regular file to read; never waits, as a pipe would. Raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    file = FileIO(os.open(path, flags))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path}: not a regular file")
    return file


def read_regular(path: Path) -> str:
    """Return the text of a regular file. Raises OSError for anything else, ValueError."""
    with _opened(path) as file:
        return file.read().decode()


def remove_old(folder: Path, age_s: float) -> None:
    """Remove the files of a folder that were written longer ago than that."""
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > age_s:
                    os.unlink(file.path)


def write_aside(path: Path, text: str) -> None:
    """Write a file beside its place, mode 0600, and rename it there: whole or not at all."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _version(status: os.stat_result, is_ours: bool) -> list[int | str]:
    version = [status.st_size, status.st_mtime_ns]
    return [*version, start_of_machine()] if is_ours else [*version, status.st_ctime_ns]


@cache
def start_of_machine() -> str:
    """Return what is another text after each start of this machine; "" where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return ""
