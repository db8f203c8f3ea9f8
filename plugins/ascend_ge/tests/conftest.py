"""The emulated Ascend machine as a fixture, and the marker for real ones."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import engine
from engine import backends
from engine.formats import open_source
from engine.types import CompileOptions, Device, ShapeRange
from engine_ascend_ge import engine_devices, runtime
from engine_testing import BackendConformance, models  # noqa: F401  # before its modules: see there
from engine_testing.ranks import Ranks

EMULATED = Path(__file__).parent / "emulated"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip device tests, with the reason, where there is no NPU; ranks' processes are slow."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.name.split("[")[0] in vars(Ranks):
            item.add_marker(pytest.mark.slow)
    marked = [item for item in items if _is_ours(item.get_closest_marker("device"))]
    if not marked:
        return
    found = engine_devices()
    if not found.found:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"no Ascend device: {found.reason}"))


def _is_ours(marker: pytest.Mark | None) -> bool:
    return marker is not None and "ascend_ge" in marker.args


_emulated: dict[str, ModuleType] = {}
"""The emulated machine's modules between tests, most of which take less long than an import."""


def forget_modules() -> None:
    """Have the next import of acl find what is on the path then."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("acl", "emulated_ascend"):
            module = sys.modules.pop(name)
            if (module.__file__ or "").startswith(str(EMULATED)):
                _emulated[name] = module


@pytest.fixture(scope="session")
def atc_server() -> Iterator[str]:
    """A process that runs the emulated atc in children, so that imports are paid once."""
    with tempfile.TemporaryDirectory(prefix="atc-") as folder:
        address = f"{folder}/socket"
        server = subprocess.Popen(
            [sys.executable, "-m", "emulated_ascend.server", address],
            env={**os.environ, "PYTHONPATH": str(EMULATED / "python")},
            stdin=subprocess.PIPE,  # its end is the server's
        )
        yield address
        server.terminate()
        server.communicate()


@pytest.fixture
def emulated_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, atc_server: str) -> None:
    """`acl` and `atc` are found, here and in processes that a test starts; nothing is imported."""
    opp = tmp_path / "cann" / "opp"
    (opp / "built-in/op_impl/ai_core/tbe/kernel/ascend910b").mkdir(parents=True)
    python = str(EMULATED / "python")
    monkeypatch.syspath_prepend(python)
    for name, value in (
        ("PATH", f"{EMULATED / 'bin'}{os.pathsep}{os.environ['PATH']}"),
        ("PYTHONPATH", f"{python}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(":")),
        ("EMULATED_PYTHON", sys.executable),
        ("EMULATED_ATC_SERVER", atc_server),
        ("ASCEND_HOME_PATH", str(tmp_path / "cann")),
        ("ASCEND_OPP_PATH", str(opp)),
        ("EMULATED_ATC_RUNS", str(tmp_path / "cann" / "atc_runs")),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("EMULATED_ATC", raising=False)
    monkeypatch.delenv("EMULATED_ASCEND", raising=False)


@pytest.fixture
def atc_runs(emulated_path: None) -> Callable[[], int]:
    """Counts the runs of the emulated atc until now."""
    runs = Path(os.environ["EMULATED_ATC_RUNS"])
    return lambda: len(runs.read_text().splitlines()) if runs.exists() else 0


@pytest.fixture
def machine(emulated_path: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An emulated machine with two Ascend 910B3; the test fails if it leaves anything behind."""
    monkeypatch.setattr(runtime, "_process", runtime._Process())
    forget_modules()
    backends.forget("ascend_ge")
    sys.modules.update(_emulated)
    machine = importlib.import_module("emulated_ascend").machine
    importlib.import_module("acl")
    importlib.import_module("emulated_ascend.libraries").missing.clear()
    machine.__init__()  # in its first state, whatever the test before has done to it
    try:
        yield machine
        gc.collect()
        machine.heal()
        left = machine.live()
        left.pop("Event", None)  # kept until the next order between streams, or the end
        runtime.stop()
        assert not machine.faults, machine.faults
        assert not left, f"left behind: {left}"
        assert not machine.live(), f"left behind at the end: {machine.live()}"
    finally:
        atexit.unregister(runtime.stop)  # of a machine that is no more
        forget_modules()
        backends.forget("ascend_ge")


@pytest.fixture
def options() -> Callable[..., CompileOptions]:
    """CompileOptions for the first device; keywords are fields, `set` the user's options."""

    def make(**fields: Any) -> CompileOptions:
        settings = fields.pop("set", {})
        return CompileOptions(**{"device": Device("ascend", 0), "options": settings, **fields})

    return make


@pytest.fixture
def sized() -> Callable[..., dict[str, Any]]:
    """sized(x=(-1, (2, 8), 3)) -> the field `shapes`; an axis is a size, a range, or -1: open."""

    def make(**inputs: tuple[Any, ...]) -> dict[str, Any]:
        return {"shapes": {name: _range(axes) for name, axes in inputs.items()}}

    return make


@pytest.fixture
def geared() -> Callable[..., dict[str, Any]]:
    """geared({"x": (1, 3)}, {"x": (4, 3)}) -> the fields `shapes` and `profiles` of gears."""

    def make(*gears: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        shapes = {}
        for name, first in gears[0].items():
            columns = list(zip(*(gear[name] for gear in gears), strict=True))
            lowest, highest = tuple(map(min, columns)), tuple(map(max, columns))
            shapes[name] = ShapeRange(lowest, first, highest)
        profiles = tuple({name: _range(axes) for name, axes in gear.items()} for gear in gears)
        return {"shapes": shapes, "profiles": profiles}

    return make


def _range(axes: tuple[Any, ...]) -> ShapeRange:
    """Return the range that the core makes of one input in `input_shape`."""
    ends = [axis if isinstance(axis, tuple) else (0, -1) if axis < 0 else (axis, axis)
            for axis in axes]  # fmt: skip
    return ShapeRange(
        tuple(low for low, _ in ends),
        tuple(high for _, high in ends),
        tuple(high for _, high in ends),
    )


@pytest.fixture
def floats() -> Callable[..., np.ndarray[Any, Any]]:
    """float32 values 0, 1, 2, ... in a shape."""

    def make(*shape: int) -> np.ndarray[Any, Any]:
        return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    return make


@pytest.fixture
def backend(machine: Any) -> backends.Backend:
    """The backend, with an emulated device."""
    return backends.open_backend("ascend_ge")


@pytest.fixture
def build(
    backend: backends.Backend, options: Callable[..., CompileOptions]
) -> Iterator[Callable[..., Any]]:
    """build(path, **fields of CompileOptions) -> executable, closed when the test ends.

    opening: arguments of open_source.
    """
    with ExitStack() as stack:

        def make(path: Path, opening: Mapping[str, Any] | None = None, **fields: Any) -> Any:
            wish = options(**fields)
            loaded = backend.load(
                open_source(str(path), backend.info.suffixes, **(opening or {})), wish
            )
            try:
                executable = backend.compile(loaded, wish)
            finally:
                loaded.close()
            stack.callback(executable.close)
            return executable

        yield make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The model y = 2x + 1, x float32[batch, 3]."""
    return models.affine(tmp_path)


@pytest.fixture
def affine(build: Any, make_om: Any, path: Path) -> Callable[..., Any]:
    """affine(**fields) -> an executable of y = 2x + 1, x float32[2, 3], from an .om file."""
    om = make_om(path, input_shape="x:2,3")
    return lambda **fields: build(om, **fields)


@pytest.fixture
def is_affine(predict: Callable[..., list[Any]]) -> Callable[..., None]:
    """is_affine(context, x): it gives 2x + 1."""

    def check(context: Any, x: Any) -> None:
        np.testing.assert_array_equal(predict(context, x)[0], 2 * x + 1)

    return check


@pytest.fixture
def ascend() -> engine.Context:
    """A context whose target is the backend."""
    context = engine.Context()
    context.target = ["ascend"]
    return context


@pytest.fixture
def predict(backend: backends.Backend) -> Callable[..., list[Any]]:
    """predict(context, *inputs, outputs=None, deadline_s=None) -> results."""

    def run(context: Any, *inputs: Any, outputs: Any = None, deadline_s: Any = None) -> list[Any]:
        return list(backend.predict(context, list(inputs), outputs, deadline_s))

    return run


@pytest.fixture
def make_om(machine: Any) -> Callable[..., Path]:
    """make_om(model, **ATC's flags) -> an .om file beside the model; quicker than a process."""
    compiler = importlib.import_module("emulated_ascend.compiler")

    def make(model: Path, **flags: str) -> Path:
        path = model.with_suffix(".om")
        given = {
            "framework": "5",
            "model": str(model),
            "output": str(model.with_suffix("")),
            "soc_version": "Ascend910B3",
            "precision_mode_v2": "origin",
            **flags,
        }
        compiler.check(given)
        path.write_bytes(compiler.compile_model(given).write())
        return path

    return make
