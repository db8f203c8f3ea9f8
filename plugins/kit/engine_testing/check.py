"""Run the conformance kit on an installed backend, in a process of its own.

    report = check("mine")
    print(report.ok, [result.name for result in report.results if result.outcome == "failed"])

A test that crashes or hangs costs itself alone: it counts as failed, and the rest is run in
another process. Nothing of this needs pytest here, and no file is left behind.
"""

from __future__ import annotations

import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.backends import BackendRecord, BackendState
from engine.backends.isolation.probe import probe
from engine.errors import BackendError
from engine.host.child import environment, last_words
from engine.host.worker import Ended, Worker
from engine.types import Progress

LEVELS = (
    "manifest",
    "semantics",
    "numerics",
    "arithmetic",
    "meanings",
    "ownership",
    "errors",
    "lifecycle",
    "settings",
    "process",
    "threads",
    "predict_options",
    "contexts",
    "compiled",
    "groups",
    "device_facts",
    "device_values",
    "strided_values",
    "profile",
    "weights",
    "sharing",
    "several_devices",
    "ranks",
    "speed",
)
"""The levels of the kit, the simplest first; each is a module beside this one."""

LIMIT_S = 300.0
"""Time limit of one test: far more than any needs, so that only a hang is stopped."""

# Exit statuses of pytest.
_DONE = (0, 1)  # without and with a failed test
_MISUSED = 4

# Changes of how the tests run: the caller's own pytest, and targets that are not asked for.
_UNWANTED = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_CURRENT_TEST", "ENGINE_TARGET")


class Outcome(StrEnum):
    """The outcome of a test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    GAP = "gap"  # it failed, as the backend's `gaps` says, or was not run, as `crashes` says


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one test.

    level: one of LEVELS; for other tests the module they are in. reason: what failed, or why it
    was skipped or is a gap. place: where that was, "file:line". traceback: for people.
    """

    name: str
    level: str
    outcome: Outcome
    seconds: float = 0.0
    reason: str = ""
    place: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The results for a backend, in the order in which the tests ran."""

    record: BackendRecord
    results: tuple[Result, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Return whether no test failed, and there was a device to run them on."""
        return self.record.state is BackendState.READY and not self.of(Outcome.FAILED)

    def of(self, outcome: Outcome) -> list[Result]:
        """Return the results with one outcome."""
        return [result for result in self.results if result.outcome is outcome]

    def levels(self) -> dict[str, Counter[Outcome]]:
        """Count the outcomes of each level; levels without a test are left out."""
        counts: dict[str, Counter[Outcome]] = {}
        for result in self.results:
            counts.setdefault(result.level, Counter())[result.outcome] += 1
        return counts


def check(
    backend: str,
    *,
    levels: Sequence[str] = (),
    expression: str = "",
    limit_s: float = LIMIT_S,
    progress: Progress | None = None,
) -> Report:
    """Run the kit on an installed backend; a test that fails is a result, not an exception.

    levels: of LEVELS; all if empty. expression: as pytest's -k. limit_s: for each test.
    progress: called with a test's name when it begins, and how many are done, of how many.
    Raises BackendError for a backend that
    cannot be tested, ValueError where no test is chosen.
    """
    record = probe(backend)
    if record.state not in (BackendState.READY, BackendState.NO_DEVICE):
        raise BackendError(str(record), backend)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="engine-check-", ignore_cleanup_errors=True) as folder:
        results = tuple(_results(Path(folder), backend, levels, expression, limit_s, progress))
    return Report(record, results, time.monotonic() - begin)


def _results(
    folder: Path,
    backend: str,
    levels: Sequence[str],
    expression: str,
    limit_s: float,
    progress: Progress | None,
) -> Iterator[Result]:
    """Yield results as they come; a process that dies is followed by another for the rest."""
    chosen: dict[str, str] | None = None  # the level of each test, by name
    done: list[str] = []
    while chosen is None or len(done) < len(chosen):
        running = ""
        order = {"backend": backend, "levels": [*levels], "k": expression, "done": done}
        with _Child(folder, order) as child:
            for event in child.events(limit_s):
                if "error" in event:
                    raise _cannot_load(backend, event["error"])
                if "tests" in event and chosen is None:
                    chosen = event["tests"]
                elif "start" in event:
                    running = event["start"]
                    if progress is not None and chosen is not None:
                        progress(running, len(done), len(chosen))
                elif "result" in event:
                    running = ""
                    result = event["result"]
                    done.append(result["name"])
                    yield Result(**{**result, "outcome": Outcome(result["outcome"])})
        if chosen is None:
            if expression and child.status == _MISUSED:
                text = child.last_words.removeprefix("ERROR: ")
                raise ValueError(f"{text[:1].lower()}{text[1:]}")
            raise _cannot_load(backend, f"its process {child.end} ({child.last_words})")
        if not chosen:
            raise ValueError(f"no test of the kit is chosen by -k {expression!r}")
        if running:
            yield child.failure(running, chosen[running])
            done.append(running)
        elif child.status not in _DONE or len(done) < len(chosen):
            # Between two tests, or after the last: no test is to blame, so no rest is tried.
            yield child.failure("the process", "lifecycle")
            return


def _cannot_load(backend: str, why: str) -> BackendError:
    return BackendError(f"the tests of backend {backend!r} cannot be loaded: {why}", backend)


class _Child:
    """A worker that runs tests.

    status, end: how it ended; errors: what it wrote to stderr, when the block has been left.
    """

    def __init__(self, folder: Path, order: dict[str, Any]) -> None:
        own = Path(tempfile.mkdtemp(dir=folder))
        self.status = 0
        self.end = self.errors = ""
        env = environment(
            without=_UNWANTED,
            PYTHONDONTWRITEBYTECODE="1",
            PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
            TMPDIR=str(own),  # all that is written goes when the folder goes
        )
        self._worker = Worker("engine_testing.inside:run", order, env=env, cwd=own)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *error: object) -> None:
        self._worker.kill()
        self.errors = self._worker.errors()
        self._worker.close()

    def events(self, limit_s: float) -> Iterator[dict[str, Any]]:
        """Yield the events of the process until it ends; kill it after `limit_s` without one."""
        while True:
            try:
                yield self._worker.receive(limit_s)
            except Ended as error:
                self.status, self.end = error.status, self.end or error.end
                return
            except TimeoutError:
                self.end = f"did not end within {limit_s:g} s"
                self._worker.signal(signal.SIGABRT)  # pytest then says where it was
                self._worker.wait(5)
                self._worker.kill()

    @property
    def last_words(self) -> str:
        return last_words(self.errors)

    def failure(self, name: str, level: str) -> Result:
        """Return the result of the test that was running when the process ended."""
        text = self.errors
        frame = re.search(r'^Current thread.*\n  File "(.+)", line (\d+),? in (.+)$', text, re.M)
        return Result(
            name=name,
            level=level,
            outcome=Outcome.FAILED,
            reason=f"{self.end} in {frame[3]}" if frame else self.end,
            place=f"{frame[1]}:{frame[2]}" if frame else "",
            traceback=text,
        )
