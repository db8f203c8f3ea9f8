"""The emulated CUDA driver refuses what the real one, or pycuda, does not survive.

Without these and those of `test_emulated_tensorrt.py` the other tests would prove nothing: a
permissive emulator passes anything.
"""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest


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


def test_a_thread_that_ends_with_a_context_is_noticed(cuda: Any, emulated: Any) -> None:
    context = cuda.Device(0).retain_primary_context()
    thread = threading.Thread(target=context.push, name="careless")
    thread.start()
    thread.join()
    gc.collect()
    assert emulated.violations() == ["thread 'careless' ended with a CUDA context on its stack"]
    context.detach()


def test_device_memory_ends_where_it_ends(cuda: Any, context: Any, emulated: Any) -> None:
    memory = cuda.mem_alloc(100)
    cuda.memcpy_htod(memory, np.zeros(100, np.uint8))
    for address, size in ((int(memory), 101), (int(memory) + 1, 100), (int(memory) - 1, 1), (0, 1)):
        with pytest.raises(emulated.Crash):
            cuda.memcpy_htod(address, np.zeros(size, np.uint8))
    memory.free()


def test_host_addresses_are_no_device_addresses(cuda: Any, context: Any, emulated: Any) -> None:
    host = np.zeros(8, np.uint8)
    with pytest.raises(emulated.Crash, match="nothing was ever there"):
        cuda.memcpy_dtoh(host, host.ctypes.data)


def test_freed_memory_stays_freed(cuda: Any, context: Any, emulated: Any) -> None:
    memory = cuda.mem_alloc(64)
    address = int(memory)
    memory.free()
    other = cuda.mem_alloc(64)
    assert int(other) != address
    with pytest.raises(emulated.Crash, match="it was freed"):
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


def test_memory_freed_under_a_queued_copy_is_noticed(
    cuda: Any, context: Any, emulated: Any
) -> None:
    stream, memory, host = cuda.Stream(), cuda.mem_alloc(4), cuda.pagelocked_empty(4, np.uint8)
    cuda.memcpy_htod_async(memory, host, stream)
    memory.free()
    with pytest.raises(emulated.Crash, match="it was freed"):
        stream.synchronize()
    host.base.free()


def test_asynchronous_copies_need_pinned_memory(cuda: Any, context: Any, emulated: Any) -> None:
    stream, memory, host = cuda.Stream(), cuda.mem_alloc(4), cuda.pagelocked_empty(4, np.uint8)
    with pytest.raises(emulated.Crash, match="not page-locked"):
        cuda.memcpy_htod_async(memory, np.zeros(4, np.uint8), stream)
    host.base.free()
    with pytest.raises(emulated.Crash, match="not page-locked"):
        cuda.memcpy_htod_async(memory, host, stream)
    memory.free()


def test_the_default_stream_is_refused(cuda: Any, context: Any, emulated: Any) -> None:
    memory, host = cuda.mem_alloc(4), cuda.pagelocked_empty(4, np.uint8)
    with pytest.raises(emulated.Crash, match="default stream"):
        cuda.memcpy_htod_async(memory, host)
    memory.free()
    host.base.free()


def test_an_event_orders_one_stream_after_another(cuda: Any, context: Any) -> None:
    done: list[str] = []
    first, second, event = cuda.Stream(), cuda.Stream(), cuda.Event()
    first._queue.put(lambda: done.append("before"))
    event.record(first)
    first._queue.put(lambda: done.append("after"))
    second.wait_for_event(event)
    second._queue.put(lambda: done.append("second"))
    assert not event.query()
    second.synchronize()
    assert done == ["before", "second"]
    assert event.query()
    assert not first.is_done()
    first.synchronize()
    assert done == ["before", "second", "after"]


def test_streams_may_wait_for_each_other_in_turn(cuda: Any, context: Any) -> None:
    done: list[int] = []
    streams = [cuda.Stream(), cuda.Stream()]
    events = [cuda.Event(), cuda.Event()]
    for number in range(6):
        this, other = number % 2, 1 - number % 2
        streams[this].wait_for_event(events[other])
        streams[this]._queue.put(lambda number=number: done.append(number))
        events[this].record(streams[this])
    with ThreadPoolExecutor(2) as pool:

        def wait(stream: Any) -> None:
            context.push()
            try:
                stream.synchronize()
            finally:
                context.pop()

        list(pool.map(wait, streams))
    assert done == list(range(6))


def test_a_stream_is_done_when_only_satisfied_waits_are_left(cuda: Any, context: Any) -> None:
    first, second, event = cuda.Stream(), cuda.Stream(), cuda.Event()
    first._queue.put(lambda: None)
    event.record(first)
    second.wait_for_event(event)
    assert not second.is_done()
    first.synchronize()
    assert second.is_done()


def test_an_event_without_a_stream_is_the_default_streams(
    cuda: Any, context: Any, emulated: Any
) -> None:
    done: list[int] = []
    default = emulated.MACHINE.queue(0)
    assert default is not None
    default.put(lambda: done.append(1))
    event = cuda.Event()
    event.record()
    default.put(lambda: done.append(2))
    assert not event.query()
    default.run(1)
    assert event.query()
    assert done == [1]
    cuda.Context.synchronize()
    assert done == [1, 2]


def test_an_event_belongs_to_its_device(cuda: Any, context: Any, second_device: int) -> None:
    event = cuda.Event()
    other = cuda.Device(second_device).retain_primary_context()
    other.push()
    stream = cuda.Stream()
    with pytest.raises(cuda.LogicError, match="invalid resource handle"):
        event.record(stream)
    del stream
    other.pop()
    other.detach()
    del event  # here, and not with the traceback


def test_copies_on_the_device_and_between_devices_stay_off_the_bus(
    cuda: Any, context: Any, second_device: int, emulated: Any
) -> None:
    other = cuda.Device(second_device).retain_primary_context()
    other.push()
    there = cuda.mem_alloc(4)
    other.pop()
    stream, one, two = cuda.Stream(), cuda.mem_alloc(4), cuda.mem_alloc(4)
    back = np.zeros(4, np.uint8)
    with emulated.counting() as counts:
        cuda.memcpy_htod(one, np.arange(4, dtype=np.uint8))
        cuda.memcpy_dtod_async(two, one, 4, stream)
        cuda.memcpy_peer_async(there, two, 4, other, context, stream)
        cuda.memcpy_peer_async(one, there, 4, context, other, stream)
        stream.synchronize()
        cuda.memcpy_dtoh(back, one)
    assert list(back) == [0, 1, 2, 3]
    assert {way: n for way, n in counts.items() if way != "synchronisations"} == {
        "host to device": 4, "device to device": 4, "between devices": 8, "device to host": 4,
    }  # fmt: skip
    with pytest.raises(emulated.Crash):
        cuda.memcpy_dtod_async(two, there, 4, stream)  # an address of the other device
    with pytest.raises(emulated.Crash, match="only 4 are left"):
        cuda.memcpy_dtod_async(two, one, 5, stream)
    one.free()
    two.free()
    other.push()
    there.free()
    other.pop()
    other.detach()


@pytest.mark.parametrize("kind", ["memory", "pinned", "stream", "event"])
def test_what_is_freed_elsewhere_leaks_with_a_warning(cuda: Any, kind: str, emulated: Any) -> None:
    context = cuda.Device(0).retain_primary_context()
    context.push()
    before = emulated.live()
    owned = [
        {
            "memory": lambda: cuda.mem_alloc(8),
            "pinned": lambda: cuda.pagelocked_empty(8, np.uint8).base,
            "stream": cuda.Stream,
            "event": cuda.Event,
        }[kind]()
    ]
    context.pop()

    def free() -> None:
        with pytest.warns(UserWarning, match="out-of-thread context could not be cleaned up"):
            owned.clear()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(free).result()
    assert len(emulated.violations()) == 1
    assert emulated.live() != before, "it leaked, and the count does not show it"
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
    elif kind == "event":
        MACHINE.live["events"] -= 1
    else:
        MACHINE.streams.popitem()


def test_the_makers_thread_must_push_too(cuda: Any, emulated: Any) -> None:
    context = cuda.Device(0).retain_primary_context()
    context.push()
    memory = cuda.mem_alloc(8)
    context.pop()
    memory.free()
    assert emulated.violations() == [
        "a device_allocation was freed while its context was not current"
    ]
    context.detach()


def test_device_memory_can_run_out(cuda: Any, context: Any) -> None:
    free, total = cuda.mem_get_info()
    assert free <= total
    with pytest.raises(cuda.MemoryError, match="cuMemAlloc failed: out of memory"):
        cuda.mem_alloc(free + 1)
