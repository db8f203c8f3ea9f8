"""A large model's entry of the compile cache is written after its build, by another process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import written

import engine
from engine.host import child
from engine.model.model import model_state
from engine.weights import writing
from engine.weights.store import TURN, Store

pytestmark = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)

ROWS, COLUMNS = 2048, 1024  # 8 MiB of weights, from which on a model is kept
X = np.eye(2, ROWS, dtype=np.float32)
LONG_S = 120


def large(folder: Path, number: int = 0) -> Path:
    """y = x @ w + 1; in a file old enough that its digest can be remembered."""
    text = f"""g (float[n, {ROWS}] x) => (float[n, {COLUMNS}] y) <float one = {{1}}>
        {{ a = MatMul(x, w) y = Add(a, one) }}"""
    return written(folder / f"large{number}.onnx", text, w=weights(number))


def weights(number: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) % 1000 + number


def expected(number: int = 0) -> np.ndarray[Any, Any]:
    return weights(number)[:2] + 1  # the first rows, which X picks


def run(model: engine.Model, number: int = 0) -> None:
    np.testing.assert_array_equal(model(x=X)["y"], expected(number))


def is_mapped(model: engine.Model) -> bool:
    memory = model.memory()
    return memory.mapped_bytes + memory.shared_bytes > 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The default cache of this test. All that is written is waited for in the end."""
    monkeypatch.setenv("ENGINE_CACHE", "on")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    writing.wait(LONG_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return large(tmp_path)


@pytest.fixture
def load(folder: Path) -> Callable[..., engine.Model]:
    def load(path: Path, **common: str) -> engine.Model:
        return engine.load(path, "cpu", threads=1, config={"common_context": common})

    return load


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started to write."""
    started: list[subprocess.Popen[bytes]] = []
    start = child.start

    def record(*arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **more))
        return started[-1]

    monkeypatch.setattr(child, "start", record)
    return started


def names(folder: Path) -> list[str]:
    return Store(folder).names()


def test_the_first_build_serves_before_its_entry_is_written_and_runs_from_it_later(
    path, folder, load, writers
) -> None:
    store = Store(folder)
    with store.locked(TURN):  # no writer has its turn meanwhile
        model = load(path)
        run(model)
        assert not is_mapped(model)
        assert names(folder) == []
        threads = [threading.Thread(target=run, args=(model,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert writing.wait(LONG_S)
    assert len(names(folder)) == 1
    assert is_mapped(model)
    run(model)
    with load(path) as second:
        assert is_mapped(second)
        run(second)
    assert len(writers) == 1
    model.close()


def test_results_are_the_same_before_while_and_after_the_model_changes_over(path, load) -> None:
    with load(path) as model:
        failures: list[BaseException] = []
        is_over = threading.Event()

        def serve() -> None:
            try:
                while not is_over.is_set():
                    run(model)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=serve) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert writing.wait(LONG_S)
        run(model)
        is_over.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert is_mapped(model)


def test_a_build_that_is_to_wait_returns_with_the_entry(path, folder, load, writers) -> None:
    with load(path, compile_cache="wait") as model:
        assert len(names(folder)) == 1
        assert is_mapped(model)
        run(model)
    assert writers == []


def test_sizes_that_were_set_meanwhile_stay(path, folder, load) -> None:
    with load(path) as model:
        with Store(folder).locked(TURN):
            model.resize(model.get_inputs(), [[2, ROWS]])
            run(model)
        assert writing.wait(LONG_S)
        assert is_mapped(model)
        assert [list(spec.shape) for spec in model.inputs] == [[2, ROWS]]
        run(model)
        model.resize(model.get_inputs(), [[1, ROWS]])  # the file leaves that size open
        np.testing.assert_array_equal(model(x=X[:1])["y"], expected()[:1])


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_model_of_a_relative_path_is_opened_anew_from_another_working_folder(
    path, folder, load, monkeypatch, is_apart
) -> None:
    if is_apart:
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights")
    monkeypatch.setattr("engine.weights.digests.SETTLED_NS", 0)  # as if the file were old
    monkeypatch.chdir(path.parent)
    with Store(folder).locked(TURN):
        loaded = load(Path(path.name))
        monkeypatch.chdir("/")
    assert writing.wait(LONG_S)
    assert is_mapped(loaded)
    run(loaded)
    loaded.close()


@pytest.mark.parametrize("is_freed", [False, True])
def test_a_model_that_is_gone_by_then_leaves_its_entry(path, folder, load, is_freed) -> None:
    with Store(folder).locked(TURN):
        model = load(path)
        if not is_freed:
            model.close()
        state = model_state(model)
        del model
    assert writing.wait(LONG_S)
    assert state.built is None
    assert len(names(folder)) == 1


def test_several_models_are_written_one_after_the_other(tmp_path, folder, load, writers) -> None:
    with Store(folder).locked(TURN):
        models = [load(large(tmp_path, number)) for number in range(3)]
        for number, model in enumerate(models):
            run(model, number)
    assert writing.wait(LONG_S)
    assert len(names(folder)) == len(writers) == 3
    for number, model in enumerate(models):
        assert is_mapped(model)
        run(model, number)
        model.close()


def test_a_model_that_is_built_twice_is_written_once(path, folder, load, writers) -> None:
    with Store(folder).locked(TURN):
        models = [load(path) for _ in range(2)]
    assert writing.wait(LONG_S)
    assert len(names(folder)) == len(writers) == 1
    for model in models:
        assert is_mapped(model)
        run(model)
        model.close()


@pytest.mark.parametrize(
    "seconds", [0.5, *(pytest.param(n / 10, marks=pytest.mark.slow) for n in range(0, 20, 2))]
)
def test_a_writer_that_is_killed_leaves_nothing_torn_and_the_next_build_writes(
    path, folder, load, writers, caplog, seconds
) -> None:
    with load(path) as model:
        time.sleep(seconds)
        [writer] = writers
        writer.kill()
        assert writing.wait(LONG_S)
        run(model)
        was_killed = writer.returncode == -signal.SIGKILL
    assert ("SIGKILL" in caplog.text) == (was_killed and names(folder) == [])
    store = Store(folder)
    assert [store.verified(name) for name in store.names()] == [""] * len(store.names())
    with load(path) as model:
        assert writing.wait(LONG_S)
        assert is_mapped(model)
        run(model)
    assert len(store.names()) == 1
    assert store.verified(store.names()[0]) == ""
    assert list((store.folder / "building").iterdir()) == []


def test_a_process_whose_fellows_writer_was_killed_writes_itself(
    path, folder, load, writers
) -> None:
    with Store(folder).locked(TURN):
        fellow = start_script(path, "input()")  # stays alive
        read_until(fellow, "ran")
        [its_writer] = children_of(fellow.pid)
        model = load(path)
        assert writers == []
        os.kill(its_writer, signal.SIGKILL)
        fellow.kill()
        fellow.communicate()
        run(model)
    assert writing.wait(LONG_S)
    assert len(writers) == len(names(folder)) == 1
    assert is_mapped(model)
    run(model)
    model.close()


def test_an_entry_is_written_though_its_lock_is_held_for_a_moment_by_who_waits_for_it(
    path, folder, load, writers
) -> None:
    """As `engine cache wait` holds it, and each process whose fellow's writer was killed."""
    store = Store(folder)
    with store.locked(TURN):
        load(path).close()
        [writer] = writers
        writer.kill()
        assert writing.wait(LONG_S)
        [name] = set(os.listdir(store.lock(TURN).parent)) - {TURN}
    with store.locked(name, shared=True):
        model = load(path)
        assert not writing.wait(0.5)
        assert writers == [writer]
    assert writing.wait(LONG_S)
    assert len(names(folder)) == 1
    assert len(writers) == 2
    run(model)
    model.close()


@pytest.mark.parametrize(("name", "mode"), [("uwsgi", 0o700), ("python3", 0o600)])
def test_a_process_that_cannot_start_python_writes_by_itself(
    path, folder, load, monkeypatch, name, mode
) -> None:
    """A program that has Python built in would start itself, as often as it builds a model."""
    program = path.with_name(name)
    program.write_text("#!/bin/sh\necho started > $0.started\n")
    program.chmod(mode)
    monkeypatch.setattr(sys, "executable", str(program))
    with load(path) as model:
        assert len(names(folder)) == 1
        run(model)
    assert not path.with_name(f"{name}.started").exists()


def test_a_writer_is_ended_by_signals_that_its_starter_blocks(path, folder, load, writers) -> None:
    with Store(folder).locked(TURN):
        earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM})
        try:
            model = load(path)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        [writer] = writers
        writer.terminate()
        assert writer.wait(LONG_S) == -signal.SIGTERM
    run(model)
    model.close()


SCRIPT = """
import sys
import numpy as np
import engine
with engine.load(sys.argv[1], "cpu", threads=1) as model:
    y = model(x=np.eye(2, 2048, dtype=np.float32))["y"]
    print("ran", float(y[0, 0]), flush=True)
    {rest}
"""


def start_script(path: Path, rest: str = "pass") -> subprocess.Popen[str]:
    """Start a process that builds a model and runs it."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(rest=rest), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith(word)


def children_of(parent: int) -> list[int]:
    """Return the child processes of a process."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(number) for number in text.split()]


def test_a_process_that_ends_at_once_leaves_the_entry(path, folder, load) -> None:
    process = start_script(path)
    out, err = process.communicate(timeout=LONG_S)
    assert (out, err, process.returncode) == ("ran 1.0\n", "", 0)
    Store(folder).wait()
    assert len(names(folder)) == 1
    with load(path) as model:
        assert is_mapped(model)
        run(model)


def test_a_model_that_is_built_while_the_process_ends_leaves_its_entry(path, folder) -> None:
    late = "import atexit; atexit.register(lambda: engine.load(sys.argv[2], 'cpu')(x=x))"
    program = SCRIPT.format(rest="pass").replace("import engine", f"import engine; {late}")
    program = program.replace("y = model", "x = np.eye(2, 2048, dtype=np.float32); y = model")
    process = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program, str(path), str(large(path.parent, 1))],
        capture_output=True, text=True, timeout=LONG_S,
    )  # fmt: skip
    assert (process.stdout, process.stderr, process.returncode) == ("ran 1.0\n", "", 0)
    Store(folder).wait()
    assert len(names(folder)) == 2


def test_without_a_thread_the_entry_is_written_and_the_next_build_opens_both_models_anew(
    path, folder, load, monkeypatch, caplog
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        first = load(path)
    run(first)
    Store(folder).wait()
    assert len(names(folder)) == 1
    assert caplog.text == ""
    second = load(large(path.parent, 1))
    assert writing.wait(LONG_S)
    for number, model in enumerate((first, second)):
        assert is_mapped(model)
        run(model, number)
        model.close()


def test_a_process_that_is_killed_leaves_the_entry(path, folder, load) -> None:
    process = start_script(path, "input()")
    read_until(process, "ran")
    process.kill()
    process.communicate()
    Store(folder).wait()
    [name] = names(folder)
    assert Store(folder).verified(name) == ""


def test_two_processes_at_once_leave_one_entry(path, folder) -> None:
    processes = [start_script(path) for _ in range(2)]
    outs = [process.communicate(timeout=LONG_S) for process in processes]
    assert outs == [("ran 1.0\n", "")] * 2
    Store(folder).wait()
    [name] = names(folder)
    assert Store(folder).verified(name) == ""


def test_a_fork_meanwhile_leaves_both_processes_well(path, folder, load) -> None:
    with Store(folder).locked(TURN):
        model = load(path)
        forked = os.fork()
        if not forked:  # it has no such model, and may build its own
            code = 1
            try:
                assert writing.wait(0)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert writing.wait(LONG_S)
    assert is_mapped(model)
    run(model)
    model.close()


def test_variable_weights_are_written_before_the_build_returns(path, folder, load, writers) -> None:
    with engine.load(path, "cpu", variable_weights=["one"]) as model:
        assert len(names(folder)) == 1
        model.update_weights({"one": np.array(2, np.float32)})
        run(model, 1)
    assert writers == []


def test_a_model_that_two_backends_run_is_kept_by_its_build(
    path, folder, null_backend, writers, monkeypatch
) -> None:
    """Its weights have not been hashed when the first backend is asked."""
    monkeypatch.setattr("engine.weights.digests.SETTLED_NS", 0)  # as if the file were old
    config = {"null_context": {"unsupported_ops": "Add"}}
    with engine.load(path, [null_backend, "cpu"], config=config) as model:
        run(model)
        kept = {entry.identity.key["backend"] for entry in Store(folder).entries()}
    assert any("partition" in backend for backend in kept)
    assert writers == []


def test_a_runner_serves_while_its_models_change_over(path, folder) -> None:
    runner = engine.ModelParallelRunner()
    runner.build_from_file(str(path))
    until = time.monotonic() + LONG_S
    count, is_over = 0, False
    while not is_over or count < 10:
        assert time.monotonic() < until
        is_over = is_over or writing.wait(0)
        [y] = runner.predict([engine.Tensor(X)])
        np.testing.assert_array_equal(y.get_data_to_numpy(), expected())
        count += 1
    runner.close()
    assert len(names(folder)) == 1


def _build(path: str) -> float:
    with engine.load(path, "cpu", threads=1) as model:
        return float(model(x=X)["y"][0, 0])


@pytest.mark.slow
def test_processes_of_a_pool_build_and_leave_the_entry(path, folder) -> None:
    """They are daemons, which multiprocessing lets start no process of its own kind."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_build, [str(path)] * 2) == [1.0, 1.0]
    Store(folder).wait()
    assert len(names(folder)) == 1


def test_a_full_disk_is_a_warning_and_nothing_is_started(
    path, folder, load, writers, monkeypatch, caplog
) -> None:
    usage = shutil.disk_usage(path.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1))
    with caplog.at_level(logging.WARNING, "engine"), load(path) as model:
        run(model)
    assert "not kept in the compile cache" in caplog.text
    assert writers == []


def test_a_disk_that_is_full_by_then_is_a_warning_and_the_next_build_tries_again(
    path, folder, load, writers, monkeypatch, caplog
) -> None:
    """The writer finds it full: a module that Python imports at its start says so."""
    (path.parent / "sitecustomize.py").write_text(
        "import shutil, sys\n"
        "if 'engine.weights.writer' in sys.orig_argv:\n"
        "    usage = shutil.disk_usage('/')\n"
        "    shutil.disk_usage = lambda _: usage._replace(free=1)\n"
    )
    with monkeypatch.context() as full:
        full.syspath_prepend(str(path.parent))
        with load(path) as model:
            assert writing.wait(LONG_S)
            run(model)
            assert not is_mapped(model)
    assert "bytes left" in caplog.text
    assert names(folder) == []
    with load(path) as model:
        assert writing.wait(LONG_S)
        assert is_mapped(model)
    assert len(writers) == 2


def test_a_cache_that_was_removed_is_not_made_anew(path, folder, load) -> None:
    with Store(folder).locked(TURN):
        with load(path) as model:
            run(model)
        shutil.rmtree(folder)
    writing.wait(LONG_S)
    assert not list(folder.glob("v1/entries/*"))


def test_a_file_that_changes_meanwhile_leaves_the_model_as_it_is(path, folder, load) -> None:
    with load(path) as model:
        with Store(folder).locked(TURN):
            large(path.parent, 1).replace(path)
        assert writing.wait(LONG_S)
        run(model)
    with load(path) as model:
        run(model, 1)
        assert writing.wait(LONG_S)
        run(model, 1)


def test_a_writer_that_fails_is_a_warning_that_says_why(
    path, folder, load, monkeypatch, caplog
) -> None:
    with Store(folder).locked(TURN):
        model = load(path)
        path.unlink()
    with caplog.at_level(logging.WARNING, "engine"):
        assert writing.wait(LONG_S)
    assert "its entry in the compile cache was not written" in caplog.text
    assert str(path) in caplog.text
    run(model)
    model.close()
