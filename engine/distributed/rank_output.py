"""The output of ranks, for who started them: line by line with the rank before it, or in files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from engine.host import child

__all__ = ["Files", "Prefixed"]

_MOST_BYTES = 65536  # a longer line is printed in parts
_TAIL_BYTES = 8192
_HINT = "help: "


class Prefixed:
    """Prints each line with its rank before it, as "[0] line"; stdout and stderr stay apart."""

    def __init__(self) -> None:
        self._rest: dict[tuple[int, int], bytes] = {}
        self._last: dict[int, str] = {}

    def streams(self, rank: int) -> tuple[int, int]:
        """See Output."""
        return subprocess.PIPE, subprocess.PIPE

    def take(self, rank: int, stream: int, data: bytes) -> None:
        """See Output."""
        text = self._rest.pop((rank, stream), b"") + data
        lines = text.split(b"\n")
        rest = lines.pop()
        if rest and data and len(rest) < _MOST_BYTES:
            self._rest[rank, stream] = rest
        elif rest:
            lines.append(rest)
        if not lines:
            return
        if stream == 2 and (words := _last_words(b"\n".join(lines))):
            self._last[rank] = words
        printed = sys.stdout if stream == 1 else sys.stderr
        prefix = f"[{rank}] ".encode()
        printed.buffer.write(b"".join(prefix + line + b"\n" for line in lines))
        printed.flush()

    def last_words(self, rank: int) -> str:
        """See Output."""
        return self._last.get(rank, "")


class Files:
    """Leaves what ranks print in files of a folder: rank0.out, rank0.err, ..."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._descriptors: list[int] = []

    def streams(self, rank: int) -> tuple[int, int]:
        """See Output."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        out, err = (
            os.open(self.folder / f"rank{rank}.{end}", flags, 0o666) for end in ("out", "err")
        )
        self._descriptors += [out, err]
        return out, err

    def take(self, rank: int, stream: int, data: bytes) -> None:
        """See Output; nothing comes."""

    def last_words(self, rank: int) -> str:
        """See Output."""
        with open(self.folder / f"rank{rank}.err", "rb") as file:
            file.seek(max(0, os.path.getsize(file.fileno()) - _TAIL_BYTES))
            return _last_words(file.read())

    def close(self) -> None:
        """Give the descriptors back; twice does nothing."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _last_words(errors: bytes) -> str:
    """Return the last line that is no hint, which a command prints below its error."""
    lines = errors.decode(errors="replace").splitlines()
    said = child.last_words("\n".join(line for line in lines if not line.startswith(_HINT)))
    return said.removeprefix("error: ")
