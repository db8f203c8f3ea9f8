"""The emulated GPU refuses what the real one does not survive.

Without these the other tests would prove nothing: a permissive emulator passes anything.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.testing import models

# ------------------------------------------------------------------------------------- pycuda


@pytest.fixture
def cuda() -> Any:
    import pycuda.driver

    pycuda.driver.init()
    return pycuda.driver


@pytest.fixture
def context(cuda: Any) -> Iterator[Any]:
    """The primary context, current in this thread."""
    found = cuda.Device(0).retain_primary_context()
    found.push()
    yield found
    found.pop()
    found.detach()


def test_nothing_works_without_a_current_context(cuda: Any) -> None:
    for call in (
        lambda: cuda.mem_alloc(8),
        lambda: cuda.pagelocked_empty(8, np.uint8),
        cuda.mem_get_info,
    ):
        with pytest.raises(cuda.LogicError, match="invalid device context"):
            call()
    with pytest.raises(cuda.LogicError, match="no currently active context"):
        cuda.Stream()


def test_a_context_is_current_in_one_thread_only(cuda: Any, context: Any) -> None:
    def work() -> str:
        with pytest.raises(cuda.LogicError) as caught:
            cuda.mem_alloc(8)
        return str(caught.value)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == "cuMemAlloc failed: invalid device context"


def test_popping_too_often_is_an_error(cuda: Any) -> None:
    with pytest.raises(cuda.LogicError, match="cannot pop non-current context"):
        cuda.Context.pop()


def test_a_retained_context_is_not_current_by_itself(cuda: Any) -> None:
    context = cuda.Device(0).retain_primary_context()
    assert cuda.Context.get_current() is None
    context.detach()


def test_a_thread_that_ends_with_a_context_is_noticed(cuda: Any) -> None:
    from emulated_gpu import violations

    context = cuda.Device(0).retain_primary_context()
    thread = threading.Thread(target=context.push, name="careless")
    thread.start()
    thread.join()
    gc.collect()
    assert violations() == ["thread 'careless' ended with a CUDA context on its stack"]
    context.detach()


def test_device_memory_ends_where_it_ends(cuda: Any, context: Any) -> None:
    from emulated_gpu import Crash

    memory = cuda.mem_alloc(100)
    cuda.memcpy_htod(memory, np.zeros(100, np.uint8))
    for address, size in ((int(memory), 101), (int(memory) + 1, 100), (int(memory) - 1, 1), (0, 1)):
        with pytest.raises(Crash):
            cuda.memcpy_htod(address, np.zeros(size, np.uint8))
    memory.free()


def test_host_addresses_are_no_device_addresses(cuda: Any, context: Any) -> None:
    from emulated_gpu import Crash

    host = np.zeros(8, np.uint8)
    with pytest.raises(Crash, match="nothing was ever there"):
        cuda.memcpy_dtoh(host, host.ctypes.data)


def test_freed_memory_stays_freed(cuda: Any, context: Any) -> None:
    from emulated_gpu import Crash

    memory = cuda.mem_alloc(64)
    address = int(memory)
    memory.free()
    other = cuda.mem_alloc(64)
    assert int(other) != address
    with pytest.raises(Crash, match="it was freed"):
        cuda.memcpy_htod(address, np.zeros(64, np.uint8))
    with pytest.raises(cuda.LogicError, match="invalid resource handle"):
        memory.free()
    other.free()


def test_fresh_memory_holds_no_zeros(cuda: Any, context: Any) -> None:
    memory, host = cuda.mem_alloc(16), np.zeros(16, np.uint8)
    cuda.memcpy_dtoh(host, memory)
    assert set(host) == {0xCB}
    memory.free()


def test_copies_are_done_when_somebody_waits(cuda: Any, context: Any) -> None:
    stream, memory = cuda.Stream(), cuda.mem_alloc(4)
    there, back = cuda.pagelocked_empty(4, np.uint8), cuda.pagelocked_empty(4, np.uint8)
    there[:] = [1, 2, 3, 4]
    cuda.memcpy_htod_async(memory, there, stream)
    cuda.memcpy_dtoh_async(back, memory, stream)
    assert set(back) == {0xCD}, "the result was visible before anybody waited"
    assert not stream.is_done()
    there[0] = 9  # still read by the copy
    stream.synchronize()
    assert list(back) == [9, 2, 3, 4]
    memory.free()
    for array in (there, back):
        array.base.free()


def test_memory_freed_under_a_queued_copy_is_noticed(cuda: Any, context: Any) -> None:
    from emulated_gpu import Crash

    stream, memory, host = cuda.Stream(), cuda.mem_alloc(4), cuda.pagelocked_empty(4, np.uint8)
    cuda.memcpy_htod_async(memory, host, stream)
    memory.free()
    with pytest.raises(Crash, match="it was freed"):
        stream.synchronize()
    host.base.free()


def test_asynchronous_copies_need_pinned_memory(cuda: Any, context: Any) -> None:
    from emulated_gpu import Crash

    stream, memory, host = cuda.Stream(), cuda.mem_alloc(4), cuda.pagelocked_empty(4, np.uint8)
    with pytest.raises(Crash, match="not page-locked"):
        cuda.memcpy_htod_async(memory, np.zeros(4, np.uint8), stream)
    host.base.free()
    with pytest.raises(Crash, match="not page-locked"):
        cuda.memcpy_htod_async(memory, host, stream)
    memory.free()


def test_the_default_stream_is_refused(cuda: Any, context: Any) -> None:
    from emulated_gpu import Crash

    memory, host = cuda.mem_alloc(4), cuda.pagelocked_empty(4, np.uint8)
    with pytest.raises(Crash, match="default stream"):
        cuda.memcpy_htod_async(memory, host)
    memory.free()
    host.base.free()


@pytest.mark.parametrize("kind", ["memory", "pinned", "stream"])
def test_what_is_freed_elsewhere_leaks_with_a_warning(cuda: Any, kind: str) -> None:
    from emulated_gpu import live, violations

    context = cuda.Device(0).retain_primary_context()
    context.push()
    before = live()
    owned = [
        {
            "memory": lambda: cuda.mem_alloc(8),
            "pinned": lambda: cuda.pagelocked_empty(8, np.uint8).base,
            "stream": cuda.Stream,
        }[kind]()
    ]
    context.pop()

    def free() -> None:
        with pytest.warns(UserWarning, match="out-of-thread context could not be cleaned up"):
            owned.clear()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(free).result()
    assert len(violations()) == 1
    assert live() != before, "it leaked, and the count does not show it"
    _forget(kind)
    context.detach()


def _forget(kind: str) -> None:
    """Take a deliberate leak off the books."""
    from emulated_gpu import MACHINE

    if kind == "memory":
        device = MACHINE.devices[0]
        device.free(device._bases[-1])
    elif kind == "pinned":
        MACHINE.pinned.popitem()
    else:
        MACHINE.streams.popitem()


def test_the_makers_thread_must_push_too(cuda: Any) -> None:
    from emulated_gpu import violations

    context = cuda.Device(0).retain_primary_context()
    context.push()
    memory = cuda.mem_alloc(8)
    context.pop()
    memory.free()
    assert violations() == ["a device_allocation was freed while its context was not current"]
    context.detach()


def test_device_memory_can_run_out(cuda: Any, context: Any) -> None:
    free, total = cuda.mem_get_info()
    assert free <= total
    with pytest.raises(cuda.MemoryError, match="cuMemAlloc failed: out of memory"):
        cuda.mem_alloc(free + 1)


@pytest.mark.parametrize(
    ("mode", "printed"),
    [
        ("none", "ImportError libcuda.so.1: cannot open shared object file"),
        ("no_device", "RuntimeError cuInit failed: no CUDA-capable device is detected"),
        ("on", "1"),
    ],
)
def test_the_driver_can_be_switched_off(mode: str, printed: str) -> None:
    code = (
        "try:\n    import pycuda.driver as c; c.init(); print(c.Device.count())\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ENGINE_EMULATED_DRIVER": mode},
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.startswith(printed)


def test_without_a_driver_tensorrt_is_a_segmentation_fault() -> None:
    code = (
        "import tensorrt as trt\n"
        "runtime = trt.Runtime(trt.Logger())\n"
        "try:\n    runtime.deserialize_cuda_engine(b'x')\n"
        "except Exception: print('caught')\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ENGINE_EMULATED_DRIVER": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode != 0
    assert "segmentation fault: Runtime wraps a null pointer" in child.stderr
    assert "caught" not in child.stdout


# ------------------------------------------------------------------------------------ TensorRT


class Bench:
    """TensorRT by hand, in a current context; `said` is its log."""

    def __init__(self, trt: Any) -> None:
        self.trt = trt
        self.said: list[str] = []
        bench = self

        class Log(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
                if severity <= trt.ILogger.ERROR:
                    bench.said.append(msg)

        self.log = Log()

    def network(self, path: Path) -> tuple[Any, Any, Any]:
        builder = self.trt.Builder(self.log)
        network = builder.create_network(1)
        parser = self.trt.OnnxParser(network, self.log)
        assert parser.parse_from_file(str(path))
        return builder, network, parser

    def engine(self, path: Path, **shapes: tuple[Any, Any, Any]) -> Any:
        builder, network, parser = self.network(path)
        config = builder.create_builder_config()
        if shapes:
            profile = builder.create_optimization_profile()
            for name, ranges in shapes.items():
                profile.set_shape(name, *ranges)
            assert config.add_optimization_profile(profile) == 0
        plan = builder.build_serialized_network(network, config)
        assert plan is not None, self.said
        return self.trt.Runtime(self.log).deserialize_cuda_engine(plan)


@pytest.fixture
def bench(context: Any) -> Iterator[Bench]:
    import tensorrt

    yield Bench(tensorrt)
    gc.collect()  # while the context is current


AFFINE = {"x": ((1, 3), (2, 3), (4, 3))}


def test_failures_are_none_or_false_and_a_line_in_the_log(bench: Bench, tmp_path: Path) -> None:
    builder = bench.trt.Builder(bench.log)
    assert builder.create_network(1 << 9) is None
    network = builder.create_network(1)
    parser = bench.trt.OnnxParser(network, bench.log)
    assert parser.parse(b"garbage") is False
    assert parser.num_errors == 1
    assert parser.get_error(0).node() == -1
    runtime = bench.trt.Runtime(bench.log)
    assert runtime.deserialize_cuda_engine(b"garbage") is None
    assert runtime.deserialize_cuda_engine(b"") is None
    assert len(bench.said) == 4


def test_a_parser_does_not_keep_its_network(bench: Bench) -> None:
    from emulated_gpu import Crash

    parser = bench.trt.OnnxParser(bench.trt.Builder(bench.log).create_network(1), bench.log)
    gc.collect()
    with pytest.raises(Crash, match="the parser's network is gone"):
        parser.parse(b"")


def test_a_subclass_must_call_the_bases_init(bench: Bench) -> None:
    class Silent(bench.trt.ILogger):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            pass

    with pytest.raises(TypeError, match=r"ILogger.__init__\(\) must be called when overriding"):
        Silent()


def test_tensorrt_needs_a_current_context(bench: Bench, context: Any) -> None:
    from emulated_gpu import Crash

    builder = bench.trt.Builder(bench.log)
    context.pop()
    with pytest.raises(Crash, match="without a current CUDA context"):
        builder.create_builder_config()
    context.push()


def test_what_is_destroyed_without_a_context_is_noticed(bench: Bench, context: Any) -> None:
    from emulated_gpu import violations

    runtime = [bench.trt.Runtime(bench.log)]
    context.pop()
    runtime.clear()
    context.push()
    assert violations() == ["Runtime was destroyed while its CUDA context was not current"]


def test_dynamic_inputs_need_a_profile_that_fits(bench: Bench, tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    builder, network, parser = bench.network(path)

    def build(*shapes: Any) -> str:
        bench.said.clear()
        config = builder.create_builder_config()
        if shapes:
            profile = builder.create_optimization_profile()
            profile.set_shape(*shapes)
            config.add_optimization_profile(profile)
        assert builder.build_serialized_network(network, config) is None
        return bench.said[-1]

    assert "no optimization profile has been defined" in build()
    assert "is missing dimensions in profile 0" in build("other", (1, 3), (1, 3), (1, 3))
    assert "min=4, opt=4, max=4 but tensor has 3" in build("x", (1, 4), (1, 4), (1, 4))
    assert "2 dimensions but profile 0 has 1" in build("x", (1,), (1,), (1,))
    with pytest.raises(RuntimeError, match="Shape provided for min is inconsistent"):
        build("x", (-1, 3), (1, 3), (1, 3))


def test_a_profile_that_falls_is_false_and_not_added(bench: Bench, tmp_path: Path) -> None:
    builder, network, parser = bench.network(models.affine(tmp_path))
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (4, 3), (2, 3), (8, 3))
    assert not profile
    assert builder.create_builder_config().add_optimization_profile(profile) == -1
    assert "MIN<=OPT<=MAX" in bench.said[0]


@pytest.fixture
def ready(
    bench: Bench, cuda: Any, tmp_path: Path
) -> Iterator[tuple[Any, Any, Any, dict[str, Any]]]:
    """An execution context of y = 2x + 1 for 2 rows, all set: (context, stream, cuda, memory)."""
    execution = bench.engine(models.affine(tmp_path), **AFFINE).create_execution_context()
    memory = {"x": cuda.mem_alloc(48), "y": cuda.mem_alloc(48)}
    cuda.memcpy_htod(memory["x"], np.zeros(48, np.uint8))
    assert execution.set_input_shape("x", (2, 3))
    for name, allocation in memory.items():
        assert execution.set_tensor_address(name, int(allocation))
    yield execution, cuda.Stream(), cuda, memory
    del execution
    for allocation in memory.values():
        allocation.free()


def test_results_are_there_after_waiting(ready: Any) -> None:
    execution, stream, cuda, memory = ready
    host = cuda.pagelocked_empty(6, np.float32)
    assert execution.execute_async_v3(stream.handle)
    cuda.memcpy_dtoh_async(host, memory["y"], stream)
    assert not (host == 1).any()
    stream.synchronize()
    np.testing.assert_array_equal(host, np.ones(6, np.float32))
    host.base.free()


def test_shapes_outside_the_profile_are_refused(ready: Any, bench: Bench) -> None:
    execution = ready[0]
    for shape in ((5, 3), (0, 3), (2, 4), (2,)):
        assert execution.set_input_shape("x", shape) is False
    assert execution.set_input_shape("q", (2, 3)) is False
    assert "does not satisfy any optimization profiles. Valid range" in bench.said[0]
    assert tuple(execution.get_tensor_shape("x")) == (2, 3)


def test_every_address_must_be_set(bench: Bench, cuda: Any, tmp_path: Path) -> None:
    execution = bench.engine(models.affine(tmp_path), **AFFINE).create_execution_context()
    stream, memory = cuda.Stream(), cuda.mem_alloc(48)
    assert execution.execute_async_v3(stream.handle) is False
    assert "Neither address or allocator is set for input tensor x" in bench.said[-1]
    assert execution.set_tensor_address("x", int(memory))
    assert execution.execute_async_v3(stream.handle) is False
    assert "for output tensor y" in bench.said[-1]
    assert execution.set_tensor_address("y", int(memory))
    assert execution.execute_async_v3(stream.handle) is False
    assert "Input shapes of ['x'] are not set" in bench.said[-1]
    assert execution.infer_shapes() == ["x"]
    assert execution.set_tensor_address("nothing", int(memory)) is False
    del execution
    memory.free()


def test_addresses_are_aligned(ready: Any) -> None:
    execution, _, _, memory = ready
    assert execution.set_tensor_address("x", int(memory["x"]) + 4) is False
    assert execution.set_tensor_address("x", 0) is False


def test_memory_that_is_too_small_is_noticed(ready: Any) -> None:
    from emulated_gpu import Crash

    execution, stream, cuda, memory = ready
    small = cuda.mem_alloc(8)
    execution.set_tensor_address("y", int(small))
    assert execution.execute_async_v3(stream.handle)
    with pytest.raises(Crash, match="24 bytes at .* only 8 are left"):
        stream.synchronize()
    execution._queued_by = None
    small.free()


def test_one_context_is_not_for_two_threads_at_once(ready: Any) -> None:
    from emulated_gpu import Crash

    execution, stream, _, _ = ready
    assert execution.execute_async_v3(stream.handle)

    def elsewhere(call: Callable[[], Any]) -> None:
        stream_context = ready[2].Device(0).retain_primary_context()
        execution._device  # noqa: B018  # the same device
        stream_context.push()
        try:
            call()
        finally:
            stream_context.pop()

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(Crash, match="while another's work runs"):
            pool.submit(elsewhere, lambda: execution.execute_async_v3(stream.handle)).result()
        stream.synchronize()
        pool.submit(elsewhere, execution.infer_shapes).result()
        assert execution._in_use.acquire(blocking=False)
        with pytest.raises(Crash, match="by two threads at once"):
            pool.submit(elsewhere, execution.infer_shapes).result()
        execution._in_use.release()


def test_a_context_destroyed_while_it_runs_is_noticed(
    bench: Bench, cuda: Any, tmp_path: Path
) -> None:
    from emulated_gpu import violations

    execution = bench.engine(models.scalar(tmp_path)).create_execution_context()
    stream, memory = cuda.Stream(), cuda.mem_alloc(4)
    for name in "xy":
        execution.set_tensor_address(name, int(memory))
    assert execution.execute_async_v3(stream.handle)
    execution._memory_of_its_own = None
    stream._queue._work.clear()  # what is queued would keep it alive
    del execution
    gc.collect()
    assert violations() == ["an IExecutionContext was destroyed while it ran"]
    memory.free()


def test_an_unknown_stream_is_refused(ready: Any) -> None:
    from emulated_gpu import Crash

    with pytest.raises(Crash, match="stream 0x0 does not exist"):
        ready[0].execute_async_v3(0)


def test_a_parser_error_dies_with_its_parser(bench: Bench) -> None:
    from emulated_gpu import Crash

    builder = bench.trt.Builder(bench.log)
    network = builder.create_network(1)
    parser = bench.trt.OnnxParser(network, bench.log)
    parser.parse(b"garbage")
    error = parser.get_error(0)
    del parser, network
    gc.collect()
    with pytest.raises(Crash, match="its parser is gone"):
        error.desc()


def test_what_is_live_is_counted(bench: Bench, cuda: Any, tmp_path: Path) -> None:
    from emulated_gpu import live

    before = live()
    engine = bench.engine(models.heavy(tmp_path), x=((1, 1024), (1, 1024), (2, 1024)))
    execution = engine.create_execution_context()
    stream, memory, host = cuda.Stream(), cuda.mem_alloc(7), cuda.pagelocked_empty(3, np.uint8)
    gc.collect()
    more = {kind: count - before.get(kind, 0) for kind, count in live().items()}
    assert more == {
        "device allocations": 3,  # weights, activations, ours
        "device bytes": 4 * 2**20 + 2 * 1024 * 8 + 7,
        "engines": 1,
        "execution contexts": 1,
        "pinned allocations": 1,
        "primary contexts": 0,
        "pushed contexts": 0,
        "runtimes": 1,
        "streams": 1,
    }
    del execution, engine, stream
    memory.free()
    host.base.free()
    gc.collect()
    assert live() == before
