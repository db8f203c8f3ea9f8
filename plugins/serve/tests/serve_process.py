"""`engine serve` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

PORTS = ("--http-port", "0", "--grpc-port", "0")


class Process:
    """A server: its process, its log until it was ready, its addresses."""

    def __init__(
        self,
        *words: object,
        program: Sequence[str] = (sys.executable, "-m", "engine.cli"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = [*program, "serve", *map(str, words), *PORTS]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.log = ""
        assert self.process.stderr is not None
        while "ready" not in self.log and (line := self.process.stderr.readline()):
            self.log += line
        found = re.search(r"https?://([\w.]+:\d+)", self.log)
        self.http = found[1] if found else ""
        found = re.search(r"gRPC at ([\w.]+:\d+)", self.log)
        self.grpc = found[1] if found else ""

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit status and the rest of the log."""
        self.process.send_signal(number)
        rest = self.process.communicate(timeout=60)[1]
        return self.process.returncode, rest


@contextmanager
def process(*words: object, **more: Any) -> Iterator[Process]:
    found = Process(*words, **more)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()
