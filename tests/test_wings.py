"""The wings: what the core offers by them is found by name, and the core does without them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import engine
from engine import wings
from engine.wings import wing
from engine_testing import models
from engine_testing.plugins import install

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
ENTRIES = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]["engine.wings.v1"]

ALONE = """
import asyncio, importlib.abc, sys
import numpy as np
from wing_modules import is_of_wing

class NotThere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if is_of_wing(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotThere())
import engine

def ask(name, thing):
    try:
        thing()
    except engine.EngineError as error:
        print(name, "|", error)

ask("probe_all", lambda: engine.load(sys.argv[1], "no_such_target"))
x = np.ones((2, 3), np.float32)
swap = {"common_context": {"variable_weights_mode": "swap"}}
with engine.load(sys.argv[1], "null", variable_weights=["two"], config=swap) as model:
    assert model(x=x)["y"].tolist() == [[3.0] * 3] * 2
    model.update_weights({"two": np.full(1, 5, np.float32)})
    assert model(x=x)["y"].tolist() == [[6.0] * 3] * 2
    model.resize(model.get_inputs(), [[1, 3]])
    assert list(model.get_outputs()[0].shape) == [1, 3]
    assert model.memory().parts and model.placement
    shared = {"common_context": {"shareable_weight_mem_handle": "12"}}
    asked = {
        "request_queue": lambda: asyncio.run(model.predict_async(x)),
        "compile_in_place": lambda: engine.load(sys.argv[1], "null", variable_weights=["two"]),
        "compile_with_fallback": lambda: engine.load(
            sys.argv[1], "null", config={"null_context": {"unsupported_ops": "Mul"}}
        ),
        "reshape": lambda: model.resize(model.get_inputs(), [[1, 4]]),
        "summary": lambda: model.summary(),
        "profile": lambda: model.profile(x),
        "isolated": lambda: engine.load(
            sys.argv[1], "null", config={"common_context": {"isolate": True}}
        ),
        "backends": lambda: engine.backends(),
        "lending": lambda: engine.load(sys.argv[1], "null", config=shared),
    }
    for name in (
        "Converter", "MultiDeviceRunner", "ModelGroup", "ModelParallelRunner", "inspect", "doctor"
    ):
        asked[name] = lambda name=name: getattr(engine, name)
    for name, thing in asked.items():
        ask(name, thing)
"""


IMPORTERS = """
import engine, sys, threading

class Note:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("engine.") and threading.current_thread() is threading.main_thread():
            print(name)

sys.meta_path.insert(0, Note())
assert engine.ModelParallelRunner
"""


def test_no_signal_handler_comes_between_the_imports_of_a_wing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTERS], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


@pytest.mark.parametrize("name", ENTRIES)
def test_what_a_wing_has_registered_is_found_by_name(name: str) -> None:
    module, _, attribute = ENTRIES[name].partition(":")
    assert wing(name) is getattr(sys.modules[module], attribute)
    assert callable(wing(name))


def test_the_names_of_the_package_are_registered() -> None:
    assert set(engine._WINGS) <= set(ENTRIES)


def test_a_wing_that_nobody_has_registered_is_named_with_the_command() -> None:
    with pytest.raises(engine.EngineError, match=r"^flight is not installed: no distribution has"):
        wing("flight")
    with pytest.raises(engine.EngineError, match=r"'engine\.wings\.v1'; run: pip install "):
        wing("flight")


def test_a_wing_that_cannot_be_imported_raises_what_its_import_raises(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wings, "_found", {})
    source = "import no_such_package"
    install(plugin_folder, "flight", "plugin_flight", source=source, group="engine.wings.v1")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        wing("flight")


def test_the_core_works_without_its_wings_and_names_what_is_missing(
    null_backend: str, plugin_folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", ALONE, str(models.affine(tmp_path))]
    folders = os.pathsep.join((str(plugin_folder), str(Path(__file__).parent)))
    there = {**os.environ, "PYTHONPATH": folders}
    done = subprocess.run(command, capture_output=True, text=True, env=there)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" | ") for line in done.stdout.splitlines())
    assert len(lines) == 16
    for name, text in lines.items():
        assert text.startswith(f"{name} is not installed: there is no module 'engine.")
        assert "; run: pip install " in text
