"""OrtValue and OrtDevice: values on the host and on the devices of the engine.

Where onnxruntime is installed, values on the host are its own; those on another device, and all
values where it is not, are the engine's Tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from engine.onnxruntime.arguments import element_name
from engine.onnxruntime.genuine import genuine
from engine.tensor import Tensor
from engine.tensor.enums import DataType
from engine.types import DType

DEVICES = {"cpu": "cpu", "cuda": "gpu", "gpu": "gpu", "cann": "ascend", "npu": "ascend"}
"""The engine's word for each device type that onnxruntime has."""


def device_of(device_type: str, device_id: int) -> str | None:
    """Return a device in the engine's words; None for the host. Raises RuntimeError."""
    kind = DEVICES.get(device_type.lower())
    if kind is None:
        raise RuntimeError(f"Unsupported device type: {device_type}")
    return None if kind == "cpu" else f"{kind}:{device_id}"


class TensorValue:
    """A value that a Tensor of the engine holds, on the host or on a device; or a list of arrays.

    It has the methods of onnxruntime's OrtValue.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Any, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> Self:
        """Hold an array; its memory is shared on the host, and copied to a device."""
        return cls(Tensor(np.asarray(numpy_obj), device=device_of(device_type, device_id)))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, /, onnx_element_type: int) -> Self:
        """Hold an array whose bytes are elements of another type, by ONNX's number for it."""
        return cls(Tensor(data.view(DType.from_onnx(onnx_element_type).numpy)))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Any = None,
    ) -> Self:
        """Allocate memory; element_type is numpy's, or ONNX's number."""
        of_number = isinstance(element_type, int)
        dtype = (
            DType.from_onnx(element_type) if of_number else DType.from_numpy(np.dtype(element_type))
        )
        device = device_of(device_type, device_id)
        if device is None:
            return cls(Tensor(np.empty(tuple(shape), dtype.numpy)))
        return cls(Tensor(shape=list(shape), dtype=DataType[dtype.name], device=device))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> Self:
        """Hold the memory of what has DLPack, not copied."""
        return cls(Tensor(np.from_dlpack(data)))

    @property
    def _tensor(self) -> Tensor:
        if not isinstance(self.value, Tensor):
            raise RuntimeError("this OrtValue is no tensor")  # noqa: TRY004 - as onnxruntime
        return self.value

    @property
    def _dtype(self) -> DType:
        if self.device_name() == "cpu":  # strings have no DataType
            return DType.from_numpy(self.numpy().dtype)
        return DType[self._tensor.dtype.name]

    def numpy(self) -> Any:
        """Return the value as an array; one on a device is copied to the host."""
        return self._tensor.get_data_to_numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **asked: Any) -> Any:
        return self._tensor.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._tensor.shape)

    def data_type(self) -> str:
        """Return the type, as "tensor(float)"."""
        return f"tensor({element_name(self._dtype)})"

    def element_type(self) -> int:
        """Return ONNX's number of the element type."""
        return self._dtype.onnx

    def tensor_size_in_bytes(self) -> int:
        """Return the size of the data."""
        return self._tensor.data_size

    def device_name(self) -> str:
        """Return the device in onnxruntime's words, as "cuda"."""
        kind = self._tensor.device.partition(":")[0]
        return {"gpu": "cuda", "ascend": "cann", "None": "cpu"}.get(kind, kind)

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        if self.device_name() == "cpu":
            return int(self.numpy().__array_interface__["data"][0])
        return int(self._tensor.__cuda_array_interface__["data"][0])

    def has_value(self) -> bool:
        """Return False for an optional that is absent."""
        return self.value is not None

    def is_tensor(self) -> bool:
        """Return whether it is one tensor."""
        return isinstance(self.value, Tensor)

    def is_sparse_tensor(self) -> bool:
        """Return False: the engine has none."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Return whether it is a sequence of tensors."""
        return isinstance(self.value, list)

    def update_inplace(self, data: Any) -> None:
        """Copy an array or another value into its memory."""
        array = np.ascontiguousarray(data)
        if self.device_name() == "cpu":
            self.numpy()[...] = array
        else:
            self._tensor.set_data_from_numpy(array)


class TensorDevice:
    """OrtDevice where there is no onnxruntime."""

    def __init__(self, kind: str, number: int) -> None:
        self._kind, self._number = kind, number

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> TensorDevice:
        """Return a device by its name, as "cuda", and its number."""
        device_of(ort_device_name, device_id)
        return TensorDevice(ort_device_name, device_id)

    def device_id(self) -> int:
        """Return its number."""
        return self._number

    def device_type(self) -> int:
        """Return onnxruntime's number of its type."""
        return {"cpu": 0, "gpu": 1, "ascend": 3}[DEVICES[self._kind]]

    def device_vendor_id(self) -> int:
        """Return 0: it is not known."""
        return 0

    def device_mem_type(self) -> int:
        """Return 0, for memory of the device itself."""
        return 0


if genuine is None:
    OrtValue: Any = TensorValue
    OrtDevice: Any = TensorDevice
else:

    class OrtValue(genuine.OrtValue):  # type: ignore[misc,no-redef]
        """onnxruntime's OrtValue; on a device that it does not have, a value of the engine's."""

        @classmethod
        def ortvalue_from_numpy(  # noqa: D102 - as onnxruntime's
            cls,
            numpy_obj: Any,
            /,
            device_type: str = "cpu",
            device_id: int = 0,
            vendor_id: int = -1,
        ) -> Any:
            if _is_engines(device_type):
                return TensorValue.ortvalue_from_numpy(numpy_obj, device_type, device_id)
            return super().ortvalue_from_numpy(numpy_obj, device_type, device_id, vendor_id)

        @classmethod
        def ortvalue_from_shape_and_type(  # noqa: D102 - as onnxruntime's
            cls,
            shape: Sequence[int],
            element_type: Any,
            device_type: str = "cpu",
            device_id: int = 0,
            *further: Any,
            **named: Any,
        ) -> Any:
            if _is_engines(device_type):
                own = TensorValue.ortvalue_from_shape_and_type
                return own(shape, element_type, device_type, device_id)
            return super().ortvalue_from_shape_and_type(
                shape, element_type, device_type, device_id, *further, **named
            )

    OrtDevice = genuine.OrtDevice


def _is_engines(device_type: str) -> bool:
    """Return whether values on a device are the engine's: a backend has it."""
    from engine.onnxruntime.providers import is_there

    kind = DEVICES.get(device_type.lower(), "cpu")
    return kind != "cpu" and is_there(kind)


def given(value: Any) -> Any:
    """Return what a Model takes of a value in a feed."""
    if isinstance(value, TensorValue):
        return value.value
    if hasattr(value, "_ortvalue"):  # onnxruntime's own
        return value.numpy()
    return value


def as_ort_value(value: Any) -> Any:
    """Return an OrtValue of what a Model gave."""
    own = TensorValue(value)
    if genuine is None or not own.is_tensor() or own.device_name() != "cpu":
        return own
    return OrtValue.ortvalue_from_numpy(own.numpy())


def renamed(value: Any) -> Any:
    """Return one of onnxruntime's OrtValues as one of this package's class."""
    return OrtValue(value._ortvalue)
