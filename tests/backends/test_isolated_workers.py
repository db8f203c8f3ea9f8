"""An isolated model's worker fails to build it, ends, and is followed by the next."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isolating import ISOLATE, X, isolated, kill_worker_of
from waiting import children, wait_until

import engine
from engine import CancelToken
from engine.backends import open_backend
from engine.backends.isolation.backend import isolated as isolated_backend
from engine.errors import BackendUnavailable, EngineError, ModelError
from engine.model.model import model_state
from engine.types import CompileOptions, Device, ModelSource
from engine_testing import models

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def isolated_runner(path: Path, target: str) -> engine.ModelParallelRunner:
    context = engine.Context()
    context.target, context.parallel.config_info = [target], ISOLATE
    runner = engine.ModelParallelRunner()
    runner.build_from_file(str(path), context, max_batch_size=1)
    return runner


def test_a_runner_is_not_ready_until_its_process_is_back_and_has_it_started_itself(
    null_backend: str, tmp_path: Path
) -> None:
    others = children()
    with isolated_runner(models.affine(tmp_path), null_backend) as runner:
        assert (runner.is_ready, runner.is_in_process) == (True, False)
        [before] = children() - others
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: not runner.is_ready)
        assert runner.why_not_ready == (
            "the model's process has ended, and another is being started"
        )
        wait_until(lambda: runner.is_ready)  # no predict asks for it
        [y] = runner.predict([X])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
        assert before not in children()


def test_a_runner_whose_process_cannot_be_started_says_why(odd, tmp_path: Path) -> None:
    flag, others = tmp_path / "flag", children()
    name = odd(load=f"assert not os.path.exists({str(flag)!r}), 'it is out of order'")
    with isolated_runner(models.affine(tmp_path), name) as runner:
        flag.touch()
        [worker] = children() - others
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: "cannot be started again" in runner.why_not_ready)
        assert "it is out of order" in runner.why_not_ready
        flag.unlink()
        wait_until(lambda: runner.is_ready)


def test_a_worker_that_was_killed_before_a_predict_blames_no_node(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nobody sees its end in time, a predict begins as if it were alive."""
    with isolated(models.identity(tmp_path), null_backend) as model:
        x = np.array([1], np.float32)
        model(x)
        ended = kill_worker_of(model)
        monkeypatch.setattr(model_state(model).plan.executable, "alive", lambda: ended)
        with pytest.raises(ModelError) as error:
            model(x)
        assert str(error.value).endswith("was killed with SIGKILL before it ran the model")
        assert "node" not in str(ended.failed("while it ran the model"))


def test_a_crash_blames_the_only_node_where_it_ran(null_backend: str, tmp_path: Path) -> None:
    with isolated(models.identity(tmp_path), null_backend) as model:
        ended = kill_worker_of(model, signal.SIGSEGV)
        assert "node" not in str(ended.failed("while a context was opened"))
        said = str(ended.failed("while it ran the model"))
        assert "in its only node" in said
        assert "(Identity)" in said


@pytest.mark.parametrize(
    ("place", "says"), [("load", "while it loaded"), ("compile", "while it compiled")]
)
def test_a_crash_while_building_is_an_error(odd, tmp_path, place, says) -> None:
    name = odd(**{place: "ctypes.string_at(0)"})
    with pytest.raises(ModelError, match=rf"crashed with SIGSEGV {says} the model"):
        isolated(models.affine(tmp_path), name)


class _NoThread(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("turns", [1, pytest.param(15, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "how", ["refused", "killed", "not started", pytest.param("cancelled", marks=pytest.mark.slow)]
)
def test_a_build_that_fails_keeps_no_view_of_the_weights(
    how: str, turns: int, odd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python before 3.13 dies where it collects a view of a view, which an error's frames hold."""
    code = {"refused": "raise ModelError('no')", "killed": "os.kill(os.getpid(), 9)"}
    load = "from engine.errors import ModelError; " + code.get(how, "time.sleep(600)")
    # A build that hears of a cancel has 10 s to stop.
    backend = isolated_backend(open_backend(odd(load=load, without="'cancel_compile'")))
    path = models.affine(tmp_path)
    if how == "not started":
        monkeypatch.setattr(threading, "Thread", _NoThread)
    for turn in range(turns):
        token = CancelToken()
        if how == "cancelled":
            threading.Timer(0.01 * (turn or 30), token.cancel).start()
        memory = bytearray(100_000)
        source = ModelSource(format="onnx", path=path, files={"weights": memoryview(memory)})
        with pytest.raises((EngineError, RuntimeError)) as kept:
            backend.load(source, CompileOptions(device=Device("cpu", 0), cancel=token))
        source.files["weights"].release()
        memory.clear()  # raises BufferError while there is a view
        assert kept.value.__traceback__ is not None


@pytest.mark.parametrize("are_exchanged", [False, True])
def test_the_next_worker_finds_linked_data_files_and_refuses_exchanged_ones(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_exchanged: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(models.linked(tmp_path).name)
    with isolated(path, null_backend) as model:
        monkeypatch.chdir("blobs")
        kill_worker_of(model)
        if not are_exchanged:
            np.testing.assert_array_equal(model(X)["y"], X + 5 - 3)
            return
        for name, target in (("a.bin", "blobs/b"), ("b.bin", "blobs/a")):
            (tmp_path / name).unlink()
            (tmp_path / name).symlink_to(target)
        with pytest.raises(ModelError, match=r"\.bin: changed while it was loaded"):
            model(X)


@pytest.mark.slow
def test_a_file_that_has_changed_is_not_loaded_for_the_next_worker(null_backend, tmp_path) -> None:
    path = models.heavy(tmp_path)
    with path.open("ab") as file:
        file.write(b"\x12\x00" * 300_000)  # an empty producer version, often: above 4 MiB
    with isolated(path, null_backend) as model:
        path.write_bytes(path.read_bytes())
        kill_worker_of(model)
        with pytest.raises(ModelError, match="changed"):
            model(np.ones((1, 1024), np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        ({"load": "from engine.errors import ModelError; raise ModelError('no node', 'the path')"},
         ModelError, "no node"),
        ({"compile": "raise KeyError('deep')"}, BackendUnavailable,
         "'odd' is at fault: its engine_compile raised Key"),
    ],
)  # fmt: skip
def test_errors_of_a_build_keep_their_class_and_attributes(odd, tmp_path, code, error, says):
    with pytest.raises(error, match=says) as caught:
        isolated(models.affine(tmp_path), odd(**code))
    assert error is not ModelError or caught.value.path == "the path"


def test_a_worker_that_takes_long_to_free_its_model_is_not_killed(odd, tmp_path) -> None:
    freed = tmp_path / "freed"
    slow = f"""
from engine_testing.null_run import NullExecutable
close = NullExecutable.close
def slow(self):
    time.sleep(2.5)
    close(self)
    open({str(freed)!r}, "w").close()
NullExecutable.close = slow
"""
    with isolated(models.affine(tmp_path), odd(in_worker=slow)) as model:
        model(X)
    assert freed.exists()
