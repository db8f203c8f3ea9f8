"""On a real GPU, with the real libraries; skipped with the reason where there is none.

`on_cuda` needs the driver and pycuda or cuda-bindings alone, `on_device` TensorRT as well. Each
test is a process of its own, which never sees the emulated modules: a crash in the driver is then
one failed test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.device("gpu_trt"), pytest.mark.slow]

EMULATED = str(Path(__file__).parent / "emulated")

_PRELUDE = """
import sys, tempfile
from functools import partial
from pathlib import Path
import numpy as np
import engine
from engine.backends import open_backend
from engine.formats import open_source
from engine_testing import models
from engine.types import CompileOptions, Device, DType, ModelSource, ShapeRange
from engine_gpu_trt import vendor
from engine_gpu_trt.cuda import open_gpu
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

def lacking(reason):
    print(reason)
    sys.exit(77)

def run(context, *inputs):
    return backend.predict(context, list(inputs), None, None)
"""
_WITH_TENSORRT = """
try:
    assert "emulated" not in vendor.tensorrt().__version__
except vendor.Missing as error:
    lacking(error)
backend = open_backend("gpu_trt")
"""


def _process(code: str) -> subprocess.CompletedProcess[str]:
    path = [
        part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if EMULATED not in part
    ]
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
    child = _process(
        "from engine_gpu_trt import vendor\n"
        "try: vendor.device_count(vendor.cuda_driver())\n"
        "except vendor.Missing as error: print(error, error.fix, sep='; ')"
    )
    if child.returncode or child.stdout.strip():
        pytest.skip(f"no CUDA device: {(child.stdout or child.stderr).strip()}")


def on_cuda(code: str, prelude: str = "") -> None:
    """Run the code on the real device; its assertions are the test's, and what it lacks a skip."""
    child = _process(_PRELUDE + prelude + textwrap.dedent(code))
    if child.returncode == 77:
        pytest.skip(child.stdout.strip())
    assert child.returncode == 0, child.stdout + child.stderr


def on_device(code: str) -> None:
    """Run the code, which also needs TensorRT."""
    on_cuda(code, _WITH_TENSORRT)


# --------------------------------------------------------------- without TensorRT: CUDA and NCCL


def test_threads_share_the_primary_context() -> None:
    on_cuda("""
        import threading
        wrong = []
        def work(seed):
            for turn in range(50):
                x = np.full(1000 + turn, seed, np.float32)
                with open_gpu(0) as gpu:
                    stream, pinned = gpu.stream(), gpu.pin(x.nbytes)
                    first, second = gpu.allocate(x.nbytes), gpu.allocate(x.nbytes)
                    pinned.array[: x.nbytes] = x.view(np.uint8)
                    gpu.copy_in(first.pointer, pinned.array[: x.nbytes], stream.raw)
                    gpu.copy_within(second.pointer, first.pointer, x.nbytes, stream.raw)
                    back = gpu.pin(x.nbytes)
                    gpu.copy_out(back.array[: x.nbytes], second.pointer, stream.raw)
                    stream.synchronize()
                    if not (back.array[: x.nbytes].view(np.float32) == seed).all():
                        wrong.append((seed, turn))
                    for each in (back, first, second, pinned, stream):
                        each.close()
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not wrong
    """)


def test_a_stream_waits_for_another() -> None:
    on_cuda("""
        count = 2**26
        with open_gpu(0) as gpu:
            one, two = gpu.stream(), gpu.stream()
            pinned, back = gpu.pin(count), gpu.pin(count)
            first, second = gpu.allocate(count), gpu.allocate(count)
            for value in range(1, 6):
                pinned.array[:count] = value
                gpu.copy_in(first.pointer, pinned.array[:count], one.raw)
                gpu.order(one.handle, two)
                gpu.copy_within(second.pointer, first.pointer, count, two.raw)
                gpu.copy_out(back.array[:count], second.pointer, two.raw)
                marker = gpu.marker(two)
                two.synchronize()
                assert marker.is_reached and one.is_done and two.is_done
                marker.close()
                assert (back.array[:count] == value).all()
            for each in (first, second, pinned, back, one, two):
                each.close()
    """)


def test_what_is_allocated_is_freed_in_whatever_thread_it_ends() -> None:
    on_cuda("""
        import gc, threading
        size = 2**26
        def free():
            with open_gpu(0) as gpu:
                return gpu.memory()[0]
        def once():
            with open_gpu(0) as gpu:
                closed, left = gpu.allocate(size), [gpu.allocate(size), gpu.stream(), gpu.pin(size)]
                closed.close()
            thread = threading.Thread(target=left.clear)  # no context is current there
            thread.start()
            thread.join()
        once()
        gc.collect()
        before = free()
        for _ in range(200):
            once()
        gc.collect()
        assert before - free() < size, f"{before - free()} bytes of device memory are gone"
    """)


def test_memory_is_opened_by_another_process() -> None:
    on_cuda("""
        import subprocess
        size = 2**20
        with open_gpu(0) as gpu:
            def filled(memory, value=None):
                stream, pinned = gpu.stream(), gpu.pin(size)
                if value is not None:
                    pinned.array[:size] = value
                    gpu.copy_in(memory.pointer, pinned.array[:size], stream.raw)
                else:
                    gpu.copy_out(pinned.array[:size], memory.pointer, stream.raw)
                stream.synchronize()
                found = set(pinned.array[:size].tolist())
                pinned.close()
                stream.close()
                return found
            if len(sys.argv) > 1:  # the other process
                opened = gpu.import_memory(bytes.fromhex(sys.argv[1]))
                assert filled(opened) == {7}
                filled(opened, 9)
                opened.close()
                sys.exit()
            memory = gpu.allocate(size)
            filled(memory, 7)
            handle = gpu.export(memory.pointer)
            code = Path("/proc/self/cmdline").read_bytes().split(b"\\0")[2].decode()
            done = subprocess.run([sys.executable, "-c", code, handle.hex()])
            assert done.returncode == 0
            assert filled(memory) == {9}
            memory.close()
    """)


def test_copies_are_recorded_as_a_graph() -> None:
    on_cuda("""
        from engine_gpu_trt.graphs import Recorder
        try:
            driver = vendor.cuda_bindings()
        except engine.BackendUnavailable as error:
            lacking(error)
        count = 2**16
        with open_gpu(0) as gpu:
            stream, pinned, back = gpu.stream(), gpu.pin(count), gpu.pin(count)
            first, second = gpu.allocate(count), gpu.allocate(count)
            recorder, calls = Recorder(gpu, driver), []
            def enqueue(handle):
                calls.append(handle)
                gpu.copy_within(second.pointer, first.pointer, count, stream.raw)
                return True
            for value in range(20):
                pinned.array[:count] = value
                gpu.copy_in(first.pointer, pinned.array[:count], stream.raw)
                assert recorder.execute(1, stream, enqueue)
                gpu.copy_out(back.array[:count], second.pointer, stream.raw)
                stream.synchronize()
                assert (back.array[:count] == value).all()
            assert recorder._works and len(calls) == 2, "once as it is, once to be recorded"
            recorder.drop()
            for each in (first, second, pinned, back, stream):
                each.close()
    """)


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_buffers_are_arrays_of_other_libraries(library: str) -> None:
    on_cuda(f"""
        from importlib.util import find_spec
        if find_spec({library!r}) is None:
            lacking("{library} is not installed")
        import {library}
        from types import SimpleNamespace
        # Only memory is used: without TensorRT the backend would not be opened.
        vendor.any_tensorrt = lambda: SimpleNamespace(__version__="11.4")
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        try:
            tensor = engine.Tensor(x, device="gpu:0")
        except engine.BackendUnavailable as error:
            lacking(error)
        theirs = {library}.from_dlpack(tensor)
        assert tuple(theirs.shape) == (4, 3)
        theirs *= 2
        {"torch.cuda.synchronize()" if library == "torch" else "cupy.cuda.Device(0).synchronize()"}
        np.testing.assert_array_equal(tensor.get_data_to_numpy(), 2 * x)
        del theirs, tensor
    """)


# ------------------------------------------------------------------------------- with TensorRT


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
    on_cuda("""
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


def test_an_engine_is_loaded_once_for_all_models_of_a_process() -> None:
    on_device("""
        from dataclasses import replace
        form = folder / "form"
        form.mkdir()
        source = open_source(str(models.heavy(folder)))
        compiled(source, save_to=form).close()
        first, second = (compiled(replace(source, compiled=form)) for _ in range(2))
        assert first.memory().shared_bytes == second.memory().shared_bytes > 0
        x = np.ones((8, 1024), np.float32)
        expected = run(first.open_context(), x)[0]
        first.close()
        np.testing.assert_array_equal(run(second.open_context(), x)[0], expected)
    """)


def test_another_process_uses_the_weights_where_they_lie() -> None:
    on_device("""
        import json, subprocess
        import onnx
        import engine_gpu_trt as plugin
        from engine.types import SharedWeights
        from onnx import helper, numpy_helper
        random = np.random.default_rng(0)
        weight = random.standard_normal((4096, 1024), np.float32)
        values = [helper.make_tensor_value_info(*each)
                  for each in (("x", 1, [2, 4096]), ("y", 1, [2, 1024]))]
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "lent",
                                  values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
        model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
        path = Path(sys.argv[1] if len(sys.argv) > 1 else folder / "lent.onnx")
        x = random.standard_normal((2, 4096), np.float32)
        if len(sys.argv) > 1:  # the borrower
            shared = SharedWeights(backend="gpu_trt", device=Device("gpu"), nbytes=weight.nbytes,
                                   token=sys.argv[2].encode())
            borrower = compiled(open_source(str(path)), shared_weights=shared)
            assert borrower.memory().shared_bytes == weight.nbytes
            np.testing.assert_allclose(run(borrower.open_context(), x)[0], x @ weight, rtol=1e-3,
                                       atol=1e-3)
            borrower.close()
            sys.exit()
        onnx.save(model, path)
        executable = compiled(open_source(str(path)), lend="machine")
        shared = plugin.engine_share_weights(executable)
        code = Path("/proc/self/cmdline").read_bytes().split(b"\\0")[2].decode()
        done = subprocess.run([sys.executable, "-c", code, path, shared.token.decode()])
        assert done.returncode == 0
        np.testing.assert_allclose(run(executable.open_context(), x)[0], x @ weight, rtol=1e-3,
                                   atol=1e-3)
        shared.owner.close()
    """)


def test_weights_are_exchanged_in_the_engine() -> None:
    on_device("""
        import engine_gpu_trt as plugin
        executable = compiled(models.affine, variable_weights=("two", "one"))
        context = executable.open_context()
        x = np.float32([[1, 2, 3]])
        np.testing.assert_array_equal(run(context, x)[0], 2 * x + 1)
        for value in range(50):
            new = {"two": np.float32([value]), "one": np.float32([-value])}
            plugin.engine_update_weights(executable, new, False)
            np.testing.assert_array_equal(run(context, x)[0], value * x - value)
        plugin.engine_update_weights(executable, {"two": np.float32([3])}, True)
        np.testing.assert_array_equal(run(context, x)[0], 5 * x - 49)
    """)


def test_recorded_executions() -> None:
    on_device("""
        from importlib.util import find_spec
        if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
            lacking("cuda-bindings is not installed")
        context = compiled(models.affine, options={"cuda_graphs": "on"}).open_context()
        recorder = context.run._recorder
        for count in (4, 4, 4, 4, 8, 8, 8, 8, 4):
            for start in range(3):
                x = np.arange(start, start + 3 * count, dtype=np.float32).reshape(count, 3)
                np.testing.assert_array_equal(run(context, x)[0], 2 * x + 1)
        assert recorder._works, "nothing was recorded"
        context.close()
    """)


def test_a_profile_of_a_model() -> None:
    on_device("""
        x = np.ones((8, 1024), np.float32)
        with engine.load(str(models.heavy(folder)), target="gpu") as model:
            profile = model.profile([x], predicts=5)
            model.predict([x])
        assert profile.kernels and profile.predicts == 5
        assert 0 < profile.kernels_s <= profile.measured_s, profile
        named = {index for kernel in profile.kernels for index in kernel.nodes}
        assert named, f"no layer names a node: {profile}"
        print(profile)
    """)


def test_times_of_layers() -> None:
    on_device("""
        import json
        path = folder / "layers.json"
        executable = compiled(models.heavy, options={"layer_profile": str(path)})
        context = executable.open_context()
        for _ in range(5):
            run(context, np.ones((8, 1024), np.float32))
        executable.close()
        table = json.loads(path.read_text())
        assert table and all(row["runs"] == 5 and row["mean_ms"] > 0 for row in table), table
    """)


def test_collectives_of_one_rank() -> None:
    on_cuda("""
        import engine_gpu_trt as plugin
        from engine.distributed.store import GroupStore, StoreServer, connect
        from engine.types import CommunicatorOptions, ReduceOp
        from engine_gpu_trt import nccl
        from engine_gpu_trt.graph_group import GraphGroup
        try:
            nccl.library()
        except vendor.Missing as error:
            lacking(error)
        gpu, x = Device("gpu"), np.arange(12, dtype=np.float32).reshape(4, 3)
        send, receive = (plugin.engine_buffer(gpu, DType.FLOAT32, (4, 3), False) for _ in range(2))
        plugin.engine_copy(x, send, None)
        with StoreServer() as server:
            store = connect(server.address, server.key)
            for number in range(20):
                comm = plugin.engine_communicator(
                    CommunicatorOptions(
                        rank=0, world_size=1, device=gpu, store=GroupStore(store, str(number))
                    )
                )
                for deterministic in (False, True):
                    plugin.engine_allreduce(
                        comm, send, receive, ReduceOp.SUM, None, deterministic, None
                    )
                plugin.engine_alltoall(comm, send, receive, None, None)
                plugin.engine_allgather(comm, send, receive, None, None)
                back = np.zeros_like(x)
                plugin.engine_copy(receive, back, None)
                np.testing.assert_array_equal(back, x)
                comm.check()
                with GraphGroup(comm, ["as an engine has them"]).watched(None):
                    pass  # joined: a communicator that blocks, beside the first
                if number % 2:
                    comm.abort()
                comm.close()
    """)


def test_ranks_on_two_gpus() -> None:
    """The kit's level of ranks, with NCCL between two GPUs; it skips where there is one."""
    on_device("")
    path = [
        part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if EMULATED not in part
    ]
    child = subprocess.run(
        [sys.executable, "-m", "engine", "plugins", "check", "gpu_trt", "--level", "ranks"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr


@pytest.mark.parametrize("scenario", ["results", "inside"])
@pytest.mark.parametrize("count", [2, 4])
def test_models_in_ranks_on_their_gpus(count: int, scenario: str, tmp_path: Path) -> None:
    """As test_model_ranks.py has it: every kind of collective, float16 and bfloat16, groups.

    And collectives inside one engine, by TensorRT's own layers.
    """
    on_device("")
    from engine.distributed.job import environment
    from engine.distributed.store import StoreServer

    found = _process("from engine_gpu_trt import engine_devices as d; print(len(d().found))")
    if int(found.stdout) < count:
        pytest.skip(f"{found.stdout.strip()} GPUs are here, and {count} ranks need one each")
    path = [
        part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if EMULATED not in part
    ]
    steps = Path(__file__).with_name("model_ranks.py")
    with StoreServer() as server:
        children = [
            subprocess.Popen(
                [sys.executable, steps, scenario, tmp_path, *(["inside"] * (scenario == "inside"))],
                env={**environment(server, rank, count), "PYTHONPATH": os.pathsep.join(path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        outputs = [child.communicate(timeout=600) for child in children]
    for child, (_, errors) in zip(children, outputs, strict=True):
        assert child.returncode == 0, errors


def test_tensorrt_for_rtx() -> None:
    on_cuda("""
        from importlib.util import find_spec
        if find_spec("tensorrt_rtx") is None:
            lacking("tensorrt_rtx is not installed")
        backend = open_backend("gpu_trt")
        try:
            context = compiled(models.affine, provider="tensorrt_rtx").open_context()
        except engine.EngineError as error:  # it may refuse a GPU that is made for data centres
            lacking(error)
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        np.testing.assert_array_equal(run(context, x)[0], 2 * x + 1)
    """)
