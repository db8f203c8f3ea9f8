"""Builds of isolated models that fail, many times over: each leaves its process as it was.

ENGINE_TEST_TURNS=100 repeats them as often; 15 times by default.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from engine.host.child import command, environment
from engine_testing import models
from engine_testing.plugins import install

PLUGIN = """
import os, time
from dataclasses import replace
from engine.errors import ModelError
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    info = null.engine_backend()
    without = frozenset(["cancel_compile"])  # else a build that hears of it has 10 s to stop
    return replace(info, name={how!r}, capabilities=info.capabilities - without)

@hookimpl
def engine_load(source, options):
    {load}
"""
LOADS = {
    "killed": "os.kill(os.getpid(), 9)",
    "refused": "raise ModelError('no')",
    "cancelled": "time.sleep(600)",
}
BUILDS = """
import gc, os, sys, threading
from pathlib import Path
from engine import CancelToken
from engine.backends import open_backend
from engine.backends.isolation.backend import isolated
from engine.errors import EngineError
from engine.types import CompileOptions, Device, ModelSource

path, how, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
backend = isolated(open_backend(how))
descriptors = lambda: len(os.listdir("/proc/self/fd"))
kept, before = [], descriptors()
for number in range(count):
    token = CancelToken()
    timer = threading.Timer(0.01 * (number % 50), token.cancel)
    if how == "cancelled":
        timer.start()
    memory = bytearray(8 << 20)
    source = ModelSource(format="onnx", path=path, files={"weights": memoryview(memory)})
    try:
        backend.load(source, CompileOptions(device=Device("cpu", 0), cancel=token))
    except EngineError as error:
        kept = [*kept[-3:], error]  # and let the others go at some time
        print(type(error).__name__)
    timer.cancel()
    source.files["weights"].release()
    memory.clear()  # raises BufferError where somebody keeps a view
    del source
    if number % 7 == 0:
        gc.collect()
kept.clear()
gc.collect()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no process is left", descriptors() <= before)
"""


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("count", [int(os.environ.get("ENGINE_TEST_TURNS", "15"))])
@pytest.mark.parametrize(
    ("how", "error"),
    [("killed", "ModelError"), ("refused", "ModelError"), ("cancelled", "Cancelled")],
)
def test_builds_that_fail_many_times_leave_nothing(
    how: str, error: str, count: int, plugin_folder: Path, tmp_path: Path
) -> None:
    install(plugin_folder, how, f"plugin_{how}", source=PLUGIN.format(how=how, load=LOADS[how]))
    path = models.affine(tmp_path)
    done = subprocess.run(
        command("-c", BUILDS, str(path), how, str(count)),
        capture_output=True, text=True, timeout=900, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n") == [*[error] * count, "no process is left True", ""]
