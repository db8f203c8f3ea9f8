"""Compiling with ATC: its command line, its end, and everything that can go wrong. Emulated."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import BackendUnavailable, Cancelled, ModelError
from engine.formats import encryption
from engine.types import CancelToken, ModelSource
from engine_ascend_ge import atc
from engine_testing import models

Build = Callable[..., Any]
KEY = b"sixteen-byte-key"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; a compile leaves nothing there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    assert list(folder.glob("engine*")) == []  # other libraries may have files of theirs


@pytest.fixture
def misbehave(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the emulated atc do as EMULATED_ATC says."""

    def wish(**behaviour: object) -> None:
        monkeypatch.setenv("EMULATED_ATC", json.dumps(behaviour))

    return wish


@pytest.fixture
def spy(tmp_path: Path) -> Callable[[], dict[str, str]]:
    """Puts a command before atc that notes the arguments; returns the last ones by name."""
    note = tmp_path / "arguments.json"
    script = tmp_path / "spy"
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump([sys.argv[1:], os.getcwd(), os.environ['ASCEND_GLOBAL_LOG_LEVEL']],"
        f"open({str(note)!r}, 'w'))\n"
        "os.execvp('atc', ['atc', *sys.argv[1:]])\n"
    )
    script.chmod(0o755)

    def read() -> dict[str, str]:
        arguments, folder, level = json.loads(note.read_text())
        named = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
        return {**named, "(cwd)": folder, "(level)": level}

    read.command = str(script)  # type: ignore[attr-defined]
    return read


def has_ended(pid: int) -> bool:
    """Return whether a process ends soon: it takes a moment from its signal to its end."""
    for _ in range(100):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


def test_the_command_says_what_the_user_did_not(
    build: Build, spy: Any, temporary: Path, path: Path
) -> None:
    build(path, set={"atc": spy.command})
    arguments = spy()
    folder = arguments.pop("(cwd)")
    assert Path(folder).parent == temporary, "ATC leaves files where it runs"
    assert not Path(folder).exists()
    assert arguments.pop("model") in (str(path), f"{folder}/model.onnx")
    assert arguments == {
        "framework": "5",
        "output": f"{folder}/compiled",
        "soc_version": "Ascend910B3",
        "input_shape": "x:-1,3",
        "precision_mode_v2": "origin",
        "input_format": "ND",
        "external_weight": "0",
        "(level)": "3",
    }


def test_options_reach_the_command(
    build: Build, spy: Any, temporary: Path, geared: Any, path: Path
) -> None:
    gears = geared(*({"x": (size, 3)} for size in (1, 2, 4)))
    given = {"atc": spy.command, "op_select_impl_mode": "high_precision"}
    build(path, set=given, precision="enforce_fp16", **gears)
    arguments = spy()
    assert arguments["input_shape"] == "x:-1,3"
    assert arguments["dynamic_dims"] == "1;2;4"
    assert arguments["precision_mode"] == "force_fp16"
    assert "precision_mode_v2" not in arguments
    assert arguments["op_select_implmode"] == "high_precision"


def test_a_chosen_soc_is_compiled_for_and_refused_by_another_device(
    build: Build, path: Path
) -> None:
    with pytest.raises(ModelError, match=r"load the compiled model.*soc_version is invalid"):
        build(path, set={"soc_version": "Ascend310P3"})


def test_a_device_that_does_not_say_its_soc_needs_the_option(
    machine: Any, build: Build, path: Path
) -> None:
    machine.soc = None
    with pytest.raises(BackendUnavailable, match="set option soc_version"):
        build(path)


def test_python_minus_m_ge_pyatc_is_used_where_there_is_no_atc(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BackendUnavailable, match="ATC is not there"):
        atc.find_compiler("")
    (tmp_path / "ge" / "pyatc").mkdir(parents=True)
    (tmp_path / "ge" / "__init__.py").write_text("raise ImportError('only to be run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert atc.find_compiler("") == [sys.executable, "-m", "ge.pyatc"]


def test_atc_in_canns_own_folder_is_found(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    command = Path(os.environ["ASCEND_HOME_PATH"]) / "bin" / "atc"
    command.parent.mkdir()
    command.touch(mode=0o755)
    assert atc.find_compiler("") == [str(command)]


def test_a_command_that_is_not_there_is_named(machine: Any) -> None:
    with pytest.raises(BackendUnavailable, match="no command 'attic'"):
        atc.find_compiler("attic --fast")


@pytest.mark.parametrize("folder", ["plain", "with space", "plus+at@é"])
def test_models_in_any_folder_compile_with_their_weights_beside_them(
    build: Build, predict: Any, tmp_path: Path, folder: str
) -> None:
    (tmp_path / folder).mkdir()
    executable = build(models.external(tmp_path / folder))
    x = np.zeros((1, 256), np.float32)
    [y] = predict(executable.open_context(), x)
    np.testing.assert_array_equal(y, np.arange(256, dtype=np.float32)[None])


def test_a_model_without_bytes_is_read_where_it_is_if_atc_takes_the_path(tmp_path: Path) -> None:
    work, odd = tmp_path / "work", tmp_path / "a b"
    work.mkdir()
    odd.mkdir()
    path = models.affine(tmp_path)
    assert atc.place_model(ModelSource(format="onnx", path=path), work) == path
    other = models.affine(odd)
    placed = atc.place_model(ModelSource(format="onnx", path=other), work)
    assert placed.parent == work
    assert placed.read_bytes() == other.read_bytes()


def test_a_temporary_folder_that_atc_refuses_is_named(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    odd = tmp_path / "a b"
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    with pytest.raises(BackendUnavailable, match="set TMPDIR"):
        build(path)
    assert list(odd.iterdir()) == []


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The model y = 2x + 1, encrypted with KEY."""
    path = models.affine(tmp_path)
    path.write_bytes(encryption.encrypt(path.read_bytes(), KEY))
    return path


def test_a_decrypted_model_is_compiled_in_memory(
    build: Build, spy: Any, secret: Path, predict: Any, temporary: Path
) -> None:
    executable = build(secret, {"dec_key": KEY}, set={"atc": spy.command})
    [y] = predict(executable.open_context(), np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(y, np.full((1, 3), 3, np.float32))
    places = (spy()["model"], spy()["output"], spy()["(cwd)"])
    assert all(place.startswith("/dev/shm/") for place in places)


def test_a_decrypted_model_is_refused_where_it_would_reach_the_disk(
    build: Build, secret: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(atc, "_MEMORY", str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="nothing decrypted is written to disk"):
        build(secret, {"dec_key": KEY})


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ({"fail": "E40010: the operator Frobnicate is not supported"},
         r"affine\.onnx: ATC .* \(exit status 255\).*E40010.*Fro"),
        ({"crash": True}, "exit status"),
        ({"no_output": True}, r"it wrote no \.om file"),
    ],
    ids=["refuses", "crashes", "writes nothing"],
)  # fmt: skip
def test_an_end_without_a_model_is_an_error_with_atcs_last_lines(
    build: Build, misbehave: Any, temporary: Path, path: Path, behaviour: Any, message: str
) -> None:
    misbehave(**behaviour)
    with pytest.raises(ModelError, match=message):
        build(path)


@pytest.mark.parametrize(
    ("script", "shown", "hidden"),
    [
        ("seq -f 'noise %g' 1 1000; echo 'ATC run failed, Please check the detail log'; "
         "echo 'E19010: no parser for operator Frobnicate'; "
         "for i in $(seq 50); do printf '  trace %d %01000d\\n' $i 0; done; exit 255",
         "E19010: no parser for operator Frobnicate", ["noise", "trace 40"]),
        ("seq -f 'line %g' 1 1000; exit 7", r"exit status 7.*line 989 .* line 1000", ["line 988"]),
    ],
    ids=["from the verdict on", "the last lines without one"],
)  # fmt: skip
def test_of_much_output_a_part_is_shown(
    build: Build, tmp_path: Path, temporary: Path, path: Path, script: str, shown: str, hidden: Any
) -> None:
    talker = tmp_path / "talker"
    talker.write_text(f"#!/bin/bash\n{script}\n")
    talker.chmod(0o755)
    with pytest.raises(ModelError, match=shown) as caught:
        build(path, set={"atc": str(talker)})
    assert [word for word in hidden if word in str(caught.value)] == []
    assert len(str(caught.value)) < 6000


def test_a_command_that_cannot_start_is_unavailable(
    build: Build, tmp_path: Path, temporary: Path, path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    with pytest.raises(BackendUnavailable, match="ATC cannot be started"):
        build(path, set={"atc": str(broken)})


@pytest.mark.slow
def test_a_compile_ends_at_its_time_limit_with_all_its_processes(
    build: Build, misbehave: Any, tmp_path: Path, temporary: Path, path: Path
) -> None:
    worker = tmp_path / "worker.pid"
    misbehave(sleep_s=60, worker=str(worker))
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"did not finish within 8 s; raise option 'compile_"):
        build(path, set={"compile_timeout_s": "8"})
    assert time.monotonic() - start < 30
    assert has_ended(int(worker.read_text()))


def test_a_cancelled_compile_ends_with_all_its_processes(
    machine: Any, build: Build, misbehave: Any, tmp_path: Path, temporary: Path, path: Path
) -> None:
    worker = tmp_path / "worker.pid"
    misbehave(sleep_s=60, worker=str(worker))
    token = CancelToken()

    def cancel_when_it_works() -> None:
        while not worker.is_file() or not worker.read_text():
            time.sleep(0.02)
        token.cancel()

    watcher = threading.Thread(target=cancel_when_it_works)
    watcher.start()
    with pytest.raises(Cancelled):
        build(path, cancel=token)
    watcher.join()
    assert has_ended(int(worker.read_text()))
    assert machine.live() == {}


def test_a_worker_that_outlives_atc_does_not_hold_the_compile(
    build: Build, misbehave: Any, tmp_path: Path, path: Path
) -> None:
    worker = tmp_path / "worker.pid"
    misbehave(worker=str(worker))
    start = time.monotonic()
    build(path)
    assert time.monotonic() - start < 30
    assert has_ended(int(worker.read_text()))


def test_progress_names_the_phases(build: Build, misbehave: Any, path: Path) -> None:
    misbehave(sleep_s=0.5)
    phases: list[str] = []

    def note(phase: str, done: int, total: int | None) -> None:
        if phase not in phases:
            phases.append(phase)

    build(path, progress=note)
    assert phases[0] == "prepare"
    assert "compile with ATC" in phases
    assert phases[-1] == "load"


def test_compiled_models_do_not_need_their_folder(
    build: Build, is_affine: Any, temporary: Path, path: Path
) -> None:
    executable = build(path)
    shutil.rmtree(temporary)
    for _ in range(2):  # the second context is another load
        is_affine(executable.open_context(), np.ones((2, 3), np.float32))
