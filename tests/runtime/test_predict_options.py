"""A backend gets the facts of one predict: id, priority, and whether it can be cancelled."""

from __future__ import annotations

import asyncio
import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import CancelToken, Tensor
from engine.backends.doors import EXTENSIONS
from engine.model.model import model_state
from engine.serving.begun import can_begin
from engine.types import PredictOptions
from engine_testing import models, plugins

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SOURCE = """
from dataclasses import replace

from engine.hookspecs import hookimpl
from engine_testing import null_device
from engine_testing.null_device import *

told = []

@hookimpl
def engine_backend():
    found = null_device.engine_backend()
    return replace(found, name={name!r}, capabilities=found.capabilities {more})

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s, options=None):
    told.append(options)
    return null_device.engine_predict(context, inputs, outputs, deadline_s)
"""
SEES = """
def through(model, predict):
    return lambda *arguments: predict(*arguments)
"""

WATCHES = """
seen = []

class Watch:
    observes = True

    def __init__(self, options):
        pass

    def on_request(self, event):
        seen.append(str(event.status))
"""


def make(folder: Path, name: str, more: str = "") -> Any:
    plugins.install(folder, name, f"asked_{name}", source=SOURCE.format(name=name, more=more))
    return importlib.import_module(f"asked_{name}")


def check(results: Any) -> None:
    [y] = results
    np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)


def test_a_predict_of_which_nothing_is_asked_is_the_backends_own_function(
    plugin_folder: Path, tmp_path: Path
) -> None:
    backend = make(plugin_folder, "plainly")
    with engine.load(models.affine(tmp_path), target="plainly") as model:
        check(model.predict([X]))
        state = model_state(model).threads.state
        assert state.run is model_state(model).plan.predict is backend.engine_predict
    assert backend.told == [None]


def test_an_observer_alone_leaves_the_backends_own_function(
    plugin_folder: Path, tmp_path: Path
) -> None:
    make(plugin_folder, "watched")
    plugins.install(
        plugin_folder, "watch", "watch_all:Watch", group=EXTENSIONS.group, source=WATCHES
    )
    config = {"common_context": {"extensions": "watch"}}
    with engine.load(models.affine(tmp_path), target="watched", config=config) as model:
        check(model.predict([X]))
        built = model_state(model).require_built()
        assert built.predict is built.plan.predict
        assert model_state(model).threads.own.plain is built.plan.backend.predict
        assert can_begin(built)
        check(asyncio.run(model.predict_async([X])))
    assert importlib.import_module("watch_all").seen == ["completed"] * 2


def test_id_priority_and_cancel_reach_the_backend_for_this_predict_alone(
    plugin_folder: Path, tmp_path: Path
) -> None:
    backend = make(plugin_folder, "one")
    with engine.load(models.affine(tmp_path), target="one") as model:
        check(model.predict([X], priority=7, request_id="r-1"))
        check(model.predict([X], cancel=CancelToken()))
        given = Tensor(np.empty_like(X))
        check(model.predict([X], [given], priority=-100))
        check(model.predict([X]))
    assert backend.told == [
        PredictOptions(id="r-1", priority=7),
        PredictOptions(can_be_cancelled=True),
        PredictOptions(priority=-100),
        None,
    ]


def test_a_backend_that_wants_options_gets_them_in_every_predict(
    plugin_folder: Path, tmp_path: Path
) -> None:
    backend = make(plugin_folder, "wanting", more="| {'predict_options'}")
    with engine.load(models.affine(tmp_path), target="wanting") as model:
        check(model.predict([X]))
        check(model.predict([X], cancel=CancelToken()))
    assert backend.told == [PredictOptions(), PredictOptions(can_be_cancelled=True)]


@pytest.mark.parametrize("how", ["extension", "weights"])
def test_options_pass_through_what_stands_around_a_predict(
    how: str, plugin_folder: Path, tmp_path: Path
) -> None:
    backend = make(plugin_folder, f"inner_{how}", more="- {'update_weights'}")
    config: dict[str, Any] = {}
    if how == "extension":
        plugins.install(
            plugin_folder, "through", "through_all:through", group=EXTENSIONS.group, source=SEES
        )
        config = {"common_context": {"extensions": "through"}}
    variable = ("two",) if how == "weights" else ()
    path = models.affine(tmp_path)
    model = engine.Model()
    context = engine.Context()
    context.target = [f"inner_{how}"]
    model.build_from_file(
        str(path), engine.ModelType.MINDIR, context, "", config, variable_weights=variable
    )
    with model:
        check(model.predict([X], request_id="through", priority=3))
        check(model.predict([X]))
    assert backend.told == [PredictOptions(id="through", priority=3), None]


def test_options_reach_the_backend_of_a_model_whose_outputs_have_any_size(
    plugin_folder: Path, tmp_path: Path
) -> None:
    backend = make(plugin_folder, "open_ended")
    with engine.load(models.nonzero(tmp_path), target="open_ended") as model:
        x = np.array([0, 1, 0, 2], np.float32)
        for asked in ({"request_id": "open"}, {}):
            [y] = model.predict([x], **asked)
            np.testing.assert_array_equal(y.get_data_to_numpy(), [[1, 3]])
    assert backend.told == [PredictOptions(id="open"), None]


def test_each_segment_of_a_model_on_two_backends_gets_them(
    plugin_folder: Path, tmp_path: Path
) -> None:
    first = make(plugin_folder, "front")
    second = make(plugin_folder, "behind")
    config = {"front_context": {"unsupported_ops": "Add"}}
    path = models.affine(tmp_path)
    with engine.load(path, target=["front", "behind"], config=config) as model:
        for _ in range(3):  # the first run, the run that prepares, one that is prepared
            check(model.predict([X], request_id="both"))
        check(model.predict([X]))
    assert first.told == second.told == [PredictOptions(id="both")] * 3 + [None]


def test_an_isolated_backend_predicts_without_them(plugin_folder: Path, tmp_path: Path) -> None:
    make(plugin_folder, "apart")
    config = {"common_context": {"isolate": "true"}}
    with engine.load(models.affine(tmp_path), target="apart", config=config) as model:
        check(model.predict([X], priority=1, request_id="away"))


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"priority": 101}, ValueError, "priority must be -100 to 100, but got 101"),
        ({"priority": "high"}, TypeError, "priority must be an int"),
        ({"priority": True}, TypeError, "priority must be an int"),
        ({"priority": None}, TypeError, "priority must be an int of -100 to 100, but got .*None"),
        ({"priority": 0.0}, TypeError, "priority must be an int"),
        ({"priority": False}, TypeError, "got <class 'bool'>; leave it out for 0"),
        ({"request_id": 5}, TypeError, "request_id must be a str"),
        ({"request_id": None}, TypeError, "request_id must be a str, but got .*None"),
        ({"request_id": 0}, TypeError, "request_id must be a str"),
        ({"request_id": b""}, TypeError, "got <class 'bytes'>; leave it out for none"),
    ],
)
def test_what_cannot_be_asked_is_an_error(
    asked: Any, error: type[Exception], says: str, null_backend: str, tmp_path: Path
) -> None:
    with engine.load(models.affine(tmp_path), target="null") as model:
        with pytest.raises(error, match=says):
            model.predict([X], **asked)
        with pytest.raises(error, match=says):
            model.predict([X], cancel=CancelToken(), **asked)
        with pytest.raises(error, match=says):
            asyncio.run(model.predict_async([X], **asked))
        check(model.predict([X]))
    runner = engine.ModelParallelRunner()
    context = engine.Context()
    context.target = ["null"]
    runner.build_from_file(str(models.affine(tmp_path)), context)
    with runner:
        with pytest.raises(error, match=says):
            runner.predict([X], **asked)
        with pytest.raises(error, match=says):
            runner.submit([X], **asked)
        with pytest.raises(error, match=says):
            asyncio.run(runner.predict_async([X], **asked))
        with ThreadPoolExecutor(1) as threads, pytest.raises(error, match=says):
            threads.submit(runner.predict, [X], **asked).result(60)  # not the main thread
        check(runner.predict([X]))
