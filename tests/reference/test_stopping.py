"""Stopping Python code from another thread leaves the interpreter as it was."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from engine.reference.stopping import Stopped, Stopper


def run_for_ever(is_running: threading.Event) -> None:
    while True:
        is_running.set()


def test_code_without_end_is_ended() -> None:
    stopper, is_running = Stopper(), threading.Event()
    other = threading.Thread(target=lambda: is_running.wait(60) and stopper.expire())
    other.start()
    with pytest.raises(Stopped):
        run_for_ever(is_running)
    stopper.done = True
    stopper.clear()
    other.join(60)


def test_what_comes_too_late_is_taken_back() -> None:
    for _ in range(200):
        stopper = Stopper()
        other = threading.Thread(target=stopper.expire)
        try:
            other.start()
            stopper.done = True
        except Stopped:
            stopper.done = True
        try:
            stopper.clear()
        except Stopped:  # on the way into it
            stopper.clear()
        other.join()
    sum(range(1000))  # steps at which one that is left would come


TRACED = """
import sys, threading, time
from ctypes import py_object, pythonapi
from engine.reference.stopping import Stopped, Stopper

stopper = Stopper()
stopper._sent = True  # as if it had come between the last step and this one
stopper.done = True
stopper.clear()

def traced():
    return 1

threading.Thread(target=time.sleep, args=(1,)).start()
sys.settrace(lambda *_: None)
for _ in range(1000):
    traced()
sys.settrace(None)
print("traced")
"""


def test_a_debugger_can_trace_after_one_was_taken_back() -> None:
    done = subprocess.run([sys.executable, "-c", TRACED], timeout=60, capture_output=True)
    assert done.stdout == b"traced\n", done.stderr
