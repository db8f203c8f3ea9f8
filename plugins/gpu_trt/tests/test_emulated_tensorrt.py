"""The emulated TensorRT refuses what the real one refuses or does not survive."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_testing import models


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
        builder, network, _parser = self.network(path)
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
def bench(context: Any, trt: Any) -> Bench:
    return Bench(trt)


AFFINE = {"x": ((1, 3), (2, 3), (4, 3))}


def test_failures_are_none_or_false_and_a_line_in_the_log(bench: Bench) -> None:
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


def test_a_parser_does_not_keep_its_network(bench: Bench, emulated: Any) -> None:
    parser = bench.trt.OnnxParser(bench.trt.Builder(bench.log).create_network(1), bench.log)
    gc.collect()
    with pytest.raises(emulated.Crash, match="the parser's network is gone"):
        parser.parse(b"")


def test_a_subclass_must_call_the_bases_init(bench: Bench) -> None:
    class Silent(bench.trt.ILogger):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            pass

    with pytest.raises(TypeError, match=r"ILogger.__init__\(\) must be called when overriding"):
        Silent()


def test_every_call_of_tensorrt_needs_a_current_context(
    bench: Bench, context: Any, emulated: Any, tmp_path: Path
) -> None:
    things = bench.network(models.affine(tmp_path))
    context.pop()
    for thing in things:
        for name in [name for name in vars(type(thing)) if not name.startswith("_")]:
            with pytest.raises(emulated.Crash, match="without a current CUDA context"):
                getattr(thing, name)()  # a property fails before it is called
    context.push()


def test_what_is_destroyed_without_a_context_is_noticed(
    bench: Bench, context: Any, emulated: Any
) -> None:
    runtime = [bench.trt.Runtime(bench.log)]
    context.pop()
    runtime.clear()
    context.push()
    assert emulated.violations() == ["Runtime was destroyed while its CUDA context was not current"]


def test_dynamic_inputs_need_a_profile_that_fits(bench: Bench, tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    builder, network, _parser = bench.network(path)

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
    builder, _network, _parser = bench.network(models.affine(tmp_path))
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (4, 3), (2, 3), (8, 3))
    assert not profile
    assert builder.create_builder_config().add_optimization_profile(profile) == -1
    assert "MIN<=OPT<=MAX" in bench.said[0]


class Ready:
    """An execution context of y = 2x + 1 for 2 rows, with everything set.

    Not a fixture: it must go while its CUDA context is current, which is at a test's end.
    """

    def __init__(self, bench: Bench, cuda: Any, folder: Path) -> None:
        self.execution = bench.engine(models.affine(folder), **AFFINE).create_execution_context()
        self.stream = cuda.Stream()
        self.memory = {"x": cuda.mem_alloc(48), "y": cuda.mem_alloc(48)}
        cuda.memcpy_htod(self.memory["x"], np.zeros(48, np.uint8))
        assert self.execution.set_input_shape("x", (2, 3))
        for name, allocation in self.memory.items():
            assert self.execution.set_tensor_address(name, int(allocation))


def test_results_are_there_after_waiting(bench: Bench, cuda: Any, tmp_path: Path) -> None:
    ready = Ready(bench, cuda, tmp_path)
    host = cuda.pagelocked_empty(6, np.float32)
    assert ready.execution.execute_async_v3(ready.stream.handle)
    cuda.memcpy_dtoh_async(host, ready.memory["y"], ready.stream)
    assert not (host == 1).any()
    ready.stream.synchronize()
    np.testing.assert_array_equal(host, np.ones(6, np.float32))


def test_shapes_outside_the_profile_are_refused(bench: Bench, cuda: Any, tmp_path: Path) -> None:
    execution = Ready(bench, cuda, tmp_path).execution
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


def test_addresses_are_aligned(bench: Bench, cuda: Any, tmp_path: Path) -> None:
    ready = Ready(bench, cuda, tmp_path)
    assert ready.execution.set_tensor_address("x", int(ready.memory["x"]) + 4) is False
    assert ready.execution.set_tensor_address("x", 0) is False


def test_memory_that_is_too_small_is_noticed(
    bench: Bench, cuda: Any, tmp_path: Path, emulated: Any
) -> None:
    ready, small = Ready(bench, cuda, tmp_path), cuda.mem_alloc(8)
    ready.execution.set_tensor_address("y", int(small))
    assert ready.execution.execute_async_v3(ready.stream.handle)
    with pytest.raises(emulated.Crash, match=r"24 bytes at .* only 8 are left"):
        ready.stream.synchronize()


def test_one_context_is_not_for_two_threads_at_once(
    bench: Bench, cuda: Any, context: Any, tmp_path: Path, emulated: Any
) -> None:
    ready = Ready(bench, cuda, tmp_path)
    execution, stream = ready.execution, ready.stream

    def elsewhere(call: Callable[[], Any]) -> None:
        context.push()
        try:
            call()
        finally:
            context.pop()

    assert execution.execute_async_v3(stream.handle)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(emulated.Crash, match="while another's work runs"):
            pool.submit(elsewhere, lambda: execution.execute_async_v3(stream.handle)).result()
        stream.synchronize()
        pool.submit(elsewhere, execution.infer_shapes).result()
        with execution._alone(), pytest.raises(emulated.Crash, match="by two threads at once"):
            pool.submit(elsewhere, execution.infer_shapes).result()


def test_a_context_destroyed_while_it_runs_is_noticed(
    bench: Bench, cuda: Any, tmp_path: Path, emulated: Any
) -> None:
    ready = Ready(bench, cuda, tmp_path)
    assert ready.execution.execute_async_v3(ready.stream.handle)
    del ready.execution
    gc.collect()
    assert emulated.violations() == ["an IExecutionContext was destroyed while it ran"]


def test_a_context_without_memory_of_its_own_must_be_given_enough(
    bench: Bench, cuda: Any, tmp_path: Path
) -> None:
    engine = bench.engine(models.affine(tmp_path), **AFFINE)
    strategy = bench.trt.ExecutionContextAllocationStrategy.USER_MANAGED
    execution = engine.create_execution_context(strategy)
    stream, memory = cuda.Stream(), cuda.mem_alloc(4096)
    needed = engine.device_memory_size_v2
    execution.set_input_shape("x", (2, 3))
    for name, allocation in {"x": memory, "y": memory}.items():
        execution.set_tensor_address(name, int(allocation))
    assert execution.execute_async_v3(stream.handle) is False
    assert "Device memory is not set" in bench.said[-1]
    execution.set_device_memory(int(memory), needed - 1)
    execution.set_device_memory(int(memory) + 8, needed)
    assert len(bench.said) == 3
    assert execution.execute_async_v3(stream.handle) is False
    execution.set_device_memory(int(memory) + 1024, needed)
    assert execution.execute_async_v3(stream.handle) is True
    stream.synchronize()
    memory.free()


def test_scratch_memory_on_two_streams_at_once_is_noticed(
    bench: Bench, cuda: Any, tmp_path: Path, emulated: Any
) -> None:
    engine = bench.engine(models.affine(tmp_path), **AFFINE)
    strategy = bench.trt.ExecutionContextAllocationStrategy.USER_MANAGED
    one, other = (engine.create_execution_context(strategy) for _ in range(2))
    memory, streams = cuda.mem_alloc(4096), [cuda.Stream(), cuda.Stream()]
    for execution in (one, other):
        execution.set_input_shape("x", (2, 3))
        execution.set_tensor_address("x", int(memory))
        execution.set_tensor_address("y", int(memory) + 1024)
        execution.set_device_memory(int(memory) + 2048, engine.device_memory_size_v2)
    assert one.execute_async_v3(streams[0].handle)
    with pytest.raises(emulated.Crash, match="is used by two streams at once"):
        other.execute_async_v3(streams[1].handle)
    assert other.execute_async_v3(streams[0].handle), "one stream is in order"
    streams[0].synchronize()
    assert other.execute_async_v3(streams[1].handle)
    streams[1].synchronize()
    memory.free()


def test_a_timing_cache_is_of_its_version_and_sound(bench: Bench, tmp_path: Path) -> None:
    builder, network, _parser = bench.network(models.constant(tmp_path))
    config = builder.create_builder_config()
    assert config.create_timing_cache(b"garbage") is None
    cache = config.create_timing_cache(b"")
    assert config.set_timing_cache(cache, False)
    assert builder.build_serialized_network(network, config) is not None
    data = bytes(cache.serialize())
    again = config.create_timing_cache(data)
    assert bytes(again.serialize()) == data
    foreign = config.create_timing_cache(data.replace(again._version.encode(), b"9.9"))
    assert config.set_timing_cache(foreign, False) is False
    assert cache.combine(foreign, False) is False
    assert cache.combine(again, False) is True


def test_an_unknown_stream_is_refused(
    bench: Bench, cuda: Any, tmp_path: Path, emulated: Any
) -> None:
    ready = Ready(bench, cuda, tmp_path)
    with pytest.raises(emulated.Crash, match="stream 0x0 does not exist"):
        ready.execution.execute_async_v3(0)


def test_a_parser_error_dies_with_its_parser(bench: Bench, emulated: Any) -> None:
    builder = bench.trt.Builder(bench.log)
    network = builder.create_network(1)
    parser = bench.trt.OnnxParser(network, bench.log)
    parser.parse(b"garbage")
    error = parser.get_error(0)
    del parser, network
    gc.collect()
    with pytest.raises(emulated.Crash, match="its parser is gone"):
        error.desc()


def test_what_is_live_is_counted(bench: Bench, cuda: Any, tmp_path: Path, emulated: Any) -> None:
    before = emulated.live()
    engine = bench.engine(models.heavy(tmp_path), x=((1, 1024), (1, 1024), (2, 1024)))
    execution = engine.create_execution_context()
    stream, memory, host = cuda.Stream(), cuda.mem_alloc(7), cuda.pagelocked_empty(3, np.uint8)
    gc.collect()
    more = {kind: count - before.get(kind, 0) for kind, count in emulated.live().items()}
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
    assert emulated.live() == before


def test_without_a_driver_tensorrt_is_a_segmentation_fault(emulate: Callable[..., None]) -> None:
    emulate(DRIVER="none")
    trt, emulated = importlib.import_module("tensorrt"), importlib.import_module("emulated_gpu")
    runtime = trt.Runtime(trt.Logger())
    with pytest.raises(emulated.Crash, match="segmentation fault: Runtime wraps a null pointer"):
        runtime.deserialize_cuda_engine(b"x")
