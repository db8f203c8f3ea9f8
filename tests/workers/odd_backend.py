"""A null backend whose predict does odd things where the first input says so."""

from __future__ import annotations

from pathlib import Path

from engine_testing.plugins import install

CRASH, HANG, CRASH_ONCE, LEAVE, REST, LAST = -1.0, -2.0, -3.0, -4.0, -5.0, -6.0
"""Values of the first element: die; run for ever; die unless the file that FLAG names is there,
which is made; raise SystemExit; take 0.3 s; run until it is stopped. Other values are the null
backend's."""
FLAG = "ENGINE_TEST_FLAG"
COMPILE = "ENGINE_TEST_COMPILE"
"""Environment variable with code that engine_compile begins with."""
HANGS = "ENGINE_TEST_HANGS"
"""Environment variable with the path of a file that is made where a run begins to hang."""

_SOURCE = """
import os, signal, time
from dataclasses import replace

from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


@hookimpl
def engine_backend():
    info = null.engine_backend()
    return replace(info, name={name!r}, capabilities=info.capabilities - frozenset({without!r}))


@hookimpl
def engine_compile(loaded, options):
    exec(os.environ.get("ENGINE_TEST_COMPILE", ""))
    return null.engine_compile(loaded, options)


@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    x = float(inputs[0].flat[0]) if inputs and getattr(inputs[0], "size", 0) else 0
    if x == -1:
        die()
    if x == -2:
        open(os.environ.get("ENGINE_TEST_HANGS", os.devnull), "w").close()
        time.sleep(600)
    if x == -3 and not os.path.exists(os.environ["ENGINE_TEST_FLAG"]):
        open(os.environ["ENGINE_TEST_FLAG"], "x").close()
        die()
    if x == -4:
        raise SystemExit(3)
    if x == -5:
        time.sleep(0.3)
    if x == -6:
        from engine.reference import evaluator

        wait = evaluator._wait
        evaluator._wait = lambda _: wait(600.0)
        try:
            return null.engine_predict(context, inputs, outputs, deadline_s)
        finally:
            evaluator._wait = wait
    return null.engine_predict(context, inputs, outputs, deadline_s)
"""


def install_odd(folder: Path) -> None:
    """Install backend "odd", and "stubborn", which cannot stop a run."""
    for name, without in (("odd", ()), ("stubborn", ("deadlines", "cancel_predict"))):
        source = _SOURCE.format(name=name, without=without)
        install(folder, name, f"plugin_{name}", source=source)
