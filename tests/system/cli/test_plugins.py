"""`engine plugins`: every state of a backend, and that a bad one takes nothing with it."""

from __future__ import annotations

import re

import pytest

from engine.backends.isolation import listing
from engine_testing.plugins import install, installed

NO_DEVICE = """
from engine.hookspecs import hookimpl
from engine.types import BackendInfo, Devices

@hookimpl
def engine_backend():
    return BackendInfo(name="lonely", version="9", device_types=("npu",))

@hookimpl
def engine_devices():
    return Devices(reason="no card in any slot", fix="plug one in")

@hookimpl
def engine_load(source, options): ...

@hookimpl
def engine_compile(loaded, options): ...

@hookimpl
def engine_predict(context, inputs): ...
"""


FACTS = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine.types import BackendInfo, Capability, Device, DeviceInfo, DeviceMemory, Devices, DType
from engine_testing import null
from engine_testing.null import *

DEVICES = [
    DeviceInfo(Device("odd", 0), "eight bits", 16 << 30, {}, frozenset({DType.UINT8, DType.BOOL})),
    DeviceInfo(Device("odd", 1), "silent", lacks={"device_memory": "it has no counter"}),
    DeviceInfo(Device("odd", 2), "vague"),
]

@hookimpl
def engine_backend():
    capabilities = frozenset({Capability.DEVICE_MEMORY})
    return BackendInfo(name=NAME, version="9", device_types=("odd",), capabilities=capabilities)

@hookimpl
def engine_devices():
    return Devices(tuple(DEVICES))

@hookimpl
def engine_memory(device):
    if NAME == "fatal":
        import os
        os.kill(os.getpid(), 11)
    if NAME == "failing":
        raise RuntimeError("the counter is stuck")
    assert device.id != 1, "it lacks the capability"
    if device.id == 2:
        return DeviceMemory()
    return DeviceMemory(free_bytes=12 << 30, used_bytes=4 << 30)
"""


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """One backend for each state."""
    folder = tmp_path_factory.mktemp("zoo")
    with installed(folder):
        install(folder, "null", "engine_testing.null_device", version="1.2.3")
        for name in ("facts", "failing", "fatal"):
            install(folder, name, f"{name}_plugin", source=f"NAME = {name!r}\n{FACTS}")
        install(folder, "off", "off", source="raise SystemExit('imported')")
        install(folder, "lonely", "lonely", source=NO_DEVICE)
        install(folder, "torn", "torn", source="import no_such_vendor_library\n")
        install(folder, "crash", "crash", source="import os; os.kill(os.getpid(), 11)\n")
        install(folder, "later", "later", group="engine.backends.v99", source="")
        for name, source in (("seen", "wrap = print"), ("unseen", "import no_such_tracer")):
            install(folder, name, f"{name}:wrap", group="engine.extensions.v1", source=source)
        yield folder


@pytest.fixture(scope="module")
def found(zoo):
    """Look at the zoo once: each look is seven processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGINE_DISABLED_BACKENDS", "off")
        return listing.plugins()


@pytest.fixture
def records(found, monkeypatch):
    """Let the command show what was found before."""
    monkeypatch.setattr("engine.cli.plugins.listed", lambda: found)


def test_every_state_is_shown_with_its_reason_and_fix(cli, records):
    done = cli("plugins", "--json")
    assert done.status == 0
    found = {each["name"]: each for each in done.json["backends"]}
    names = ("off", "null", "lonely", "torn", "crash", "later")
    assert {name: found[name]["state"] for name in names} == {
        "off": "disabled", "null": "ready", "lonely": "no_device", "torn": "broken",
        "crash": "broken", "later": "incompatible",
    }  # fmt: skip
    assert found["lonely"]["reason"] == "no card in any slot"
    assert found["lonely"]["fix"] == "plug one in"
    assert found["lonely"]["device_types"] == ["npu"]
    assert "no_such_vendor_library" in found["torn"]["reason"]
    assert "SIGSEGV" in found["crash"]["reason"]
    assert "engine.backends.v99" in found["later"]["reason"]
    assert all(each["fix"] for each in found.values() if each["state"] != "ready")
    assert found["cpu"]["state"] == "ready"
    assert found["cpu"]["devices"][0]["device"] == "cpu:0"


def test_a_ready_backend_shows_its_version_and_devices_beside_broken_ones(cli, records):
    done = cli("plugins")
    assert done.status == 0
    rows = done.out.split("\n\n")[0].splitlines()
    [number] = [
        number
        for number, text in enumerate(rows)
        if text.startswith("backend  ") and " null " in text
    ]
    assert rows[number].split()[1:5] == ["null", "ready", "engine-plugin-null", "1.2.3"]
    assert "null:0" in rows[number + 1]
    assert "  reason: no card in any slot\n  fix: plug one in\n" in done.out


def test_memory_and_element_types_of_devices_are_shown(cli, records):
    out = cli("plugins").out
    [shown] = re.findall(r"odd:0, eight bits, [^\n]*free[^\n]*", out)
    assert shown.split(", ")[2:] == ["17.2 GB", "12.9 GB free", "4.29 GB used"]
    assert re.search(r"odd:1, silent\n", out)
    assert "\nfacts (ready):\n" in out
    assert "  element types: odd:0 has bool, uint8\n" in out
    found = {each["name"]: each for each in cli("plugins", "--json").json["backends"]}
    first, silent, vague = found["facts"]["devices"]
    assert (first["free_bytes"], first["used_bytes"]) == (12 << 30, 4 << 30)
    assert first["dtypes"] == ["bool", "uint8"]
    assert (silent["free_bytes"], vague["free_bytes"], vague["dtypes"]) == (None, None, [])
    cpu = found["cpu"]["devices"][0]
    assert 0 < cpu["free_bytes"] <= cpu["memory_bytes"]


def test_a_hook_of_memory_that_fails_or_crashes_takes_nothing_with_it(cli, records):
    found = {each["name"]: each for each in cli("plugins", "--json").json["backends"]}
    for name, words in (("failing", "the counter is stuck"), ("fatal", "SIGSEGV in engine_memory")):
        assert found[name]["state"] == "ready"
        assert any(words in text for text in found[name]["warnings"])
        assert found[name]["devices"][0]["free_bytes"] is None


def test_the_entries_of_other_doors_are_shown_with_their_package_and_reason(cli, records):
    done = cli("plugins")
    rows = [row.split() for row in done.out.split("\n\n")[0].splitlines()]
    assert ["extension", "seen", "ready", "engine-plugin-seen", "0.0.0"] in rows
    assert ["extension", "unseen", "broken", "engine-plugin-unseen", "0.0.0"] in rows
    assert "\nextension unseen (broken):\n  reason: importing 'unseen:wrap' failed: " in done.out
    found = {
        (each["kind"], each["name"]): each for each in cli("plugins", "--json").json["plugins"]
    }
    assert found["extension", "seen"]["state"] == "ready"
    assert "no_such_tracer" in found["extension", "unseen"]["reason"]
    assert found["extension", "unseen"]["fix"] == "update or uninstall engine-plugin-unseen"


def test_backends_of_this_project_are_shown_where_they_are_not_installed(cli, monkeypatch):
    from engine.backends import doors

    monkeypatch.setattr(doors, "entry_points", lambda prefix, warn: iter(()))
    done = cli("plugins")
    assert done.status == 0
    for name, extra in (("cpu", "cpu"), ("gpu_trt", "gpu-trt"), ("ascend_ge", "ascend-ge")):
        assert f"{name} (not installed):\n" in done.out
        # In a checkout an extra cannot find a sibling folder.
        fix = rf'pip install (-e "[^"]*plugins/{name}|"inference-engine\[{extra}\]")'
        assert re.search(fix, done.out)


def test_plugins_alone_lists_as_plugins_list_does(cli, records):
    assert cli("plugins").out == cli("plugins", "list").out
    assert cli("plugins", "--json", "list").json == cli("plugins", "list", "--json").json


@pytest.mark.parametrize("width", [40, 60, 120])
def test_nothing_is_cut_off_at_any_width(cli, records, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    done = cli("plugins")
    assert "…" not in done.out
    table = done.out.split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= width
    for name in ("ascend_ge", "incompatible", "no_such_vendor_library"):
        assert name in done.out
