"""The emulator offers nothing that the real packages do not, by the same names.

In every run the emulated classes are compared with the committed tables of both TensorRT versions
and of pycuda. Where the real ones are at hand the tables are compared with these:

    ENGINE_TENSORRT_BINDINGS   a folder with unpacked tensorrt_cu13_bindings wheels (10.16, 11.4)
    ENGINE_PYCUDA_SOURCE       an unpacked pycuda source distribution
    ENGINE_CUDA_BINDINGS       a folder with unpacked wheels of cuda-bindings and cuda-pathfinder
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent / "emulated"


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


surface, bindings, pycuda_source, cuda_bindings = map(
    _tool, ("surface", "bindings", "pycuda_source", "cuda_bindings")
)
CUDA_BINDINGS = HERE / "cuda_bindings.json"
VERSIONS = surface.versions()
RTX = "1.7.1.116"


Unpacked = Callable[[str], Path]


@pytest.mark.parametrize(
    ("version", "package"),
    [*((version, "tensorrt") for version in VERSIONS), (RTX, "tensorrt_rtx")],
)
def test_the_emulated_tensorrt_offers_only_what_the_real_one_does(
    version: str, package: str, emulate: Callable[..., None]
) -> None:
    emulate(TENSORRT=version if package == "tensorrt" else "")
    module = importlib.import_module(package)
    assert module.__version__ == f"{version}+emulated"
    assert differences(module, surface.table(version, package)) == []
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    enums = [cls for cls in classes if issubclass(cls, IntEnum)]
    assert (len(classes) - len(enums), len(enums)) == (22, 23)


def test_a_difference_would_be_found(monkeypatch: pytest.MonkeyPatch, trt: Any) -> None:
    table = surface.table(trt.__version__.partition("+")[0])
    assert differences(trt, table) == []
    monkeypatch.setattr(trt.Builder, "invented", lambda self: None, raising=False)
    monkeypatch.setattr(trt.Runtime, "deserialize_cuda_engine", lambda self, plan: None)
    monkeypatch.setattr(trt.BuilderFlag, "_member_map_", {"TF32": trt.BuilderFlag.REFIT})
    monkeypatch.setattr(trt, "Invention", type("Invention", (), {}), raising=False)
    calls = table["classes"]["Runtime"]["methods"]["deserialize_cuda_engine"]
    assert differences(trt, table) == [
        "Builder.invented is not in the real one",
        "BuilderFlag.TF32 is 4, not 6",
        "Invention is not in the real one",
        f"Runtime.deserialize_cuda_engine takes ['plan'], not one of {calls}",
    ]


def differences(trt: ModuleType, table: dict[str, Any]) -> list[str]:
    """Return the names that the emulated module has and the table has not, or has otherwise."""
    found = []
    for name, value in sorted(vars(trt).items()):
        if name.startswith("_") or getattr(value, "__module__", "typing") == "typing":
            continue
        if isinstance(value, type) and issubclass(value, IntEnum):
            found += _enum_differences(name, value, table["enums"])
        elif isinstance(value, type):
            found += _class_differences(name, value, table["classes"])
        elif inspect.isfunction(value) and name not in table["functions"]:
            found.append(f"function {name} is not in the real one")
    return found


def _enum_differences(name: str, enum: type[IntEnum], tables: dict[str, Any]) -> list[str]:
    if name not in tables:
        return [f"enum {name} is not in the real one"]
    return [
        f"{name}.{member} is {int(value)}, not {tables[name].get(member)}"
        for member, value in enum._member_map_.items()
        if tables[name].get(member) != int(value)
    ]


def _class_differences(name: str, cls: type, tables: dict[str, Any]) -> list[str]:
    if name not in tables:
        return [f"{name} is not in the real one"]
    table = tables[name]
    found = []
    for member, value in sorted(vars(cls).items()):
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            if member not in table["properties"]:
                found.append(f"property {name}.{member} is not in the real one")
        elif inspect.isfunction(value):
            if member not in table["methods"]:
                found.append(f"{name}.{member} is not in the real one")
                continue
            taken = _taken(value)
            if taken not in table["methods"][member]:
                found.append(
                    f"{name}.{member} takes {taken}, not one of {table['methods'][member]}"
                )
    return found


def _taken(function: Any) -> list[str]:
    """Parameter names as the tables have them: without self, "=" after an optional one."""
    parameters = list(inspect.signature(function).parameters.values())
    return [
        each.name + ("" if each.default is inspect.Parameter.empty else "=")
        for each in parameters
        if each.name != "self"
    ]


def test_the_emulated_pycuda_offers_only_what_the_real_one_does() -> None:
    cuda = pytest.importorskip("pycuda.driver")

    table = json.loads(pycuda_source.TABLE.read_text())
    compared = 0
    for name, value in vars(cuda).items():
        if name.startswith("_") or getattr(value, "__module__", "") != cuda.__name__:
            continue
        compared += 1
        if isinstance(value, type) and issubclass(value, Exception):
            assert name in table["exceptions"]
        elif isinstance(value, type):
            members = table["classes"][name]
            for member, function in vars(value).items():
                if not member.startswith("_"):
                    assert member in members, f"{name}.{member} is not in pycuda"
                    if members[member]:
                        assert _plain(function) == members[member]
        else:
            assert name in table["functions"], f"{name} is not in pycuda"
            if table["functions"][name]:
                assert _plain(value) == table["functions"][name]
    assert compared >= 20


def _plain(function: Any) -> list[str]:
    return [each.rstrip("=") for each in _taken(function)]


def test_the_emulated_cuda_bindings_offer_only_what_the_real_ones_do() -> None:
    import cuda.bindings.driver as driver

    table, found = json.loads(CUDA_BINDINGS.read_text()), cuda_bindings.read(driver)
    assert found == table


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_is_what_the_real_bindings_say(
    version: str, tmp_path: Path, unpacked: Unpacked
) -> None:
    wheels = bindings.wheels(unpacked("ENGINE_TENSORRT_BINDINGS"))
    if version not in wheels:
        pytest.skip(f"no bindings {version}, only {sorted(wheels)}")
    try:
        found = bindings.describe(wheels[version], version, tmp_path)
    except RuntimeError as error:
        pytest.skip(str(error))
    assert found == surface.table(version)


def printed(folder: Path, *words: object) -> Any:
    """Return the JSON that a Python process prints which has a folder's packages."""
    child = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(HERE)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def test_the_table_is_what_the_real_tensorrt_for_rtx_says(unpacked: Unpacked) -> None:
    code = (
        "import json, tensorrt_rtx_libs, tensorrt_rtx_bindings, surface; "
        "print(json.dumps(surface.describe(tensorrt_rtx_bindings)))"
    )
    found = printed(unpacked("ENGINE_TENSORRT_RTX"), "-c", code)
    assert found == surface.table(RTX, "tensorrt_rtx")


def test_the_table_is_what_pycudas_source_says(unpacked: Unpacked) -> None:
    found = pycuda_source.read(unpacked("ENGINE_PYCUDA_SOURCE"))
    assert found == json.loads(pycuda_source.TABLE.read_text())


def test_the_table_is_what_the_real_cuda_bindings_say(unpacked: Unpacked) -> None:
    found = printed(unpacked("ENGINE_CUDA_BINDINGS"), HERE / "cuda_bindings.py")
    assert found == json.loads(CUDA_BINDINGS.read_text())
