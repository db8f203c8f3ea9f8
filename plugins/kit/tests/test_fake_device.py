"""The fake device: its memory is not the host's, and its streams run late."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from engine.backends import open_backend
from engine.formats import open_source
from engine.options import parsed
from engine.types import CompileOptions, DType
from engine_testing import models
from engine_testing.fake_device import FakeDevice
from engine_testing.null_device import DEVICE, OPTIONS, fake_device


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(DEVICE)


def test_memory_is_nowhere_in_the_process_and_holds_garbage(device: FakeDevice) -> None:
    first = device.allocate(DType.UINT8, (3,))
    second = device.allocate(DType.UINT8, (3,))
    assert first.pointer != second.pointer
    assert min(first.pointer, second.pointer) >= 2**62  # user addresses end at 2**57 at most
    assert device.read(first).tolist() == [0xA5] * 3


def test_memory_is_freed_with_its_owner_and_then_refused(device: FakeDevice) -> None:
    buffer = device.allocate(DType.FLOAT32, (4, 4))
    assert device.held_bytes == 64
    pointer = buffer.pointer
    del buffer
    gc.collect()
    assert device.held_bytes == 0
    other = device.allocate(DType.FLOAT32, (4, 4))

    with pytest.raises(RuntimeError, match=f"64 bytes at {pointer:#x} are not allocated"):
        device.read(replace(other, pointer=pointer))
    with pytest.raises(RuntimeError, match="68 bytes"):
        device.read(replace(other, shape=(17,)))


@pytest.mark.parametrize(("dtype", "nbytes"), [("int4", 3), ("uint2", 2), ("float6_e2m3fn", 4)])
def test_elements_below_a_byte_are_packed(device: FakeDevice, dtype: str, nbytes: int) -> None:
    pytest.importorskip("ml_dtypes")
    values = np.array([1, 0, 1, 1, 0], np.float32).astype(DType(dtype).numpy)
    buffer = device.allocate(DType(dtype), (5,))
    assert device.held_bytes == nbytes
    device.write(buffer, values)
    assert device.read(buffer).astype(np.float32).tolist() == [1, 0, 1, 1, 0]


def test_queued_work_runs_when_somebody_waits_and_no_earlier(device: FakeDevice) -> None:
    ran: list[str] = []
    first, second = device.open_stream(), device.open_stream()
    assert first == 0  # a stream like any other
    device.queue(first, lambda: ran.append("a"))
    device.order(first, second)
    device.queue(first, lambda: ran.append("later than the order"))
    device.queue(second, lambda: ran.append("b"))
    assert ran == []
    device.order(second, None)
    assert ran == ["a", "b"]
    device.close_stream(first)
    assert ran == ["a", "b", "later than the order"]
    device.order(first, None)  # closed: there is nothing to wait for


def test_predict_keeps_no_memory_of_the_device(null_backend: str, tmp_path) -> None:
    backend = open_backend(null_backend)
    before = fake_device().held_bytes
    options = CompileOptions(device=DEVICE, resident=frozenset({"y"}))
    source = open_source(str(models.affine(tmp_path)))
    executable = backend.compile(backend.load(source, options), options)
    context = executable.open_context()
    for batch in (1, 2, 3):
        backend.predict(context, [np.ones((batch, 3), np.float32)], None, None)
    context.close()
    executable.close()
    gc.collect()
    assert fake_device().held_bytes == before


@pytest.mark.parametrize("text", ["-1", "many", "1.5"])
def test_a_concurrency_that_is_none_is_refused(text: str) -> None:

    assert parsed({"concurrency": "3"}, OPTIONS)["concurrency"] == 3
    with pytest.raises(ValueError, match="'concurrency': expected int from 0, got"):
        parsed({"concurrency": text}, OPTIONS)
