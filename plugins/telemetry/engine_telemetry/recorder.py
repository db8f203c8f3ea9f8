"""Requests, with their inputs and outputs, as files in a folder: for `engine replay`.

A request is written in the thread that ended it, before its caller has the results. So no request
that was answered is lost, however the process ends, and there is no thread and no lock: a process
may fork at any time. Files are numbered; a file gets its name, the next free number, when it is
whole. Several processes may record into one folder.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from engine.options import parsed
from engine.types import CloseEvent, Option, RequestEvent, Status, UpdateEvent
from engine_telemetry import events, record

OPTIONS = {
    "path": Option(text="the folder that the requests are written into"),
    "limit": Option(text="the most requests in the folder", type=int, lowest=1, default="1000"),
    "max_mb": Option(text="the most megabytes in the folder", type=float, lowest=0, default="1000"),
}
SUFFIX = ".npz"
_PART = ".part"  # of a file that is being written, and which no process has finished by then:
_OLD_S = 3600.0

log = logging.getLogger("engine")


class _Seen(NamedTuple):
    """The numbers up to `files` are taken; their files have `nbytes` together."""

    files: int
    nbytes: int


class Recorder:
    """Writes requests into a folder until it is full; see `engine.types.Observer`."""

    observes = True
    wants_values = True

    def __init__(self, options: Mapping[str, str]) -> None:
        """options: as in `OPTIONS`.

        Raises ValueError, also for a folder that cannot be made or written to.
        """
        wanted = parsed(options, OPTIONS)
        if not wanted["path"]:
            raise ValueError(
                "option 'path' is missing: the folder that the requests are written into, as in "
                "ENGINE_EXTENSIONS='recorder;path=requests'"
            )
        self._folder = Path(wanted["path"]).absolute()  # the process may go elsewhere
        self._limit, self._max_bytes = wanted["limit"], int(wanted["max_mb"] * 1e6)
        # Replaced as one, by any thread: a lower count than another thread's costs it a look.
        self._seen = _Seen(0, 0)
        self._is_full = False
        self._has_warned = False
        self._updated: set[str] = set()  # models, by id
        try:
            self._prepare()
        except OSError as error:
            raise ValueError(
                f"option 'path': expected a folder to write files into, got {wanted['path']!r}: "
                f"{error}"
            ) from error

    def _prepare(self) -> None:
        """Make the folder; what cannot work in it is an OSError now."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove_old_parts()
        with self._part() as file, self._part() as other:
            other.unlink()
            os.link(file, other)

    def on_update(self, event: UpdateEvent) -> None:
        """Remember that later requests ran with other weights than the file's."""
        if event.status is Status.COMPLETED:
            self._updated.add(event.model.id)

    def on_close(self, event: CloseEvent) -> None:
        """Forget a model."""
        self._updated.discard(event.model.id)

    def on_request(self, event: RequestEvent) -> None:
        """Write a request, whole or not at all."""
        if self._is_full:
            return
        begin_ns = events.wall_ns(event.begin_s, events.wall_offset_ns())
        data = record.to_bytes(event, begin_ns, event.model.id in self._updated)
        try:
            with self._part() as part:
                part.write_bytes(data)
                self._name(part, len(data))
        except OSError as error:  # a full disk, perhaps: later ones may find it free again
            if not self._has_warned:
                self._has_warned = True
                log.warning("recorder: %s: requests are not recorded: %s", self._folder, error)

    def _name(self, part: Path, nbytes: int) -> None:
        """Give a whole file the next free number, if the folder has room for it.

        A link is made or is not, and never replaces a file. All lower numbers are counted by then,
        so that the folder keeps to its limits with any number of processes.
        """
        seen = self._seen
        while True:
            if seen.files >= self._limit:
                self._is_full = True
                log.warning(
                    "recorder: %s has %d requests, its limit: no more are recorded",
                    self._folder,
                    self._limit,
                )
                return
            if seen.nbytes + nbytes > self._max_bytes:
                if not self._has_warned:
                    self._has_warned = True
                    log.warning(
                        "recorder: %s has no room for a request of %d bytes: max_mb=%g",
                        self._folder,
                        nbytes,
                        self._max_bytes / 1e6,
                    )
                return
            path = self._folder / f"{seen.files + 1:06}{SUFFIX}"
            try:
                os.link(part, path)
            except FileExistsError:
                with suppress(FileNotFoundError):  # deleted just now: its number is free
                    seen = _Seen(seen.files + 1, seen.nbytes + path.stat().st_size)
                    self._seen = seen
            else:
                self._seen = _Seen(seen.files + 1, seen.nbytes + nbytes)
                return

    @contextmanager
    def _part(self) -> Iterator[Path]:
        """Yield the path of an empty file, for this user alone, that is gone after the block."""
        name = f".{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}{_PART}"
        path = self._folder / name
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            yield path
        finally:
            with suppress(OSError):
                path.unlink()

    def _remove_old_parts(self) -> None:
        """Remove what processes have left that were killed while they wrote."""
        for path in self._folder.glob(f".*{_PART}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _OLD_S:
                    path.unlink()
