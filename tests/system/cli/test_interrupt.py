"""Ctrl-C: at any moment, whatever is running, the command ends soon, with status 130, quietly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import pytest

from engine.testing import models
from engine.testing.plugins import install

# A backend whose compile takes for ever; {wait} is what it does all the time.
COMPILER = """
import os, time
from pathlib import Path
from engine.errors import Cancelled
from engine.hookspecs import hookimpl
from engine.types import BackendInfo, Device, DeviceInfo, Devices

@hookimpl
def engine_backend():
    return BackendInfo(name="thinker", version="1", device_types=("thinker",))

@hookimpl
def engine_devices():
    return Devices((DeviceInfo(Device("thinker"), "a thinker"),))

class Loaded:
    inputs = outputs = ()
    unsupported = {{}}

    def close(self): ...

@hookimpl
def engine_load(source, options):
    return Loaded()

@hookimpl
def engine_compile(loaded, options):
    options.progress("thinking", 0, None)
    Path(os.environ["NOTES"], "compiling").touch()
    while True:
        {wait}

@hookimpl
def engine_predict(context, inputs): ...
"""
CAREFUL = """
        time.sleep(0.01)
        try:
            options.cancel.check()
        except Cancelled:
            Path(os.environ["NOTES"], "cancelled").touch()
            raise
"""
DEAF = "time.sleep(3600)"


@pytest.fixture
def thinker(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Installs the slow backend for child processes; gives the environment that finds it."""

    def prepare(wait: str) -> dict[str, str]:
        folder = tmp_path / "plugins"
        folder.mkdir()
        install(folder, "thinker", "thinker_backend", source=COMPILER.format(wait=wait))
        return {"PYTHONPATH": str(folder), "NOTES": str(tmp_path)}

    return prepare


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "engine.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def interrupted(child: subprocess.Popen[str], times: int = 1) -> tuple[int, str, str, float]:
    """The status, output and errors of a command that gets SIGINT, and how long it took to end."""
    begin = time.monotonic()
    try:
        for _ in range(times):
            child.send_signal(signal.SIGINT)
            time.sleep(0.01)
        out, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    return child.returncode, out, errors, time.monotonic() - begin


def wait_for(path: Path, child: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)


@contextmanager
def reading(
    folder: Path, *arguments: object, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], BinaryIO]]:
    """A command that waits for its input x, and the writing end of the pipe that it reads."""
    pipe = folder / "x.bin"
    os.mkfifo(pipe)
    with start(*arguments, "-i", pipe, **environment) as child:
        try:
            with open(_writing_end(pipe, child), "wb") as end:
                yield child, end
        finally:
            child.kill()


def _writing_end(pipe: Path, child: subprocess.Popen[str]) -> int:
    while True:
        assert child.poll() is None, child.communicate()
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            time.sleep(0.02)


def give_input(end: BinaryIO) -> None:
    """Let the command read what it waits for; a second later it is at work with it."""
    end.write(np.ones((1, 3), np.float32).tobytes())
    end.close()
    time.sleep(1)


@pytest.mark.parametrize("command", ["run", "bench"])
def test_an_interrupt_while_reading_is_status_130_without_a_traceback(tmp_path, command):
    with reading(tmp_path, command, models.affine(tmp_path)) as (child, _):
        # Python sees a signal that comes just before a blocking read only after it.
        time.sleep(0.5)
        status, out, errors, _ = interrupted(child)
    assert (status, out, errors) == (130, "", "interrupted\n")


@pytest.mark.parametrize("command", ["run", "bench", "inspect"])
def test_an_interrupt_cancels_a_compile_where_the_backend_can(thinker, tmp_path, command):
    environment = thinker(CAREFUL)
    with start(command, models.affine(tmp_path), "--target", "thinker", **environment) as child:
        wait_for(tmp_path / "compiling", child)
        status, out, errors, _ = interrupted(child)
    assert (status, out, errors) == (130, "", "interrupted\n")
    assert (tmp_path / "cancelled").exists()


@pytest.mark.parametrize("times", [1, 20])
def test_an_interrupt_ends_the_command_where_the_backend_does_not_listen(thinker, tmp_path, times):
    environment = thinker(DEAF)
    with start("run", models.affine(tmp_path), "--target", "thinker", **environment) as child:
        wait_for(tmp_path / "compiling", child)
        status, out, errors, seconds = interrupted(child, times)
    assert (status, out, errors) == (130, "", "interrupted\n")
    assert seconds < 15  # of an hour; on a machine that is busy with other things


def test_an_interrupt_ends_a_run_that_takes_for_ever(tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    install(folder, "null", "engine.testing.null")
    slow = ("--target", "null", "--set", "null_context.delay_s=3600")
    arguments = ("run", models.affine(tmp_path), *slow)
    with reading(tmp_path, *arguments, PYTHONPATH=str(folder)) as (child, end):
        give_input(end)
        status, out, errors, seconds = interrupted(child)
    assert (status, out, errors) == (130, "", "interrupted\n")
    assert seconds < 15


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_interrupted_measurement_prints_what_it_has(tmp_path, form):
    arguments = ["bench", models.affine(tmp_path), "--duration", 3600, "--warmup", 0, "--plot"]
    with reading(tmp_path, *arguments, *(["--json"] * (form == "json"))) as (child, end):
        give_input(end)
        status, out, errors, _ = interrupted(child, 20)
    assert (status, errors) == (130, "interrupted\n")
    if form == "json":
        values = json.loads(out)
        assert values["interrupted"] is True
        assert sum(values["histogram"]["counts"]) == values["runs"] > 0
    else:
        assert "latency p99" in out
        assert "█" in out


def test_ctrl_c_on_a_terminal_takes_the_bars_away_and_prints_what_was_measured(terminal, digits):
    done = terminal(
        "bench", digits / "digits.onnx", "--duration", 3600, press="\x03\x03\x03", when="measuring"
    )
    assert done.status == 130
    _, _, results = done.out.rpartition("\x1b[2K")
    assert "latency p99" in results
    assert results.endswith("interrupted\n")
    assert "measuring" not in results
    assert "Traceback" not in done.out


def test_ctrl_c_on_a_terminal_during_a_compile(terminal, thinker, tmp_path):
    environment = thinker(DEAF)
    done = terminal(
        "run", models.affine(tmp_path), "--target", "thinker",
        press="\x03", when="thinking", **environment,
    )  # fmt: skip
    assert done.status == 130
    assert done.out.endswith("interrupted\n")
    assert "Traceback" not in done.out


STARTING = """
import os, signal, sys

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Impatient())
from engine.cli import main
sys.exit(main())
"""


def test_an_interrupt_while_the_command_loads():
    command = [sys.executable, "-c", STARTING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_an_interrupt_while_nobody_reads_what_is_printed(tmp_path):
    """As in a pager that shows the first page."""
    model = onnx.load(models.affine(tmp_path))
    model.metadata_props.extend(
        onnx.StringStringEntryProto(key=f"key {number}", value="x" * 500) for number in range(1000)
    )
    onnx.save(model, tmp_path / "long.onnx")
    with start("inspect", tmp_path / "long.onnx") as child:
        assert child.stdout is not None
        assert child.stdout.read(1)
        time.sleep(0.5)  # by now the pipe is full
        child.send_signal(signal.SIGINT)
        begin = time.monotonic()
        status = child.wait(60)
        assert time.monotonic() - begin < 15
        assert child.stderr is not None
        assert "Traceback" not in child.stderr.read()
    assert status == 130


def test_a_command_that_ignores_interrupts_is_left_alone(tmp_path):
    """As under nohup, or in the background of a script."""
    arguments = ["bench", str(models.affine(tmp_path)), "--duration", "1", "--warmup", "0"]
    line = 'trap "" INT; exec "$0" -m engine.cli "$@"'
    command = ["/bin/sh", "-c", line, sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for _ in range(15):
            time.sleep(0.1)
            child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "latency p50" in out
