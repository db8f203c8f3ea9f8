"""Builds with target auto on backends that do something in other processes than the test's.

The default takes 20 ms more than the others, whatever the machine does beside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine
from engine import Model

SLOW = """
import time
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    time.sleep(0.02)
    return context.run(inputs, outputs, deadline_s)
"""


def elsewhere(hook: tuple[str, str], how: str) -> str:
    """A backend that does something first, or instead, in other processes than the test's.

    hook: its signature, and what it returns.
    """
    return (
        "import os, signal, time\nMAIN = os.environ['TEST_PROCESS']\n@hookimpl\n"
        f"def {hook[0]}:\n    if str(os.getpid()) != MAIN:\n        {how}\n    return {hook[1]}\n"
    )


DEVICES = ("engine_devices()", "null.engine_devices()")
COMPILE = ("engine_compile(loaded, options)", "loaded.compile(options)")
PREDICT = (
    "engine_predict(context, inputs, outputs, deadline_s)",
    "context.run(inputs, outputs, deadline_s)",
)
CRASHING = elsewhere(COMPILE, "os.abort()")
HANGING = elsewhere(PREDICT, "time.sleep(1000)")


def gated(closed: Path) -> str:
    """A backend whose compile waits elsewhere, as long as a file is there."""
    return elsewhere(COMPILE, f"while os.path.exists({str(closed)!r}): time.sleep(0.01)")


STOPPING = """
import os, time
from engine.errors import DeadlineExceeded
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    while str(os.getpid()) != os.environ["TEST_PROCESS"]:
        time.sleep(0.01)
        if time.monotonic() > deadline_s:
            raise DeadlineExceeded("late")
    return context.run(inputs, outputs, deadline_s)
"""


def build(path: Path, budget: float = 60, **more: Any) -> Model:
    config = {"common_context": {"auto_budget_s": str(budget), **more.pop("common", {})}}
    return engine.load(path, target="auto", threads=1, config=config, **more)


def why(model: Model) -> str:
    return model.placement[0].reason


def processes() -> list[str]:
    """The commands of this process's children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(status[1]) == os.getpid() and status[0] != "Z":
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return [command for command in found if "engine.report.choice" in command]


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)
