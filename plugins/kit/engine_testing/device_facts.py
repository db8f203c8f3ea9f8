"""Level of the kit: what a backend tells of a device is true: its memory, its element types."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from engine.types import Capability, DeviceMemory, DType
from engine_testing import numeric_models as models
from engine_testing.level import Array, Level, Trial

_PIECE = 1 << 23  # bytes: more than any driver's granularity
_PIECES = 8
_WRONG = "memory was allocated, and {} did not become {}: {:,} bytes before, {:,} after"


class DeviceFacts(Level):
    """Facts by which the core decides: element types and free memory of a device."""

    def test_memory_of_a_device_is_in_bytes(self, trial: Trial) -> None:
        self.require(trial, Capability.DEVICE_MEMORY)
        memory = _memory(trial)
        for name in ("free_bytes", "used_bytes", "own_bytes"):
            found = getattr(memory, name)
            assert found is None or (type(found) is int and found >= 0), f"{name} is {found!r}"
        total = trial.backend.present[trial.device].memory_bytes
        for found in (memory.free_bytes, memory.used_bytes):
            assert found is None or total is None or found <= total, (
                f"{found:,} bytes, of {total:,} that the device has"
            )

    def test_memory_that_is_allocated_is_counted(self, trial: Trial) -> None:
        """Other processes may free as much meanwhile, so it is tried a few times."""
        self.require(trial, Capability.DEVICE_MEMORY)
        self.require(trial, Capability.DEVICE_BUFFERS)
        held, wrong = [], ""
        for _ in range(_PIECES):
            before = _memory(trial)
            held.append(
                trial.backend.bind("engine_buffer")(trial.device, DType.UINT8, (_PIECE,), False)
            )
            wrong = _unchanged(before, _memory(trial))
            if not wrong:
                return
        pytest.fail(wrong)

    @pytest.mark.parametrize("dtype", DType, ids=str)
    def test_declared_element_types_arrive_to_the_last_bit(
        self, trial: Trial, dtype: DType
    ) -> None:
        """Each that `DeviceInfo.dtypes` names."""
        declared = trial.backend.present[trial.device].dtypes
        words = [repr(word) for word in declared if word not in [*DType]]
        assert words == [], f"{', '.join(words)} is no element type"
        if dtype not in declared:
            pytest.skip(f"backend {self.backend!r} does not declare {dtype}")
        x = values_of(dtype)
        if x is None:
            return
        if "float6_" in dtype:  # which ONNX only casts
            x = x.astype(np.float32).ravel()
            [y] = trial.run(partial(models.cast_and_back, dtype=dtype), x)
            self.assert_close(y, x)
            return
        [y] = trial.run(partial(models.turned, dtype=dtype), x)
        assert isinstance(y, np.ndarray), f"expected an array, got {type(y)}"
        assert y.dtype == x.dtype, f"{dtype} arrived as {y.dtype}"
        assert y.shape == x.T.shape, f"{x.shape} turned is {y.shape}"
        assert _bits(y) == _bits(np.ascontiguousarray(x.T)), (
            f"{dtype} did not arrive to the last bit: {y.T.tolist()} instead of {x.tolist()}"
        )


def _memory(trial: Trial) -> DeviceMemory:
    found = trial.backend.bind("engine_memory")(trial.device)
    assert isinstance(found, DeviceMemory), f"expected a DeviceMemory, got {type(found)}"
    return found


def _unchanged(before: DeviceMemory, after: DeviceMemory) -> str:
    """Return which number did not change as an allocation changes it; "" for none."""
    for name, word, sign in (("free", "less", -1), ("used", "more", 1), ("own", "more", 1)):
        old, new = (getattr(memory, f"{name}_bytes") for memory in (before, after))
        if old is not None and new is not None and (new - old) * sign <= 0:
            return _WRONG.format(f"{name}_bytes", word, old, new)
    return ""


def values_of(dtype: DType) -> Array | None:
    """Return two rows of values of a type, its extremes among them; None without its numpy dtype.

    Floats are finite: what a NaN holds beside being one is nobody's promise.
    """
    if dtype is DType.STRING:
        return np.array([["", "a", "größer"], ["漢字", "tab\t", "a" * 100]], object)
    if dtype is DType.BOOL:
        return np.array([[True, False, False], [True, True, False]])
    try:
        numpy = dtype.numpy
    except (ImportError, AttributeError):  # no ml_dtypes, or one too old to know it
        return None
    if dtype.bits <= 8:
        items = np.arange(1 << dtype.bits, dtype=np.uint8).view(numpy)
    else:
        items = np.random.default_rng(4).integers(0, 256, 128 * numpy.itemsize, np.uint8)
        items = items.view(numpy)
        if numpy.kind in "iu":
            limits = np.iinfo(numpy)
            items[:2] = limits.min, limits.max
    if numpy.kind not in "iu" and not str(dtype).startswith(("int", "uint")):
        # Of complex64 and the like both parts.
        with np.errstate(invalid="ignore"):
            items = items[np.isfinite(items.astype(np.complex128))]
    return items[: items.size // 2 * 2].reshape(2, -1)


def _bits(array: Array) -> Any:
    return array.tolist() if array.dtype.hasobject else array.tobytes()
