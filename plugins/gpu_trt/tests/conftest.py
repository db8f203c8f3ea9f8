"""The tests of this plugin run on an emulated GPU, unless they are marked `device`.

The emulator's modules (`tensorrt`, `pycuda`, `emulated_gpu`) are put in front of whatever is
installed, for the tests of this folder and the processes that they start. Tests on real hardware
run in processes without them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from engine.backends import forget, open_backend
from engine.types import DType
from engine_gpu_trt import nccl
from engine_gpu_trt.cuda import _gpus
from engine_testing import BackendConformance  # noqa: F401  # before its modules: see there
from engine_testing.level import Trial
from engine_testing.ranks import Ranks

EMULATED = [Path(__file__).parent / "emulated" / "site"]
if os.environ.get("ENGINE_EMULATED_CUDA") != "bindings":  # else pycuda is not installed
    EMULATED.append(Path(__file__).parent / "emulated" / "pycuda_site")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes for each of two ranks as slow."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.name.split("[")[0] in vars(Ranks):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", autouse=True)
def _emulated_modules(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put the emulated modules before the real ones, for the tests of one file.

    A file that has DEVICES gets so many emulated devices.
    """
    with pytest.MonkeyPatch.context() as patch:
        for folder in EMULATED:
            patch.syspath_prepend(str(folder))
            patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("ENGINE_EMULATED_DEVICES", str(getattr(request.module, "DEVICES", 1)))
        _forget()
        yield
        _forget()


def _forget() -> None:
    """Let nothing remember the emulated modules, or the real ones, from before."""
    forget("gpu_trt")
    _gpus.clear()
    nccl.library.cache_clear()
    if "emulated_gpu" in sys.modules:
        sys.modules["emulated_gpu"].loader.uninstall()
    for name in list(sys.modules):
        if name.partition(".")[0] in (
            "tensorrt",
            "tensorrt_rtx",
            "pycuda",
            "cuda",
            "emulated_gpu",
        ):
            del sys.modules[name]
    sys.modules.pop("engine_gpu_trt.cuda_bindings", None)


@pytest.fixture(scope="session")
def unpacked() -> Callable[[str], Path]:
    """Return the folder of real packages that a variable of the environment names, or skip."""

    def find(variable: str) -> Path:
        if not (folder := os.environ.get(variable)):
            pytest.skip(f"{variable} names no folder with the real thing, unpacked")
        return Path(folder)

    return find


@pytest.fixture
def emulate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Load the emulated modules anew, as variables ENGINE_EMULATED_... of the environment say.

    emulate(DRIVER="none")
    """

    def load(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"ENGINE_EMULATED_{name}", value)
        _forget()

    yield load
    _forget()


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Fail a test that leaves something on the emulated device, or did what pycuda forbids."""
    from emulated_gpu import violations

    before = _live()
    yield
    if _live() != before:
        gc.collect()
    assert violations() == []
    assert _live() == before, "left on the emulated device"


def _live() -> dict[str, int]:
    from emulated_gpu import live

    # A device's primary context is retained once, for the life of the process.
    return {kind: count for kind, count in live().items() if kind != "primary contexts"}


@pytest.fixture
def emulated() -> Any:
    """The emulated machine: see `emulated_gpu`."""
    return importlib.import_module("emulated_gpu")


@pytest.fixture
def trt() -> Any:
    """The emulated TensorRT."""
    return importlib.import_module("tensorrt")


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    """The backend, opened; what a test opens through it is closed afterwards."""
    with ExitStack() as closing:
        yield Trial(open_backend("gpu_trt"), tmp_path, closing)


@pytest.fixture
def form(tmp_path: Path) -> Path:
    """A folder for a compiled form."""
    (tmp_path / "form").mkdir()
    return tmp_path / "form"


@pytest.fixture
def cuda() -> Any:
    driver = pytest.importorskip("pycuda.driver", reason="the tests run without pycuda")
    driver.init()
    return driver


@pytest.fixture
def context(cuda: Any) -> Iterator[Any]:
    """The primary context, current in this thread."""
    found = cuda.Device(0).retain_primary_context()
    found.push()
    yield found
    found.pop()
    found.detach()


@pytest.fixture
def second_device() -> Iterator[int]:
    """The number of a second emulated device, there for this test."""
    from emulated_gpu import MACHINE
    from emulated_gpu.machine import Device

    MACHINE.devices.append(Device(len(MACHINE.devices), 2**30))
    yield len(MACHINE.devices) - 1
    _gpus.pop(MACHINE.devices.pop().id, None)


Value = tuple[str, Sequence[int | str] | None] | tuple[str, Sequence[int | str] | None, DType]


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Callable[[Path], Path]]:
    """Makes a maker of models, as `engine_testing.models` has them, from nodes and values.

    model([("Relu", ["x"], ["y"], {...attributes})], [("x", ["n", 3])], [("y", ["n", 3])])
    """

    def make(
        nodes: Sequence[Any],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        constants: Mapping[str, Any] | None = None,
    ) -> Callable[[Path], Path]:
        made = [
            helper.make_node(op, given, gives, **(rest[0] if rest else {}))
            for op, given, gives, *rest in nodes
        ]
        graph = helper.make_graph(
            made,
            "test",
            [_value(*value) for value in inputs],
            [_value(*value) for value in outputs],
            [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
        )
        proto = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 19)])

        def write(folder: Path) -> Path:
            path = folder / f"model{len(list(folder.glob('*.onnx')))}.onnx"
            onnx.save_model(proto, path)
            return path

        return write

    return make


def _value(
    name: str, shape: Sequence[int | str] | None, dtype: DType = DType.FLOAT32
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype.onnx, shape)
