import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.backends import BackendState, installed, open_backend, record
from engine.errors import BackendNotInstalled
from engine_testing import models, plugins

SOURCE = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="fake", version="{version}")
"""


def test_an_installed_plugin_is_found_while_it_is_installed(tmp_path: Path) -> None:
    plugins.install(tmp_path, "fake", "fake_one", version="1.2.3", source=SOURCE.format(version=1))
    assert "fake" not in installed()
    with plugins.installed(tmp_path):
        found = record("fake")
        assert found.state is BackendState.READY
        assert (found.distribution, found.version) == ("engine-plugin-fake", "1.2.3")
        assert open_backend("fake").info.version == "1"
    assert "fake" not in installed()
    assert "fake_one" not in sys.modules
    with pytest.raises(BackendNotInstalled):
        open_backend("fake")


def test_a_plugin_installed_in_between_is_found(plugin_folder: Path) -> None:
    assert "fake" not in installed()
    plugins.install(plugin_folder, "fake", "fake_two", source=SOURCE.format(version=2))
    assert record("fake").state is BackendState.READY


def test_another_plugin_of_that_name_is_another_plugin(tmp_path: Path) -> None:
    for version in (1, 2):
        folder = tmp_path / str(version)
        folder.mkdir()
        plugins.install(folder, "fake", "fake_again", source=SOURCE.format(version=version))
        with plugins.installed(folder):
            assert open_backend("fake").info.version == str(version)


def test_a_plugin_of_another_contract_is_incompatible(plugin_folder: Path) -> None:
    plugins.install(plugin_folder, "fake", "nowhere", group="engine.backends.v9")
    assert record("fake").state is BackendState.INCOMPATIBLE


def test_two_distributions_may_fight_for_a_name(plugin_folder: Path) -> None:
    for distribution in ("one", "two"):
        plugins.install(
            plugin_folder,
            "fake",
            "engine_testing.null_device",
            distribution=f"engine-plugin-{distribution}",
        )
    found = record("fake")
    assert found.state is BackendState.BROKEN
    assert "engine-plugin-one, engine-plugin-two" in found.reason


def test_one_distribution_is_not_installed_twice(tmp_path: Path) -> None:
    plugins.install(tmp_path, "fake", "engine_testing.null_device")
    with pytest.raises(FileExistsError):
        plugins.install(tmp_path, "fake", "engine_testing.null_device")


def test_a_child_process_finds_plugins_by_its_path(tmp_path: Path) -> None:
    plugins.install(tmp_path, "null", "engine_testing.null_device")
    search = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    code = "from engine.backends import record; print(record('null').state)"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert printed == "ready\n"


def test_a_model_outlives_the_plugin_it_was_built_with(tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    plugins.install(folder, "null", "engine_testing.null_device")
    with plugins.installed(folder):
        model = engine.load(models.affine(tmp_path), target="null")
    x = np.array([[1, 2, 3]], np.float32)
    with model:
        assert model(x=x)["y"].tolist() == [[3, 5, 7]]


def test_the_null_backend_is_ready(null_backend: str) -> None:
    assert record(null_backend).state is BackendState.READY


def test_importing_engine_testing_imports_neither_pytest_nor_onnx() -> None:
    code = (
        "import sys, engine_testing, engine_testing.null_device, engine_testing.plugins; "
        "print(sorted({'pytest', 'onnx', 'hypothesis'} & set(sys.modules)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert printed == "[]\n"
