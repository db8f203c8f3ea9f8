"""Observers are told of every build, request, update and close, once each."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import CancelToken, Context, Model, ModelParallelRunner, MultiDeviceRunner, Tensor
from engine.backends.doors import EXTENSIONS
from engine.errors import Cancelled, InputError, QueueFull
from engine.types import Status
from engine_testing import models, plugins

pytestmark = pytest.mark.usefixtures("null_backend")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def outcome(call: Callable[[], Any]) -> None:
    """Call, and let go of what it returns or of what a request may raise."""
    with suppress(InputError, Cancelled):
        call()


def cancelled() -> CancelToken:
    token = CancelToken()
    token.cancel()
    return token


async def awaited(call: Any) -> Any:
    return await call


# Each way of asking, given the model or runner, the inputs and a token.
def by_predict(asked: Any, x: Any, cancel: CancelToken | None) -> None:
    asked.predict([x], cancel=cancel)


def by_call(asked: Any, x: Any, cancel: CancelToken | None) -> None:
    asked(x) if cancel is None else asked(x, cancel=cancel)


def by_outputs(asked: Any, x: Any, cancel: CancelToken | None) -> None:
    given = Tensor(np.empty((2, 3), np.float32))
    [y] = asked.predict([x], [given], cancel=cancel)
    assert y is given
    np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * x + 1)


def by_await(asked: Any, x: Any, cancel: CancelToken | None) -> None:
    asyncio.run(awaited(asked.predict_async([x], cancel=cancel)))


def by_submit(asked: Any, x: Any, cancel: CancelToken | None) -> None:
    asked.submit([x], cancel=cancel).result(60)


TURNS = itertools.cycle((by_predict, by_await, by_submit))


def by_turns(asked: Any, x: Any, cancel: CancelToken | None) -> None:
    """Ask in the ways that a runner in processes has, which takes long to make."""
    next(TURNS)(asked, x, cancel)


def by_timed(asked: Any, x: Any, cancel: CancelToken | None) -> None:
    asked.predict([x], timeout_s=600, cancel=cancel)


def model(path: Path, **config: Any) -> Model:
    return engine.load(path, target="null", config=config or None)


def isolated(path: Path) -> Model:
    return model(path, common_context={"isolate": True})


def runner(path: Path, **more: Any) -> ModelParallelRunner:
    context = Context()
    context.target = ["null"]
    context.parallel.workers_num = 2
    made = ModelParallelRunner()
    made.build_from_file(str(path), context, **more)
    return made


def sharing(path: Path) -> ModelParallelRunner:
    return runner(path, max_batch_size=8)


def devices(path: Path) -> MultiDeviceRunner:
    context = Context()
    context.target = ["null"]
    return MultiDeviceRunner(path, [0, 1], context)


@pytest.mark.parametrize(
    ("make", "ask"),
    [
        *((model, ask) for ask in (by_predict, by_call, by_outputs, by_timed, by_await)),
        (isolated, by_predict),
        *((runner, ask) for ask in (by_predict, by_timed, by_await, by_submit)),
        *((sharing, ask) for ask in (by_predict, by_submit)),
        (devices, by_turns),
    ],
)
def test_forty_requests_are_forty_events_whichever_way_they_come(
    make: Callable[[Path], Any], ask: Callable[..., None], told: Any, tmp_path: Path
) -> None:
    with make(models.affine(tmp_path)) as asked:
        for number in range(40):
            x: Any = X
            token = None
            if number in (3, 4, 20):
                x = np.zeros((2, 4), np.float32)
            elif number in (7, 33):
                token = cancelled()
            outcome(lambda x=x, token=token: ask(asked, x, token))
    assert told.statuses() == {"completed": 35, "failed": 3, "cancelled": 2}
    assert [type(each).__name__ for each in told.module.events] == [
        "BuildEvent",
        *["RequestEvent"] * 40,
        "CloseEvent",
    ]
    requests = told.of("Request")
    assert len({each.id for each in requests}) == 40
    assert {each.begun for each in requests} == {"begun affine"}
    for each in requests:
        ran = each.status is Status.COMPLETED
        assert (each.error == "") == (each.error_type == "") == ran
        assert each.duration_s == each.queue_s + each.compute_s
        if ran:
            assert each.batch_size == 1
            assert each.compute_s > 0
        assert each.queue_s >= 0
        assert (each.inputs, each.outputs) == (None, None)
        assert (each.model.name, each.model.backends) == ("affine", ("null",))
        assert str(each.model.inputs[0]) == "float32[batch, 3]"
    begun = [each.begin_s for each in requests]
    assert begun == sorted(begun)


@pytest.mark.parametrize("told", [True], indirect=True)
@pytest.mark.parametrize("make", [model, runner, sharing, devices])
def test_who_wants_values_gets_the_inputs_and_outputs_in_the_models_order(
    make: Callable[[Path], Any], told: Any, tmp_path: Path
) -> None:
    with make(models.affine(tmp_path)) as asked:
        for inputs in ({"x": X}, [X.tolist()], [Tensor(X)]):
            asked.predict(inputs)
        outcome(lambda: asked.predict([np.zeros((2, 4), np.float32)]))
    *completed, failed = told.of("Request")
    assert len(completed) == 3
    for done in completed:
        np.testing.assert_array_equal(done.inputs, [X])
        np.testing.assert_array_equal(done.outputs, [2 * X + 1])
        assert done.inputs[0].dtype == done.outputs[0].dtype == np.float32
    assert (failed.inputs, failed.outputs) == (None, None)


def test_requests_that_share_a_run_say_how_many(told: Any, tmp_path: Path) -> None:
    with runner(models.affine(tmp_path), max_batch_size=8, max_delay_us=500_000) as asked:
        futures = [asked.submit([np.full((2, 3), number, np.float32)]) for number in range(8)]
        for number, future in enumerate(futures):
            [y] = future.result(60)
            assert (y.get_data_to_numpy() == 2 * number + 1).all()
    shared = sum(size * count for size, count in asked.statistics().batch_sizes.items())
    assert shared == 16  # samples
    sizes = Counter(each.batch_size for each in told.of("Request"))
    assert sum(sizes.values()) == 8
    assert set(sizes) - {1}, "some shared a run"
    assert all(count % size == 0 for size, count in sizes.items())


def test_a_request_that_finds_the_queue_full_was_refused(
    told: Any, tmp_path: Path, gate: Any
) -> None:
    context = Context()
    context.target = ["gated"]
    context.parallel.workers_num = 1
    asked = ModelParallelRunner()
    asked.build_from_file(
        str(models.affine(tmp_path)), context, max_batch_size=1, queue_limit=1, when_full="raise"
    )
    try:
        first = asked.submit([X])
        assert gate.begun.wait(60)
        second = asked.submit([X])
        for call in (asked.submit, asked.predict):
            with pytest.raises(QueueFull):
                call([X])
        gate.go.set()
        first.result(60), second.result(60)
    finally:
        gate.go.set()
        asked.close()
    assert told.statuses() == {"completed": 2, "refused": 2}
    refused = [each for each in told.of("Request") if each.status is Status.REFUSED]
    assert [(each.batch_size, each.compute_s) for each in refused] == [(0, 0.0), (0, 0.0)]
    waited = told.of("Request")[-1]
    assert waited.status is Status.COMPLETED
    assert waited.queue_s > 0


def test_a_cancelled_future_and_a_late_request_are_told_of_as_such(
    told: Any, tmp_path: Path, gate: Any
) -> None:
    context = Context()
    context.target = ["gated"]
    context.parallel.workers_num = 1
    asked = ModelParallelRunner()
    asked.build_from_file(str(models.affine(tmp_path)), context, max_batch_size=1)
    with asked:
        first = asked.submit([X])
        assert gate.begun.wait(60)
        late = asked.submit([X], timeout_s=0.05)
        with pytest.raises(engine.DeadlineExceeded):
            late.result(60)
        second = asked.submit([X])
        assert second.cancel()
        gate.go.set()
        first.result(60)
    assert told.statuses() == {"expired": 1, "cancelled": 1, "completed": 1}
    assert [str(each.status) for each in told.of("Request")] == [
        "expired",
        "cancelled",
        "completed",
    ]


@pytest.mark.parametrize("make", [model, runner, devices])
def test_updates_are_told_of_with_the_weights_names(
    make: Callable[..., Any], told: Any, tmp_path: Path
) -> None:
    section = {"common_context": {"variable_weights_list": "two, one"}}
    path = models.affine(tmp_path)
    context = Context()
    context.target = ["null"]
    context.parallel.config_info = section
    if make is model:
        asked: Any = model(path, **section)
    elif make is runner:
        asked = ModelParallelRunner()
        asked.build_from_file(str(path), context)
    else:
        asked = MultiDeviceRunner(path, [0], context)
    with asked:
        asked.update_weights({"two": np.array([5], np.float32)})
        with pytest.raises(InputError):
            asked.update_weights({"two": np.zeros(7, np.float32)})
        [y] = asked.predict([X])
    np.testing.assert_array_equal(y.get_data_to_numpy(), 5 * X + 1)
    done, failed = told.of("Update")
    assert (str(done.status), done.weights, done.error) == ("completed", ("two",), "")
    assert (str(failed.status), failed.weights) == ("failed", ())
    assert "two" in failed.error


def test_a_build_is_told_of_with_its_phases_and_one_that_fails_with_its_error(
    told: Any, tmp_path: Path
) -> None:
    model(models.affine(tmp_path)).close()
    with pytest.raises(engine.ModelError):
        model(models.unknown_operator(tmp_path))
    done, failed = told.of("Build")
    assert (str(done.status), done.error) == ("completed", "")
    assert done.duration_s > 0
    for span in done.spans:
        assert done.begin_s <= span.begin_s <= done.begin_s + done.duration_s
    assert str(failed.status) == "failed"
    assert failed.error.startswith("ModelError: ")
    assert failed.error_type == "ModelError"
    assert len({done.model.id, failed.model.id, ""}) == 3
    assert failed.model.path == str(models.unknown_operator(tmp_path))
    assert (failed.model.inputs, failed.model.backends) == ((), ())


@pytest.mark.parametrize(
    ("make", "ask"),
    [
        *((model, ask) for ask in (by_predict, by_await)),
        *((runner, ask) for ask in (by_predict, by_timed, by_await, by_submit)),
        (devices, by_submit),
    ],
)
def test_a_request_begins_in_the_context_of_its_caller(
    make: Callable[[Path], Any],
    ask: Callable[..., None],
    told: Any,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    caller: ContextVar[str] = ContextVar("caller", default="nobody")
    monkeypatch.setattr(told.module.Notes, "on_begin", lambda self, model: caller.get())
    with make(models.affine(tmp_path)) as asked:
        caller.set("somebody")
        ask(asked, X, None)
    assert [each.begun for each in told.of("Request")] == ["somebody"]


def test_trials_of_a_build_and_measured_predicts_are_no_requests(told: Any, tmp_path: Path) -> None:
    with runner(models.affine(tmp_path)) as asked:  # it measures whether sharing runs pays
        assert told.of("Request") == []
        asked.predict([X])
    assert len(told.of("Request")) == 1


def test_options_come_from_the_environment_the_configuration_and_the_context(
    told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.affine(tmp_path)
    monkeypatch.setenv("ENGINE_EXTENSIONS", "notes;color=red")
    model(path).close()
    model(path).close()  # the observer of these options is made already
    monkeypatch.delenv("ENGINE_EXTENSIONS")
    config = {"common_context": {"extensions": "notes"}, "notes_extension": {"color": "blue"}}
    model(path, **config).close()
    context = Context()
    context.target = ["null"]
    context.extensions = {"notes": {"color": "green"}}
    other = Model()
    other.build_from_file(str(path), engine.ModelType.MINDIR, context, config_dict=config)
    other.close()
    assert [each["color"] for each in told.module.made] == ["red", "blue", "green"]
    assert len(told.of("Build")) == 4
    model(path).close()
    assert len(told.of("Build")) == 4, "it is off"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("notes;size=3", r"extension 'notes': unknown option 'size'; known: color"),
        ("notes;red", r"an option of 'notes' must be key=value, but got 'red'"),
    ],
)
def test_a_wrong_option_is_a_setting_error(
    value: str, says: str, told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_EXTENSIONS", value)
    with pytest.raises(engine.SettingError, match=says):
        model(models.affine(tmp_path))


def test_options_for_what_is_off_are_refused(told: Any, tmp_path: Path) -> None:
    with pytest.raises(engine.SettingError, match=r"\[note_extension\] .*did you mean 'notes'"):
        model(models.affine(tmp_path), note_extension={"color": "red"})


@pytest.mark.parametrize("make", [model, runner])
def test_an_observer_that_raises_changes_nothing_and_is_logged_once(
    make: Callable[[Path], Any],
    plugin_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = "class Bad:\n    observes = True\n    def __init__(self, options): pass\n"
    source += "".join(
        f"    def {name}(self, event): {{}}[{name!r}]\n"
        for name in ("on_begin", "on_build", "on_request", "on_close")
    )
    module = f"bad_{make.__name__}"
    plugins.install(plugin_folder, "bad", f"{module}:Bad", group=EXTENSIONS.group, source=source)
    monkeypatch.setenv("ENGINE_EXTENSIONS", "bad")
    with caplog.at_level(logging.WARNING, "engine"), make(models.affine(tmp_path)) as asked:
        for _ in range(3):
            np.testing.assert_array_equal(asked.predict([X])[0].get_data_to_numpy(), 2 * X + 1)
    said = [each.getMessage() for each in caplog.records if "observer 'bad'" in each.getMessage()]
    assert [text.split()[3] for text in said] == ["on_build", "on_begin", "on_request", "on_close"]


def test_one_that_cannot_be_made_is_at_fault(
    plugin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.install(
        plugin_folder, "worse", "worse_one:make", group=EXTENSIONS.group,
        source="def make(options): 1 / 0\nmake.observes = True",
    )  # fmt: skip
    monkeypatch.setenv("ENGINE_EXTENSIONS", "worse")
    with pytest.raises(engine.ExtensionError, match="making the observer raised ZeroDivision"):
        model(models.affine(tmp_path))


def test_threads_are_told_of_each_in_its_own_request(told: Any, tmp_path: Path) -> None:
    with model(models.affine(tmp_path)) as asked:
        threads = [
            threading.Thread(target=lambda: [asked.predict([X]) for _ in range(25)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        asked.resize(asked.get_inputs(), [[4, 3]])
        asked.predict([np.zeros((4, 3), np.float32)])
        assert asked.get_outputs()[0].shape == [4, 3]
    assert told.statuses() == {"completed": 101}


def test_a_closed_models_predict_is_no_request(told: Any, tmp_path: Path) -> None:
    asked = model(models.affine(tmp_path))
    asked.close()
    asked.close()
    with pytest.raises(engine.ModelStateError):
        asked.predict([X])
    assert told.of("Request") == []
    assert len(told.of("Close")) == 1


def test_off_means_a_thread_keeps_its_state(plugin_folder: Path, tmp_path: Path) -> None:
    from engine.model.model import model_state

    with model(models.affine(tmp_path)) as asked:
        asked.predict([X])
        state = model_state(asked)
        assert state.observation is None
        assert state.threads.state is not None  # predict finds it and asks nobody
        assert state.threads.state.run is state.require_built().plan.predict
