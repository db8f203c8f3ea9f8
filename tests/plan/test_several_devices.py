"""One executable on several devices: what a user says, and what a plan, reports and events show."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.backends.doors import EXTENSIONS
from engine.errors import BackendError, SettingError
from engine.model.model import model_state
from engine.runtime.extensions import description
from engine.types import Capability, Device
from engine_testing import models, null_mesh, plugins

X = np.arange(6, dtype=np.float32).reshape(2, 3)
FIRST, SECOND = null_mesh.DEVICES
OTHERS = """
from dataclasses import replace

from engine.hookspecs import hookimpl
from engine.types import Option
from engine_testing import null_mesh
from engine_testing.null_mesh import *

given = []

@hookimpl
def engine_backend():
    found = null_mesh.engine_backend()
    return replace(found, name={name!r}, {changes})

@hookimpl
def engine_devices():
    found = null_mesh.engine_devices()
    return replace(found, found=tuple(replace(info, lacks={lacks}) for info in found.found))

@hookimpl
def engine_load(source, options):
    given.append(options)
    return null_mesh.engine_load(source, replace(options, options={{}}))
"""


@pytest.fixture(autouse=True)
def mesh(plugin_folder: Path) -> None:
    plugins.install(plugin_folder, "null_mesh", "engine_testing.null_mesh")


def other(folder: Path, name: str, changes: str = "", lacks: str = "{}") -> Any:
    source = OTHERS.format(name=name, changes=changes, lacks=lacks)
    plugins.install(folder, name, f"several_{name}", source=source)
    return importlib.import_module(f"several_{name}")


def load(path: Path, target: Any = "null_mesh", **section: str) -> engine.Model:
    name = target if isinstance(target, str) else target[0]
    return engine.load(path, target=target, config={f"{name}_context": section})


def test_a_model_runs_on_the_devices_that_are_named(tmp_path: Path) -> None:
    with load(models.affine(tmp_path), device_ids="1,0") as model:
        [y] = model.predict([X])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
        plan = model_state(model).plan
        assert plan.device == SECOND
        assert plan.run_on == (SECOND, FIRST)
        assert {node.device for node in model.placement} == {str(FIRST), str(SECOND)}
        memory = {part.device: part.private_bytes for part in model.memory().parts}
        assert memory == {str(SECOND): 4, str(FIRST): 4}


def test_one_number_is_that_device_alone(plugin_folder: Path, tmp_path: Path) -> None:
    noting = other(plugin_folder, "noting_one")
    with load(models.affine(tmp_path), "noting_one", device_ids="1") as model:
        model.predict([X])
    with load(models.affine(tmp_path), "noting_one", device_ids="0,1") as model:
        model.predict([X])
    one, both = noting.given
    assert (one.device, one.devices) == (SECOND, ())
    assert (both.device, both.devices) == (FIRST, (FIRST, SECOND))


@pytest.mark.parametrize(
    ("section", "error", "says"),
    [
        ({"device_ids": "0,0"}, ValueError, "must name each device once"),
        ({"device_ids": "0,x"}, ValueError, "numbers with commas between"),
        ({"device_ids": "0,"}, ValueError, "numbers with commas between"),
        ({"device_ids": "0,1", "device_id": "1"}, ValueError, "begins with another device"),
        ({"device_ids": "0,7"}, BackendError, "finds no device null_mesh:7; it finds: null_mesh:0"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_why(
    section: Any, error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        load(models.affine(tmp_path), **section)


def test_a_backend_that_had_the_key_before_the_core_gets_it_as_it_is(
    plugin_folder: Path, tmp_path: Path
) -> None:
    changes = "level=1, options={}, capabilities=frozenset()"
    noting = other(plugin_folder, "older", changes)
    load(models.affine(tmp_path), "older", device_ids="0,1").close()
    [given] = noting.given
    assert (given.options, given.devices) == ({"device_ids": "0,1"}, ())


def test_a_backend_of_one_device_refuses_several(
    null_backend: str, plugin_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(BackendError, match=r"runs a model on one device; .*MultiDeviceRunner"):
        load(models.affine(tmp_path), "null", device_ids="0,1")
    other(plugin_folder, "lacking", lacks=f"{{{str(Capability.SEVERAL_DEVICES)!r}: 'no link'}}")
    with pytest.raises(BackendError, match="cannot be used with others: no link"):
        load(models.affine(tmp_path), "lacking", device_ids="0,1")
    config = {"null_mesh_context": {"device_ids": "0,1"}, "common_context": {"isolate": "true"}}
    with pytest.raises(BackendError, match="with isolate = true a model runs on one device; leave"):
        engine.load(models.affine(tmp_path), target="null_mesh", config=config)


def test_a_runner_of_many_devices_refuses_a_model_of_several(tmp_path: Path) -> None:
    context = engine.Context()
    context.target = ["null_mesh"]
    context.parallel.config_info = {"null_mesh_context": {"device_ids": "1"}}
    says = r"\[null_mesh_context\] device_ids = 1: a MultiDeviceRunner .*leave the setting out"
    with pytest.raises(SettingError, match=says):
        engine.MultiDeviceRunner(str(models.affine(tmp_path)), [0, 1], context)


def test_a_backend_that_had_an_option_of_that_name_keeps_it(
    plugin_folder: Path, tmp_path: Path
) -> None:
    had = other(plugin_folder, "having", "options={'device_ids': Option(text='its own')}")
    with load(models.affine(tmp_path), "having", device_ids="anything") as model:
        model.predict([X])
    [options] = had.given
    assert (dict(options.options), options.devices) == ({"device_ids": "anything"}, ())


@pytest.mark.parametrize("isolate", ["false", "true"])
def test_a_device_on_which_nothing_runs_is_not_named(
    isolate: str, null_backend: str, tmp_path: Path
) -> None:
    config = {
        "null_mesh_context": {"unsupported_ops": "Add,Mul"},
        "common_context": {"isolate": isolate},
    }
    target = ["null_mesh", "null"]
    with engine.load(models.affine(tmp_path), target=target, config=config) as model:
        model.predict([X])
        plan = model_state(model).require_built().plan
        assert plan.run_on == (Device("null"),)
        about = description(plan, model_state(model).require_built().signature, "")
        assert (about.devices, about.backends) == ((Device("null"),), ("null",))


def test_segments_run_on_them_too(null_backend: str, tmp_path: Path) -> None:
    target = ["null_mesh", "null"]
    path = models.affine(tmp_path)
    with load(path, target, device_ids="0,1", unsupported_ops="Add") as model:
        for _ in range(3):
            [y] = model.predict([X])
            np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
        plan = model_state(model).plan
        assert plan.run_on == (FIRST, SECOND, Device("null"))
        assert [part.device for part in model.memory().parts] == [
            "null_mesh:0",
            "null_mesh:1",
            "null:0",
        ]


def test_observers_see_all_devices(
    plugin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
events = []

class Notes:
    observes = True

    def __init__(self, options): ...
    def on_build(self, event): events.append(event.model.devices)
    def on_request(self, event): events.append(event.devices)
"""
    plugins.install(
        plugin_folder, "mesh_notes", "mesh_notes:Notes", group=EXTENSIONS.group, source=source
    )
    monkeypatch.setenv("ENGINE_EXTENSIONS", "mesh_notes")
    with load(models.affine(tmp_path), device_ids="0,1") as model:
        model.predict([X])
    assert importlib.import_module("mesh_notes").events == [(FIRST, SECOND)] * 2
