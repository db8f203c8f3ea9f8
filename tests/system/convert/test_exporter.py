"""The exporters' process: what it asks, shows and leaves, with an exporter of our own in it."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from graphs import parsed
from waiting import children, is_alive, wait_until

from engine import CancelToken
from engine.converter import scratch
from engine.converter.job import Job
from engine.converter.sources.exporter import exported
from engine.errors import Cancelled, ModelError
from engine.host.child import command, environment
from engine.tensor.enums import FmkType


@pytest.fixture
def exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Convert with an exporter of this body; the process is the real one."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(body: str, **more: Any) -> Any:
        lines = ["import os, tempfile, time", "def export(request, step):", f"    {body}"]
        (tmp_path / "an_exporter.py").write_text("\n".join(lines))
        job = Job(
            framework=FmkType.TF, model_file=tmp_path / "model", output_file=tmp_path / "o", **more
        )
        return exported(job, "an_exporter", "Nothing", "nothing", ())

    return run


def test_an_exporter_that_crashes_is_an_error_with_its_last_words(exporter, capfd):
    with pytest.raises(ModelError, match="the exporter crashed with SIGABRT") as error:
        exporter("print('one'); os.write(2, b'two\\n'); os.abort()")
    assert "two" in error.value.__notes__[0]
    with pytest.raises(ModelError, match="from Nothing: KeyError: 'weight'"):
        exporter("raise KeyError('weight')")
    assert capfd.readouterr() == ("", "")


def test_an_exporter_that_writes_no_valid_onnx_is_an_error(exporter):
    model = parsed("g () => () { y = Relu(missing) }")
    with pytest.raises(ModelError, match="missing"):
        exporter(f"open(request['result'], 'wb').write({model.SerializeToString()!r})")


def test_a_function_may_use_operators_of_a_set_that_the_model_itself_does_not(exporter, tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["own": 1]>
        g (float[2] x) => (float[2] y) { y = own.Twice (x) }
        <domain: "own", opset_import: ["": 20]>
        Twice (x) => (y) { z = Gelu (x)  y = Add (z, z) }"""
    )
    read, _ = exporter(f"open(request['result'], 'wb').write({model.SerializeToString()!r})")
    assert read.functions[0].node[0].op_type == "Gelu"


def test_cancelling_ends_the_exporter_at_once(exporter):
    cancel = CancelToken()
    seen = []

    def progress(phase: str, done: int, total: int | None) -> None:
        seen.append((phase, done, total))
        if done == 1:
            cancel.cancel()

    begin, others = time.monotonic(), children()  # as a tracker of shared memory
    with pytest.raises(Cancelled):
        exporter("step(); time.sleep(100)", progress=progress, cancel=cancel)
    assert time.monotonic() - begin < 50
    assert seen == [("exporting", 0, 3), ("exporting", 1, 3)]
    assert children() <= others  # nothing is left running


RELU = "g (float[1] x) => (float[1] y) { y = Relu(x) }"
WRITE = f"open(request['result'], 'wb').write({parsed(RELU).SerializeToString()!r})"


def test_what_is_asked_may_be_long_and_notes_come_back(exporter):
    shapes = {f"input_{place}": (1, 2, 3) for place in range(10_000)}  # more than a command line
    check = "assert request['input_shape']['input_9999'] == [1, 2, 3]"
    model, notes = exporter(f"{check}; {WRITE}; return ['said']", input_shape=shapes)
    assert model.graph.node[0].op_type == "Relu"
    assert notes == ["said"]


@pytest.mark.parametrize("end", ["os.abort()", WRITE])
def test_temporary_files_that_it_leaves_are_gone(end, exporter, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    seen = tmp_path / "seen"
    body = f"open({str(seen)!r}, 'w').write(tempfile.mkdtemp()); {end}"
    if end is WRITE:
        exporter(body)
    else:
        with pytest.raises(ModelError, match="SIGABRT"):
            exporter(body)
    assert Path(seen.read_text()).parents[1] == tmp_path / "temporary"
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("end", ["pass", "os.abort()"])
def test_the_end_of_an_exporter_that_has_written_all_does_not_count(end, exporter, tmp_path):
    flag = tmp_path / "flag"
    waiting = f"[time.sleep(0.01) for _ in iter(lambda: os.path.exists({str(flag)!r}), True)]"
    at_exit = f"import atexit; atexit.register(lambda: ({waiting}, {end.replace('pass', '0')}))"
    others = children()
    model, _ = exporter(f"{at_exit}; {WRITE}")  # while the exporter still runs
    assert model.graph.node[0].op_type == "Relu"
    assert children() - others
    flag.touch()
    wait_until(lambda: children() <= others)


@pytest.mark.skipif(not scratch.MEMORY.is_dir(), reason="there are no files in memory here")
def test_what_is_to_be_encrypted_is_not_written_to_the_disk(exporter, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    seen = tmp_path / "seen"
    body = f"open({str(seen)!r}, 'w').write(request['result'] + ' ' + tempfile.mkdtemp()); {WRITE}"
    exporter(body, encrypt_key=bytes(16))
    for path in seen.read_text().split():
        assert path.startswith(f"{scratch.MEMORY}/")
        assert not Path(path).exists()


def test_an_exporter_gets_what_frameworks_read_of_the_environment_and_nothing_else(
    exporter, tmp_path, monkeypatch
):
    given = {
        "ENGINE_DEC_KEY": "0011223344556677", "CLOUD_PASSWORD": "p", "HF_TOKEN": "t",
        "TF_API_KEY": "k", "WHATEVER": "w", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "1",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen = tmp_path / "seen"
    exporter(f"open({str(seen)!r}, 'w').write('\\n'.join(os.environ)); {WRITE}")
    names = set(seen.read_text().splitlines())
    assert names & {*given} == {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}
    assert {"PATH", "PYTHONPATH", "TMPDIR"} <= names


KILLED = """
import sys, time
from pathlib import Path
from engine.converter.job import Job
from engine.converter.sources.exporter import exported
from engine.tensor.enums import FmkType

job = Job(
    framework=FmkType.TF, model_file=Path("m"), output_file=Path("o"), encrypt_key=bytes(16)
)
exported(job, "an_exporter", "Nothing", "nothing", ())
"""


@pytest.mark.skipif(not scratch.MEMORY.is_dir(), reason="there are no files in memory here")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_conversion_leaves_neither_exporter_nor_files(number, tmp_path, monkeypatch):
    seen = tmp_path / "seen"
    body = (
        "open(request['result'], 'w').write('in clear'); "
        f"open({str(seen)!r}, 'w').write(request['result'] + ' ' + str(os.getpid())); "
        "time.sleep(100)"
    )
    source = ["import os, time", "def export(request, step):", f"    {body}"]
    (tmp_path / "an_exporter.py").write_text("\n".join(source))
    monkeypatch.syspath_prepend(tmp_path)
    with subprocess.Popen(command("-c", KILLED), env=environment()) as child:
        until = time.monotonic() + 60
        while len(seen.read_text().split() if seen.exists() else ()) < 2:
            assert child.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        result, pid = seen.read_text().split()
        assert Path(result).exists()
        child.send_signal(number)
    wait_until(lambda: not Path(result).parent.exists() and not is_alive(pid))
