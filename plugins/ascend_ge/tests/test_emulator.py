"""The emulated machine enforces the vendor's contract: what is wrong on an NPU is wrong here."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine_testing import models

H2D, D2H = 1, 2


@pytest.fixture
def acl(machine: Any) -> Any:
    """The emulated module, initialised, with a context on device 0. Faults may happen."""
    import acl

    assert acl.init() == 0
    assert acl.rt.create_context(0)[1] == 0
    yield acl
    # These tests break the rules on purpose; the machine forgets it.
    machine.faults.clear()
    for stream in [h for h, o in machine.objects.items() if type(o).__name__ == "Stream"]:
        machine.objects[stream].wait(None)
        machine.objects[stream].close()
    machine.models.clear()
    machine.objects.clear()
    for allocation in machine.memory.live():
        allocation.pins = 0
        machine.memory.free(allocation.base)


@pytest.fixture
def fault(machine: Any) -> Any:
    """with fault("text"): expects a fault that says it."""
    from emulated_ascend import EmulatedFault

    return lambda match: pytest.raises(EmulatedFault, match=match)


@pytest.fixture
def loaded(acl: Any, make_om: Any, path: Path) -> SimpleNamespace:
    """y = 2x + 1, x float32[2, 3], loaded, with datasets and a stream."""
    return load(acl, make_om(path, input_shape="x:2,3"))


def load(acl: Any, path: Path, sizes: tuple[int, int] = (24, 24)) -> SimpleNamespace:
    model, code = acl.mdl.load_from_file(str(path))
    assert code == 0
    stream, code = acl.rt.create_stream()
    assert code == 0
    desc = acl.mdl.create_desc()
    assert acl.mdl.get_desc(desc, model) == 0
    pointers, datasets = [], []
    counts = (acl.mdl.get_num_inputs(desc), 1)
    for size, count in zip(sizes, counts, strict=True):
        dataset = acl.mdl.create_dataset()
        for number in range(count):
            pointer, code = acl.rt.malloc(size if number == 0 else 8, 0)
            assert code == 0
            pointers.append(pointer)
            buffer = acl.create_data_buffer(pointer, size if number == 0 else 8)
            assert acl.mdl.add_dataset_buffer(dataset, buffer) == (dataset, 0)
        datasets.append(dataset)
    return SimpleNamespace(
        model=model, stream=stream, desc=desc, x=pointers[0], y=pointers[-1], datasets=datasets
    )


def send(acl: Any, pointer: int, array: np.ndarray[Any, Any]) -> int:
    code: int = acl.rt.memcpy(pointer, array.nbytes, array.ctypes.data, array.nbytes, H2D)
    return code


def fetch(acl: Any, pointer: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    array = np.zeros(shape, np.float32)
    assert acl.rt.memcpy(array.ctypes.data, array.nbytes, pointer, array.nbytes, D2H) == 0
    return array


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def queue(acl: Any, run: SimpleNamespace, stream: int = 0) -> int:
    code: int = acl.mdl.execute_async(run.model, *run.datasets, stream or run.stream)
    return code


def finish(acl: Any, run: SimpleNamespace, expected: np.ndarray[Any, Any]) -> None:
    """Wait for what is queued and compare what it gave."""
    assert acl.rt.synchronize_stream(run.stream) == 0
    np.testing.assert_array_equal(fetch(acl, run.y, (2, 3)), expected)


def test_nothing_works_before_init(machine: Any) -> None:
    import acl

    assert acl.rt.set_device(0) == 100001
    assert acl.rt.create_context(0) == (0, 100001)


def test_init_twice_is_a_code_and_after_finalize_a_fault(machine: Any, fault: Any) -> None:
    import acl

    assert acl.init() == 0
    assert acl.init() == 100002
    assert acl.finalize() == 0
    assert acl.finalize() == 100037
    with fault("init after acl.finalize"):
        acl.init()
    machine.faults.clear()


def test_finalize_with_live_handles_is_a_fault(acl: Any, fault: Any) -> None:
    with fault("finalize while things are alive: .*Context"):
        acl.finalize()


def test_a_device_outside_the_count_is_refused(acl: Any) -> None:
    assert acl.rt.set_device(2) == 107001
    assert acl.rt.create_context(-1) == (0, 107001)


def test_devices_are_counted_in_and_out(acl: Any, fault: Any) -> None:
    assert acl.rt.set_device(1) == 0
    assert acl.rt.set_device(1) == 0
    assert acl.rt.get_device() == (1, 0)
    acl.rt.malloc(8, 0)
    assert acl.rt.reset_device(1) == 0
    with fault("device 1 reset with 0 contexts and 8 bytes"):
        acl.rt.reset_device(1)
    assert acl.rt.reset_device(0) == 107001, "it was never set"


def test_a_context_is_the_current_one_of_its_thread_only(acl: Any) -> None:
    codes: list[int] = []

    def work() -> None:
        codes.append(acl.rt.malloc(8, 0)[1])
        codes.append(acl.rt.create_stream()[1])
        codes.append(acl.rt.get_context()[1])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [107002] * 3
    assert acl.rt.malloc(8, 0)[1] == 0


def test_a_stream_belongs_to_its_context(acl: Any) -> None:
    stream, _ = acl.rt.create_stream()
    acl.rt.create_context(0)  # now current
    assert acl.rt.synchronize_stream(stream) == 107003
    assert acl.rt.destroy_stream(stream) == 107003


def test_a_model_belongs_to_its_context(acl: Any, loaded: SimpleNamespace) -> None:
    acl.rt.create_context(0)
    other, _ = acl.rt.create_stream()
    assert queue(acl, loaded, other) == 107004


def test_a_context_may_not_go_before_its_streams(acl: Any, fault: Any) -> None:
    context, _ = acl.rt.get_context()
    acl.rt.create_stream()
    with fault("context destroyed with 1 streams"):
        acl.rt.destroy_context(context)


def test_a_destroyed_context_is_nobodys(acl: Any, fault: Any) -> None:
    context, _ = acl.rt.create_context(0)
    assert acl.rt.destroy_context(context) == 0
    assert acl.rt.malloc(8, 0) == (0, 107002)
    with fault("a Context that was destroyed"):
        acl.rt.set_context(context)


def test_a_handle_of_another_kind_is_a_fault(acl: Any, fault: Any) -> None:
    stream, _ = acl.rt.create_stream()
    with fault("expected a handle of a Dataset, got .*, a handle of a Stream"):
        acl.mdl.destroy_dataset(stream)
    with fault("no handle at all"):
        acl.destroy_data_buffer(12345)


def test_memory_comes_as_garbage_and_keeps_what_is_written(acl: Any) -> None:
    pointer, _ = acl.rt.malloc(24, 0)
    assert not np.array_equal(fetch(acl, pointer, (2, 3)), np.zeros((2, 3)))
    assert send(acl, pointer, X) == 0
    np.testing.assert_array_equal(fetch(acl, pointer, (2, 3)), X)


def test_a_copy_past_the_stated_end_is_refused_and_past_the_real_one_a_fault(
    acl: Any, fault: Any
) -> None:
    pointer, _ = acl.rt.malloc(16, 0)
    assert acl.rt.memcpy(pointer, 16, X.ctypes.data, 24, H2D) == 107000
    with fault("24 bytes at .* run over the end of an allocation of 16"):
        acl.rt.memcpy(pointer, 24, X.ctypes.data, 24, H2D)


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_a_copy_of_the_wrong_kind_is_a_fault(acl: Any, fault: Any, kind: int) -> None:
    pointer, _ = acl.rt.malloc(24, 0)
    with fault(f"memcpy of kind {kind}"):
        acl.rt.memcpy(pointer, 24, X.ctypes.data, 24, kind)


def test_memory_after_free_is_a_fault(acl: Any, fault: Any) -> None:
    pointer, _ = acl.rt.malloc(24, 0)
    assert acl.rt.free(pointer) == 0
    with fault("is not allocated"):
        send(acl, pointer, X)
    with fault("not allocated now"):
        acl.rt.free(pointer)


def test_an_empty_or_too_large_allocation_is_refused(acl: Any, machine: Any) -> None:
    assert acl.rt.malloc(0, 0) == (0, 100000)
    assert acl.rt.malloc(machine.memory_bytes + 1, 0) == (0, 207018)
    assert "failed to allocate" in acl.get_recent_err_msg()
    assert acl.get_recent_err_msg() is None, "told once"


def test_a_run_shows_its_result_only_after_synchronizing(acl: Any, loaded: SimpleNamespace) -> None:
    send(acl, loaded.x, X)
    assert queue(acl, loaded) == 0
    assert not np.array_equal(fetch(acl, loaded.y, (2, 3)), 2 * X + 1)
    finish(acl, loaded, 2 * X + 1)


def test_synchronizing_with_a_time_limit_gives_up_and_can_be_repeated(
    acl: Any, machine: Any, loaded: SimpleNamespace
) -> None:
    send(acl, loaded.x, X)
    machine.slow(0.3)
    queue(acl, loaded)
    assert acl.rt.synchronize_stream_with_timeout(loaded.stream, 20) == 507046
    assert acl.rt.synchronize_stream_with_timeout(loaded.stream, -1) == 0
    np.testing.assert_array_equal(fetch(acl, loaded.y, (2, 3)), 2 * X + 1)


def test_an_input_may_not_change_while_a_run_reads_it(
    acl: Any, loaded: SimpleNamespace, fault: Any
) -> None:
    send(acl, loaded.x, X)
    queue(acl, loaded)
    send(acl, loaded.x, X + 1)
    with fault("an input changed"):
        acl.rt.synchronize_stream(loaded.stream)


def test_one_model_may_not_run_on_two_streams(
    acl: Any, loaded: SimpleNamespace, fault: Any
) -> None:
    send(acl, loaded.x, X)
    other, _ = acl.rt.create_stream()
    assert queue(acl, loaded) == 0
    with fault("one model runs on stream"):
        queue(acl, loaded, other)


def test_what_a_run_uses_may_not_go(acl: Any, loaded: SimpleNamespace, fault: Any) -> None:
    send(acl, loaded.x, X)
    queue(acl, loaded)
    with fault("a queued run still uses"):
        acl.rt.free(loaded.x)
    with fault("unloaded while it runs"):
        acl.mdl.unload(loaded.model)
    with fault("work that nobody waited for"):
        acl.rt.destroy_stream(loaded.stream)


def test_weights_may_not_go_before_their_model(
    acl: Any, make_om: Any, tmp_path: Path, fault: Any
) -> None:
    data = make_om(models.heavy(tmp_path), input_shape="x:1,1024").read_bytes()
    pointer = acl.util.bytes_to_ptr(data)
    _, weights, code = acl.mdl.query_size_from_mem(pointer, len(data))
    assert (weights, code) == (4 * 1024 * 1024, 0)
    shared, _ = acl.rt.malloc(weights, 0)
    arguments = (pointer, len(data), 0, 0, shared)
    assert acl.mdl.load_from_mem_with_mem(*arguments, weights - 1) == (0, 145000)
    one, _ = acl.mdl.load_from_mem_with_mem(*arguments, weights)
    two, _ = acl.mdl.load_from_mem_with_mem(*arguments, weights)
    assert one != two
    for model in (one, two):
        with fault("a model or a queued run still uses"):
            acl.rt.free(shared)
        assert acl.mdl.unload(model) == 0
    assert acl.rt.free(shared) == 0


def test_weights_are_read_from_device_memory_at_every_run(
    acl: Any, make_om: Any, path: Path
) -> None:
    om = make_om(path, input_shape="x:2,3")
    _, size, _ = acl.mdl.query_size(str(om))
    weights, _ = acl.rt.malloc(size, 0)
    model, _ = acl.mdl.load_from_file_with_mem(str(om), 0, 0, weights, size)
    run = load(acl, om)
    send(acl, run.x, X)
    zeros = np.zeros(size, np.uint8)
    assert send(acl, weights, zeros) == 0  # 2x + 1 becomes 0x + 0
    assert acl.mdl.execute_async(model, *run.datasets, run.stream) == 0
    assert acl.rt.synchronize_stream(run.stream) == 0
    np.testing.assert_array_equal(fetch(acl, run.y, (2, 3)), np.zeros((2, 3), np.float32))


def test_a_buffer_that_is_too_small_is_refused(acl: Any, make_om: Any, path: Path) -> None:
    run = load(acl, make_om(path, input_shape="x:40,3"), (240, 480))
    assert queue(acl, run) == 145000
    assert "240 bytes for input x, which needs 480" in acl.get_recent_err_msg()


def test_gears_must_be_chosen_and_must_exist(acl: Any, make_om: Any, path: Path) -> None:
    run = load(acl, make_om(path, input_shape="x:-1,3", dynamic_dims="1;2"))
    index, code = acl.mdl.get_input_index_by_name(run.desc, "ascend_mbatch_shape_data")
    assert (index, code) == (1, 0)
    assert acl.mdl.get_input_dynamic_gear_count(run.desc, -1) == (2, 0)
    send(acl, run.x, X)
    inputs, _ = run.datasets
    assert queue(acl, run) == 145000

    def choose(*dims: int) -> int:
        wish = {"name": "", "dimCount": len(dims), "dims": list(dims)}
        code: int = acl.mdl.set_input_dynamic_dims(run.model, inputs, index, wish)
        return code

    assert choose(2) == 145012, "all dims of all inputs"
    assert choose(2, 4) == 145012, "a static dim differs"
    assert choose(3, 3) == 145013, "no such gear"
    assert choose(1, 3) == 0
    assert acl.mdl.get_cur_output_dims(run.desc, 0)[0]["dims"] == [1, 3]
    assert choose(2, 3) == 0
    assert queue(acl, run) == 0
    finish(acl, run, 2 * X + 1)


def test_ranges_must_be_told_the_shape(acl: Any, make_om: Any, path: Path) -> None:
    run = load(acl, make_om(path, input_shape="x:1~2,3"))
    inputs, outputs = run.datasets
    send(acl, run.x, X)
    assert queue(acl, run) == 100000
    for rows, expected in ((3, 100000), (2, 0)):
        desc = acl.create_tensor_desc(0, [rows, 3], 2)
        assert acl.mdl.set_dataset_tensor_desc(inputs, desc, 0) == (inputs, 0)
        assert acl.destroy_tensor_desc(desc) is None
        assert queue(acl, run) == expected
    assert acl.rt.synchronize_stream(run.stream) == 0
    desc = acl.mdl.get_dataset_tensor_desc(outputs, 0)
    count = acl.get_tensor_desc_num_dims(desc)
    assert [acl.get_tensor_desc_dim_v2(desc, axis) for axis in range(count)] == [(2, 0), (3, 0)]


def test_a_result_of_unknown_size_is_allocated_by_execute_alone(
    acl: Any, make_om: Any, tmp_path: Path
) -> None:
    path = make_om(models.nonzero(tmp_path), input_shape="x:6")
    model, _ = acl.mdl.load_from_file(str(path))
    pointer, _ = acl.rt.malloc(24, 0)
    send(acl, pointer, np.array([0, 1, 1, 0, 0, 1], np.float32))
    inputs, outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
    acl.mdl.add_dataset_buffer(inputs, acl.create_data_buffer(pointer, 24))
    empty = acl.create_data_buffer(0, 0)
    acl.mdl.add_dataset_buffer(outputs, empty)
    stream, _ = acl.rt.create_stream()
    assert acl.mdl.execute_async(model, inputs, outputs, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    assert acl.get_data_buffer_addr(empty) == 0, "the asynchronous call hands nothing over"
    assert acl.mdl.execute(model, inputs, outputs) == 0
    result = np.zeros((1, 3), np.int64)
    address = acl.get_data_buffer_addr(empty)
    assert acl.rt.memcpy(result.ctypes.data, 24, address, 24, D2H) == 0
    np.testing.assert_array_equal(result, [[1, 2, 5]])
    assert acl.rt.free(address) == 0, "it is the caller's to free"


def test_planned_failures_come_in_every_convention(acl: Any, machine: Any) -> None:
    machine.fail("rt.malloc", 207001, after=1, message="EL0004: planned")
    assert acl.rt.malloc(8, 0)[1] == 0
    assert acl.rt.malloc(8, 0) == (0, 207001)
    assert acl.get_recent_err_msg() == "EL0004: planned"
    assert acl.rt.malloc(8, 0)[1] == 0
    machine.fail("rt.free", 107000)
    assert acl.rt.free(1) == 107000
    machine.fail("mdl.create_dataset", 1)
    assert acl.mdl.create_dataset() == 0
    machine.fail("mdl.query_size", 500002)
    assert acl.mdl.query_size("x.om") == (0, 0, 500002)


def test_what_is_alive_is_counted_by_kind(acl: Any, machine: Any) -> None:
    pointer, _ = acl.rt.malloc(8, 0)
    buffer = acl.create_data_buffer(pointer, 8)
    assert machine.live() == {"Context": 1, "Memory": 1, "DataBuffer": 1}
    acl.destroy_data_buffer(buffer)
    acl.rt.free(pointer)
    assert machine.live() == {"Context": 1}
