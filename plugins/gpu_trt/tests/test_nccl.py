"""NCCL's C interface is declared as its header has it.

The committed table is compared with the declarations in every run, and with a real wheel of NCCL
where ENGINE_NCCL names a folder into which one was unpacked. Its library answers without a GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from engine.types import DType
from engine_gpu_trt import nccl
from engine_gpu_trt.vendor import Missing

HERE = Path(__file__).parent / "emulated"


def _header() -> Any:
    spec = spec_from_file_location("nccl_header", HERE / "nccl_header.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


header = _header()
TABLE = json.loads((HERE / "nccl.json").read_text())


def test_every_function_is_declared_as_in_the_header() -> None:
    from emulated_gpu.nccl import plain, spelt

    declared = {
        name: [spelt(nccl.RETURNS.get(name, ctypes.c_int)), *map(spelt, arguments)]
        for name, arguments in nccl.SIGNATURES.items()
    }
    assert declared == plain(TABLE["functions"])


def test_numbers_are_those_of_the_header() -> None:
    results, ops, types = (TABLE["enums"][name] for name in header.ENUMS)
    assert (results["ncclSuccess"], results["ncclInProgress"]) == (nccl.SUCCESS, nccl.IN_PROGRESS)
    assert {op.value: number for op, number in nccl.OPS.items()} == {
        "sum": ops["ncclSum"],
        "prod": ops["ncclProd"],
        "max": ops["ncclMax"],
        "min": ops["ncclMin"],
        "mean": ops["ncclAvg"],
    }
    theirs = {
        DType.FLOAT8E4M3FN: "ncclFloat8e4m3",
        DType.FLOAT8E5M2: "ncclFloat8e5m2",
    }
    for dtype, number in nccl.DTYPES.items():
        assert types[theirs.get(dtype, f"nccl{dtype.capitalize()}")] == number
    assert len(nccl.DTYPES) == types["ncclNumTypes"]


def test_structures_are_those_of_the_header() -> None:
    assert ctypes.sizeof(nccl.UniqueId) == TABLE["unique_id_bytes"]
    names = {ctypes.c_size_t: "size_t", ctypes.c_uint: "unsigned int", ctypes.c_int: "int"}
    fields = [f"{names[kind]} {name}" for name, kind in nccl.Config._fields_]
    assert fields == TABLE["config_fields"]
    config = nccl.Config.of(is_blocking=False)
    assert (config.size, config.magic, config.blocking) == (20, TABLE["config_magic"], 0)


def test_a_call_that_is_not_declared_like_the_header_is_found(emulated: Any) -> None:
    from emulated_gpu.nccl import Library

    library = Library()
    with pytest.raises(emulated.Crash, match="ncclGetVersion takes"):
        library.ncclGetVersion(ctypes.byref(ctypes.c_int()))


@pytest.mark.parametrize(
    ("there", "said"),
    [("none", "NCCL cannot be loaded: libnccl.so.2"), ("21805", "is of version 2.18.5, older")],
)
def test_a_library_that_does_not_serve_is_named(
    there: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import emulated_gpu  # noqa: F401  # the loader that finds the emulated library

    monkeypatch.setenv("ENGINE_EMULATED_NCCL", there)
    nccl.library.cache_clear()
    with pytest.raises(Missing, match=said) as caught:
        nccl.library()
    assert caught.value.fix.startswith("run: pip install nvidia-nccl-cu13")
    nccl.library.cache_clear()


@pytest.fixture
def wheel(unpacked: Callable[[str], Path]) -> Path:
    return unpacked("ENGINE_NCCL")


def test_the_table_is_what_the_real_header_says(wheel: Path) -> None:
    found, table = header.read(wheel / "nvidia" / "nccl" / "include" / "nccl.h"), TABLE
    if found["version"] != table["version"]:  # later versions add to enums, and to nothing else
        found["version"] = table["version"]
        table = {**table, "enums": {name: _named(enum) for name, enum in table["enums"].items()}}
        for name, members in table["enums"].items():
            found["enums"][name] = {key: found["enums"][name].get(key) for key in members}
    assert found == table


def _named(enum: dict[str, int]) -> dict[str, int]:
    """Return an enum without the number of its members."""
    return {key: number for key, number in enum.items() if "Num" not in key}


def test_the_real_library_takes_the_declarations(wheel: Path) -> None:
    """Version, unique id, texts: what NCCL does without a GPU, and here without the emulator."""
    code = """
import ctypes
from engine_gpu_trt import nccl
library = nccl.library()
unique_id = nccl.UniqueId()
assert library.ncclGetUniqueId(ctypes.byref(unique_id)) == nccl.SUCCESS
assert len(bytes(unique_id)) == 128 and any(bytes(unique_id))
assert bytes(nccl.UniqueId.of(bytes(unique_id))) == bytes(unique_id)
comm, config = ctypes.c_void_p(), nccl.Config.of(is_blocking=False)
result = library.ncclCommInitRankConfig(ctypes.byref(comm), 1, unique_id, 0, ctypes.byref(config))
print(nccl.version(library), library.ncclGetErrorString(result).decode())
"""
    path = os.pathsep.join([str(wheel), *filter(None, sys.path)])
    path = os.pathsep.join(part for part in path.split(os.pathsep) if part != str(HERE / "site"))
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    number, text = child.stdout.split(maxsplit=1)
    assert int(number) >= nccl.OLDEST
    assert text.strip() in (
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    )
