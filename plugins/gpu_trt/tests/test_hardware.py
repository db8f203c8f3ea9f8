"""On a real GPU, with the real TensorRT and pycuda; skipped with the reason where there is none.

Each test is a process of its own, which never sees the emulated modules: a crash in the driver
is then one failed test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.device("gpu_trt"), pytest.mark.slow]

EMULATED = str(Path(__file__).parent / "emulated" / "site")

_PRELUDE = """
import sys, tempfile
from functools import partial
from pathlib import Path
import numpy as np
import engine
from engine.backends import open_backend
from engine.formats import open_source
from engine.testing import models
from engine.types import CompileOptions, Device, DType, ModelSource, ShapeRange
import tensorrt
assert "emulated" not in tensorrt.__version__
backend = open_backend("gpu_trt")
folder = Path(tempfile.mkdtemp())

def compiled(source, **changes):
    options = CompileOptions(device=Device("gpu"), **changes)
    if not isinstance(source, ModelSource):
        source = open_source(str(source(folder)))
    loaded = backend.load(source, options)
    try:
        return backend.compile(loaded, options)
    finally:
        loaded.close()

def run(context, *inputs):
    return backend.predict(context, list(inputs), None, None)
"""


def _process(code: str) -> subprocess.CompletedProcess[str]:
    path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part != EMULATED]
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module", autouse=True)
def _a_real_device() -> None:
    code = (
        "from engine_gpu_trt import engine_devices as d; f = d(); print(f.reason, f.fix, sep='; ')"
    )
    child = _process(code)
    if child.returncode or child.stdout.strip() != ";":
        pytest.skip(f"no CUDA device: {(child.stdout or child.stderr).strip()}")


def on_device(code: str) -> None:
    """Run the code on the real device; its assertions are the test's."""
    child = _process(_PRELUDE + textwrap.dedent(code))
    assert child.returncode == 0, child.stdout + child.stderr


def test_build_and_predict() -> None:
    on_device("""
        executable = compiled(models.affine)
        context = executable.open_context()
        for count in (1, 3, 32, 2):
            x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
            [y] = run(context, x)
            np.testing.assert_array_equal(y, 2 * x + 1)
        report = executable.memory()
        assert report.workspace_bytes > 0
        context.close(); executable.close()
    """)


def test_float32_is_float32() -> None:
    on_device("""
        executable = compiled(models.slow)
        context = executable.open_context()
        x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
        [y] = run(context, x)
        np.testing.assert_array_equal(y, np.roll(np.maximum(x, 0), 32, axis=1))
    """)


def test_float16() -> None:
    on_device("""
        executable = compiled(models.slow, precision="preferred_fp16")
        x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
        [y] = run(executable.open_context(), x)
        np.testing.assert_allclose(y, np.roll(np.maximum(x, 0), 32, axis=1), rtol=1e-2)
    """)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int32", "int64", "bool"])
def test_types(dtype: str) -> None:
    on_device(f"""
        dtype = DType({dtype!r})
        x = (np.arange(6).reshape(2, 3) % 2).astype(dtype.numpy)
        [y] = run(compiled(partial(models.moved, dtype=dtype)).open_context(), x)
        assert y.dtype == x.dtype and y.tobytes() == np.ascontiguousarray(x.T).tobytes()
    """)


def test_shapes_that_depend_on_the_data() -> None:
    on_device("""
        context = compiled(models.nonzero).open_context()
        for values in ([0, 1, 0, 2], [0, 0], [1] * 32):
            [y] = run(context, np.float32(values))
            np.testing.assert_array_equal(y, np.flatnonzero(values)[None])
    """)


def test_branches_empty_tensors_and_constants() -> None:
    on_device("""
        context = compiled(models.branch).open_context()
        x = np.float32([1, 2, 3])
        for flag, expected in ((True, 2 * x), (False, x - 1)):
            [y] = run(context, np.array(flag), x)
            np.testing.assert_array_equal(y, expected)
        y, total = run(compiled(models.empty).open_context(), np.zeros((0, 3), np.float32))
        assert y.shape == (0, 3) and total.tolist() == [0, 0, 0]
        [y] = run(compiled(models.constant).open_context())
        assert y.tolist() == [1, 2, 3]
    """)


def test_engines_are_saved_and_read() -> None:
    on_device("""
        form = folder / "form"
        form.mkdir()
        compiled(models.affine, save_to=form)
        path = (form / "engine.plan").rename(folder / "affine.engine")
        x = np.ones((2, 3), np.float32)
        with engine.load(str(path), target="gpu") as model:
            np.testing.assert_array_equal(model(x=x)["y"], 2 * x + 1)
        plan = path.read_bytes()
        path.write_bytes(plan[: len(plan) // 2])
        try:
            engine.load(str(path), target="gpu")
        except engine.ModelError as error:
            print(error)
        else:
            raise AssertionError("a truncated engine was loaded")
    """)


def test_profiles_threads_and_cancel() -> None:
    on_device("""
        import threading
        from engine.types import CancelToken
        ends = ((1, 4), (16, 64))
        ranges = [{"x": ShapeRange((low, 3), (high, 3), (high, 3))} for low, high in ends]
        hull = {"x": ShapeRange((1, 3), (4, 3), (64, 3))}
        executable = compiled(models.affine, shapes=hull, profiles=tuple(ranges))
        wrong = []
        def work(seed):
            context = executable.open_context()
            for count in (1, 16, 4, 64) * 25:
                x = np.full((count, 3), seed + count, np.float32)
                if not np.array_equal(run(context, x)[0], 2 * x + 1):
                    wrong.append((seed, count))
            context.close()
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not wrong
        token = CancelToken()
        try:
            compiled(models.slow, cancel=token, progress=lambda *step: token.cancel())
        except engine.Cancelled:
            pass
        else:
            raise AssertionError("the build went on")
    """)


def test_nothing_leaks() -> None:
    on_device("""
        from engine_gpu_trt.cuda import open_gpu
        def once():
            executable = compiled(models.heavy)
            for _ in range(4):
                context = executable.open_context()
                run(context, np.ones((8, 1024), np.float32))
                context.close()
            executable.close()
        def free():
            with open_gpu(0) as gpu:
                return gpu.memory()[0]
        for _ in range(3):
            once()
        before = free()
        for _ in range(10):
            once()
        assert before - free() < 2**21, f"{before - free()} bytes of device memory are gone"
    """)


def test_too_little_memory_is_said_and_survived() -> None:
    on_device("""
        from engine_gpu_trt.cuda import open_gpu
        shapes = {"x": ShapeRange((1, 3), (1, 3), (2**24, 3))}
        context = compiled(models.affine, shapes=shapes).open_context()
        gpu = open_gpu(0)
        with gpu:
            hog = gpu.allocate(gpu.memory()[0] - 2**27)
        try:
            run(context, np.ones((2**24, 3), np.float32))
        except engine.BackendUnavailable as error:
            assert "out of memory" in str(error), error
        else:
            raise AssertionError("there was room after all")
        with gpu:
            hog.close()
        x = np.ones((4, 3), np.float32)
        np.testing.assert_array_equal(run(context, x)[0], 2 * x + 1)
    """)


def test_values_on_the_device() -> None:
    on_device("""
        resident = frozenset({"y"})
        first, second = compiled(models.affine, resident=resident), compiled(models.affine)
        before = first.open_context()
        after = second.open_context(beside=before)
        apart = second.open_context()
        gpu, x = Device("gpu"), np.arange(12, dtype=np.float32).reshape(4, 3)
        for _ in range(100):
            [value] = run(before, x)
            for context in (after, apart):
                np.testing.assert_array_equal(run(context, value)[0], 4 * x + 3)
        [value] = backend.predict(apart, [x], [gpu], None)
        back = np.empty((4, 3), np.float32)
        assert backend.predict(apart, [value], [back], None)[0] is back
        np.testing.assert_array_equal(back, 4 * x + 3)
        for context in (apart, after, before):
            context.close()
    """)


def test_memory_copies_and_order() -> None:
    on_device("""
        import threading
        import engine_gpu_trt as plugin
        gpu, x = Device("gpu"), np.arange(12, dtype=np.float32).reshape(4, 3)
        buffers = [plugin.engine_buffer(gpu, DType.FLOAT32, (4, 3), False) for _ in range(2)]
        pinned = plugin.engine_buffer(gpu, DType.FLOAT32, (4, 3), True)
        back = np.empty((4, 3), np.float32)
        for source, target in ((x, buffers[0]), (buffers[0], buffers[1]), (buffers[1], pinned)):
            plugin.engine_copy(source, target, None)
        plugin.engine_copy(buffers[1], back, None)
        assert (pinned == x).all() and (back == x).all()
        plugin.engine_order(gpu, 0, None)
        thread = threading.Thread(target=buffers.clear)  # frees them there
        thread.start(); thread.join()
    """)


def test_compiled_forms_and_the_timing_cache() -> None:
    on_device("""
        from dataclasses import replace
        form, cache = folder / "form", folder / "cache"
        form.mkdir(); cache.mkdir()
        source = open_source(str(models.slow(folder)))
        cold = compiled(source, save_to=form, cache_folder=cache)
        assert sum(path.stat().st_size for path in cache.iterdir()) > 0
        warm = compiled(replace(source, compiled=form))
        assert (warm.inputs, warm.outputs) == (cold.inputs, cold.outputs)
        assert warm.placement() == cold.placement()
        x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
        assert (run(warm.open_context(), x)[0] == run(cold.open_context(), x)[0]).all()
    """)
