"""IOBinding: inputs and outputs that stay bound between runs."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.onnxruntime.genuine import genuine
from engine.onnxruntime.values import as_ort_value, device_of, given, renamed
from engine.tensor import Tensor
from engine.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence


class TensorBinding:
    """IOBinding of a session that onnxruntime does not run: values of the engine's."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Tensor] = {}
        self._results: list[Any] = []

    @property
    def inputs(self) -> dict[str, Any]:
        """The values that are bound to inputs, by their names."""
        return dict(self._inputs)

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array."""
        self._inputs[name] = np.asarray(arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory at an address."""
        self._inputs[name] = _at(device_type, device_id, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an OrtValue."""
        self._inputs[name] = given(ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Have an output on a device, in new memory or at an address."""
        if buffer_ptr is None:
            self._outputs[name] = Tensor(device=device_of(device_type, device_id))
            return
        if element_type is None or shape is None:
            raise ValueError(
                "`element_type` and `shape` are to be provided if pre-allocated memory is provided"
            )
        self._outputs[name] = _at(device_type, device_id, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Have an output in the memory of an OrtValue."""
        value = given(ortvalue)
        self._outputs[name] = value if isinstance(value, Tensor) else Tensor(value)

    def synchronize_inputs(self) -> None:
        """Do nothing: what is bound is complete."""

    def synchronize_outputs(self) -> None:
        """Do nothing: a run returns when its results are there."""

    def run(self, model: Any, names: Sequence[str]) -> None:
        """Run a model whose outputs have these names."""
        tensors = [self._outputs[name] if name in self._outputs else Tensor() for name in names]
        results = dict(zip(names, model.predict(self._inputs, tensors), strict=True))
        self._results = [results[name] for name in self._outputs]

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last run as OrtValues, in the order of binding."""
        return [as_ort_value(value) for value in self._results]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs of the last run as arrays."""
        return [value.get_data_to_numpy() for value in self._results]

    def clear_binding_inputs(self) -> None:
        """Let go of the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Let go of the outputs."""
        self._outputs.clear()


def _at(device_type: str, device_id: int, element_type: Any, shape: Any, pointer: int) -> Tensor:
    """Return a Tensor over memory at an address of the host. Raises RuntimeError for a device."""
    if device_of(device_type, device_id) is not None:
        raise RuntimeError(
            f"memory on {device_type!r} cannot be bound by its address; pass it as an OrtValue, or "
            "as an array with __dlpack__ or __cuda_array_interface__"
        )
    is_number = isinstance(element_type, int)
    dtype = DType.from_onnx(element_type).numpy if is_number else np.dtype(element_type)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory: Any = (ctypes.c_char * count).from_address(pointer)
    return Tensor(np.frombuffer(memory, dtype).reshape(tuple(shape)))


if genuine is None:
    IOBinding: Any = TensorBinding
else:

    class IOBinding(genuine.IOBinding):  # type: ignore[misc,no-redef]
        """onnxruntime's IOBinding, or the engine's for a session that it does not run."""

        def __new__(cls, session: Any) -> Any:  # noqa: D102
            if session.runtime is None:
                return TensorBinding(session)
            return super().__new__(cls)

        def __init__(self, session: Any) -> None:
            super().__init__(session.runtime)
            self.session = session

        def run_bound(self, run_options: Any) -> None:
            """Run the session that it was made for, which outlives one that is opened anew."""
            self._session.run_with_iobinding(self._iobinding, run_options)

        def get_outputs(self) -> list[Any]:
            """Return the outputs of the last run as OrtValues."""
            return [renamed(value) for value in super().get_outputs()]
