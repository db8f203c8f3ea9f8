"""Devices found on a machine, and the messages where something is missing. Emulated."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from engine.errors import BackendUnavailable, ModelStateError
from engine.types import Device, DeviceMemory, DType
from engine_ascend_ge import (
    devices,
    diagnose,
    engine_buffer,
    engine_devices,
    engine_diagnose,
    engine_memory,
    runtime,
)


@pytest.fixture
def without_cann(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices, "set_env_script", lambda: None)


@pytest.fixture
def module_acl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without_cann: None) -> Any:
    """Puts a module `acl` with this source on the path."""
    monkeypatch.setattr(runtime, "_process", runtime._Process())

    def put(source: str) -> None:
        (tmp_path / "acl.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(__import__("sys").modules, "acl", raising=False)

    return put


def test_every_device_is_named_with_its_soc(machine: Any) -> None:
    found = engine_devices().found
    assert [info.device for info in found] == [Device("ascend", 0), Device("ascend", 1)]
    assert {info.name for info in found} == {"Ascend910B3"}


def test_looking_for_devices_opens_none(machine: Any) -> None:
    engine_devices()
    assert machine.live() == {}
    assert machine.calls["rt.set_device"] == 0


def test_hidden_devices_are_named_as_the_reason(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.devices = 0
    found = engine_devices()
    assert found.found == ()
    assert "no Ascend device" in found.reason
    assert "npu-smi" in found.fix
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "9")
    assert "ASCEND_RT_VISIBLE_DEVICES='9'" in engine_devices().reason


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("init", 500004, r"initialise ACL: ACL_ERROR_DRV_FAILURE 500004.*drv error"),
        ("rt.get_device_count", 507899, r"count the Ascend devices"),
    ],
)
def test_a_driver_that_refuses_is_the_reason(
    machine: Any, name: str, code: int, reason: str
) -> None:
    machine.fail(name, code, message="EE9999: drv error")
    found = engine_devices()
    assert re.search(reason, found.reason)
    assert "npu-smi" in found.fix


def test_acl_started_by_someone_else_is_used_and_not_ended(machine: Any) -> None:
    machine.is_initialized = True
    assert engine_devices().found
    runtime.stop()
    assert machine.is_initialized, "finalised what another library had initialised"
    machine.is_initialized = False


def test_an_environment_that_is_not_set_is_told_apart_from_no_cann(
    without_cann: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path("/usr/local/Ascend/ascend-toolkit/set_env.sh")
    monkeypatch.setattr(devices, "set_env_script", lambda: script)
    found = engine_devices()
    assert "environment is not set" in found.reason
    assert found.fix == f"run: source {script}"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('libascendcl.so: cannot open shared object file')", "libascendcl.so"),
        ("def list_users(): ...", "not CANN's pyACL"),
    ],
    ids=["without its library", "of another package"],
)
def test_a_module_acl_that_is_not_canns_whole_one_is_the_reason(
    module_acl: Any, source: str, reason: str
) -> None:
    module_acl(source)
    assert reason in engine_devices().reason


def test_a_device_that_is_not_there_is_refused_by_number(machine: Any) -> None:
    with pytest.raises(BackendUnavailable, match=r"ascend:7 is not there; found: ascend:0, asc"):
        runtime.use_device(7)


def test_a_forked_process_may_not_start_again(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.use_device(0)
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        with pytest.raises(ModelStateError, match="spawn"):
            runtime.start()
        before = sum(machine.calls.values())
        runtime.stop()
        assert sum(machine.calls.values()) == before, "a forked process used the parent's handles"


def test_a_whole_machine_passes_every_check(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "davinci0").touch()
    (tmp_path / "version.info").write_text("Version=24.1.rc2\n")
    (tmp_path / "cann" / "version.cfg").write_text("toolkit_running_version=[8.2.RC1]\n")
    monkeypatch.setattr(diagnose, "DEVICE_NODES", tmp_path)
    monkeypatch.setattr(diagnose, "DRIVER", tmp_path / "version.info")
    checks = list(engine_diagnose())
    assert [check.name for check in checks if not check.ok] == []
    details = {check.name: check.detail for check in checks}
    for name, part in (
        ("Ascend driver", "24.1.rc2"), ("CANN toolkit", "8.2.RC1"), ("SoC name", "Ascend910B3"),
        ("kernels package", "ascend910b"), ("atc", "/atc"), ("HCCL (ranks)", "libhccl.so"),
    ):  # fmt: skip
        assert part in details[name]


def test_libraries_that_are_missing_are_found_before_a_model_is_built(machine: Any) -> None:
    from emulated_ascend import libraries

    libraries.missing.update(("libhccl.so", "libascendcl.so"))
    failed = {check.name: check for check in engine_diagnose() if not check.ok}
    assert "libhccl.so cannot be loaded" in failed["HCCL (ranks)"].detail
    assert "cannot be shared" in failed["weights of several models or processes"].detail


def test_a_bare_machine_fails_in_the_order_of_mending(
    without_cann: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    checks = list(engine_diagnose())
    assert [check.name for check in checks] == [
        "Ascend driver", "CANN toolkit", "set_env.sh sourced", "module acl (pyACL)",
        "Ascend devices", "SoC name", "atc", "kernels package", "HCCL (ranks)",
        "weights of several models or processes",
    ]  # fmt: skip
    assert [check for check in checks if check.ok] == []
    assert all(check.fix for check in checks)


def test_kernels_of_another_soc_are_not_enough(machine: Any) -> None:
    machine.soc = "Ascend310P3"
    [kernels] = [check for check in engine_diagnose() if check.name == "kernels package"]
    assert not kernels.ok
    assert "Ascend310P3" in kernels.detail


@pytest.mark.parametrize("kind", [1, 0], ids=["HBM", "DDR"])
def test_memory_that_is_left_is_that_of_the_kind_that_there_is(machine: Any, kind: int) -> None:
    machine.memory_kind = kind
    npu = Device("ascend", 1)
    before = engine_memory(npu)
    assert before.free_bytes == machine.memory_bytes - machine.memory.used_bytes(1)
    assert before.used_bytes == machine.memory.used_bytes(1)
    assert before.own_bytes is None
    buffer = engine_buffer(npu, DType.UINT8, (1 << 20,), False)
    after = engine_memory(npu)
    assert after.free_bytes == before.free_bytes - (1 << 20)
    assert after.used_bytes == before.used_bytes + (1 << 20)  # type: ignore[operator]
    del buffer


def test_a_pyacl_that_does_not_tell_memory_lacks_the_capability(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import acl

    assert "device_memory" not in engine_devices().found[0].lacks
    monkeypatch.delattr(acl.rt, "get_mem_info")
    assert "too old" in engine_devices().found[0].lacks["device_memory"]


def test_a_device_whose_memory_cannot_be_read_is_unavailable(machine: Any) -> None:
    machine.memory_kind = 5
    assert engine_memory(Device("ascend", 0)) == DeviceMemory()
    with pytest.raises(BackendUnavailable, match="ascend:7 is not there"):
        engine_memory(Device("ascend", 7))
