"""The doors: one resolver for all groups of entry points, and no entry that stops another."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine.backends import BackendState, doors
from engine.backends.doors import CONFORMANCE, DOORS, EXTENSIONS, SOURCES, Door
from engine.backends.install import pip_install
from engine.backends.isolation.listing import plugins
from engine.backends.isolation.probe import probe_doors
from engine.backends.records import PluginRecord
from engine_testing.plugins import install

GOOD = "def wrap(model, predict):\n    return predict\n"


def extension(folder: Path, name: str, source: str = GOOD, **settings: str) -> None:
    settings = {"group": EXTENSIONS.group, **settings}
    install(folder, name, f"plugin_{name}:wrap", source=source, **settings)


def record(name: str, door: Door = EXTENSIONS) -> PluginRecord:
    return doors.resolve(door, name)[0]


def test_an_entry_that_can_be_used_is_ready_and_names_its_package(plugin_folder: Path) -> None:
    extension(plugin_folder, "well", version="1.2")
    found, wrap = doors.resolve(EXTENSIONS, "well")
    assert (found.kind, found.state) == ("extension", BackendState.READY)
    assert (found.distribution, found.version) == ("engine-plugin-well", "1.2")
    assert wrap(None, 7) == 7


def test_names_are_read_without_importing_anything(plugin_folder: Path) -> None:
    extension(plugin_folder, "well", "raise SystemExit('imported')")
    assert "well" in doors.names(EXTENSIONS)
    assert "plugin_well" not in sys.modules


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_library", "importing 'plugin_bad:wrap' failed: .*no_such_library"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("", "has no attribute 'wrap'"),
        ("wrap = 7", "'plugin_bad:wrap' cannot serve as extension: it has no __call__"),
    ],
)
def test_an_entry_that_fails_is_broken_and_says_why(plugin_folder, source, reason) -> None:
    extension(plugin_folder, "bad", source)
    found = record("bad")
    assert found.state is BackendState.BROKEN
    assert re.search(reason, found.reason)
    assert found.fix == "update or uninstall engine-plugin-bad"


def test_an_entry_of_another_version_is_incompatible_and_is_not_imported(plugin_folder) -> None:
    extension(plugin_folder, "later", "raise SystemExit('imported')", group="engine.extensions.v2")
    found = record("later")
    assert found.state is BackendState.INCOMPATIBLE
    assert "'engine.extensions.v2', this core 'engine.extensions.v1'" in found.reason
    assert "plugin_later" not in sys.modules


def test_a_conformance_class_without_the_kits_packages_names_the_extra(plugin_folder: Path) -> None:
    install(
        plugin_folder, "kit", "kit_of_it:TestIt", group=CONFORMANCE.group,
        source="import no_such_test_runner",
    )  # fmt: skip
    found = record("kit", CONFORMANCE)
    assert found.state is BackendState.NOT_INSTALLED
    assert found.reason == "it needs 'no_such_test_runner', which is not installed"
    assert pip_install("testing") in found.fix


def test_all_doors_are_listed_and_a_bad_entry_stops_no_other(plugin_folder: Path) -> None:
    extension(plugin_folder, "a_well")
    extension(plugin_folder, "b_crashing", "import os; os.kill(os.getpid(), 11)")
    extension(plugin_folder, "c_leaving", "import os; os._exit(0)")
    extension(plugin_folder, "d_broken", "1 / 0")
    extension(plugin_folder, "e_well")
    extension(plugin_folder, "lost", group="engine.extension.v1")
    install(plugin_folder, "null", "engine_testing.null_device")
    backends, others = plugins()
    assert {backend.name: backend.state for backend in backends}["null"] is BackendState.READY
    ours = [entry for entry in others if entry.distribution.startswith("engine-plugin-")]
    found = {entry.name: entry for entry in ours if entry.kind == "extension"}
    assert [(name, str(entry.state)) for name, entry in found.items()] == [
        ("a_well", "ready"), ("b_crashing", "broken"), ("c_leaving", "broken"),
        ("d_broken", "broken"), ("e_well", "ready"),
    ]  # fmt: skip
    assert "crashed with SIGSEGV while it was imported" in found["b_crashing"].reason
    assert "ended without an answer" in found["c_leaving"].reason
    assert found["b_crashing"].distribution == "engine-plugin-b-crashing"
    [lost] = [entry for entry in others if entry.name == "lost"]
    assert lost.state is BackendState.INCOMPATIBLE
    assert "'engine.extension.v1', which is no group of this core" in lost.reason
    assert "did you mean 'engine.extensions.v1'?" in lost.reason


def test_a_source_without_its_packages_is_listed_with_what_installs_them(
    plugin_folder: Path,
) -> None:
    read = "title = 'a model'\ndef read(job): ...\npackages = ('onnx', 'no_such_package')\n"
    install(plugin_folder, "mine", "of_mine", group=SOURCES.group, source=read)
    _, records = probe_doors((), [(SOURCES, "mine"), (SOURCES, "tf"), (SOURCES, "caffe")], 60)
    mine, tf, caffe = records
    assert (mine.state, caffe.state) == (BackendState.NOT_INSTALLED, BackendState.READY)
    assert str(mine).endswith("it needs no_such_package; run: pip install no_such_package")
    lacks = [name for name in ("tensorflow", "tf2onnx") if find_spec(name) is None]
    assert tf.reason == (f"it needs {' and '.join(lacks)}" if lacks else "")
    assert tf.fix == (f"run: {pip_install('tensorflow')}" if lacks else "")
    usable = record("mine", SOURCES)
    assert usable.state is BackendState.READY, "it still tells which files are its own"


def test_an_entry_that_hangs_is_ended_at_the_time_limit(plugin_folder: Path) -> None:
    extension(plugin_folder, "a_hanging", "import time; time.sleep(600)")
    extension(plugin_folder, "b_well")
    _, [hanging, well] = probe_doors([], [(EXTENSIONS, "a_hanging"), (EXTENSIONS, "b_well")], 3)
    assert "did not answer within 3 s" in hanging.reason
    assert well.state is BackendState.READY


def test_every_door_has_a_version_in_its_group_and_a_kind_of_its_own() -> None:
    assert all(re.fullmatch(r"engine\.\w+\.v1", door.group) for door in DOORS)
    assert len({door.kind for door in DOORS}) == len(DOORS)
