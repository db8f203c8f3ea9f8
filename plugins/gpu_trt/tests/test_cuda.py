"""The thin layer over the CUDA driver."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.errors import BackendUnavailable
from engine_gpu_trt.cuda import open_gpu


def test_a_device_is_opened_once(emulated: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: open_gpu(0), range(32)))) == 1
    assert emulated.MACHINE.devices[0].retained == 1


@pytest.mark.parametrize("id", [-1, 1, 99])
def test_a_device_that_is_not_there_is_refused(id: int) -> None:
    with pytest.raises(BackendUnavailable, match=f"device 'gpu:{id}' is not there"):
        open_gpu(id)


def test_the_context_is_current_inside_and_only_there(emulated: Any) -> None:
    gpu = open_gpu(0)
    with gpu:
        with gpu:
            assert emulated.MACHINE.current is emulated.MACHINE.devices[0]
        assert emulated.MACHINE.current is emulated.MACHINE.devices[0]
    assert emulated.MACHINE.current is None
    with pytest.raises(KeyError), gpu:
        raise KeyError
    assert emulated.MACHINE.current is None


def test_two_devices_may_be_current_one_inside_the_other(second_device: int) -> None:
    first, second = open_gpu(0), open_gpu(second_device)
    with first, second:
        memory = second.allocate(8)
        with first:
            assert first.memory()[0] == first.memory()[1]
        assert second.memory()[0] == second.memory()[1] - 8
        memory.close()


def test_memory_is_freed_by_close_whoever_still_looks_at_it(emulated: Any) -> None:
    gpu = open_gpu(0)
    before = emulated.live()
    with gpu:
        device, pinned, stream = gpu.allocate(16), gpu.pin(16), gpu.stream()
        held = pinned.array[:4]
        assert device.pointer % 256 == 0
        for thing in (device, pinned, stream):
            thing.close()
            thing.close()
    assert emulated.live() == before
    assert (held == 0xDD).all()
    assert device.pointer == 0
    assert pinned.array.size == 0


def test_memory_of_no_size_is_memory() -> None:
    with open_gpu(0) as gpu:
        device, pinned = gpu.allocate(0), gpu.pin(0)
        assert device.pointer
        device.close()
        pinned.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("mem_alloc", "gpu:0: out of memory: wanted 8 bytes of device memory"),
        ("pagelocked_empty", "gpu:0: out of memory: wanted 8 bytes of pinned host memory"),
        ("Stream", "gpu:0: out of memory: wanted a stream"),
    ],
)
def test_what_cannot_be_had_is_named(call: str, message: str, emulated: Any) -> None:
    with open_gpu(0) as gpu, emulated.fail(call):
        take = {
            "mem_alloc": lambda: gpu.allocate(8),
            "pagelocked_empty": lambda: gpu.pin(8),
            "Stream": gpu.stream,
        }[call]
        with pytest.raises(BackendUnavailable, match=message):
            take()
