"""Run the kit with pytest and report each event: the worker of `check.py`.

Everything is written into the working folder, which is its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

_TESTS = """
import sys
from engine_testing.declared import conformance_class

TestBackend = conformance_class({backend!r})
"""


def run(order: Mapping[str, Any], events: Connection) -> int:
    """Run the tests that `order` asks for and return pytest's exit status.

    order: "backend"; "levels" to be run, all if empty; "k", pytest's expression; "done", the names
    of the tests that are to be left out.
    """
    folder = Path.cwd()
    tests = folder / "test_backend.py"
    tests.write_text(_TESTS.format(backend=order["backend"]), encoding="utf-8")
    settings = folder / "pytest.ini"
    settings.write_text("[pytest]\n", encoding="utf-8")  # not the caller's, if he has one
    arguments = [
        str(tests),
        *("-c", str(settings)),
        f"--rootdir={folder}",
        f"--confcutdir={folder}",
        f"--basetemp={folder / 'tmp'}",
        "--import-mode=importlib",
        "--tb=short",
        "--color=no",
        *("-p", "no:cacheprovider"),
        *("-k", order["k"]),
    ]
    return pytest.main(arguments, plugins=[_Watch(order["levels"], order["done"], events)])


class _Watch:
    """A pytest plugin that sends an event when tests are collected, begin and end."""

    def __init__(self, levels: Sequence[str], done: Sequence[str], events: Connection) -> None:
        self._levels = levels
        self._done = frozenset(done)
        self._level: dict[str, str] = {}
        self._reports: list[pytest.TestReport] = []
        self._events = events

    def _say(self, **event: Any) -> None:
        self._events.send(event)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._say(error=report.longreprtext.strip().splitlines()[-1].removeprefix("E").strip())

    @pytest.hookimpl(trylast=True)  # after -k
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        levels = {item.name: _level(item) for item in items}
        self._level = {
            name: level for name, level in levels.items() if level in (self._levels or (level,))
        }
        items[:] = [
            item for item in items if item.name in self._level and item.name not in self._done
        ]
        self._say(tests=self._level)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._reports.clear()
        self._say(start=_name(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        name = _name(nodeid)
        self._say(
            result={
                "name": name,
                "level": self._level[name],
                "seconds": sum(report.duration for report in self._reports),
                **_outcome(self._reports),
            }
        )


def _name(nodeid: str) -> str:
    return nodeid.partition("::TestBackend::")[2]


def _level(item: pytest.Item) -> str:
    """Return the module that defines a test: a level of the kit, or the backend's own class."""
    module: str = getattr(item, "function").__module__  # noqa: B009  # Item has no such member
    return module.rpartition(".")[2]


def _outcome(reports: Sequence[pytest.TestReport]) -> dict[str, str]:
    """Return the outcome of a test from the reports on its setup, call and teardown."""
    for report in reports:
        if report.failed:
            return {"outcome": "failed", "traceback": report.longreprtext, **_failure(report)}
    for report in reports:
        if report.skipped and hasattr(report, "wasxfail"):
            return {"outcome": "gap", "reason": report.wasxfail.removeprefix("reason: ")}
        if report.skipped and isinstance(report.longrepr, tuple):
            return {"outcome": "skipped", "reason": report.longrepr[2].removeprefix("Skipped: ")}
    return {"outcome": "passed"}


def _failure(report: pytest.TestReport) -> dict[str, str]:
    shown: Any = report.longrepr
    crash = getattr(shown, "reprcrash", None)
    if crash is None:  # a gap that is closed; pytest has only a text for it
        return {"reason": report.longreprtext}
    place = f"{crash.path}:{crash.lineno}"
    if Path(crash.path).name == "contextlib.py":  # older numpy's assert functions are wrapped by it
        frames = [entry.reprfileloc for entry in shown.reprtraceback.reprentries]
        frame = next(
            frame for frame in reversed(frames) if Path(frame.path).name != "contextlib.py"
        )
        place = f"{Path(frame.path).absolute()}:{frame.lineno}"
    return {"reason": crash.message, "place": place}
