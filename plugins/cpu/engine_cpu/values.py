"""Values that ONNX Runtime computes with but its Python interface takes no arrays of.

bfloat16, float8 and the types of less than a byte go in and out as OrtValues over the same bytes;
types of less than a byte are packed there, as in an ONNX file, and one to a byte in an array.
Sequences, optionals and maps are Python's lists, None and dicts on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from engine.types import DType, TensorSpec, ValueKind
from engine_cpu.layout import PLAIN, Array, Layout
from engine_cpu.run import CpuContext
from engine_cpu.runtime import ort

# Where a value must be of a type that ONNX Runtime gives arrays of: one that holds it exactly.
CARRIERS = {
    DType.BFLOAT16: DType.FLOAT32,
    DType.FLOAT8E4M3FN: DType.FLOAT32,
    DType.FLOAT8E4M3FNUZ: DType.FLOAT32,
    DType.FLOAT8E5M2: DType.FLOAT32,
    DType.FLOAT8E5M2FNUZ: DType.FLOAT32,
    DType.FLOAT8E8M0: DType.FLOAT32,
    DType.INT2: DType.INT8,
    DType.INT4: DType.INT8,
    DType.UINT2: DType.UINT8,
    DType.UINT4: DType.UINT8,
}


def carried(inputs: Iterable[TensorSpec], outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the outputs that a session must give in a carrier's type.

    ONNX Runtime gives either all outputs as OrtValues, for which all inputs must be such too, and
    strings and lists cannot be; or all as arrays and lists.
    """
    echoes = {spec.name for spec in inputs}
    return [spec for spec in _odd(inputs, outputs) if spec.name not in echoes]


def _odd(inputs: Iterable[TensorSpec], outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the outputs that a session cannot give as they are: see `carried`."""
    odd = [spec for spec in outputs if spec.kind is ValueKind.TENSOR and spec.dtype not in PLAIN]
    as_values = all(spec.kind is ValueKind.TENSOR for spec in (*inputs, *outputs)) and all(
        spec.dtype is not DType.STRING for spec in inputs
    )
    return [] if as_values else odd


class ValueContext(CpuContext):
    """Runs a session whose inputs or outputs are more than numpy's arrays."""

    def __init__(self, session: ort.InferenceSession, layout: Layout) -> None:
        super().__init__(session, layout)
        # Lists, dicts and None go in and come out as they are.
        self._is_direct = all(spec.dtype in PLAIN for spec in (*layout.inputs, *layout.outputs))
        if not self._is_direct:
            self._call = _OddCall(session, layout)
        # ONNX Runtime's sequences are of shared tensors: two outputs may hold the same one.
        self._may_share = len(layout.outputs) > 1 and any(
            spec.kind in (ValueKind.SEQUENCE, ValueKind.OPTIONAL) for spec in layout.outputs
        )
        self._is_settled = not (self._may_share or (self._is_direct and layout.echoes))

    def _finish(self, inputs: Sequence[Any], results: list[Any]) -> list[Any]:
        """See CpuContext; a list of dicts, as classifiers give, shares no memory."""
        if self._is_direct and self._layout.echoes:
            results = super()._finish(inputs, results)
        if self._may_share and any(
            type(value) is list and value and type(value[0]) is not dict for value in results
        ):
            return _apart(results)
        return results


class _OddCall:
    """A session's `run` for inputs and outputs of types that it takes and gives no arrays of."""

    def __init__(self, session: ort.InferenceSession, layout: Layout) -> None:
        self._session, self._layout = session, layout
        specs, outputs = layout.inputs, layout.outputs
        self._carried = {spec.name for spec in carried(specs, outputs)}
        # Of the odd ones, those that are inputs too are not asked for: the caller has them.
        odd = {spec.name for spec in _odd(specs, outputs)}
        self._asked_for = [
            name for name in layout.output_names if name not in odd or name in self._carried
        ]
        self._as_values = not odd and any(
            spec.kind is ValueKind.TENSOR and spec.dtype not in PLAIN for spec in outputs
        )

    def __call__(self, names: list[str], own: dict[str, Any], options: ort.RunOptions) -> list[Any]:
        """Return the outputs of these names, which are all. own: the inputs by name."""
        layout, session = self._layout, self._session
        given = {spec.name: _given(own[spec.name], spec) for spec in layout.inputs}
        if not self._as_values:
            # Of no names, all outputs would be given.
            results = session.run(self._asked_for, given, options) if self._asked_for else []
            made = dict(zip(self._asked_for, results, strict=True))
            return [
                made[spec.name].astype(spec.dtype.numpy) if spec.name in self._carried
                else made[spec.name] if spec.name in made
                else own[spec.name].copy()
                for spec in layout.outputs
            ]  # fmt: skip
        feeds = {
            name: value if isinstance(value, ort.OrtValue) else _over(value)
            for name, value in given.items()
        }
        results = session.run_with_ort_values(names, feeds, options)
        arrays = (_array(value, spec) for value, spec in zip(results, layout.outputs, strict=True))
        # An output that is an input itself comes back as the caller's own memory.
        return [
            array.copy() if name in feeds else array
            for array, name in zip(arrays, names, strict=True)
        ]


def _apart(results: list[Any]) -> list[Any]:
    """Return results of which no two arrays are the same memory: the caller owns each."""
    seen: set[int] = set()

    def own(value: Any) -> Any:
        if isinstance(value, list):
            return [own(element) for element in value]
        if not isinstance(value, np.ndarray) or not value.size:
            return value
        address = value.__array_interface__["data"][0]
        if address in seen:
            return value.copy()
        seen.add(address)
        return value

    return [own(value) for value in results]


_over = ort.OrtValue.ortvalue_from_numpy


def _given(value: Any, spec: TensorSpec) -> Any:
    """Convert one input to what a session takes."""
    if spec.dtype in PLAIN or not isinstance(value, np.ndarray):
        return value
    words = value.view(f"u{value.dtype.itemsize}")
    if spec.dtype.bits < 8:
        words = _packed(words, spec.dtype.bits)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, spec.dtype.onnx)


def _array(value: ort.OrtValue, spec: TensorSpec) -> Array:
    """Return one output as an array over the OrtValue's memory, which it keeps alive."""
    dtype = spec.dtype
    if dtype in PLAIN:
        plain: Array = value.numpy()
        return plain
    shape = tuple(value.shape())
    if 0 in shape:
        return np.empty(shape, dtype.numpy)
    size = max(1, dtype.bits // 8)
    count = value.tensor_size_in_bytes() // size
    words = np.asarray(_Memory(value, count, f"<u{size}"))
    if dtype.bits < 8:
        words = _unpacked(words, dtype.bits, int(np.prod(shape)))
    return words.reshape(shape).view(dtype.numpy)


class _Memory:
    """The array interface of an OrtValue's memory."""

    def __init__(self, value: ort.OrtValue, count: int, code: str) -> None:
        self._value = value
        self.__array_interface__ = {
            "version": 3,
            "data": (value.data_ptr(), False),
            "shape": (count,),
            "typestr": code,
        }


def _packed(words: Array, bits: int) -> Array:
    """Pack elements of `bits` bits, one in the low bits of each byte; the first comes lowest.

    Returns an array of the same shape, as ONNX Runtime wants it; it reads as much as is needed.
    """
    count = 8 // bits
    flat = words.reshape(-1) & ((1 << bits) - 1)
    packed = np.zeros(words.shape, np.uint8)
    into = packed.reshape(-1)
    for position in range(count):
        part = flat[position::count]
        into[: len(part)] |= part << (position * bits)
    return packed


def _unpacked(words: Array, bits: int, size: int) -> Array:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    spread = (words[:, None] >> shifts) & ((1 << bits) - 1)
    return np.ascontiguousarray(spread.reshape(-1)[:size])
