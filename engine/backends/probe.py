"""Looks at backends, each in a process of its own, and says what became of it.

    probe("gpu_trt").state

A driver that crashes or hangs while it is probed costs that process and no other, and makes the
backend BROKEN. The child is this module too:
`python -P -m engine.backends.probe NAME FD QUESTION...`.
Answers come back as lines of JSON in a file of its own, each as soon as it is known, so what a
plugin prints does not matter and what was known before a crash is not lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from threading import Lock
from typing import IO, Any, TypeVar

from engine.backends.discovery import crashed, record, resolve
from engine.backends.records import BackendRecord, BackendState
from engine.errors import Cancelled, one_line
from engine.host.child import ending, kill, last_words, start
from engine.types import BackendInfo, Check, Device, DeviceInfo, Devices

TIME_LIMIT_S = 30.0
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Examination:
    """A backend's record and its own checks of the machine.

    fault: why engine_diagnose gave no checks although there is such a hook; "" where it did.
    """

    record: BackendRecord
    checks: tuple[Check, ...] = ()
    fault: str = ""


def probe(name: str, time_limit_s: float = TIME_LIMIT_S) -> BackendRecord:
    """The record of backend `name` as a fresh process sees it; a crash or hang makes it BROKEN."""
    return _record(name, _Processes(time_limit_s).ask(name, "record"))


def probe_all(names: Sequence[str], time_limit_s: float = TIME_LIMIT_S) -> list[BackendRecord]:
    """Probe several backends, a few at a time; an interrupt ends their processes at once."""
    with _Processes(time_limit_s) as processes:
        return processes.map(lambda name: _record(name, processes.ask(name, "record")), names)


def examine_all(names: Sequence[str], time_limit_s: float = TIME_LIMIT_S) -> list[Examination]:
    """Probe several backends and ask for their own checks; each hook may crash on its own.

    time_limit_s: for a process; where engine_devices ends the first one there is a second.
    An interrupt ends the processes at once.
    """
    with _Processes(time_limit_s) as processes:
        return processes.map(lambda name: _examine(name, processes), names)


def _examine(name: str, processes: _Processes) -> Examination:
    answer = processes.ask(name, "record", "checks")
    found = _record(name, answer)
    if answer.end and answer.place == _DEVICES:
        answer = processes.ask(name, "checks")
    checks = tuple(Check(**each) for each in answer.values.get("checks", ()))
    ended_there = answer.end and answer.place == _DIAGNOSE
    fault = f"its probe {answer}" if ended_there else answer.values.get("fault", "")
    return Examination(found, checks, fault)


# ------------------------------------------------------------------------------------ the parent


_IMPORT, _DEVICES, _DIAGNOSE = "while it was imported", "in engine_devices", "in engine_diagnose"
_LEAVING = "when everything was answered"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a process said, by question, and how it ended where that was not well."""

    values: dict[str, Any]
    end: str
    last_words: str

    @property
    def place(self) -> str:
        """Where the process was when it ended."""
        return str(self.values.get("place", _IMPORT))

    def __str__(self) -> str:
        said = f" ({self.last_words})" if self.last_words else ""
        return f"{self.end} {self.place}{said}"


class _Processes:
    """Processes that answer questions; leaving the block by an exception ends those that run."""

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self._pool = ThreadPoolExecutor(max_workers=4)
        self._lock = Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_ended = False

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._is_ended = True
            for child in self._running:
                if child.poll() is None:
                    kill(child)
        self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[str], Result], names: Sequence[str]) -> list[Result]:
        """What `function` gives for each name, in order; a few at a time."""
        return list(self._pool.map(function, names))

    def ask(self, name: str, *questions: str) -> _Answer:
        """What a fresh process answers of backend `name`."""
        # A file, not a pipe: what a plugin leaves running may hold a pipe open for ever.
        with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
            child = self._start(name, answer, errors, questions)
            try:
                end = ending(child.wait(self._time_limit_s))
            except subprocess.TimeoutExpired:
                kill(child)
                end = f"did not answer within {self._time_limit_s:g} s"
            finally:
                with self._lock:
                    self._running.discard(child)
            values: dict[str, Any] = {}
            answer.seek(0)
            for line in answer.read().splitlines():
                try:
                    values |= json.loads(line)
                except ValueError:  # cut off by a crash
                    break
            if not end and values.get("place") != _LEAVING:
                end = "ended without an answer"
            return _Answer(values, end, last_words(errors))

    def _start(
        self, name: str, answer: IO[bytes], errors: IO[bytes], questions: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_ended:
                raise Cancelled("the backends are no longer looked at")
            arguments = ["-m", "engine.backends.probe", name, str(answer.fileno()), *questions]
            child = start(arguments, errors, pass_fds=(answer.fileno(),))
            self._running.add(child)
            return child


def _record(name: str, answer: _Answer) -> BackendRecord:
    if "record" in answer.values and not (answer.end and answer.place == _LEAVING):
        return from_json(answer.values["record"])
    found = crashed(name, f"its probe {answer}")
    if "manifest" in answer.values:
        known = from_json(answer.values["manifest"])
        found = replace(found, info=known.info, warnings=known.warnings)
    return found


def to_json(found: BackendRecord) -> dict[str, Any]:
    """A record as plain JSON values."""
    info = found.info
    if info is None:
        return asdict(found)
    options = {name: str(option) for name, option in info.options.items()}
    plain = replace(info, suffixes=dict(info.suffixes), options=options, capabilities=frozenset())
    values = asdict(replace(found, info=plain))
    values["info"]["capabilities"] = sorted(info.capabilities)
    return values


def from_json(values: dict[str, Any]) -> BackendRecord:
    """The record that `to_json` wrote."""
    info, devices = values["info"], values["devices"]
    if info is not None:
        for key in ("device_types", "providers", "formats", "completed_by"):
            info[key] = tuple(info[key])
        info = BackendInfo(**{**info, "capabilities": frozenset(info["capabilities"])})
    if devices is not None:
        found = tuple(
            DeviceInfo(Device(**each["device"]), each["name"], each["memory_bytes"])
            for each in devices["found"]
        )
        devices = Devices(found, devices["reason"], devices["fix"])
    return BackendRecord(
        **{
            **values,
            "state": BackendState(values["state"]),
            "info": info,
            "devices": devices,
            "warnings": tuple(values["warnings"]),
        }
    )


# ------------------------------------------------------------------------------------- the child


def _answer(name: str, fd: int, questions: Sequence[str]) -> None:
    with os.fdopen(fd, "w") as lines:

        def say(**values: Any) -> None:
            print(json.dumps(values), file=lines, flush=True)

        found, backend = resolve(name, look_for_devices=False)
        say(manifest=to_json(found), place=_DEVICES)
        if "record" in questions:
            say(record=to_json(record(name) if backend is not None else found))
        say(place=_DIAGNOSE)
        if "checks" in questions and backend is not None:
            try:
                say(checks=[_check(each) for each in backend.diagnose()])
            except BaseException as error:  # SystemExit, or a panic of a compiled extension
                say(fault=f"engine_diagnose raised {one_line(error)}")
        say(place=_LEAVING)


def _check(check: object) -> dict[str, Any]:
    if not isinstance(check, Check):
        raise TypeError(f"expected a Check, got {check!r}")
    return {
        "name": str(check.name),
        "ok": bool(check.ok),
        "detail": str(check.detail),
        "fix": str(check.fix),
    }


if __name__ == "__main__":
    _answer(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
