"""Level of the kit: buffers on the device with strides, and with an offset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.types import Capability, DeviceBuffer
from engine_testing import models
from engine_testing.device_values import Memory
from engine_testing.level import Array, Level, Trial, row

GRID = np.arange(60, dtype=np.float32).reshape(5, 12)


class View:
    """A view of an array, and the same of a buffer.

    strides: in elements; None where they lie one after the other. begin: the first element.
    """

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...] | None, begin: int) -> None:
        self.shape, self.strides, self.begin = shape, strides, begin

    def of(self, array: Array) -> Array:
        """Return the view of a C-contiguous array."""
        steps = None
        if self.strides is not None:
            steps = [step * array.itemsize for step in self.strides]
        return np.ndarray(self.shape, array.dtype, array, self.begin * array.itemsize, steps)

    def on(self, whole: DeviceBuffer) -> DeviceBuffer:
        """Return the view of a packed buffer."""
        begin = self.begin * whole.dtype.bits // 8
        return replace(
            whole, shape=self.shape, strides=self.strides, offset_bytes=begin, owner=whole
        )


VIEWS = {
    "columns": View((5, 3), (12, 4), 1),
    "transposed": View((12, 5), (1, 12), 0),
    "rows": View((2, 3), (24, 1), 7),
    "alone": View((2, 3), (3, 1), 0),
    "repeated": View((4, 3), (0, 1), 5),
    "shifted": View((2, 3), None, 7),  # an offset alone
    "reversed": View((5, 3), (-12, -4), 57),
    "scalar": View((), (), 31),
    "empty": View((0, 3), (12, 4), 1),
}


class StridedValues(Level):
    """Capability STRIDED_BUFFERS."""

    @pytest.fixture
    def strided(self, trial: Trial) -> Memory:
        """The device's memory."""
        self.require(trial, Capability.DEVICE_BUFFERS)
        self.require(trial, Capability.STRIDED_BUFFERS)
        return Memory(trial)

    @pytest.mark.parametrize("view", VIEWS)
    def test_a_strided_buffer_is_copied_element_by_element(
        self, strided: Memory, view: str
    ) -> None:
        whole = strided.put(GRID)
        source = VIEWS[view].on(whole)
        expected = VIEWS[view].of(GRID)
        np.testing.assert_array_equal(strided.get(source), expected)
        packed = strided.allocate(source.dtype, source.shape)
        strided.copy(source, packed)
        np.testing.assert_array_equal(strided.get(packed), expected)

    @pytest.mark.parametrize("view", [view for view in VIEWS if view != "repeated"])
    def test_a_copy_into_a_strided_buffer_leaves_what_is_between(
        self, strided: Memory, view: str
    ) -> None:
        whole = strided.put(GRID)
        target = VIEWS[view].on(whole)
        new = np.arange(-np.prod(target.shape), 0, dtype=np.float32).reshape(target.shape)
        strided.copy(new, target)
        expected = GRID.copy()
        VIEWS[view].of(expected)[...] = new
        np.testing.assert_array_equal(strided.get(whole), expected)

    @pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int64])
    def test_strides_count_elements_of_any_size(
        self, strided: Memory, dtype: type[np.generic]
    ) -> None:
        grid = GRID.astype(dtype)
        for view in (VIEWS[name] for name in ("columns", "reversed", "shifted", "scalar")):
            source = view.on(strided.put(grid))
            np.testing.assert_array_equal(strided.get(source), view.of(grid))
            whole = strided.put(np.zeros_like(grid))
            strided.copy(view.of(grid).copy(), view.on(whole))
            expected = np.zeros_like(grid)
            view.of(expected)[...] = view.of(grid)
            np.testing.assert_array_equal(strided.get(whole), expected)

    @pytest.mark.parametrize(
        "view", ["columns", "rows", "repeated", "alone", "shifted", "reversed"]
    )
    def test_predict_reads_an_input_by_its_strides(
        self, trial: Trial, strided: Memory, view: str
    ) -> None:
        x = np.ascontiguousarray(VIEWS[view].of(GRID))
        running = trial.open(models.affine, x)
        for _ in range(3):
            whole = strided.put(GRID)
            [y] = running.predict(VIEWS[view].on(whole))
            self.assert_close(y, 2 * x + 1)
            np.testing.assert_array_equal(strided.get(whole), GRID)  # not modified
        [y] = running.predict(x)
        self.assert_close(y, 2 * x + 1)

    def test_results_of_strided_inputs_may_stay_on_the_device(
        self, trial: Trial, strided: Memory
    ) -> None:
        x = np.ascontiguousarray(GRID[:, 1:12:4])
        running = trial.open(models.affine, x)
        wanted: list[Any] = [strided.device]
        [y] = running.predict(VIEWS["columns"].on(strided.put(GRID)), outputs=wanted)
        self.assert_close(strided.get(y), 2 * x + 1)
        [z] = running.predict(y)
        self.assert_close(z, 2 * (2 * x + 1) + 1)
        self.assert_close(running.predict(row(1, 5))[0], 2 * row(1, 5) + 1)
