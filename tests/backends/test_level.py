"""A plugin for a later level of the contract is one line that names what it needs and the fix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import engine
from engine import backends
from engine.backends import BackendState, doors
from engine.hookspecs import LEVEL, SUPPORTS
from engine.types import Capability
from engine_testing.plugins import install

SOURCE = """
from engine.hookspecs import hookimpl
from engine.types import BackendInfo, Devices
{before}

@hookimpl
def engine_backend():
    return BackendInfo(name="later", version="7", device_types=("later",), {manifest})

@hookimpl
def engine_devices():
    return Devices(reason="there is none")

@hookimpl
def engine_load(source, options): ...

@hookimpl
def engine_compile(loaded, options): ...

@hookimpl
def engine_predict({arguments}): ...
"""


def later(
    folder: Path,
    before: str = "",
    manifest: str = "",
    arguments: str = "context, inputs, outputs, deadline_s",
) -> None:
    source = SOURCE.format(before=before, manifest=manifest, arguments=arguments)
    install(folder, "later", "plugin_later", source=source)


@pytest.mark.parametrize(
    "arguments",
    ["context, inputs, outputs, deadline_s", "context, inputs, outputs, deadline_s, priority"],
)
def test_a_backend_that_needs_a_later_level_says_both_numbers(plugin_folder, arguments) -> None:
    later(plugin_folder, manifest=f"level={LEVEL + 6}", arguments=arguments)
    found = backends.record("later")
    assert found.state is BackendState.INCOMPATIBLE
    assert found.reason == f"it needs contract 1.{LEVEL + 6}, this core has 1.{LEVEL}"
    assert found.fix == "run: pip install -U inference-engine"
    with pytest.raises(engine.BackendIncompatible, match="pip install -U inference-engine"):
        backends.open_backend("later")


@pytest.mark.parametrize(
    ("before", "manifest", "missing"),
    [
        ("from engine.types import Groups", "", "engine.types.Groups"),
        ("from engine import types; types.Groups", "", "engine.types.Groups"),
        ("import engine.groups", "", "the module engine.groups"),
        ("from engine.types import Capability", "capabilities={Capability.LORA}",
         "engine.types.Capability.LORA"),
        ("", "groups=()", "BackendInfo.groups"),
    ],
)  # fmt: skip
def test_what_a_later_level_has_and_this_core_lacks_is_named(
    plugin_folder: Path, before: str, manifest: str, missing: str
) -> None:
    later(plugin_folder, before, manifest)
    found = backends.record("later")
    assert found.state is BackendState.INCOMPATIBLE
    assert found.reason == f"it needs {missing}, which contract 1.{LEVEL} of this core lacks"
    assert found.fix == "run: pip install -U inference-engine"


def test_an_entry_of_any_door_is_told_the_same(plugin_folder: Path) -> None:
    source, group = "from engine.types import Layers\n", doors.FORMATS.group
    install(plugin_folder, "mine", "my_format:Format", group=group, source=source)
    found, _ = doors.resolve(doors.FORMATS, "mine")
    assert found.state is BackendState.INCOMPATIBLE
    assert "engine.types.Layers" in found.reason


@pytest.mark.parametrize("level", [0, 1, LEVEL])
def test_a_backend_of_this_level_or_an_earlier_one_is_taken(plugin_folder, level) -> None:
    later(plugin_folder, manifest=f"level={level}")
    assert backends.record("later").state is BackendState.NO_DEVICE


@pytest.mark.parametrize(
    ("before", "manifest", "said"),
    [
        ("from numpy import no_such_thing", "", "cannot import name 'no_such_thing'"),
        ("import no_such_library", "", "no_such_library"),
        ("dict(a=1, **{'a': 2})", "", "TypeError"),
        ("from engine_later import thing", "", "cannot import name 'thing' from 'engine_later'"),
        ("class Option:\n    def __init__(self): ...\nOption(least=1)", "", "'least'"),
        ("", "level='7'", "BackendInfo.level is '7', expected an int"),
        ("def BackendInfo(**said): raise SystemExit(3)", "", "SystemExit: 3"),
    ],
)  # fmt: skip
def test_other_failures_are_not_taken_for_a_later_level(
    plugin_folder: Path, before: str, manifest: str, said: str
) -> None:
    (plugin_folder / "engine_later.py").write_text("")
    later(plugin_folder, before, manifest)
    found = backends.record("later")
    assert found.state is BackendState.BROKEN
    assert re.search(re.escape(said), found.reason)


def test_a_plugin_can_ask_what_the_core_makes_use_of() -> None:
    assert str(Capability.DEVICE_BUFFERS) in SUPPORTS
    assert "no such thing" not in SUPPORTS
    assert all(type(name) is str for name in SUPPORTS)
