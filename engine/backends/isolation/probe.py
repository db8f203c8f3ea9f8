"""Examine backends, each in a process of its own, and the entries of the other doors in one.

    probe("gpu_trt").state

A driver that crashes or hangs while it is probed costs that process and no other, and makes the
backend BROKEN. Answers come back as messages, each as soon as it is known, so what a plugin prints
does not matter and what was known before a crash is not lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, TypeVar

from engine.backends import doors, manifest
from engine.backends.backend import Backend
from engine.backends.discovery import crashed, record, resolve
from engine.backends.doors import DOORS, SOURCES, Door
from engine.backends.install import pip_install
from engine.backends.records import BackendRecord, BackendState, PluginRecord
from engine.errors import BackendUnavailable, Cancelled, one_line
from engine.host.child import last_words
from engine.host.worker import Ended, Worker
from engine.types import Capability, Check, Device, DeviceInfo, DeviceMemory, Devices, DType

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
    """Return the record of a backend as a fresh process sees it; a crash makes it BROKEN."""
    return _probe(name, _Processes(time_limit_s), "record")


def probe_all(names: Sequence[str], time_limit_s: float = TIME_LIMIT_S) -> list[BackendRecord]:
    """Probe several backends and their memory, which may open the devices, a few at a time.

    An interrupt ends their processes at once.
    """
    with _Processes(time_limit_s) as processes:
        return processes.map(lambda name: _probe(name, processes, "record", "memory"), names)


def probe_doors(
    names: Sequence[str], entries: Sequence[tuple[Door, str]], time_limit_s: float = TIME_LIMIT_S
) -> tuple[list[BackendRecord], list[PluginRecord]]:
    """Probe several backends and their memory, and entries of other doors, by door and name."""
    with _Processes(time_limit_s) as processes:
        others = processes.submit(partial(_probe_entries, entries, processes))
        found = processes.map(lambda name: _probe(name, processes, "record", "memory"), names)
        return found, others.result()


def _probe(name: str, processes: _Processes, *questions: str) -> BackendRecord:
    return _record(name, processes.ask(name, *questions))


def _probe_entries(
    entries: Sequence[tuple[Door, str]], processes: _Processes
) -> list[PluginRecord]:
    """Return the records of entries, in order; the process that one of them ends has a next."""
    found: list[PluginRecord] = []
    while left := entries[len(found) :]:
        request = [(door.kind, name) for door, name in left]
        reply = processes.answer_of("engine.backends.isolation.probe:answer_for_entries", request)
        known: Sequence[dict[str, Any]] = reply.values.get("records", ())
        found += [_entry_from_json(values) for values in known]
        if len(known) < len(left):
            door, name = left[len(known)]
            found.append(doors.crashed(door, name, f"its probe {reply}"))
    return found


def examine_all(names: Sequence[str], time_limit_s: float = TIME_LIMIT_S) -> list[Examination]:
    """Probe several backends and ask for their own checks; each hook may crash on its own.

    time_limit_s: for a process; where engine_devices ends the first one there is a second.
    An interrupt ends the processes at once.
    """
    with _Processes(time_limit_s) as processes:
        return processes.map(lambda name: _examine(name, processes), names)


def _examine(name: str, processes: _Processes) -> Examination:
    answer = processes.ask(name, "record", "memory", "checks")
    found = _record(name, answer)
    if answer.end and answer.stage in (_DEVICES, _MEMORY):
        answer = processes.ask(name, "checks")
    checks = tuple(Check(**check) for check in answer.values.get("checks", ()))
    ended_there = answer.end and answer.stage == _DIAGNOSE
    fault = f"its probe {answer}" if ended_there else answer.values.get("fault", "")
    return Examination(found, checks, fault)


# ------------------------------------------------------------------------------------ the parent


_IMPORT, _DEVICES, _DIAGNOSE = "while it was imported", "in engine_devices", "in engine_diagnose"
_MEMORY = "in engine_memory"
_LEAVING = "when everything was answered"


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answers of a process, by question, and how it ended where that was not well."""

    values: dict[str, Any]
    end: str
    last_words: str

    @property
    def stage(self) -> str:
        """Return which question the process was at when it ended."""
        return str(self.values.get("stage", _IMPORT))

    def __str__(self) -> str:
        quoted = f" ({self.last_words})" if self.last_words else ""
        return f"{self.end} {self.stage}{quoted}"


class _Processes:
    """Processes that answer questions; leaving the block by an exception ends those that run."""

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self._pool = ThreadPoolExecutor(max_workers=4)
        self._lock = Lock()
        self._running: set[Worker] = set()
        self._is_ended = False

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._is_ended = True
            for worker in self._running:
                worker.kill()
        self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[str], Result], names: Sequence[str]) -> list[Result]:
        """Return the result of `function` for each name, in order; a few at a time."""
        return list(self._pool.map(function, names))

    def submit(self, function: Callable[[], Result]) -> Future[Result]:
        """Call a function beside those of `map`."""
        return self._pool.submit(function)

    def ask(self, name: str, *questions: str) -> _Answer:
        """Return what a fresh process answers about backend `name`."""
        return self.answer_of("engine.backends.isolation.probe:answer", (name, questions))

    def answer_of(self, function: str, request: object) -> _Answer:
        """Return what a function answers in a fresh process; see `Worker`."""
        values: dict[str, Any] = {}
        until = time.monotonic() + self._time_limit_s
        with self._start(function, request) as worker:
            try:
                while True:
                    values |= worker.receive(max(0, until - time.monotonic()))
            except Ended as error:
                end = error.end if error.status else ""
                if not end and values.get("stage") != _LEAVING:
                    end = "ended without an answer"
            except TimeoutError:
                worker.kill()
                end = f"did not answer within {self._time_limit_s:g} s"
                if values.get("stage") == _LEAVING:
                    end = ""  # it has answered all, and ends slowly
            finally:
                with self._lock:
                    self._running.discard(worker)
            return _Answer(values, end, last_words(worker.errors()))

    def _start(self, function: str, request: object) -> Worker:
        with self._lock:
            if self._is_ended:
                raise Cancelled("the backends are no longer looked at")
            worker = Worker(function, request)
            self._running.add(worker)
            return worker


def _record(name: str, answer: _Answer) -> BackendRecord:
    if "record" in answer.values and not (answer.end and answer.stage == _LEAVING):
        found = from_json(answer.values["record"])
        fault = answer.values.get("memory_fault", "")
        if answer.end and answer.stage == _MEMORY:
            fault = f"its probe {answer}"
        memory = _memory_from_json(answer.values.get("memory", ()))
        return replace(found, memory=memory, warnings=(*found.warnings, *filter(None, [fault])))
    found = crashed(name, f"its probe {answer}")
    if "manifest" in answer.values:
        known = from_json(answer.values["manifest"])
        found = replace(found, info=known.info, warnings=known.warnings)
    return found


def to_json(found: BackendRecord) -> dict[str, Any]:
    """Return a record as plain JSON values."""
    values = asdict(replace(found, info=None, devices=None, memory={}))
    values["memory"] = _memory(found.memory)
    if found.info is not None:
        values["info"] = manifest.to_json(found.info)
    if found.devices is not None:
        values["devices"] = {
            "found": [_device(device) for device in found.devices.found],
            "reason": found.devices.reason,
            "fix": found.devices.fix,
        }
    return values


def _entry_from_json(values: dict[str, Any]) -> PluginRecord:
    warnings = tuple(values["warnings"])
    return PluginRecord(**{**values, "state": BackendState(values["state"]), "warnings": warnings})


def _device(info: DeviceInfo) -> dict[str, Any]:
    return {
        "device": asdict(info.device),
        "name": info.name,
        "memory_bytes": info.memory_bytes,
        "lacks": {str(capability): why for capability, why in info.lacks.items()},
        "dtypes": sorted(map(str, info.dtypes)),
    }


def _device_from_json(values: dict[str, Any]) -> DeviceInfo:
    device = Device(**values["device"])
    dtypes = frozenset(dtype for dtype in DType if dtype in values["dtypes"])
    return DeviceInfo(**{**values, "device": device, "dtypes": dtypes})


def _memory(found: Mapping[Device, DeviceMemory]) -> list[Any]:
    return [[asdict(device), asdict(memory)] for device, memory in found.items()]


def _memory_from_json(values: Sequence[Any]) -> dict[Device, DeviceMemory]:
    return {Device(**device): DeviceMemory(**memory) for device, memory in values}


def from_json(values: dict[str, Any]) -> BackendRecord:
    """Return the record that `to_json` wrote."""
    info, devices = values["info"], values["devices"]
    if devices is not None:
        found = tuple(map(_device_from_json, devices["found"]))
        devices = Devices(found, devices["reason"], devices["fix"])
    return BackendRecord(
        **{
            **values,
            "state": BackendState(values["state"]),
            "info": None if info is None else manifest.from_json(info),
            "devices": devices,
            "memory": _memory_from_json(values["memory"]),
            "warnings": tuple(values["warnings"]),
        }
    )


# ------------------------------------------------------------------------------------- the child


def answer(request: tuple[str, Sequence[str]], parent: Connection) -> None:
    """Answer the questions about a backend, each as soon as it is known."""
    name, questions = request

    def say(**values: Any) -> None:
        parent.send(values)

    found, backend = resolve(name, look_for_devices=False)
    say(manifest=to_json(found), stage=_DEVICES)
    if "record" in questions:
        say(record=to_json(record(name) if backend is not None else found))
    if "memory" in questions and backend is not None:
        _say_memory(backend, say)
    say(stage=_DIAGNOSE)
    if "checks" in questions and backend is not None:
        try:
            say(checks=[_check(check) for check in backend.diagnose()])
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            say(fault=f"engine_diagnose raised {one_line(error)}")
    say(stage=_LEAVING)


def _say_memory(backend: Backend, say: Callable[..., None]) -> None:
    """Answer how much memory the devices have left, which says nothing against the backend."""
    if not backend.can(Capability.DEVICE_MEMORY):
        return
    say(stage=_MEMORY)
    found: dict[Device, DeviceMemory] = {}
    try:
        for device in backend.present:
            if (memory := backend.memory(device)) is not None:
                found[device] = memory
    except BackendUnavailable as error:
        say(memory_fault=one_line(error))
    say(memory=_memory(found))


def answer_for_entries(request: Sequence[tuple[str, str]], parent: Connection) -> None:
    """Answer for entries, by the kind of their door and their name, each as soon as it is known."""
    by_kind = {door.kind: (door, doors.points(door)) for door in DOORS}
    records = []
    for kind, name in request:
        door, points = by_kind[kind]
        found, thing = doors.resolve(door, name, points)
        records.append(asdict(with_packages(found, thing) if door is SOURCES else found))
        parent.send({"records": records})
    parent.send({"stage": _LEAVING})


def with_packages(found: PluginRecord, thing: Any) -> PluginRecord:
    """Return the record of an entry, not READY where a package that it imports late is missing.

    thing: the entry's object. Two of its attributes are optional: packages, the names of such
    packages, and extra, that of the extra of its distribution that has them.
    """
    if found.state is not BackendState.READY:
        return found
    packages = getattr(thing, "packages", ())
    if not isinstance(packages, tuple) or not all(isinstance(name, str) for name in packages):
        fix = f"report it to the authors of {found.distribution}"
        reason = f"its `packages` must be a tuple of names, but is {packages!r}"
        return replace(found, state=BackendState.BROKEN, reason=reason, fix=fix)
    missing = [name for name in packages if not _is_there(name)]
    if not missing:
        return found
    command = f"pip install {' '.join(missing)}"
    if (extra := getattr(thing, "extra", "")) and found.distribution == "inference-engine":
        command = pip_install(extra)
    return replace(
        found,
        state=BackendState.NOT_INSTALLED,
        reason=f"it needs {' and '.join(missing)}",
        fix=f"run: {command}",
    )


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # what it is in is not there
        return False
    except ValueError:  # a module that is imported, and does not say from where
        return True


def _check(check: object) -> dict[str, Any]:
    if not isinstance(check, Check):
        raise TypeError(f"expected a Check, got {check!r}")
    return {
        "name": str(check.name),
        "ok": bool(check.ok),
        "detail": str(check.detail),
        "fix": str(check.fix),
    }
