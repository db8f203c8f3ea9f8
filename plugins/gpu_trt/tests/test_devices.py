"""Devices that are there or missing, with the step that helps; importing the plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.backends import BackendState, record
from engine_gpu_trt import engine_devices, engine_diagnose, vendor

FOLDER = Path(__file__).parent / "emulated"
WITH_PYCUDA = os.environ.get("ENGINE_EMULATED_CUDA") != "bindings"
PACKAGE = "pycuda" if WITH_PYCUDA else "cuda-bindings"
EMULATED = os.pathsep.join(
    str(FOLDER / name) for name in ("site", "pycuda_site")[: 1 + WITH_PYCUDA]
)
"""The emulated modules' path: without pycuda where ENGINE_EMULATED_CUDA=bindings."""


def in_new_process(
    code: str, path: str | Path = EMULATED, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, with `path` first; what it prints is the answer."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(path), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


_FIND = """
import json
from engine_gpu_trt import engine_devices, engine_diagnose
devices = engine_devices()
checks = [[c.name, c.ok, c.detail, c.fix] for c in engine_diagnose()]
print(json.dumps([[str(d.device) for d in devices.found], devices.reason, devices.fix, checks]))
"""


def found(path: str | Path = EMULATED, **environment: str) -> list[Any]:
    child = in_new_process(_FIND, path, **environment)
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""
    answer: list[Any] = json.loads(child.stdout)
    return answer


def test_devices_are_found_with_name_and_memory() -> None:
    [device] = engine_devices().found
    assert (str(device.device), device.name) == ("gpu:0", "Emulated GPU 0")
    assert device.memory_bytes == 2**30


@pytest.mark.slow  # a process more
def test_several_devices_are_found_in_order() -> None:
    assert found(ENGINE_EMULATED_DEVICES="3")[0] == ["gpu:0", "gpu:1", "gpu:2"]


def test_diagnosis_of_a_good_machine_is_all_good() -> None:
    checks = engine_diagnose()
    assert [check.name for check in checks] == [
        "NVIDIA driver", PACKAGE, "CUDA device", "TensorRT", "NCCL",
        "CUDA_VISIBLE_DEVICES",
    ]  # fmt: skip
    assert all(check.ok and check.detail and not check.fix for check in checks)
    assert "gpu:0 Emulated GPU 0" in checks[2].detail


def test_without_the_vendors_packages_the_command_is_given(tmp_path: Path) -> None:
    _, reason, fix, checks = found(tmp_path)
    assert reason.startswith("pycuda is not installed")
    if "no NVIDIA driver either" in reason:
        assert "NVIDIA driver" in fix
    else:
        assert fix == 'run: pip install "inference-engine[gpu-trt]"'
    assert [name for name, ok, _, _ in checks if not ok][-3:] == [
        "pycuda",
        "CUDA device",
        "TensorRT",
    ]
    assert checks[3][3] == 'run: pip install "inference-engine[gpu-trt]"'
    assert all(ok or step for _, ok, _, step in checks)


def test_with_a_driver_and_no_packages_the_packages_are_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vendor, "find_spec", lambda name: None)
    monkeypatch.setattr(vendor, "driver_library", lambda: True)
    devices = engine_devices()
    assert (devices.found, devices.reason) == ((), "pycuda is not installed, nor is cuda-bindings")
    assert devices.fix == 'run: pip install "inference-engine[gpu-trt]"'


def test_without_a_driver_the_driver_is_the_fix() -> None:
    devices, reason, fix, checks = found(ENGINE_EMULATED_DRIVER="none")
    assert devices == []
    assert reason.startswith("no NVIDIA driver: libcuda.so.1: ")
    assert "nvidia-smi" in fix
    assert "--gpus all" in fix
    assert [name for name, ok, _, _ in checks if not ok][-2:] == [PACKAGE, "CUDA device"]


def test_a_driver_without_a_device_is_said() -> None:
    devices, reason, fix, checks = found(ENGINE_EMULATED_DRIVER="no_device")
    assert devices == []
    assert "no CUDA-capable device is detected" in reason
    assert "nvidia-smi" in fix
    assert not {name: ok for name, ok, _, _ in checks}["CUDA device"]


@pytest.mark.slow  # a process more
def test_no_visible_device_is_said() -> None:
    devices, reason, fix, _ = found(ENGINE_EMULATED_DEVICES="0")
    assert devices == []
    assert reason == "the NVIDIA driver shows no device to this process"
    assert "CUDA_VISIBLE_DEVICES" in fix


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
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorrt

    monkeypatch.setattr(tensorrt, "__version__", version)
    devices = engine_devices()
    assert devices.found == ()
    assert devices.reason == (
        f"tensorrt {version} is installed, but this backend needs 10.16 or newer, below 12"
    )
    assert devices.fix == 'run: pip install "tensorrt>=10.16,<12"'


def test_a_tensorrt_that_does_not_import_is_said(tmp_path: Path) -> None:
    (tmp_path / "tensorrt.py").write_text(
        'raise ImportError("libnvonnxparser.so.11: cannot open shared object file")'
    )
    devices, reason, fix, _ = found(os.pathsep.join((str(tmp_path), str(EMULATED))))
    assert devices == []
    assert reason.startswith("tensorrt cannot be imported: libnvonnxparser.so.11")
    assert "force-reinstall tensorrt" in fix


@pytest.mark.slow  # a process more
def test_a_pycuda_that_does_not_import_is_said(tmp_path: Path) -> None:
    package = tmp_path / "pycuda"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "driver.py").write_text('raise ImportError("undefined symbol: cuArrayCreate_v2")')
    devices, reason, fix, _ = found(os.pathsep.join((str(tmp_path), str(EMULATED))))
    assert devices == []
    assert reason == "pycuda cannot be imported: undefined symbol: cuArrayCreate_v2"
    assert "--no-binary pycuda" in fix


def test_the_core_shows_the_same_reason() -> None:
    code = "from engine.backends import record; print(record('gpu_trt'))"
    child = in_new_process(code, ENGINE_EMULATED_DRIVER="none")
    assert child.stdout.startswith(
        "backend 'gpu_trt' has no device: no NVIDIA driver: libcuda.so.1"
    )
    assert record("gpu_trt").state is BackendState.READY


def test_loading_without_a_device_is_a_backend_error() -> None:
    # Here TensorRT would hand out null pointers; the emulated one ends the process.
    code = (
        "import engine_gpu_trt\n"
        "from engine.errors import BackendUnavailable\n"
        "from engine.types import CompileOptions, Device, ModelSource\n"
        "source = ModelSource(format='plan', data=b'plan')\n"
        "try:\n"
        "    engine_gpu_trt.engine_load(source, CompileOptions(device=Device('gpu')))\n"
        "except BackendUnavailable as error:\n"
        "    print(error)\n"
    )
    for driver in ("none", "no_device"):
        child = in_new_process(code, ENGINE_EMULATED_DRIVER=driver)
        assert child.stdout.startswith("backend 'gpu_trt' has no device: "), child.stderr


def test_importing_the_plugin_imports_nothing_of_nvidias_and_says_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, engine_gpu_trt\n"
        "engine_gpu_trt.engine_backend()\n"
        "import engine_gpu_trt.network, engine_gpu_trt.build\n"
        "heavy = {'tensorrt', 'pycuda', 'onnx', 'onnxruntime', 'emulated_gpu'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for path in (tmp_path, EMULATED):
        child = in_new_process(code, path)
        assert (child.returncode, child.stdout, child.stderr) == (0, "", "")


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
    child = in_new_process(code)
    assert "before this process was forked" in child.stdout
    assert "'spawn'" in child.stdout
