"""Real model files, damaged at random, through the whole stack: no crash, no hang.

Each is loaded and run in a child process, which says before each what it is about to do; a child
that dies or stops takes the blame to the one that it named last. Repeat a single one with
`python tests/system/test_mutations.py SEED`.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is a program too
from hostile.damage import damage, lengths_in, regrow

import engine
from engine import formats
from engine.errors import EngineError
from engine.types import DType, TensorSpec

ONNX_DATA = Path(onnx.__file__).parent / "backend/test/data"
MINDIR = Path(__file__).parents[3] / "shared/data/mindir"
LARGEST = 300_000  # bytes; larger ones hold mostly weights, and take long

MEMORY_BYTES = 8 << 30
STUCK_S = 60.0
BATCH = 400  # mutations of one child


@cache
def seeds() -> list[Path]:
    """The files that are damaged: onnx's own models, and MindIR where the samples are."""
    found = [*ONNX_DATA.rglob("*.onnx"), *MINDIR.rglob("*.mindir")]
    return sorted(path for path in found if path.stat().st_size <= LARGEST)


def mutation(seed: int) -> tuple[Path, bytes]:
    """Return a file and its damaged content; the same ones for the same seed."""
    generator = random.Random(seed)
    path = generator.choice(seeds())
    data = path.read_bytes()
    lengths = lengths_in(data)
    if generator.random() < 0.3:
        return path, damage(data, generator, lengths)
    # Mostly with right lengths, and little amiss: more of these come as far as a kernel.
    return path, regrow(memoryview(data), generator, 0.5 / max(len(lengths), 10))


def value_of(spec: TensorSpec, generator: random.Random) -> np.ndarray | None:
    """Make a small input; None for what is not a plain tensor of numbers."""
    if spec.kind != "tensor" or spec.dtype in (DType.STRING,) or spec.dtype.bits < 8:
        return None
    shape = [dim if isinstance(dim, int) else generator.choice((1, 2)) for dim in spec.shape or ()]
    if np.prod(shape, dtype=float) > 1e6:
        return None
    return np.full(shape, generator.choice((0, 1, 2)), spec.dtype.numpy)


def try_out(seed: int, folder: Path) -> str:
    """Load and run one damaged model; anything but an engine's error or a result is a fault."""
    path, data = mutation(seed)
    generator = random.Random(seed)
    place = folder / f"damaged{path.suffix}"
    place.write_bytes(data)
    try:
        model = engine.load(place, target="cpu", threads=1)
        with model:
            graph = formats.open_source(place).graph
            assert graph is not None
            inputs = [value_of(spec, generator) for spec in graph.inputs]
            if any(value is None for value in inputs):
                return "loaded"
            model.predict(inputs, timeout_s=5)
            return "ran"
    except EngineError as error:
        return type(error).__name__


def batch(first: int, count: int) -> Iterator[str]:
    """Run mutations in a child; yield a description of each that killed it or got stuck."""
    end = first + count
    while first < end:
        command = [sys.executable, __file__, str(first), str(min(BATCH, end - first))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            started = time.monotonic()
            try:
                output, errors = child.communicate(timeout=STUCK_S + 0.5 * BATCH)
            except subprocess.TimeoutExpired:
                child.kill()
                output, errors = child.communicate()
        assert output.split(), f"a child ended before its first file: {errors.decode()[-2000:]}"
        last = int(output.split()[-1])
        if child.returncode == 0:
            first = last + 1
            continue
        path, _ = mutation(last)
        took = time.monotonic() - started
        yield (
            f"seed {last}, {path.name} in {path.parent.name}: exit {child.returncode} after "
            f"{took:.0f} s: {errors.decode(errors='replace')[-600:]}"
        )
        first = last + 1


@pytest.mark.timeout(300)
def test_some_damaged_real_models_neither_crash_nor_hang():
    assert list(batch(0, 60)) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_20_000_damaged_real_models_neither_crash_nor_hang(part):
    assert list(batch(1_000_000 + part * 2000, 2000)) == []


if __name__ == "__main__":
    import faulthandler

    first_seed, times = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(first_seed, first_seed + times):
            print(number, flush=True)
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
            outcome = try_out(number, Path(temporary))
            faulthandler.cancel_dump_traceback_later()
            print(outcome, file=sys.stderr)
