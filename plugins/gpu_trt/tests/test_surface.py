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
import os
import subprocess
import sys
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


def test_both_versions_have_a_table() -> None:
    assert [version.split(".")[:2] for version in VERSIONS] == [["10", "16"], ["11", "4"]]


def _emulated(version: str, package: str = "tensorrt") -> Any:
    """The differences between the emulated TensorRT of a version and its table."""
    child = subprocess.run(
        [sys.executable, __file__, version, package],
        env={**os.environ, "ENGINE_EMULATED_TENSORRT": version},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.splitlines()


@pytest.mark.parametrize(
    ("version", "package"),
    [
        pytest.param(
            VERSIONS[0], "tensorrt", marks=pytest.mark.slow
        ),  # as the newest, in a process
        (VERSIONS[1], "tensorrt"),
        pytest.param(RTX, "tensorrt_rtx", marks=pytest.mark.slow),
    ],
)
def test_the_emulated_tensorrt_offers_only_what_the_real_one_does(
    version: str, package: str
) -> None:
    lines = _emulated(version, package)
    assert lines[0] == f"{version}+emulated"
    assert lines[-1] == "compared 22 classes, 23 enums"
    assert lines[1:-1] == []


def test_a_difference_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorrt as trt

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
    """What the emulated module has and the table has not, or has otherwise."""
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
    import json

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
    import json

    import cuda.bindings.driver as driver

    table, found = json.loads(CUDA_BINDINGS.read_text()), cuda_bindings.read(driver)
    assert found == table


# ----------------------------------------------------------------------------------- the real ones


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_is_what_the_real_bindings_say(version: str, tmp_path: Path) -> None:
    folder = os.environ.get("ENGINE_TENSORRT_BINDINGS")
    if not folder:
        pytest.skip("ENGINE_TENSORRT_BINDINGS names no folder with unpacked bindings wheels")
    wheels = bindings.wheels(Path(folder))
    if version not in wheels:
        pytest.skip(f"no bindings {version} in {folder}, only {sorted(wheels)}")
    try:
        found = bindings.describe(wheels[version], version, tmp_path)
    except RuntimeError as error:
        pytest.skip(str(error))
    assert found == surface.table(version)


def test_the_table_is_what_the_real_tensorrt_for_rtx_says() -> None:
    import json

    folder = os.environ.get("ENGINE_TENSORRT_RTX")
    if not folder:
        pytest.skip("ENGINE_TENSORRT_RTX names no folder with unpacked tensorrt_rtx wheels")
    code = (
        "import sys, tensorrt_rtx_libs, tensorrt_rtx_bindings, surface; "
        "sys.stdout.write(surface.write(surface.describe(tensorrt_rtx_bindings)))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(HERE)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == surface.table(RTX, "tensorrt_rtx")


def test_the_table_is_what_pycudas_source_says() -> None:
    import json

    folder = os.environ.get("ENGINE_PYCUDA_SOURCE")
    if not folder:
        pytest.skip("ENGINE_PYCUDA_SOURCE names no unpacked pycuda")
    assert pycuda_source.read(Path(folder)) == json.loads(pycuda_source.TABLE.read_text())


def test_the_table_is_what_the_real_cuda_bindings_say() -> None:
    import json

    folder = os.environ.get("ENGINE_CUDA_BINDINGS")
    if not folder:
        pytest.skip("ENGINE_CUDA_BINDINGS names no folder with unpacked wheels")
    child = subprocess.run(
        [sys.executable, HERE / "cuda_bindings.py"],
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == json.loads(CUDA_BINDINGS.read_text())


if __name__ == "__main__":
    tensorrt = importlib.import_module(sys.argv[2])
    print(tensorrt.__version__)
    for line in differences(tensorrt, surface.table(*sys.argv[1:3])):
        print(line)
    listed = [getattr(tensorrt, name) for name in tensorrt.__all__]
    listed = [value for value in listed if isinstance(value, type)]
    listed += [v for v in vars(tensorrt).values() if isinstance(v, type) and issubclass(v, IntEnum)]
    enums = [cls for cls in listed if issubclass(cls, IntEnum)]
    print(f"compared {len(listed) - len(enums)} classes, {len(enums)} enums")
