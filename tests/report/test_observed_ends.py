"""The order in which observers are told, interrupts, and what observers do while they are told."""

from __future__ import annotations

import asyncio
import copy
import importlib
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import Context, Model, ModelParallelRunner, MultiDeviceRunner, Tensor
from engine.backends.doors import EXTENSIONS
from engine_testing import models, plugins
from engine_testing.interrupts import Interrupter

pytestmark = pytest.mark.usefixtures("null_backend")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def context(workers: int = 0) -> Context:
    made = Context()
    made.target = ["null"]
    made.parallel.workers_num = workers
    return made


def model(path: Path) -> Model:
    return engine.load(path, target="null")


def runner(path: Path, workers: int = 2, **more: Any) -> ModelParallelRunner:
    made = ModelParallelRunner()
    made.build_from_file(str(path), context(workers), **more)
    return made


def devices(path: Path) -> MultiDeviceRunner:
    return MultiDeviceRunner(path, [0, 1], context())


async def awaited(call: Any) -> Any:
    return await call


def by_predict(asked: Any) -> None:
    asked.predict([X])


def by_await(asked: Any) -> None:
    asyncio.run(awaited(asked.predict_async([X])))


def by_submit(asked: Any) -> None:
    asked.submit([X]).result(60)


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    """Start work whose errors are the engine's."""

    def run() -> None:
        with suppress(engine.EngineError):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("ask", [by_predict, by_await])
def test_a_close_is_told_after_the_last_request_that_was_under_way(
    ask: Callable[[Any], None], told: Any, tmp_path: Path, gate: Any
) -> None:
    asked = engine.load(models.affine(tmp_path), target="gated")
    thread = in_thread(lambda: ask(asked))
    assert gate.begun.wait(60)
    asked.close()  # which does not wait for what runs
    assert told.of("Close") == []
    gate.go.set()
    thread.join(60)
    for _ in range(600):
        if told.of("Close"):
            break
        threading.Event().wait(0.1)
    assert [type(event).__name__ for event in told.module.events] == [
        "BuildEvent",
        "RequestEvent",
        "CloseEvent",
    ]


@pytest.mark.parametrize("clients", [1, 2])
def test_the_wait_for_others_to_share_a_run_is_no_computing(
    clients: int, told: Any, tmp_path: Path
) -> None:
    path = models.affine(tmp_path)
    with runner(path, 1, max_batch_size=8, max_delay_us=300_000) as asked:
        for thread in [in_thread(lambda: by_predict(asked)) for _ in range(clients)]:
            thread.join(60)
    requests = sorted(told.of("Request"), key=lambda event: event.begin_s)
    assert len(requests) == clients
    assert requests[0].queue_s >= 0.25  # the one that waited for others
    assert requests[0].compute_s > 0


@pytest.mark.parametrize("told", [True], indirect=True)
@pytest.mark.parametrize("make", [model, runner])
@pytest.mark.parametrize("outputs", [False, True])
def test_a_signal_handlers_exception_reaches_the_caller_though_values_are_told(
    make: Callable[[Path], Any], outputs: bool, told: Any, tmp_path: Path
) -> None:
    given = [Tensor(np.empty((2, 3), np.float32))] if outputs else None
    calls = 0
    with make(models.affine(tmp_path)) as asked:

        def ask() -> None:
            nonlocal calls
            calls += 1
            asked.predict([X], given)

        interrupter = Interrupter(seed=4)
        with interrupter.installed():
            for _ in interrupter.calls(ask, 300):
                pass
        assert interrupter.lost == []
        before = len(told.of("Request"))
        assert before <= calls
        [y] = asked.predict([X], given)
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
        assert len(told.of("Request")) == before + 1


def test_output_buffers_are_bound_once_though_somebody_watches(told: Any, tmp_path: Path) -> None:
    from engine.model.model import model_state

    memory = np.empty((2, 3), np.float32)
    inputs, outputs = [Tensor(X)], [Tensor(memory)]
    with model(models.affine(tmp_path)) as asked:
        for _ in range(2):
            assert asked.predict(inputs, outputs) is outputs
            bound = model_state(asked).threads.own.bindings
            assert bound[2][0] is memory
        assert asked.predict(inputs, outputs) is outputs
        assert model_state(asked).threads.own.bindings is bound
    np.testing.assert_array_equal(memory, 2 * X + 1)
    assert told.statuses() == {"completed": 3}


@pytest.fixture
def observe(plugin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Install an observer of this source, its class `Own`, switch it on and return its module."""

    def observe(source: str) -> Any:
        module = f"own_{abs(hash(plugin_folder))}"
        plugins.install(
            plugin_folder, "own", f"{module}:Own", group=EXTENSIONS.group, source=source
        )
        monkeypatch.setenv("ENGINE_EXTENSIONS", "own")
        return importlib.import_module(module)

    return observe


CLOSES = """
asked, told = [], []

class Own:
    observes = True
    def __init__(self, options): pass
    def on_close(self, event): told.append(event)

    def on_request(self, event):
        told.append(event)
        asked[0].close()
"""


@pytest.mark.parametrize(
    ("make", "ask"),
    [
        (model, by_predict),
        (model, by_await),
        (runner, by_predict),
        (runner, by_submit),
        (devices, by_submit),
    ],
)
def test_an_observer_that_closes_what_it_watches_does_not_hang(
    make: Callable[[Path], Any],
    ask: Callable[[Any], None],
    observe: Callable[[str], Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = observe(CLOSES)
    asked = make(models.affine(tmp_path))
    module.asked.append(asked)
    thread = in_thread(lambda: ask(asked))
    thread.join(60)
    assert not thread.is_alive()
    is_refused = "close the runner in another thread" in caplog.text
    assert is_refused == (make is not model)
    asked.close()
    names = [type(event).__name__ for event in module.told]
    assert names == ["RequestEvent", "CloseEvent"]


PREDICTS = """
import numpy as np

asked, told = [], []

class Own:
    observes = True
    def __init__(self, options): pass

    def on_request(self, event):
        told.append(event)
        asked[0].predict([np.zeros((2, 3), np.float32)])
"""


@pytest.mark.parametrize("make", [model, runner])
def test_predicts_of_an_observer_that_is_told_are_no_requests(
    make: Callable[[Path], Any],
    observe: Callable[[str], Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = observe(PREDICTS)
    with make(models.affine(tmp_path)) as asked:
        module.asked.append(asked)
        for _ in range(2):
            asked.predict([X])
    assert [str(event.status) for event in module.told] == ["completed", "completed"]
    assert "observer 'own'" not in caplog.text


BUILDS = """
import os
import engine

made = []

class Own:
    observes = True
    def __init__(self, options):
        made.append(self)
        engine.load(os.environ["OWN_MODEL"], target="null").close()
"""


def test_an_observer_may_build_a_model_as_it_is_made(
    observe: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.affine(tmp_path)
    monkeypatch.setenv("OWN_MODEL", str(path))
    module = observe(BUILDS)
    model(path).close()
    model(path).close()
    assert len(module.made) == 1


def test_a_section_has_options_for_what_the_environment_switches_on(
    told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_EXTENSIONS", "notes;color=red")
    config = {"notes_extension": {"color": "blue"}}
    engine.load(models.affine(tmp_path), target="null", config=config).close()
    assert told.module.made == [{"color": "blue"}]


def test_a_contexts_extensions_are_read_as_a_copy() -> None:
    made = Context()
    made.extensions = {"trace": {"port": "1"}}
    made.extensions["other"] = {}
    made.extensions["trace"]["port"] = "2"
    assert made.extensions == {"trace": {"port": "1"}}
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other.extensions == made.extensions
        other.extensions = {}
        assert made.extensions == {"trace": {"port": "1"}}


def test_an_observer_that_sees_no_requests_costs_predict_no_request(
    observe: Callable[[str], Any], tmp_path: Path
) -> None:
    from engine.model.model import model_state

    module = observe(
        "told = []\n"
        "class Own:\n    observes = True\n"
        "    def __init__(self, options): pass\n"
        "    def on_build(self, event): told.append(event)\n"
        "    def on_close(self, event): told.append(event)\n"
    )
    with model(models.affine(tmp_path)) as asked:
        asked.predict([X])
        state = model_state(asked)
        assert state.open_thread() is state.threads.own
    assert [type(event).__name__ for event in module.told] == ["BuildEvent", "CloseEvent"]


def test_the_trial_run_of_a_conversion_is_neither_a_build_nor_a_request(
    told: Any, tmp_path: Path
) -> None:
    from engine import Converter, FmkType

    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    converter = Converter()
    converter.infer = True
    converter.convert(FmkType.ONNX, str(models.affine(tmp_path)), str(tmp_path / "out"))
    assert told.module.events == []
