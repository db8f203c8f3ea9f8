"""Isolated models, their workers, and a backend that does harm in one."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import le
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
from waiting import children, wait_until

import engine
from engine import Model
from engine.model.model import model_state

ISOLATE = {"common_context": {"isolate": "true"}}

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


PLUGIN = """
import ctypes, os, signal, sys, time
from engine.hookspecs import hookimpl
from dataclasses import replace
from engine_testing import null_device as null
from engine_testing.null_device import *

if "pytest" not in sys.modules:  # what it changes is this process's, too
    pass
{in_worker}

@hookimpl
def engine_backend():
    info = null.engine_backend()
    return replace(info, name={name!r}, capabilities=info.capabilities - frozenset([{without}]))

@hookimpl
def engine_load(source, options):
    {load}
    return null.engine_load(source, options)

@hookimpl
def engine_compile(loaded, options):
    {compile}
    return null.engine_compile(loaded, options)

class Own(Exception): pass

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    x = float(inputs[0].flat[0])
    if x < 0:
        {predict}
    return null.engine_predict(context, inputs, outputs, deadline_s)
"""


# Acts of a predict, by the first element of its input.
SEGFAULT, FPE, RAISE, UNSENDABLE, LOUD, ABORT = -1, -2, -3, -4, -5, -6

PREDICT = """
        match x:
            case -1: ctypes.string_at(0)
            case -2: signal.raise_signal(signal.SIGFPE)
            case -3: raise Own('deep inside')
            case -4: raise ValueError(lambda: 0)
            case -5: os.write(2, b'x' * (1 << 20))
            case -6: os.write(2, b'a check failed\\n'); os.abort()
"""


def source_of_odd(
    name: str = "odd", *, load: str = "pass", compile: str = "pass", predict: str = PREDICT,
    in_worker: str = "", without: str = "",
) -> str:  # fmt: skip
    """Return a null backend with other code in some places; predict's runs where x[0] < 0."""
    return PLUGIN.format(
        name=name, load=load, compile=compile, predict=predict, without=without,
        in_worker=indent(in_worker, "    "),
    )  # fmt: skip


@contextmanager
def left_as_it_was() -> Iterator[None]:
    """Check that a block leaves no process, thread or descriptor."""

    def held() -> tuple[int, int, int]:
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd")), len(children())

    before = held()
    yield
    # A thread that has nothing more to do ends soon; threads, descriptors, processes.
    wait_until(lambda: all(map(le, held(), before)))


def isolated(path: Path, target: str, **more: Any) -> Model:
    """Load a model that runs in a process of its own."""
    return engine.load(path, target=target, config={**ISOLATE, **more})


def process_of(model: Model) -> Any:
    """Return the process of an isolated model, as the engine sees it."""
    return model_state(model).plan.executable.process()


def worker_of(model: Model) -> int:
    """Return its number."""
    return process_of(model).worker.pid


def kill_worker_of(model: Model, number: int = signal.SIGKILL) -> Any:
    """Kill a model's worker, and wait until it has ended: the engine may see it from then on."""
    process = process_of(model)
    os.kill(process.worker.pid, number)
    assert process.worker.wait(60)
    return process
