"""Ctrl-C: at any moment, whatever is running, the command ends soon, with status 130, quietly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import onnx
import pytest
from own_python import python

from engine.formats.encryption import encrypt
from engine_testing import models
from engine_testing.plugins import install

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


def slow(value: object) -> object:
    """Return a value whose tests CI runs."""
    return pytest.param(value, marks=pytest.mark.slow)


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


KEY = bytes(range(16))


@contextmanager
def reading(
    folder: Path, command: str, model: Path, *arguments: object, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], BinaryIO]]:
    """A command that waits for the key of its model, and the writing end of the pipe it reads."""
    pytest.importorskip("cryptography")
    secret = folder / "secret.onnx"
    secret.write_bytes(encrypt(model.read_bytes(), KEY))
    pipe = folder / "key"
    os.mkfifo(pipe)
    with start(command, secret, "--dec-key", f"@{pipe}", *arguments, **environment) as child:
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


def give_key(end: BinaryIO) -> None:
    """Let the command read what it waits for."""
    end.write(KEY.hex().encode())
    end.close()


def wait_until_told(child: subprocess.Popen[str], phase: str) -> None:
    """Wait for a phase that a command with --verbose tells."""
    assert child.stderr is not None
    while phase not in (line := child.stderr.readline()):
        assert line, f"it has ended with {child.wait(60)}"


def wait_until_it_has_computed(child: subprocess.Popen[str], seconds: float) -> None:
    """Wait until the command has had so much more of the CPUs, however slow the machine is."""
    ticks = seconds * os.sysconf("SC_CLK_TCK")
    before = sum(map(int, facts_of(child)[11:13]))
    while sum(map(int, facts_of(child)[11:13])) < before + ticks:
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)


def wait_until_it_sleeps(child: subprocess.Popen[str]) -> None:
    """Wait until the command's main thread waits for something.

    Python sees a signal that comes just before a blocking call only after it.
    """
    seen = 0
    while seen < 5:  # not in one of the short waits on its way
        seen = seen + 1 if facts_of(child)[0] == "S" else 0
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)


def facts_of(child: subprocess.Popen[str]) -> list[str]:
    """The fields of /proc/.../stat from the state on, which is the main thread's."""
    stat = Path(f"/proc/{child.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()


@pytest.mark.parametrize("command", ["run", slow("bench")])
def test_an_interrupt_while_reading_is_status_130_without_a_traceback(tmp_path, command):
    with reading(tmp_path, command, models.affine(tmp_path)) as (child, _):
        wait_until_it_sleeps(child)
        status, out, errors, _ = interrupted(child)
    assert (status, out, errors) == (130, "", "interrupted\n")


@pytest.mark.parametrize("command", ["run", slow("bench"), slow("inspect")])
def test_an_interrupt_cancels_a_compile_where_the_backend_can(thinker, tmp_path, command):
    environment = thinker(CAREFUL)
    with start(command, models.affine(tmp_path), "--target", "thinker", **environment) as child:
        wait_for(tmp_path / "compiling", child)
        status, out, errors, seconds = interrupted(child)
    assert (status, out, errors) == (130, "", "interrupted\n")
    assert (tmp_path / "cancelled").exists() or seconds > 1  # see below


@pytest.mark.parametrize(("number", "wanted"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_end_a_command_in_good_order_too(thinker, tmp_path, number, wanted):
    environment = thinker(CAREFUL)
    with start("run", models.affine(tmp_path), "--target", "thinker", **environment) as child:
        wait_for(tmp_path / "compiling", child)
        begin = time.monotonic()
        child.send_signal(number)
        _, errors = child.communicate(timeout=60)
        seconds = time.monotonic() - begin
    assert (child.returncode, errors) == (wanted, "interrupted\n")
    # After a second the command ends, whatever its threads do: on a very busy machine too soon.
    assert (tmp_path / "cancelled").exists() or seconds > 1


@pytest.mark.parametrize("times", [1, 20])
def test_an_interrupt_ends_the_command_where_the_backend_does_not_listen(thinker, tmp_path, times):
    environment = thinker(DEAF)
    with start("run", models.affine(tmp_path), "--target", "thinker", **environment) as child:
        wait_for(tmp_path / "compiling", child)
        status, out, errors, seconds = interrupted(child, times)
    assert (status, out, errors) == (130, "", "interrupted\n")
    assert seconds < 50  # of an hour; on a machine that is busy with other things


@pytest.mark.parametrize("command", ["run", slow("bench")])
def test_an_interrupt_ends_a_command_that_makes_its_inputs(tmp_path, command):
    # Like numpy's calls for large arrays, this one lets other threads run but sees no signal.
    (tmp_path / "sitecustomize.py").write_text(
        "import hashlib, pathlib\n"
        "from engine.cli import inputs\n"
        "def stand_in(*_, **options):\n"
        f"    pathlib.Path({str(tmp_path / 'generating')!r}).touch()\n"
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 1 << 30)\n"
        "inputs.stand_in = stand_in\n"
    )
    arguments = (command, models.affine(tmp_path))
    with start(*arguments, PYTHONPATH=str(tmp_path)) as child:
        wait_for(tmp_path / "generating", child)
        status, out, errors, seconds = interrupted(child)
    assert (status, out, errors) == (130, "", "interrupted\n")
    assert seconds < 50  # of minutes


def test_an_interrupt_ends_a_run_that_takes_for_ever(tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    install(folder, "null", "engine_testing.null_device")
    slow = ("--target", "null", "--set", "null_context.delay_s=3600", "--verbose")
    arguments = ("run", models.affine(tmp_path), *slow)
    with reading(tmp_path, *arguments, PYTHONPATH=str(folder)) as (child, end):
        give_key(end)
        wait_until_told(child, "running")
        status, out, errors, seconds = interrupted(child)
    assert status == 130
    assert errors.endswith("interrupted\n")
    assert out in ("", "input x: float32[1, 3], generated: all ones\n")  # it may have been said
    assert seconds < 50


def test_an_interrupted_measurement_prints_what_it_has(tmp_path):
    arguments = ["bench", models.affine(tmp_path), "--duration", 3600, "--warmup", 0]
    with reading(tmp_path, *arguments, "--verbose", "--json", "--plot") as (child, end):
        give_key(end)
        wait_until_told(child, "measuring")
        wait_until_it_has_computed(child, 0.2)
        status, out, errors, _ = interrupted(child, 20)
    assert (status, errors) == (130, "interrupted\n")
    values = json.loads(out)
    assert values["interrupted"] is True
    assert sum(values["histogram"]["counts"]) == values["runs"] > 0


def test_an_interrupted_comparison_prints_what_it_has(tmp_path):
    more = ("--threads", 1, "--versus", "cpu_context.spin_us=0", "--duration", 3600)
    arguments = ["bench", models.affine(tmp_path), *more]
    with reading(tmp_path, *arguments, "--verbose", "--json") as (child, end):
        give_key(end)
        wait_until_told(child, "comparing")
        status, out, errors, _ = interrupted(child, 20)
    assert (status, errors.splitlines()[-1]) == (130, "interrupted")
    blocks = [len(one["blocks_s"]) for one in json.loads(out)["contenders"]]
    assert len(blocks) == 3
    assert set(blocks) == {blocks[0]}
    assert blocks[0] > 0


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


TRANSLATING = """
import os, signal, sys

class Translator:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                for _ in range(1000):
                    pass
            except KeyboardInterrupt as interrupt:
                raise {error}("half-way") from interrupt

sys.meta_path.insert(0, Translator())
from engine_command import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["engine.cli.app", "engine.cli.inspect"])
@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
def test_an_interrupt_that_is_translated_on_its_way_is_one_all_the_same(tmp_path, module, error):
    script = TRANSLATING.format(module=module, error=error)
    done = python("-c", script, "inspect", models.affine(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "interrupted\n")


LOADING = """
import os, signal, time
from importlib.machinery import ExtensionFileLoader
from engine.cli.interrupt import expect_interrupts

class Loader(ExtensionFileLoader):
    def exec_module(self, module):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        print("loaded", flush=True)

expect_interrupts()
try:
    Loader("extension", "extension.so").exec_module(None)
    time.sleep(300)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_waits_until_an_extension_module_is_loaded():
    """Its C++ may call Python where it expects no exception."""
    done = python("-c", LOADING)
    assert (done.returncode, done.stdout, done.stderr) == (0, "loaded\ninterrupted\n", "")


LAZY = """
import os, signal
from engine.cli.interrupt import expect_interrupts

class Lazy:
    @property
    def __class__(self):
        raise ImportError("it must not be asked now")

    def work(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

expect_interrupts()
try:
    Lazy().work()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_asks_nothing_of_what_it_interrupts():
    done = python("-c", LAZY)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


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
        wait_until_it_sleeps(child)  # the pipe is full
        child.send_signal(signal.SIGINT)
        begin = time.monotonic()
        status = child.wait(60)
        assert time.monotonic() - begin < 50
        assert child.stderr is not None
        assert "Traceback" not in child.stderr.read()
    assert status == 130


def test_a_command_that_ignores_interrupts_is_left_alone(tmp_path):
    """As under nohup, or in the background of a script."""
    arguments = ["bench", str(models.affine(tmp_path)), "--duration", "1", "--warmup", "0"]
    line = 'trap "" INT; echo "from here on"; exec "$0" -m engine.cli "$@"'
    command = ["/bin/sh", "-c", line, sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "from here on\n"
        for _ in range(15):
            time.sleep(0.1)
            child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "latency p50" in out


def test_a_thread_that_an_interrupt_kept_from_starting_is_waited_for_by_nobody(monkeypatch):
    from engine.cli import interrupt

    def start(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        interrupt.start(lambda: None)
    monkeypatch.undo()
    interrupt.leave(130)
