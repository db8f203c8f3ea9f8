"""An executable's memory figures equal the system's for the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.backends import open_backend
from engine.formats import ModelFile
from engine.host.child import environment
from engine.types import CompileOptions, Device, Executable, MemoryReport
from engine_cpu import mapped
from engine_cpu.mapped import MappedWeights, Named, merged
from engine_testing.heavy_models import LAYER_WIDTH as WIDTH
from engine_testing.heavy_models import layer, layers

LAYER = 4 * WIDTH * WIDTH  # bytes; packed they are as many
PAGE = 4096

has_smaps = pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="no /proc/self/smaps")


Build = Callable[..., Executable]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Build a chain of layers, in a form that shares with the others of this test."""
    backend = open_backend("cpu")
    built = []

    def build(name: str, seeds: list[int]) -> Executable:
        source = ModelFile(str(layers(tmp_path / f"{name}.onnx", [*map(layer, seeds)])))({})
        form, pool = tmp_path / f"{name}.form", tmp_path / "pool"
        for folder in (form, pool):
            folder.mkdir(exist_ok=True)
        options = CompileOptions(device=Device("cpu"), save_to=form, cache_folder=pool)
        loaded = backend.load(source, options)
        executable = backend.compile(loaded, options)
        built.append(executable)
        context = executable.open_context()
        backend.predict(context, [np.ones((1, WIDTH), np.float32)], None, None)
        context.close()
        return executable

    yield build
    for executable in built:
        executable.close()


def resident_bytes(folder: Path) -> int:
    """The pages of files below a folder that the process has in its memory, each once."""
    total, is_ours = 0, False
    with open("/proc/self/smaps", encoding="ascii") as lines:
        for line in lines:
            first, *rest = line.split()
            if not first.endswith(":"):
                is_ours = bool(rest[4:]) and rest[4].startswith(str(folder))
            elif is_ours and first == "Pss:":
                total += int(rest[0]) << 10
    return total


@has_smaps
def test_a_form_s_weights_are_mapped_once_and_packed(build: Build, tmp_path: Path) -> None:
    report = build("a", [0, 1, 2]).memory()
    assert report == MemoryReport(mapped_bytes=3 * LAYER)
    assert resident_bytes(tmp_path) == pytest.approx(3 * LAYER, abs=3 * PAGE)


@has_smaps
def test_what_several_executables_map_is_shared(build: Build, tmp_path: Path) -> None:
    first = build("a", [0, 1, 2])
    second = build("b", [0, 1, 3, 4])
    assert first.memory() == MemoryReport(shared_bytes=2 * LAYER, mapped_bytes=LAYER)
    assert second.memory() == MemoryReport(shared_bytes=2 * LAYER, mapped_bytes=2 * LAYER)
    assert resident_bytes(tmp_path) == pytest.approx(5 * LAYER, abs=8 * PAGE)
    second.close()
    assert first.memory() == MemoryReport(mapped_bytes=3 * LAYER)
    assert second.memory() == MemoryReport()


def test_an_executable_that_was_dropped_shares_nothing(build: Build, tmp_path: Path) -> None:
    first = build("a", [0, 1])
    spans = {"weights.bin": [(0, 6 * LAYER)]}  # all of it
    other: MappedWeights | None = MappedWeights(tmp_path / "a.form", Named(spans, 0))
    assert first.memory().shared_bytes >= 2 * LAYER
    del other
    assert first.memory().shared_bytes == 0


@has_smaps
def test_without_a_form_the_weights_are_the_process_s_own(tmp_path: Path) -> None:
    # In a process of its own: in one that has run other tests, memory that these freed is used.
    paths = [
        layers(tmp_path / "warm.onnx", [layer(9)]),
        layers(tmp_path / "a.onnx", [*map(layer, range(24))]),
    ]
    words = [sys.executable, "-c", OWN, *map(str, paths)]
    ran = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=120)
    assert ran.returncode == 0, ran.stderr
    facts = json.loads(ran.stdout)
    assert facts["report"] == [24 * LAYER, 0, 0]
    assert facts["anonymous"] == pytest.approx(24 * LAYER, rel=0.15)


OWN = f"""
import gc, json, sys
import numpy as np
from engine.backends import open_backend
from engine.formats import ModelFile
from engine.types import CompileOptions, Device
from engine.host.memory import trim

def anonymous_bytes():
    gc.collect()
    trim()
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anony"))

def build(path):
    backend, options = open_backend("cpu"), CompileOptions(device=Device("cpu"))
    executable = backend.compile(backend.load(ModelFile(path)({{}}), options), options)
    context = executable.open_context()
    backend.predict(context, [np.ones((1, {WIDTH}), np.float32)], None, None)
    context.close()
    return executable

warm = build(sys.argv[1])
before = anonymous_bytes()
built = build(sys.argv[2])
report = built.memory()
print(json.dumps({{
    "report": [report.weights_bytes, report.shared_bytes, report.mapped_bytes],
    "anonymous": anonymous_bytes() - before,
}}))
"""


def test_small_constants_stand_in_the_graph(build: Build, tmp_path: Path) -> None:
    build("a", [0])
    model = (tmp_path / "a.form" / "model.onnx").read_bytes()
    sizes = {"weights.bin": (tmp_path / "a.form" / "weights.bin").stat().st_size}
    named = Named.by(model, sizes)
    assert named.inside_bytes < 1024
    spans = named.spans["weights.bin"]  # one where what is packed begins behind the values
    assert sum(end - begin for begin, end in spans) == 2 * LAYER
    assert spans[-1][1] == sizes["weights.bin"]
    assert Named.by(model, {}).spans == {}


def test_where_nothing_tells_what_is_mapped_all_that_is_named_counts(
    build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executable = build("a", [0, 1])
    monkeypatch.setattr(mapped, "_MAPS", str(tmp_path / "absent"))
    assert executable.memory().mapped_bytes >= 4 * LAYER


def test_parts_that_touch_are_one() -> None:
    assert merged([(8192, 9000), (0, 100), (100, 4000), (8200, 9001)]) == [(0, 4000), (8192, 9001)]
    assert merged([(4001, 5000), (0, 4000)]) == [(0, 4000), (4001, 5000)]
    assert merged([]) == []


def test_common_parts_of_files() -> None:
    assert mapped._common([(0, 10), (20, 30)], [(5, 25)]) == [(5, 10), (20, 25)]
    assert mapped._common([(0, 100)], [(5, 10), (20, 30), (100, 110)]) == [(5, 10), (20, 30)]
    assert mapped._common([(0, 10)], [(10, 20)]) == []
