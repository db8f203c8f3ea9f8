"""Backends prepare for the shapes that are known when a model is built or resized."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_models import refusing, save

import engine
from engine.errors import Cancelled, ModelError
from engine.types import CancelToken

Install = Callable[..., ModuleType]
OPEN = "(float[n] x, float[n] z) => (float[n] y)"
FIXED = OPEN.replace("[n]", "[4]")
NODES = "a = Add (x, z); b = Tanh (a); y = Add (b, z)"
PREPARES = """
prepared = []
fault = [None]


class Preparing:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def prepare(self, shapes, progress, cancel):
        prepared.append(shapes)
        if progress is not None:
            progress("specialise", 1, 1)
        if cancel is not None:
            cancel.check()
        if fault[0] is not None:
            raise fault[0]

    def close(self):
        opened.remove(self)
        self.inner.close()


@hookimpl
def engine_compile(loaded, options):
    executable = Preparing(loaded.compile(options))
    opened.append(executable)
    return executable
"""


def preparing(install: Install, name: str) -> ModuleType:
    found = install(name, PREPARES)
    capabilities = found.engine_backend().capabilities | {"prepare"}
    return install(f"{name}_", PREPARES, capabilities=capabilities)


@pytest.fixture
def one(install: Install) -> ModuleType:
    return preparing(install, "one")


@pytest.fixture
def two(install: Install) -> ModuleType:
    return preparing(install, "two")


def load(path: Path, *target: str, **more: Any) -> engine.Model:
    return engine.load(path, target=[*target], **more)


def test_fixed_shapes_are_prepared_when_a_model_is_built(one: ModuleType, tmp_path: Path) -> None:
    steps = []
    model = load(save(tmp_path, NODES, FIXED), "one_", progress=lambda *step: steps.append(step))
    assert one.prepared == [{"x": (4,), "z": (4,)}]
    assert ("specialise", 1, 1) in steps
    model.close()
    assert one.opened == []


def test_open_shapes_are_prepared_at_each_resize(one: ModuleType, tmp_path: Path) -> None:
    model = load(save(tmp_path, NODES, OPEN), "one_")
    assert one.prepared == []
    model.resize(model.get_inputs(), [[3], [3]])
    assert one.prepared == [{"x": (3,), "z": (3,)}]
    model.resize(model.get_inputs(), [[-1], [-1]])
    assert len(one.prepared) == 1, "of open sizes there is nothing to prepare"


def test_each_set_of_sizes_that_a_user_names_is_prepared(one: ModuleType, tmp_path: Path) -> None:
    settings = {
        "input_shape": "x:[-1];z:[-1]",
        "dynamic_dims": "[2~4],[5~8];[2~4],[5~8]",
        "opt_dims": "[3],[6];[3],[6]",
    }
    load(save(tmp_path, NODES, OPEN), "one_", config={"one__context": settings})
    assert one.prepared == [{"x": (3,), "z": (3,)}, {"x": (6,), "z": (6,)}]


def test_each_part_of_a_mixed_plan_is_prepared(
    one: ModuleType, two: ModuleType, tmp_path: Path
) -> None:
    config = refusing(one_="Tanh")
    load(save(tmp_path, NODES, FIXED), "one_", "two_", config=config)
    assert one.prepared == [{"x": (4,), "z": (4,)}, {"b": (4,), "z": (4,)}]
    assert two.prepared == [{"a": (4,)}]
    one.prepared.clear()
    two.prepared.clear()
    model = load(save(tmp_path, NODES, OPEN), "one_", "two_", config=config)
    assert (one.prepared, two.prepared) == ([], [])
    model.resize(model.get_inputs(), [[5], [5]])
    assert one.prepared == [{"x": (5,), "z": (5,)}, {"b": (5,), "z": (5,)}]
    assert two.prepared == [{"a": (5,)}]
    x = np.ones(5, np.float32)
    np.testing.assert_allclose(model(x=x, z=x)["y"], np.tanh(2 * x) + 1, rtol=1e-6)


def test_parts_inside_weights_that_may_change_are_prepared(one: ModuleType, tmp_path: Path) -> None:
    path = save(tmp_path, "y = Add (x, w)", "(float[n] x) => (float[n] y)", {"w": np.float32([2])})
    model = load(path, "one_", variable_weights=["w"])
    model.resize(model.get_inputs(), [[3]])
    assert one.prepared == [{"x": (3,), "w": (1,)}]


def test_a_build_is_cancelled_while_it_prepares(one: ModuleType, tmp_path: Path) -> None:
    token = CancelToken()

    def stop(phase: str, done: int, total: int | None) -> None:
        if phase == "specialise":
            token.cancel()

    with pytest.raises(Cancelled):
        load(save(tmp_path, NODES, FIXED), "one_", progress=stop, cancel=token)
    assert one.prepared
    assert one.opened == [], "what was compiled is closed"


def test_a_resize_that_cannot_be_prepared_changes_nothing(one: ModuleType, tmp_path: Path) -> None:
    model = load(save(tmp_path, NODES, OPEN), "one_")
    one.fault[0] = ModelError("no memory for these shapes")
    with pytest.raises(ModelError, match=r"resize failed! Error is .*no memory for these shapes"):
        model.resize(model.get_inputs(), [[3], [3]])
    assert [tensor.shape for tensor in model.get_inputs()] == [[-1], [-1]]
    x = np.ones(4, np.float32)
    np.testing.assert_allclose(model(x=x, z=x)["y"], np.tanh(2 * x) + 1, rtol=1e-6)


def test_a_backend_without_the_capability_is_not_asked(install: Install, tmp_path: Path) -> None:
    quiet = install("quiet", PREPARES)
    load(save(tmp_path, NODES, FIXED), "quiet")
    assert quiet.prepared == []


def test_a_close_frees_nothing_while_a_resize_prepares(
    one: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, were_open, ended = threading.Event(), threading.Event(), [], []

    def prepare(self: Any, shapes: Any, progress: Any, cancel: Any) -> None:
        begun.set()
        assert go.wait(120)
        were_open.append(self in one.opened)

    def resize() -> None:
        try:
            model.resize(model.get_inputs(), [[5], [5]])
        except engine.EngineError as error:
            ended.append(str(error))

    model = load(save(tmp_path, NODES, OPEN), "one_")
    monkeypatch.setattr(one.Preparing, "prepare", prepare)
    threads = [threading.Thread(target=resize), threading.Thread(target=model.close)]
    threads[0].start()
    assert begun.wait(120)
    threads[1].start()
    threads[1].join(0.2)
    go.set()
    for thread in threads:
        thread.join(120)
    assert were_open == [True]
    assert one.opened == []
    assert "closed" in ended[0]
