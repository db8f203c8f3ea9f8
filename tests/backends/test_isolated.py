"""`[common_context] isolate`: models in processes of their own give the same, and take no harm."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from operator import le
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import pytest
from waiting import children, wait_until

import engine
from engine import CancelToken, Model, Tensor
from engine.backends import open_backend
from engine.backends.isolation.backend import isolated as isolated_backend
from engine.errors import (
    BackendUnavailable,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    InputError,
    ModelError,
)
from engine.host.child import command, environment
from engine.model.model import model_state
from engine.types import CompileOptions, Device, ModelSource
from engine_testing import models
from engine_testing.plugins import install, installed

ISOLATE = {"common_context": {"isolate": "true"}}

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


@pytest.fixture
def odd(plugin_folder: Path) -> Callable[..., str]:
    def install_odd(**code: str) -> str:
        install(plugin_folder, "odd", "plugin_odd", source=source_of_odd(**code))
        return "odd"

    return install_odd


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """An isolated model, y = 2x + 1, of a backend "shared" that does what PREDICT says."""
    folder = tmp_path_factory.mktemp("shared")
    install(folder, "shared", "plugin_shared", source=source_of_odd("shared"))
    path = models.affine(folder)
    with left_as_it_was(), installed(folder), isolated(path, "shared") as model:
        yield model


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    with nullcontext() if "shared" in request.fixturenames else left_as_it_was():
        yield


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
    return engine.load(path, target=target, config={**ISOLATE, **more})


def process_of(model: Model) -> Any:
    return model_state(model).plan.executable.process()


def worker_of(model: Model) -> int:
    return process_of(model).worker.pid


def kill_worker_of(model: Model, number: int = signal.SIGKILL) -> Any:
    """Kill a model's worker, and wait until it has ended: the engine may see it from then on."""
    process = process_of(model)
    os.kill(process.worker.pid, number)
    assert process.worker.wait(60)
    return process


X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def test_it_runs_in_another_process_with_the_same_specs_and_placement(
    null_backend: str, tmp_path: Path
) -> None:
    path = models.affine(tmp_path)
    with engine.load(path, target=null_backend) as here, isolated(path, null_backend) as there:
        assert there.inputs == here.inputs
        assert there.outputs == here.outputs
        assert there.placement == here.placement
        assert Path(f"/proc/{worker_of(there)}").exists()
        for rows in (2, 1, 5000, 2):  # the last as the first: memory has grown in between
            x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
            np.testing.assert_array_equal(there(x)["y"], 2 * x + 1)
        first, second = there(X)["y"], there(2 * X)["y"]
        np.testing.assert_array_equal(first, 2 * X + 1)  # memory of its own
        np.testing.assert_array_equal(second, 4 * X + 1)
        assert first.flags.writeable


def values(model: Any, *given: Any) -> list[Any]:
    return list(model(*given).values())


def test_results_that_change_their_shape_with_the_data_stay_right(null_backend, tmp_path) -> None:
    """Those that come alike are written in place from then on, until they do not."""
    with isolated(models.nonzero(tmp_path), null_backend) as model:
        for given in ([1, 0, 2], [3, 4, 0], [5, 0, 6], [7, 7, 7], [0, 0, 0], [0, 1, 0], [1, 1, 0]):
            [found] = values(model, np.array(given, np.float32))
            assert found.tolist() == np.nonzero(given)[0][None].tolist()
        wrong = Tensor(np.zeros((1, 9), np.int64))
        with pytest.raises(InputError, match=r"'y': .*int64\[1, 1\].*int64\[1, 9\]"):
            model.predict([np.ones(1, np.float32)], [wrong])


def test_given_outputs_are_filled_in_place(shared: Model) -> None:
    memory = np.zeros((2, 3), np.float32)
    output = Tensor(memory)
    assert shared.predict([X], [output]) == [output]
    np.testing.assert_array_equal(memory, 2 * X + 1)


@pytest.mark.slow
def test_a_model_in_memory_is_run_too(null_context: engine.Context, tmp_path: Path) -> None:
    model = Model()
    content = models.heavy(tmp_path).read_bytes()
    model.build_from_buffer(content, context=null_context, config_dict=ISOLATE)
    with model:
        x = np.random.default_rng(0).random((3, 1024), np.float32)
        for _ in range(2):
            np.testing.assert_array_equal(model(x)["y"], x)
            kill_worker_of(model)


@pytest.mark.slow
def test_threads_predict_at_once(null_backend: str, tmp_path: Path) -> None:
    slow = {"null_context": {"delay_s": "2"}}
    with (
        isolated(models.affine(tmp_path), null_backend, **slow) as model,
        ThreadPoolExecutor(8) as pool,
    ):
        model(X)
        begin = time.monotonic()
        for number, result in enumerate(pool.map(lambda n: model(X + n)["y"], range(8))):
            np.testing.assert_array_equal(result, 2 * (X + number) + 1)
        assert time.monotonic() - begin < 12  # 16 one after the other


@pytest.mark.parametrize(
    ("first", "name"),
    [(SEGFAULT, "SIGSEGV"), (FPE, "SIGFPE"), (ABORT, r"SIGABRT \(a check failed\)")],
)
def test_a_crash_in_predict_is_an_error_and_the_next_predict_runs(shared, first, name) -> None:
    says = (
        rf"predict failed! {shared.model_path_}: backend 'shared', isolated in a process of its "
        rf"own, crashed with {name} while it ran the model$"
    )
    before = worker_of(shared)
    with pytest.raises(ModelError, match=says) as error:
        shared(np.full_like(X, first))
    assert error.value.path == shared.model_path_
    assert error.value.at_fault == "shared"
    np.testing.assert_array_equal(shared(X)["y"], 2 * X + 1)
    assert worker_of(shared) != before


def test_a_worker_that_was_killed_before_a_predict_is_followed_by_another(shared: Model) -> None:
    kill_worker_of(shared)
    np.testing.assert_array_equal(shared(X)["y"], 2 * X + 1)


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


@pytest.mark.parametrize(
    ("first", "says"), [(RAISE, "Own: deep inside"), (UNSENDABLE, "ValueError: .*lambda")]
)
def test_what_a_hook_raises_arrives(shared: Model, first: float, says: str) -> None:
    before = worker_of(shared)
    with pytest.raises(ModelError, match=rf"backend 'shared' raised .*{says}"):
        shared(np.full_like(X, first))
    np.testing.assert_array_equal(shared(X)["y"], 2 * X + 1)
    assert worker_of(shared) == before


def test_what_a_worker_writes_to_its_stderr_does_not_grow_for_ever(shared: Model) -> None:
    for _ in range(6):
        shared(np.full_like(X, LOUD))
    worker = process_of(shared).worker
    assert len(worker.errors()) <= 1 << 20
    assert os.fstat(worker._errors.fileno()).st_size <= 2 << 20


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


def test_an_end_is_told_also_when_the_next_worker_runs_already(shared: Model) -> None:
    """One thread may have started it while another still has to say how the last one ended."""
    ended = kill_worker_of(shared)
    np.testing.assert_array_equal(shared(X)["y"], 2 * X + 1)
    assert process_of(shared) is not ended
    ended.cancel(1)
    said = str(ended.failed("while it ran the model"))
    assert "was killed with SIGKILL" in said
    assert said.endswith("while it ran the model")


def test_contexts_that_are_closed_leave_nothing_in_the_worker(shared: Model) -> None:
    shared(X)
    descriptors = Path(f"/proc/{worker_of(shared)}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(10):
        context = model_state(shared).plan.executable.open_context()
        [y] = context.run([X], None, None)
        np.testing.assert_array_equal(y, 2 * X + 1)
        context.close()
    wait_until(lambda: len(list(descriptors.iterdir())) <= before)


def cancelled_soon() -> CancelToken:
    token = CancelToken()
    threading.Timer(0.3, token.cancel).start()
    return token


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (lambda: {"timeout_s": 0.3}, DeadlineExceeded),
        (lambda: {"cancel": cancelled_soon()}, Cancelled),
    ],
)
@pytest.mark.slow
def test_deadlines_and_cancels_stop_a_run_even_where_the_backend_cannot(
    odd: Callable[..., str], tmp_path: Path, stop: Any, error: type[Exception]
) -> None:
    name = odd(without="'deadlines', 'cancel_predict'", predict="time.sleep(600)")
    with isolated(models.affine(tmp_path), name) as model:
        begin = time.monotonic()
        with pytest.raises(error):
            model.predict([-X], **stop())
        assert time.monotonic() - begin < 200
        np.testing.assert_array_equal(model(X)["y"], 2 * X + 1)
        time.sleep(0.3)  # the timer's thread


# The second worker loads only once the log may go on.
SLOW_AGAIN = """
    with open({log!r}, "a+") as log:
        log.seek(0)
        is_first = not log.read()
        log.write("loads ")
    while not is_first and not os.path.exists({log!r} + ".go"):
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("stop", "error", "says"),
    [
        (lambda: {"timeout_s": 1.0}, DeadlineExceeded, "another is being started"),
        pytest.param(
            lambda: {"cancel": cancelled_soon()}, Cancelled, "by its owner", marks=pytest.mark.slow
        ),
    ],
)
def test_a_predict_that_needs_a_new_worker_is_stopped_too_and_the_next_one_finds_it(
    odd: Callable[..., str], tmp_path: Path, stop: Any, error: type[Exception], says: str
) -> None:
    log = tmp_path / "log"
    name = odd(load=SLOW_AGAIN.format(log=str(log)).strip())
    with isolated(models.affine(tmp_path), name) as model:
        model(X)
        kill_worker_of(model)
        with pytest.raises(error, match=says):
            model.predict([X], **stop())
        log.with_suffix(".go").touch()
        np.testing.assert_array_equal(model(X)["y"], 2 * X + 1)
        assert log.read_text().split() == ["loads"] * 2
        time.sleep(0.1)  # the timer's thread


@pytest.mark.slow
def test_a_model_is_closed_while_its_next_worker_starts(odd, tmp_path) -> None:
    load = SLOW_AGAIN.format(log=str(tmp_path / "log")).strip()
    name = odd(load=load, without="'cancel_compile'")
    with isolated(models.affine(tmp_path), name) as model:
        kill_worker_of(model)
        with pytest.raises(DeadlineExceeded):
            model.predict([X], timeout_s=0.3)
        begin = time.monotonic()
    assert time.monotonic() - begin < 200


def test_a_cancel_that_fails_in_the_backend_does_not_stop_the_worker(odd, tmp_path) -> None:
    broken = (
        "from engine.reference.evaluator import EvaluatorContext\n"
        "def broken(self): raise RuntimeError('broken')\n"
        "EvaluatorContext.cancel = broken"
    )
    name = odd(in_worker=broken)
    slow = {"odd_context": {"delay_s": "0.5"}}
    with isolated(models.affine(tmp_path), name, **slow) as model, ThreadPoolExecutor(1) as pool:
        first = worker_of(model)
        with suppress(Cancelled):  # it runs to its end
            model.predict([X], cancel=cancelled_soon())
        assert worker_of(model) == first
        result = pool.submit(lambda: model(X)["y"])
        try:
            np.testing.assert_array_equal(result.result(timeout=60), 2 * X + 1)
        finally:
            if not result.done():
                os.kill(first, signal.SIGKILL)


def test_a_build_is_cancelled_and_its_progress_arrives(odd, tmp_path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    thinking = "options.progress('thinking', 1, 2); time.sleep(600)"
    name = odd(compile=thinking, without="'cancel_compile'")
    token = CancelToken()

    def show(*step: Any) -> None:
        seen.append(step)
        token.cancel()

    path = models.affine(tmp_path)
    with pytest.raises(Cancelled):
        engine.load(path, target=name, config=ISOLATE, progress=show, cancel=token)
    assert seen == [("thinking", 1, 2)]


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


INTERRUPTED = """
import signal, sys, threading
import numpy as np, numpy.testing
import engine
from engine.model.model import model_state

path, target, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
config = {"common_context": {"isolate": "true"}}
x = np.arange(6, dtype=np.float32).reshape(2, 3)
errors, is_over = [], threading.Event()

def predict_on():
    number = 0
    while not is_over.is_set() and not errors:
        number = (number + 1) % 1000
        try:
            np.testing.assert_array_equal(model(x + number)["y"], 2 * (x + number) + 1)
        except Exception as error:
            errors.append(error)

signal.signal(signal.SIGALRM, signal.default_int_handler)
with engine.load(path, target=target, config=config) as model:
    worker = lambda: model_state(model).plan.executable.process().worker.pid
    first = worker()
    other = threading.Thread(target=predict_on)
    other.start()
    interrupts = 0
    while interrupts < count and not errors:
        try:
            # Again after a while: what is raised in a `__del__` is lost.
            signal.setitimer(signal.ITIMER_REAL, 2e-4 * (1 + interrupts % 20), 0.005)
            while True:
                model(x)
        except KeyboardInterrupt:
            interrupts += 1
        finally:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
    is_over.set()
    other.join()
    print(errors, worker() == first, (model(x)["y"] == 2 * x + 1).all())
"""


@pytest.mark.parametrize(
    "count", [100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_interrupts_of_one_threads_predicts_leave_the_worker_to_the_others(
    count: int, null_backend: str, tmp_path: Path
) -> None:
    path = models.affine(tmp_path)
    done = subprocess.run(
        command("-c", INTERRUPTED, str(path), null_backend, str(count)),
        capture_output=True, text=True, timeout=500, env=environment(), check=False,
    )  # fmt: skip
    assert done.stdout == "[] True True\n", done.stderr[-2000:]


def test_the_setting_is_true_or_false(null_backend: str, tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    config = {"common_context": {"isolate": "perhaps"}}
    with pytest.raises(ValueError, match=r"\[common_context\] isolate: .*true or false.*'perhaps'"):
        engine.load(path, target=null_backend, config=config)
    config = {"common_context": {"isolate": "False"}}
    with engine.load(path, target=null_backend, config=config) as model:
        assert not hasattr(model_state(model).plan.executable, "process")


def test_a_worker_does_not_get_the_key(odd, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ENGINE_DEC_KEY", "00112233445566778899aabbccddeeff")
    name = odd(load="assert 'ENGINE_DEC_KEY' not in os.environ")
    with isolated(models.affine(tmp_path), name) as model:
        model(X)
