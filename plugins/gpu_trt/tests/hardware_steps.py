"""The steps of test_hardware.py, each a process of its own: `hardware_steps.py STEP [WORD ...]`.

Status 77 and a line mean that something is lacking here.
"""

from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

import engine
import engine_gpu_trt as plugin
from engine.backends import open_backend
from engine.distributed.store import GroupStore, StoreServer, connect
from engine.formats import open_source
from engine.types import (
    CommunicatorOptions,
    CompileOptions,
    Device,
    DType,
    ModelSource,
    ReduceOp,
    ShapeRange,
)
from engine_gpu_trt import nccl, vendor
from engine_gpu_trt.cuda import open_gpu
from engine_gpu_trt.graph_group import GraphGroup
from engine_gpu_trt.graphs import Recorder
from engine_testing import (
    BackendConformance,  # noqa: F401  # before its modules: see there
    models,
)

GPU = Device("gpu")
X = np.arange(12, dtype=np.float32).reshape(4, 3)


def lacking(reason: object) -> NoReturn:
    print(reason)
    sys.exit(77)


def with_tensorrt() -> None:
    try:
        vendor.tensorrt()
    except vendor.Missing as error:
        lacking(error)


def compiled(source: Any, **changes: Any) -> Any:
    if "provider" not in changes:
        with_tensorrt()
    options = CompileOptions(device=GPU, **changes)
    if not isinstance(source, ModelSource):
        source = open_source(str(source(FOLDER)))
    backend = open_backend("gpu_trt")
    loaded = backend.load(source, options)
    try:
        return backend.compile(loaded, options)
    finally:
        loaded.close()


def run(context: Any, *inputs: Any) -> Any:
    return open_backend("gpu_trt").predict(context, list(inputs), None, None)


def at_once(work: Callable[[int], object]) -> None:
    """Run work(0) to work(7) in threads of their own; an error in one is the step's."""
    errors: list[BaseException] = []

    def caught(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def elsewhere(call: Callable[[], object]) -> None:
    """Call it in another thread, where no context is current."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def free_bytes() -> int:
    gc.collect()
    with open_gpu(0) as gpu:
        return gpu.memory()[0]


def threads_share_the_primary_context() -> None:
    def work(seed: int) -> None:
        for turn in range(50):
            x = np.full(1000 + turn, seed, np.float32)
            with open_gpu(0) as gpu:
                stream, pinned, back = gpu.stream(), gpu.pin(x.nbytes), gpu.pin(x.nbytes)
                first, second = gpu.allocate(x.nbytes), gpu.allocate(x.nbytes)
                pinned.array[: x.nbytes] = x.view(np.uint8)
                gpu.copy_in(first.pointer, pinned.array[: x.nbytes], stream.raw)
                gpu.copy_within(second.pointer, first.pointer, x.nbytes, stream.raw)
                gpu.copy_out(back.array[: x.nbytes], second.pointer, stream.raw)
                stream.synchronize()
                assert (back.array[: x.nbytes].view(np.float32) == seed).all(), turn
                for thing in (back, first, second, pinned, stream):
                    thing.close()

    at_once(work)


def a_stream_waits_for_another() -> None:
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
            assert marker.is_reached
            assert one.is_done
            assert two.is_done
            marker.close()
            assert (back.array[:count] == value).all()
        for thing in (first, second, pinned, back, one, two):
            thing.close()


def what_is_allocated_is_freed_in_whatever_thread_it_ends() -> None:
    size = 2**26

    def once() -> None:
        with open_gpu(0) as gpu:
            closed, left = gpu.allocate(size), [gpu.allocate(size), gpu.stream(), gpu.pin(size)]
            closed.close()
        elsewhere(left.clear)

    once()
    before = free_bytes()
    for _ in range(200):
        once()
    gone = before - free_bytes()
    assert gone < size, f"{gone} bytes of device memory are gone"


def memory_is_opened_by_another_process(handle: str = "") -> None:
    size = 2**20
    with open_gpu(0) as gpu:
        stream, pinned = gpu.stream(), gpu.pin(size)
        host = pinned.array[:size]
        memory: Any = gpu.import_memory(bytes.fromhex(handle)) if handle else gpu.allocate(size)

        def write(value: int) -> None:
            host[:] = value
            gpu.copy_in(memory.pointer, host, stream.raw)
            stream.synchronize()

        def expect(value: int) -> None:
            gpu.copy_out(host, memory.pointer, stream.raw)
            stream.synchronize()
            assert (host == value).all()

        if handle:  # the other process
            expect(7)
            write(9)
        else:
            write(7)
            words = [sys.executable, __file__, "memory_is_opened_by_another_process"]
            subprocess.run([*words, gpu.export(memory.pointer).hex()], check=True)
            expect(9)
        for thing in (memory, pinned, stream):
            thing.close()


def copies_are_recorded_as_a_graph() -> None:
    try:
        driver = vendor.cuda_bindings()
    except engine.BackendUnavailable as error:
        lacking(error)
    count = 2**16
    with open_gpu(0) as gpu:
        stream, pinned, back = gpu.stream(), gpu.pin(count), gpu.pin(count)
        first, second = gpu.allocate(count), gpu.allocate(count)
        recorder, calls = Recorder(gpu, driver), []

        def enqueue(handle: int) -> bool:
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
        assert recorder._works
        assert len(calls) == 2, "once as it is, once to be recorded"
        recorder.drop()
        for thing in (first, second, pinned, back, stream):
            thing.close()


def buffers_are_arrays_of_another_library(library: str) -> None:
    if find_spec(library) is None:
        lacking(f"{library} is not installed")
    module: Any = importlib.import_module(library)
    # Only memory is used: without TensorRT the backend would not be opened.
    vendor.any_tensorrt = lambda: SimpleNamespace(__version__="11.4")
    try:
        tensor = engine.Tensor(X, device="gpu:0")
    except engine.BackendUnavailable as error:
        lacking(error)
    theirs = module.from_dlpack(tensor)
    assert tuple(theirs.shape) == (4, 3)
    theirs *= 2
    (module.cuda if library == "torch" else module.cuda.Device(0)).synchronize()
    np.testing.assert_array_equal(tensor.get_data_to_numpy(), 2 * X)
    del theirs, tensor


def memory_copies_and_order() -> None:
    buffers = [plugin.engine_buffer(GPU, DType.FLOAT32, (4, 3), False) for _ in range(2)]
    pinned = plugin.engine_buffer(GPU, DType.FLOAT32, (4, 3), True)
    back = np.empty((4, 3), np.float32)
    chain = [X, *buffers, pinned]
    for source, target in [*pairwise(chain), (buffers[1], back)]:
        plugin.engine_copy(source, target, None)
    np.testing.assert_array_equal(pinned, X)
    np.testing.assert_array_equal(back, X)
    plugin.engine_order(GPU, 0, None)
    del source, target, chain
    elsewhere(buffers.clear)


def collectives_of_one_rank() -> None:
    try:
        nccl.library()
    except vendor.Missing as error:
        lacking(error)
    send, receive = (plugin.engine_buffer(GPU, DType.FLOAT32, (4, 3), False) for _ in range(2))
    plugin.engine_copy(X, send, None)
    with StoreServer() as server:
        store = connect(server.address, server.key)
        for number in range(20):
            group = GroupStore(store, str(number))
            comm = plugin.engine_communicator(
                CommunicatorOptions(rank=0, world_size=1, device=GPU, store=group)
            )
            for is_exact in (False, True):
                plugin.engine_allreduce(comm, send, receive, ReduceOp.SUM, None, is_exact, None)
            plugin.engine_alltoall(comm, send, receive, None, None)
            plugin.engine_allgather(comm, send, receive, None, None)
            back = np.zeros_like(X)
            plugin.engine_copy(receive, back, None)
            np.testing.assert_array_equal(back, X)
            comm.check()
            with GraphGroup(comm, ["as an engine has them"]).watched(None):
                pass  # joined: a communicator that blocks, beside the first
            if number % 2:
                comm.abort()
            comm.close()


def float16() -> None:
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    [y] = run(compiled(models.slow, precision="preferred_fp16").open_context(), x)
    np.testing.assert_allclose(y, np.roll(np.maximum(x, 0), 32, axis=1), rtol=1e-2)


def engines_are_saved_and_read() -> None:
    form = FOLDER / "form"
    form.mkdir()
    compiled(models.affine, save_to=form)
    path = (form / "engine.plan").rename(FOLDER / "affine.engine")
    with engine.load(str(path), target="gpu") as model:
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)
    plan = path.read_bytes()
    path.write_bytes(plan[: len(plan) // 2])
    with pytest.raises(engine.ModelError):
        engine.load(str(path), target="gpu")


def threads_run_in_the_profiles_that_fit() -> None:
    ranges = [{"x": ShapeRange((low, 3), (high, 3), (high, 3))} for low, high in ((1, 4), (16, 64))]
    hull = {"x": ShapeRange((1, 3), (4, 3), (64, 3))}
    executable = compiled(models.affine, shapes=hull, profiles=tuple(ranges))

    def work(seed: int) -> None:
        context = executable.open_context()
        for count in (1, 16, 4, 64) * 25:
            x = np.full((count, 3), seed + count, np.float32)
            np.testing.assert_array_equal(run(context, x)[0], 2 * x + 1)
        context.close()

    at_once(work)


def nothing_leaks() -> None:
    def once() -> None:
        executable = compiled(models.heavy)
        for _ in range(4):
            context = executable.open_context()
            run(context, np.ones((8, 1024), np.float32))
            context.close()
        executable.close()

    for _ in range(3):
        once()
    before = free_bytes()
    for _ in range(10):
        once()
    gone = before - free_bytes()
    assert gone < 2**21, f"{gone} bytes of device memory are gone"


def too_little_memory_is_said_and_survived() -> None:
    shapes = {"x": ShapeRange((1, 3), (1, 3), (2**24, 3))}
    context = compiled(models.affine, shapes=shapes).open_context()
    with open_gpu(0) as gpu:
        hog = gpu.allocate(gpu.memory()[0] - 2**27)
    with pytest.raises(engine.BackendUnavailable, match="out of memory"):
        run(context, np.ones((2**24, 3), np.float32))
    with gpu:
        hog.close()
    np.testing.assert_array_equal(run(context, X)[0], 2 * X + 1)


def times_of_tactics_are_kept() -> None:
    compiled(models.slow, cache_folder=FOLDER)
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.suffix != ".onnx") > 0


def an_engine_is_loaded_once_for_all_models_of_a_process() -> None:
    form = FOLDER / "form"
    form.mkdir()
    source = open_source(str(models.heavy(FOLDER)))
    compiled(source, save_to=form).close()
    first, second = (compiled(replace(source, compiled=form)) for _ in range(2))
    assert first.memory().shared_bytes == second.memory().shared_bytes > 0
    x = np.ones((8, 1024), np.float32)
    expected = run(first.open_context(), x)[0]
    first.close()
    np.testing.assert_array_equal(run(second.open_context(), x)[0], expected)


def recorded_executions() -> None:
    try:
        vendor.cuda_bindings()
    except engine.BackendUnavailable as error:
        lacking(error)
    context = compiled(models.affine, options={"cuda_graphs": "on"}).open_context()
    recorder = context.run._recorder
    for count in (4, 4, 4, 4, 8, 8, 8, 8, 4):
        for start in range(3):
            x = np.arange(start, start + 3 * count, dtype=np.float32).reshape(count, 3)
            np.testing.assert_array_equal(run(context, x)[0], 2 * x + 1)
    assert recorder._works, "nothing was recorded"
    context.close()


def times_of_layers() -> None:
    path = FOLDER / "layers.json"
    executable = compiled(models.heavy, options={"layer_profile": str(path)})
    context = executable.open_context()
    for _ in range(5):
        run(context, np.ones((8, 1024), np.float32))
    executable.close()
    rows = json.loads(path.read_text())
    assert rows
    assert all(row["runs"] == 5 and row["mean_ms"] > 0 for row in rows), rows


def tensorrt_for_rtx() -> None:
    if find_spec("tensorrt_rtx") is None:
        lacking("tensorrt_rtx is not installed")
    try:
        context = compiled(models.affine, provider="tensorrt_rtx").open_context()
    except engine.EngineError as error:  # it may refuse a GPU that is made for data centres
        lacking(error)
    np.testing.assert_array_equal(run(context, X)[0], 2 * X + 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        globals()[sys.argv[1]](*sys.argv[2:])
