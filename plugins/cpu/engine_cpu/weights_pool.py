"""The pool: where compiled forms find the weights that others have stored.

It is a folder of the core's (`CompileOptions.cache_folder`) and has for each form that added
weights a hard link `linked/<name>.bin` and a table `<name>.json` of its tensors. A form that needs
some of these links to the file.

A file is kept whole as long as one form links to it, also for a part of it: 1.00 of what is needed
for one backbone with two heads, 4 times that where two layers of a removed model's eight are in
use. A file for each tensor would free these; ONNX Runtime writes one file, and cutting it up costs
0.3 to 0.5 ms a MB more in the first build. A file that no form links to any more is removed when
the next one is added, or when the core prunes what is in `linked`.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LINKED = "linked"
"""The folder in the pool for files that the core removes once they have no other link."""

SHARED = "shared_"
"""Prefix of the names of linked files."""

LEAST_BYTES = 1 << 20
"""Below this a second copy is cheaper than the files that sharing takes."""

_WAIT_S = 30.0  # for a process that stores
_POLL_S = 0.01

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor in a file of the pool. link: the form's own name of that file."""

    link: str
    spans: Spans


# Descriptors of pools that are held or waited for.
_open_here: set[int] = set()


def _close_in_child() -> None:
    """Let go of the parent's pools: a child that outlives it would hold them on."""
    for descriptor in _open_here:
        os.close(descriptor)
    _open_here.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def held(pool: Path, check: Callable[[], None] | None = None) -> Iterator[bool]:
    """Make the pool and hold it against others; False where there is none.

    Processes that look for the same tensor at the same time would each find none, and store it.
    That is all that comes of it, so the pool is used also where it cannot be held: on a file system
    without such locks (NFS has none of folders), and when another has held it for too long.
    check: called while waiting; may raise.
    """
    try:
        import fcntl

        (pool / LINKED).mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(pool / LINKED, os.O_RDONLY | os.O_CLOEXEC)
    except (ImportError, OSError):
        yield False
        return
    _open_here.add(descriptor)
    try:
        _lock(descriptor, check)
        yield True
    finally:
        if descriptor in _open_here:  # not in a child that was forked in the block
            _open_here.discard(descriptor)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # children of other programs' have it too
            os.close(descriptor)


def _lock(descriptor: int, check: Callable[[], None] | None) -> None:
    import fcntl

    until = time.monotonic() + _WAIT_S
    while time.monotonic() <= until:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if check is not None:
                check()
            time.sleep(_POLL_S)
        except OSError:
            return
        else:
            return


def take(
    pool: Path, form: Path, data: mmap.mmap, tensors: Mapping[str, tuple[str, Spans]]
) -> dict[str, Place]:
    """Link a form to the files that have tensors of it, byte by byte the same; say which and where.

    data: the form's own weights. tensors: for each name what equal ones have in common, and its
    spans in `data`. It links to none where it is not worth that.
    """
    places: dict[str, tuple[Path, Spans]] = {}
    for table in filter(Path.is_file, pool.glob("*.json")):  # a pipe would be waited for
        # A damaged one; RecursionError: of lists in lists.
        with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            for text, spans in json.loads(table.read_text(encoding="utf-8")).items():
                place = (_file_of(table), tuple((o, n) for o, n in spans))
                places.setdefault(text, place)
    by_file: dict[Path, dict[str, Spans]] = {}
    for name, (text, _) in tensors.items():
        if text in places:
            path, spans = places[text]
            by_file.setdefault(path, {})[name] = spans
    found: dict[str, Place] = {}
    links = []
    for number, (path, wanted) in enumerate(by_file.items()):
        link = form / f"{SHARED}{number}.bin"
        same: dict[str, Place] = {}
        with suppress(OSError, ValueError, TypeError):
            os.link(path, link)  # before it is read: others prune what nobody links to
            with mapped(link) as other:
                same = {
                    name: Place(link.name, spans)
                    for name, spans in wanted.items()
                    if _equal(data, tensors[name][1], other, spans)
                }
        links.append(link)
        if not same:
            link.unlink(missing_ok=True)
        found |= same
    if sum(length for place in found.values() for _, length in place.spans) >= LEAST_BYTES:
        return found
    for link in links:
        link.unlink(missing_ok=True)
    return {}


def _equal(data: mmap.mmap, spans: Spans, other: mmap.mmap, others: Spans) -> bool:
    return len(spans) == len(others) and all(
        length == length_there
        and isinstance(there, int)
        and 0 <= there <= len(other) - length
        and memoryview(data)[here : here + length] == memoryview(other)[there : there + length]
        for (here, length), (there, length_there) in zip(spans, others, strict=True)
    )


def add(pool: Path, weights: Path, tensors: Iterable[tuple[str, Spans]]) -> None:
    """Add a form's own weights: for each tensor what equal ones have in common, and its spans."""
    name = secrets.token_hex(8)
    table = pool / f"{name}.json"
    os.link(weights, _file_of(table))
    beside = pool / f".{name}"
    beside.touch(mode=0o600)
    beside.write_text(json.dumps(dict(tensors)), encoding="utf-8")
    beside.rename(table)


def clean(pool: Path) -> None:
    """Remove what no form links to any more, and what a process has left that was killed."""
    for path in (pool / LINKED).iterdir():
        with suppress(OSError):
            if path.stat().st_nlink == 1:
                path.unlink()
    for path in pool.iterdir():
        with suppress(OSError):
            is_left = path.name.startswith(".")  # who writes it now shares nothing, and no more
            if is_left or (path.suffix == ".json" and not _file_of(path).exists()):
                path.unlink()


def _file_of(table: Path) -> Path:
    """Return the file of weights that a table of the pool is of."""
    return table.parent / LINKED / f"{table.stem}.bin"


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file to be read. It is unmapped when its last view is gone."""
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        yield data
    finally:
        with suppress(BufferError):
            data.close()
