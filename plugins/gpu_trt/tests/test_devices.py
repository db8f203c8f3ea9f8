"""Devices that are there or missing, with the step that helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.backends import BackendState, record
from engine.errors import BackendUnavailable
from engine.types import CompileOptions, Device, DType, ModelSource
from engine_gpu_trt import (
    engine_buffer,
    engine_devices,
    engine_diagnose,
    engine_load,
    engine_memory,
    vendor,
)
from engine_gpu_trt.cuda import open_gpu

PACKAGE = "cuda-bindings" if os.environ.get("ENGINE_EMULATED_CUDA") == "bindings" else "pycuda"
Emulate = Callable[..., None]


def in_new_process(code: str, **environment: str) -> str:
    """Run Python in a process of its own; return what it prints, which must be no error."""
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")
    return child.stdout


def wrong() -> list[str]:
    """Return the checks of the diagnosis that are not good; each has a step that helps."""
    checks = [check for check in engine_diagnose() if not check.ok]
    assert all(check.fix for check in checks)
    return [check.name for check in checks]


def test_devices_are_found_with_name_and_memory_in_order(emulate: Emulate) -> None:
    emulate(DEVICES="3")
    found = engine_devices().found
    assert [str(device.device) for device in found] == ["gpu:0", "gpu:1", "gpu:2"]
    assert (found[0].name, found[0].memory_bytes) == ("Emulated GPU 0", 2**30)


def test_diagnosis_of_a_good_machine_is_all_good() -> None:
    checks = engine_diagnose()
    assert [check.name for check in checks] == [
        "NVIDIA driver", PACKAGE, "CUDA device", "TensorRT", "NCCL",
        "CUDA_VISIBLE_DEVICES",
    ]  # fmt: skip
    assert all(check.ok and check.detail and not check.fix for check in checks)
    assert "gpu:0 Emulated GPU 0" in checks[2].detail


def test_without_the_vendors_packages_the_command_is_given() -> None:
    code = (
        "import json\n"
        "from engine_gpu_trt import engine_devices as find, engine_diagnose\n"
        "checks = [[c.name, c.fix] for c in engine_diagnose() if not c.ok]\n"
        "print(json.dumps([find().reason, find().fix, checks]))"
    )
    reason, fix, checks = json.loads(in_new_process(code, PYTHONPATH=""))
    command = 'run: pip install "inference-engine[gpu-trt]"'
    assert reason.startswith("pycuda is not installed")
    assert ("NVIDIA driver" in fix) if "no NVIDIA driver either" in reason else (fix == command)
    assert [name for name, _ in checks][-3:] == ["pycuda", "CUDA device", "TensorRT"]
    assert checks[-1][1] == command
    assert all(step for _, step in checks)


def test_with_a_driver_and_no_packages_the_packages_are_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vendor, "find_spec", lambda name: None)
    monkeypatch.setattr(vendor, "driver_library", lambda: True)
    devices = engine_devices()
    assert (devices.found, devices.reason) == ((), "pycuda is not installed, nor is cuda-bindings")
    assert devices.fix == 'run: pip install "inference-engine[gpu-trt]"'


@pytest.mark.parametrize(
    ("variables", "reason", "fix", "bad"),
    [
        ({"DRIVER": "none"}, "no NVIDIA driver: libcuda.so.1: ", "--gpus all", [PACKAGE]),
        ({"DRIVER": "no_device"}, "no CUDA-capable device is detected", "nvidia-smi", []),
        ({"DEVICES": "0"}, "the NVIDIA driver shows no device to this process",
         "CUDA_VISIBLE_DEVICES", []),
    ],
    ids=["no driver", "no device", "none visible"],
)  # fmt: skip
def test_what_is_missing_is_said_with_the_fix(
    emulate: Emulate, variables: Mapping[str, str], reason: str, fix: str, bad: list[str]
) -> None:
    emulate(**variables)
    devices = engine_devices()
    assert devices.found == ()
    assert reason in devices.reason
    assert fix in devices.fix
    assert wrong()[-1 - len(bad) :] == [*bad, "CUDA device"]
    # The core shows the same; and TensorRT, whose null pointers would end the process, is not met.
    assert record("gpu_trt").state is BackendState.NO_DEVICE
    assert str(record("gpu_trt")).startswith("backend 'gpu_trt' has no device: ")
    source = ModelSource(format="plan", data=b"plan")
    with pytest.raises(BackendUnavailable, match=f"'gpu_trt' has no device: .*{reason}"):
        engine_load(source, CompileOptions(device=Device("gpu")))


@pytest.mark.parametrize(("hidden", "ok"), [("", False), ("-1", False), ("0,1", True)])
def test_an_environment_that_hides_the_devices_is_noticed(
    hidden: str, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    check = engine_diagnose()[-1]
    assert check.ok is ok
    assert repr(hidden) in check.detail
    assert bool(check.fix) is not ok


@pytest.mark.parametrize("version", ["10.15.9.1", "12.0.0", "8.6.1", "unknown"])
def test_a_tensorrt_of_another_age_is_refused(
    version: str, monkeypatch: pytest.MonkeyPatch, trt: Any
) -> None:
    monkeypatch.setattr(trt, "__version__", version)
    devices = engine_devices()
    assert devices.found == ()
    assert devices.reason == (
        f"tensorrt {version} is installed, but this backend needs 10.16 or newer, below 12"
    )
    assert devices.fix == 'run: pip install "tensorrt>=10.16,<12"'


@pytest.mark.parametrize(
    ("name", "error", "fix"),
    [
        ("tensorrt", "libnvonnxparser.so.11: cannot open", "force-reinstall tensorrt"),
        ("pycuda.driver", "undefined symbol: cuArrayCreate_v2", "--no-binary pycuda"),
    ],
)
def test_a_package_that_does_not_import_is_said(
    emulate: Emulate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, error: str,
    fix: str,
) -> None:  # fmt: skip
    package, _, module = name.partition(".")
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    path = tmp_path / package / f"{module or '__init__'}.py"
    path.write_text(f"raise ImportError({error!r})")
    monkeypatch.syspath_prepend(tmp_path)
    emulate()
    devices = engine_devices()
    assert (devices.found, devices.reason) == ((), f"{package} cannot be imported: {error}")
    assert fix in devices.fix


def test_a_forked_child_is_told_to_spawn() -> None:
    code = (
        "import os, sys\n"
        "from engine_gpu_trt.cuda import open_gpu\n"
        "from engine.errors import BackendUnavailable\n"
        "open_gpu(0)\n"
        "if not os.fork():\n"
        "    try:\n"
        "        open_gpu(0)\n"
        "    except BackendUnavailable as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert "before this process was forked, and does not survive that" in in_new_process(code)


def test_memory_that_is_left_is_the_drivers_number(emulated: Any) -> None:
    gpu = Device("gpu", 0)
    before = engine_memory(gpu)
    total = engine_devices().found[0].memory_bytes
    assert before.free_bytes is not None
    assert before.used_bytes == total - before.free_bytes  # type: ignore[operator]
    assert before.own_bytes is None
    buffer = engine_buffer(gpu, DType.UINT8, (1 << 20,), False)
    after = engine_memory(gpu)
    assert after.free_bytes == before.free_bytes - (1 << 20)
    assert after.used_bytes == before.used_bytes + (1 << 20)  # type: ignore[operator]
    del buffer
    assert engine_memory(gpu) == before


def test_a_device_whose_memory_cannot_be_read_is_unavailable(
    emulated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = open_gpu(0)

    def lost() -> tuple[int, int]:
        raise gpu.Error("cuMemGetInfo failed: device lost")

    monkeypatch.setattr(gpu._driver, "mem_get_info", lost)
    with pytest.raises(BackendUnavailable, match=r"a look at its memory: .*device lost"):
        engine_memory(Device("gpu", 0))
