"""Buffers on a device with strides: results that have them, and who gets them as they are."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_dlpack import Producer, StridedOnDevice, gpu_tensor

import engine
from engine import Tensor
from engine.backends.doors import EXTENSIONS
from engine.errors import InputError
from engine.tensor import device_memory, dlpack, memory
from engine.tensor.values import value_of
from engine.types import Device, DeviceBuffer, DType, MemoryKind
from engine_testing import models, plugins

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SOURCE = """
from dataclasses import replace

from engine.hookspecs import hookimpl
from engine.types import Device, DeviceBuffer
from engine_testing import null_device
from engine_testing.null_device import *

seen = []

@hookimpl
def engine_backend():
    found = null_device.engine_backend()
    return replace(found, name={name!r}, capabilities=found.capabilities {more})

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    seen.append([value.is_packed for value in inputs if isinstance(value, DeviceBuffer)])
    results = null_device.engine_predict(context, inputs, outputs, deadline_s)
    return [strided(result) if is_placed(result, wanted) else result
            for result, wanted in zip(results, outputs or [None] * len(results))]

def is_placed(result, wanted):
    return {gives} and isinstance(result, DeviceBuffer) and not isinstance(wanted, DeviceBuffer)

def strided(result):
    # Every second element of twice as much memory, from the third element on.
    device = null_device.fake_device()
    wide = device.allocate(result.dtype, (2 + 2 * result.nbytes,))
    steps, step = [], 2
    for size in reversed(result.shape):
        steps.insert(0, step)
        step *= size
    placed = replace(wide, shape=result.shape, strides=tuple(steps), offset_bytes=12, owner=wide)
    device.copy(result, placed, None)
    return placed
"""

LOOKS = """
seen = []

def look(model, predict):
    def run(context, inputs, outputs, deadline_s):
        seen.append([value.is_packed for value in inputs])
        results = predict(context, inputs, outputs, deadline_s)
        seen.append([value.is_packed for value in results])
        return results

    return run

look.takes_strides = {takes}
"""


def make(folder: Path, name: str, more: str = "", gives: bool = True) -> Any:
    source = SOURCE.format(name=name, more=more, gives=gives)
    plugins.install(folder, name, f"strided_{name}", source=source)
    return importlib.import_module(f"strided_{name}")


@pytest.fixture
def backend(null_backend: str, plugin_folder: Path) -> Any:
    """A backend whose results on the null device have strides; null itself copies them."""
    return make(plugin_folder, "striding")


def result(model: engine.Model, x: Any = X) -> Tensor:
    [y] = model.predict([x], [Tensor(device="null:0")])
    return y


def test_a_strided_result_is_read_passed_on_and_given_to_other_libraries(
    backend: Any, tmp_path: Path
) -> None:
    with engine.load(models.affine(tmp_path), target="striding") as model:
        y = result(model)
        buffer = value_of(y)
        assert isinstance(buffer, DeviceBuffer)
        assert (buffer.strides, buffer.offset_bytes) == ((6, 2), 12)
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
        [z] = model.predict([y])  # as it is
        np.testing.assert_array_equal(z.get_data_to_numpy(), 4 * X + 3)
        assert backend.seen == [[], [False]]
        imported = dlpack._Imported(y.__dlpack__(max_version=(1, 0)))
        assert dlpack._strides(imported.tensor, (2, 3)) == (6, 2)
        assert (imported.tensor.data, imported.tensor.byte_offset) == (buffer.pointer, 12)
        np.testing.assert_array_equal(np.from_dlpack(y, device="cpu"), 2 * X + 1)
        y.shape = [3, 2]
        np.testing.assert_array_equal(y.get_data_to_numpy(), (2 * X + 1).reshape(3, 2))


def test_a_strided_tensor_for_a_result_is_filled_and_nothing_else(
    backend: Any, tmp_path: Path
) -> None:
    with engine.load(models.affine(tmp_path), target="striding") as model:
        y = result(model)
        before = value_of(y)
        [again] = model.predict([X + 1], [y])
        assert again is y
        assert value_of(y) is before
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 3)


@pytest.mark.parametrize("how", ["another backend", "weights"])
def test_who_does_not_take_strides_gets_a_packed_copy(
    how: str, backend: Any, plugin_folder: Path, tmp_path: Path
) -> None:
    taking = make(plugin_folder, "packing", "- {'strided_buffers', 'update_weights'}", gives=False)
    path = models.affine(tmp_path)
    with engine.load(path, target="striding") as model:
        y = result(model)
    variable = ["two"] if how == "weights" else []
    with engine.load(path, target="packing", variable_weights=variable) as other:
        [z] = other.predict([y])
        np.testing.assert_array_equal(z.get_data_to_numpy(), 4 * X + 3)
        [z] = other.predict([y], [Tensor(device="null:0")])
        np.testing.assert_array_equal(z.get_data_to_numpy(), 4 * X + 3)
    assert all(packed for inputs in taking.seen for packed in inputs)


@pytest.mark.parametrize("takes", [False, True])
def test_an_extension_gets_strides_only_where_it_says_that_it_takes_them(
    takes: bool, backend: Any, plugin_folder: Path, tmp_path: Path
) -> None:
    name = f"looks_{takes}".lower()
    plugins.install(
        plugin_folder, name, f"{name}_all:look", group=EXTENSIONS.group,
        source=LOOKS.format(takes=takes),
    )  # fmt: skip
    path = models.affine(tmp_path)
    with engine.load(path, target="striding") as plain:
        x = result(plain)
    config = {"common_context": {"extensions": name}}
    with engine.load(path, target="striding", config=config) as model:
        y = result(model, x)
        np.testing.assert_array_equal(y.get_data_to_numpy(), 4 * X + 3)
        filled = Tensor(device="null:0")
        filled._value = memory.allocate(Device("null"), DType.FLOAT32, (2, 3))
        model.predict([x], [filled])
        np.testing.assert_array_equal(filled.get_data_to_numpy(), 4 * X + 3)
    seen = importlib.import_module(f"{name}_all").seen
    assert seen == [[not takes], [not takes], [not takes], [True]]


def test_segments_hand_on_packed_values(backend: Any, plugin_folder: Path, tmp_path: Path) -> None:
    taking = make(plugin_folder, "behind_it", "- {'strided_buffers'}", gives=False)
    config = {"striding_context": {"unsupported_ops": "Add"}}
    path = models.affine(tmp_path)
    with engine.load(path, target=["striding", "behind_it"], config=config) as model:
        for number in range(4):
            [y] = model.predict([X + number])
            np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * (X + number) + 1)
    assert len(taking.seen) == 4
    assert all(packed for inputs in taking.seen for packed in inputs)


def test_a_backend_that_copies_no_strides_says_so(
    backend: Any, plugin_folder: Path, tmp_path: Path
) -> None:
    with engine.load(models.affine(tmp_path), target="striding") as model:
        buffer = value_of(result(model))
    make(plugin_folder, "copying", "- {'strided_buffers'}")
    memory = device_memory.Memory(engine.backends.open_backend("copying"), Device("null"))
    with pytest.raises(InputError, match="not C-contiguous, and backend 'copying' copies no such"):
        memory.to_host(buffer)


def test_gpu_memory_with_strides_is_taken_where_its_backend_copies_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dlpack, "takes_strides", lambda device: device == Device("gpu", 0))
    taken = dlpack.take(StridedOnDevice(gpu_tensor()._value, device=(2, 0)))
    assert isinstance(taken, DeviceBuffer)
    assert (taken.pointer, taken.shape, taken.strides) == (4096, (2, 3), (1, 2))
    with pytest.raises(BufferError, match="not C-contiguous"):
        dlpack.take(StridedOnDevice(gpu_tensor()._value, device=(2, 1)))
    tensor = gpu_tensor()
    tensor._value = replace(tensor._value, device=Device("gpu", 0), strides=(1, 2))
    assert tensor.__cuda_array_interface__["strides"] == (4, 8)

    class Interface:
        __cuda_array_interface__ = tensor.__cuda_array_interface__

    again = dlpack.take_cuda_interface(Interface(), Device("gpu", 0))
    assert (again.strides, again.shape) == ((1, 2), (2, 3))


@pytest.mark.parametrize(
    ("kind", "number"),
    [(MemoryKind.DEVICE, 2), (MemoryKind.PINNED, 3), (MemoryKind.MANAGED, 13)],
)
def test_the_kind_of_memory_is_dlpacks_kind_of_device(kind: MemoryKind, number: int) -> None:
    tensor = gpu_tensor()
    tensor._value = replace(tensor._value, memory=kind)
    assert tensor.__dlpack_device__() == (number, 1)
    imported = dlpack._Imported(tensor.__dlpack__(max_version=(1, 0)))
    assert (imported.tensor.device_type, imported.tensor.device_id) == (number, 1)


def test_strided_buffers_overlap_where_their_memory_does() -> None:
    whole = DeviceBuffer(1000, (4, 4), DType.FLOAT32, Device("null"))
    columns = [replace(whole, shape=(4, 2), strides=(4, 1), offset_bytes=8 * n) for n in range(2)]
    far = replace(whole, pointer=1064)
    backwards = replace(whole, pointer=1060, shape=(16,), strides=(-1,))
    for one, other, overlap in (
        (whole, columns[1], True),
        (columns[1], far, False),
        (backwards, whole, True),
        (backwards, far, False),
        (replace(columns[1], offset_bytes=64), far, True),
    ):
        assert device_memory.may_overlap(one, other) is overlap
        assert device_memory.may_overlap(other, one) is overlap


def test_host_memory_with_strides_is_shared_as_before() -> None:
    strided = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    taken = dlpack.take(Producer(np.ascontiguousarray(strided)))
    np.testing.assert_array_equal(taken, strided)


@pytest.mark.parametrize(
    ("shape", "strides", "repeats"),
    [
        ((2, 3), None, False), ((2, 3), (12, 4), False), ((2, 3), (1, 12), False),
        ((2, 3), (-12, -4), False), ((2, 3), (0, 1), True), ((2, 3), (1, 1), True),
        ((2, 3), (2, 1), True), ((2, 3), (-3, 1), False), ((1, 3), (0, 1), False),
        ((0, 3), (0, 0), False), ((), (), False),
    ],
)  # fmt: skip
def test_memory_is_filled_only_where_each_element_has_its_own(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, repeats: bool, backend: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    device = Device("null")
    whole = memory.to_device(np.zeros(60, np.float32), device)
    buffer = replace(whole, shape=shape, strides=strides, offset_bytes=120, owner=whole)
    new = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    if repeats:
        with pytest.raises(InputError, match="lie on each other"):
            memory.copy(new, buffer)
        out = Tensor(device="null:0")
        out._value = buffer
        with (
            engine.load(models.affine(tmp_path), target="striding") as model,
            pytest.raises(InputError, match=r"output 'y': elements .* make it contiguous"),
        ):
            model.predict([X], [out])
    else:
        memory.copy(new, buffer)
        np.testing.assert_array_equal(memory.to_host(buffer), new)
    held = memory.to_host(whole)
    assert held.sum() == (0 if repeats else new.sum())
