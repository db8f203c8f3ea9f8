"""Variable weights that a backend holds and exchanges itself, by engine_update_weights."""

from __future__ import annotations

import gc
import importlib
import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import engine
from engine import InputError, Model, ModelParallelRunner, MultiDeviceRunner, Tensor
from engine.errors import BackendUnavailable, ModelError, ModelStateError
from engine.model.model import model_state
from engine.plan.weights import PlanWeights
from engine_testing import models, plugins

X = np.array([[1, 2, 3]], np.float32)
BOTH = ("two", "one")

# A null backend that notes what it is compiled for and what updates it gets.
NOTING = """
from dataclasses import replace

from engine.errors import ModelError
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

compiled, updates, closed, fail = [], [], [], []


@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="noting")


@hookimpl
def engine_compile(loaded, options):
    compiled.append(options.variable_weights)
    if options.variable_weights and "compile" in fail:
        raise ModelError("'two' is folded away")
    executable = null.engine_compile(loaded, options)
    close = executable.close
    executable.close = lambda: (closed.append(executable), close())
    return executable


@hookimpl
def engine_update_weights(executable, weights, additive):
    assert executable not in closed, "an update after close"
    updates.append(({name: value.tolist() for name, value in weights.items()}, additive))
    for error in fail:
        raise error
    return null.engine_update_weights(executable, weights, additive)
"""

Load = Callable[..., Model]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.fixture
def noting(plugin_folder: Path) -> ModuleType:
    plugins.install(plugin_folder, "noting", "plugin_noting", source=NOTING)
    return importlib.import_module("plugin_noting")


@pytest.fixture
def load(noting: ModuleType, tmp_path: Path) -> Load:
    """Build y = two * x + one, with two = [2] and one = [1]."""
    path = models.affine(tmp_path)

    def load(names: tuple[str, ...] = BOTH, target: Any = "noting", **keys: Any) -> Model:
        sections = {name: keys.pop(name) for name in list(keys) if name.endswith("_context")}
        common = {f"variable_weights_{key}": text for key, text in keys.items()}
        common |= sections.pop("common_context", {})
        config = {"common_context": common, **sections}
        return engine.load(path, target, variable_weights=names, config=config)

    return load


def assert_gives(model: Model, two: float, one: float) -> None:
    np.testing.assert_array_equal(model(x=X)["y"], two * X + one)


def test_a_backend_that_offers_it_holds_the_weights_and_predict_is_its_own(load, noting) -> None:
    with load() as model:
        plan = model_state(model).plan
        assert noting.compiled == [BOTH]
        assert [spec.name for spec in plan.executable.inputs] == ["x"]
        assert plan.predict is plan.backend.predict
        assert type(plan.executable).__module__ == "engine_testing.null_run"
        assert_gives(model, 2, 1)
        model.update_weights({"two": floats(5)})
        assert_gives(model, 5, 1)
        model.update_weights({"one": floats(7)})
        assert_gives(model, 5, 7)
        assert noting.updates == [({"two": [5]}, False), ({"one": [7]}, False)]


def test_what_is_added_is_added_by_the_backend(load, noting) -> None:
    with load(update="add") as model:
        for value in (3, 4):
            model.update_weights({"two_add_param": floats(value), "one": floats(10)})
        assert_gives(model, 6, 11)
        assert noting.updates[-1] == ({"two": [4], "one": [10]}, True)
        with pytest.raises(InputError, match="'one' is missing"):
            model.update_weights({"two": floats(1)})
        assert len(noting.updates) == 2


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"mode": "swap"}, ()),
        ({"mode": "rebuild"}, ()),
        ({"common_context": {"isolate": "true"}}, None),
    ],
)
def test_where_the_core_holds_the_weights_the_backend_gets_no_update(
    load, noting, keys, names
) -> None:
    with load(**keys) as model:
        if names is not None:
            assert noting.compiled == [names]
        model.update_weights({"two": floats(5)})
        assert_gives(model, 5, 1)
        assert noting.updates == []


def test_a_device_that_lacks_it_leaves_the_weights_to_the_core(
    load, noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.backends.backend import Backend

    lacks = Backend.lacks
    monkeypatch.setattr(
        Backend,
        "lacks",
        lambda self, what, device: (
            "not here" if what == "update_weights" else lacks(self, what, device)
        ),
    )
    with load() as model:
        model.update_weights({"two": floats(5)})
        assert_gives(model, 5, 1)
    assert (noting.compiled, noting.updates) == ([()], [])


def test_a_plan_of_several_segments_leaves_them_to_the_core(load, noting, plugin_folder) -> None:
    plugins.install(plugin_folder, "null", "engine_testing.null_device")
    with load(target=["noting", "null"], noting_context={"unsupported_ops": "Mul"}) as model:
        assert len(model_state(model).plan.parts) == 2
        assert isinstance(model_state(model).plan.weights, PlanWeights)
        model.update_weights({"two": floats(5), "one": floats(6)})
        assert_gives(model, 5, 6)
        assert noting.updates == []


def test_a_backend_that_cannot_make_a_weight_variable_leaves_all_to_the_core(
    load, noting, caplog: pytest.LogCaptureFixture
) -> None:
    noting.fail.append("compile")
    with caplog.at_level(logging.INFO, "engine"), load() as model:
        noting.fail.clear()
        assert noting.compiled == [BOTH, ()]
        assert "'two' is folded away" in caplog.text
        model.update_weights({"two": floats(5)})
        assert_gives(model, 5, 1)
        assert noting.updates == []


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (InputError("weight 'two': not now", "two"), InputError, "weight 'two': not now"),
        (ModelError("half-way"), ModelError, "half-way"),
        (KeyError("lost"), BackendUnavailable, "its engine_update_weights raised KeyError"),
        (ValueError("lost"), BackendUnavailable, "its engine_update_weights raised ValueError"),
    ],
)
def test_an_update_that_the_backend_refuses_changes_nothing(
    load, noting, error, kind, says
) -> None:
    with load() as model:
        model.update_weights({"two": floats(4)})
        noting.fail.append(error)
        with pytest.raises(kind, match=f"^update weight failed! Error is .*{says}"):
            model.update_weights({"two": floats(5)})
        noting.fail.clear()
        assert_gives(model, 4, 1)
        model.resize(model.get_inputs(), [[2, 3]])
        model.resize(model.get_inputs(), [[1, 3]])
        assert_gives(model, 4, 1)


def test_a_resize_to_other_sizes_keeps_what_was_updated_or_added(noting, tmp_path: Path) -> None:
    from onnx import helper

    from engine_testing.making import tensor, write

    nodes = [helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    weights = {"w": floats(2), "b": floats(1)}
    path = write(tmp_path, "fixed", [tensor("x", [1, 3])], [tensor("y", [1, 3])], nodes, weights)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for how, both in (("replace", (5, 6)), ("add", (7, 7))):
        config = {"common_context": {"variable_weights_update": how}}
        with engine.load(path, "noting", variable_weights=["w", "b"], config=config) as model:
            model.update_weights({"w": floats(5), "b": floats(6)})
            model.resize(model.get_inputs(), [[4, 3]])
            assert noting.compiled[-1] == ("w", "b")
            np.testing.assert_array_equal(model(x=x)["y"], both[0] * x + both[1])


def test_a_resize_after_which_the_core_holds_the_weights_keeps_them_too(
    noting, tmp_path: Path
) -> None:
    from onnx import helper

    from engine_testing.making import tensor, write

    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    path = write(
        tmp_path, "fixed", [tensor("x", [1, 3])], [tensor("y", [1, 3])], nodes, {"w": floats(2)}
    )
    for how, factor in (("replace", 5), ("add", 7)):
        config = {"common_context": {"variable_weights_update": how}}
        with engine.load(path, "noting", variable_weights=["w"], config=config) as model:
            model.update_weights({"w": floats(5)})
            noting.fail.append("compile")
            model.resize(model.get_inputs(), [[2, 3]])
            noting.fail.clear()
            assert isinstance(model_state(model).plan.weights, PlanWeights)
            x = np.concatenate([X, X])
            np.testing.assert_array_equal(model(x=x)["y"], factor * x)
            model.resize(model.get_inputs(), [[1, 3]])  # and back to the backend
            assert not isinstance(model_state(model).plan.weights, PlanWeights)
            np.testing.assert_array_equal(model(x=X)["y"], factor * X)
            model.update_weights({"w": floats(1)})
            np.testing.assert_array_equal(model(x=X)["y"], (1 if how == "replace" else 3) * X)


def test_a_weight_on_the_device_is_taken(load, noting) -> None:
    with load() as model:
        model.update_weights({"two": Tensor(floats(9), device="noting")})
        assert_gives(model, 9, 1)


def test_memory_counts_what_was_updated(load) -> None:
    with load() as model:
        assert [part.backend for part in model.memory().parts] == ["noting"]
        model.update_weights({"two": floats(5)})
        parts = {part.backend: part.private_bytes for part in model.memory().parts}
        assert parts == {"noting": 8, "": 4}


def test_a_model_that_is_closed_is_not_updated_and_frees_its_executable_once(load, noting) -> None:
    model = load()
    assert_gives(model, 2, 1)
    weights = model_state(model).plan.weights
    change = weights.prepared({"two": floats(5)})
    model.close()
    model.close()
    gc.collect()
    assert len(noting.closed) == 1
    for update in (lambda: weights.exchange(change, False), lambda: weights.prepared({})):
        with pytest.raises(ModelStateError, match="the model is closed"):
            update()


def test_a_close_waits_for_an_update_that_runs(load, noting, monkeypatch) -> None:
    model = load()
    running, go_on = threading.Event(), threading.Event()
    plan = model_state(model).plan
    seen = []

    def slow(executable: Any, weights: Any, additive: bool) -> bool:
        running.set()
        assert go_on.wait(60)
        seen.append(executable in noting.closed)
        return True

    monkeypatch.setattr(plan.weights, "_update", slow)
    with ThreadPoolExecutor(2) as threads:
        update = threads.submit(model.update_weights, {"two": floats(3)})
        assert running.wait(60)
        close = threads.submit(model.close)
        go_on.set()
        update.result(60)
        close.result(60)
    assert seen == [False]
    assert len(noting.closed) == 1


def test_no_predict_sees_weights_of_two_updates(load) -> None:
    over = threading.Event()

    def predict(model: Model) -> int:
        newest, count = 0.0, 0
        while not over.is_set():
            found = {*(model(x=X)["y"][0] / (X[0] + 1000)).round(3).tolist()}
            assert len(found) == 1
            assert found.copy().pop() >= newest
            newest, count = found.pop(), count + 1
        return count

    with load() as model, ThreadPoolExecutor(3) as threads:
        model.update_weights({"two": floats(1), "one": floats(1000)})
        running = [threads.submit(predict, model) for _ in range(3)]
        try:
            for number in range(2, 30):
                model.update_weights({"two": floats(number), "one": floats(1000 * number)})
        finally:
            over.set()
        assert all(each.result(60) for each in running)


def test_a_compiled_form_with_variable_weights_is_an_entry_of_its_own(
    load, noting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "on")
    folder = tmp_path / "cache"
    common = {"model_cache_dir": str(folder)}

    def entries() -> int:
        return len([*(folder / "v1" / "entries").iterdir()])

    # The null backend's own key says nothing of variable weights.
    for number, names in enumerate([(), ("two",), BOTH], 1):
        for _ in range(2):  # cold, then warm
            with load(names, common_context=common) as model:
                assert_gives(model, 2, 1)
                if names:
                    model.update_weights({"two": floats(9)})
                    assert_gives(model, 9, 1)
            assert entries() == number
    assert noting.compiled == [(), (), ("two",), ("two",), BOTH, BOTH]


@pytest.mark.parametrize(("device_ids", "is_in_place"), [([], True), ([0], True), ([0, 0], False)])
def test_a_runner_of_several_models_leaves_the_weights_to_the_core(
    noting, tmp_path: Path, device_ids: list[int], is_in_place: bool
) -> None:
    """All of them have the new weights or none: a backend might refuse the second."""
    context = engine.Context()
    context.target = ["noting"]
    context.parallel.workers_num = 2
    context.parallel.config_info = {"common_context": {"variable_weights_list": "two, one"}}
    if device_ids:
        context.parallel.device_ids = device_ids
    runner = ModelParallelRunner()
    runner.build_from_file(str(models.affine(tmp_path)), context)
    with runner:
        runner.update_weights({"two": floats(5)})
        for _ in range(4):
            [y] = runner.predict([X])
            np.testing.assert_array_equal(y.get_data_to_numpy(), 5 * X + 1)
    assert noting.updates == ([({"two": [5]}, False)] if is_in_place else [])


def test_the_workers_of_a_runner_of_many_devices_leave_the_weights_to_the_core(
    plugin_folder: Path, tmp_path: Path
) -> None:
    refusing = NOTING.replace("assert executable not in closed", "assert False")
    plugins.install(plugin_folder, "refusing", "plugin_refusing", source=refusing)
    context = engine.Context()
    context.target = ["refusing"]
    context.parallel.config_info = {"common_context": {"variable_weights_list": "two, one"}}
    x = np.repeat(X, 4, axis=0)  # two rows for each worker
    with MultiDeviceRunner(models.affine(tmp_path), range(2), context) as runner:
        runner.update_weights({"two": floats(5)})
        [y] = runner.predict([x])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 5 * x + 1)
        assert runner.statistics().restarts == 0


def test_the_models_of_a_group_leave_their_weights_to_the_core(load, noting, tmp_path) -> None:
    group = engine.ModelGroup(engine.ModelGroupFlag.SHARE_WEIGHT)
    found = [Model(), Model()]
    group.add_model(found)
    context = engine.Context()
    context.target = ["noting"]
    path = str(models.affine(tmp_path))
    for model in found:
        model.build_from_file(path, engine.ModelType.MINDIR, context, variable_weights=["two"])
    found[0].update_weights({"two": floats(5)})
    assert_gives(found[0], 5, 1)
    assert_gives(found[1], 2, 1)
    assert noting.updates == []


def test_a_profile_is_of_the_weights_as_they_are_by_now(load, noting) -> None:
    with load() as model:
        model.update_weights({"two": floats(5)})
        model.profile([X])
        assert noting.updates == [({"two": [5]}, False)] * 2
        assert len(noting.closed) == 1
        assert_gives(model, 5, 1)


def test_an_interrupt_after_an_exchange_forgets_no_weight(load, noting) -> None:
    with load() as model:
        exchange = noting.null.engine_update_weights

        def interrupted(*arguments: Any) -> bool:
            exchange(*arguments)
            signal.raise_signal(signal.SIGINT)
            return True

        noting.null.engine_update_weights = interrupted
        try:
            with pytest.raises(KeyboardInterrupt):
                model.update_weights({"two": floats(5)})
        finally:
            noting.null.engine_update_weights = exchange
        assert_gives(model, 5, 1)
        model.resize(model.get_inputs(), [[1, 3]])
        assert_gives(model, 5, 1)
