"""What a model accepts: the checks between what a caller passes and what a backend gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from engine.enums import DataType
from engine.errors import InputError
from engine.plan.transfer import may_overlap
from engine.runtime.values import checked
from engine.tensor import Array, Tensor, plain
from engine.types import Device, DeviceBuffer, Dim, DType, TensorSpec, ValueKind

# numpy's flag bits (NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED): what a runtime can read in place.
PLAIN = 0x0001 | 0x0100


class Signature:
    """The inputs and outputs of a model at one moment: as declared, or as resized since.

    Immutable; shared by threads. dtypes: the inputs' numpy dtypes. shapes: the inputs' shapes
    where every axis is known, else None. is_plain: all inputs and outputs are tensors, as they
    nearly always are. optional: the inputs that a dict by name may leave out.
    """

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.names = tuple(spec.name for spec in inputs)
        self.dtypes = tuple(spec.dtype.numpy for spec in inputs)
        self.is_plain = all(spec.kind is ValueKind.TENSOR for spec in (*inputs, *outputs))
        self.optional = {spec.name for spec in inputs if spec.kind is ValueKind.OPTIONAL}
        # Strings are looked at one by one every time: no array of objects is taken at a glance.
        self.quick_dtypes = tuple(None if dtype.hasobject else dtype for dtype in self.dtypes)
        self.shapes = tuple(known_shape(spec.shape) for spec in inputs)

    def ordered(self, inputs: Any) -> list[Any]:
        """Return the inputs of one call as a list in the model's order.

        inputs: a list or tuple in that order, or a mapping by name. Raises TypeError for anything
        else, InputError for a wrong count or name.
        """
        if isinstance(inputs, Mapping):
            if len(inputs) == len(self.names) and all(map(inputs.__contains__, self.names)):
                return [inputs[name] for name in self.names]
            for name in inputs:
                if name not in self.names:
                    raise InputError(
                        f"unknown input {name!r}; the model has: {_listed(self.names)}", str(name)
                    )
            for name in self.names:
                if name not in inputs and name not in self.optional:
                    raise InputError(
                        f"input {name!r} is missing; the model has: {_listed(self.names)}", name
                    )
            return [inputs.get(name) for name in self.names]
        if not isinstance(inputs, list | tuple):
            raise TypeError(
                f"inputs must be list or tuple, but got {type(inputs)}. Or a dict by input name"
            )
        if len(inputs) != len(self.names):
            raise InputError(
                f"model input len:{len(self.names)} not equal input len:{len(inputs)}! "
                f"The model has: {', '.join(f'{s.name!r} {s}' for s in self.inputs) or 'no inputs'}"
            )
        return list(inputs)

    def values(self, inputs: Any, devices: Sequence[Device]) -> list[Any]:
        """Return the inputs of one call as values a backend can read, checked.

        devices: those whose memory the backend reads as it is; other devices' memory is copied to
        the host. An array that is not C-contiguous, aligned and in native byte order is copied.
        All are arrays or DeviceBuffers where `is_plain`.
        """
        values = [
            _tensor(item, spec, dtype, devices)
            if spec.kind is ValueKind.TENSOR
            else _container(item, spec, dtype)
            for item, spec, dtype in zip(
                self.ordered(inputs), self.inputs, self.dtypes, strict=True
            )
        ]
        self.bind(values)
        return values

    def bind(self, values: Sequence[Any]) -> dict[str, int]:
        """Return the sizes of the symbolic axes; raise InputError where shapes do not fit."""
        sizes: dict[str, int] = {}
        origin: dict[str, str] = {}
        for value, spec in zip(values, self.inputs, strict=True):
            if spec.kind is not ValueKind.TENSOR:
                continue
            rank = len(spec.bounds or value.shape) if spec.shape is None else len(spec.shape)
            if len(value.shape) != rank:
                raise _unfit(spec, value)
            for axis, (size, dim) in enumerate(zip(value.shape, spec.shape or (), strict=False)):
                if isinstance(dim, str):
                    if sizes.setdefault(dim, size) != size:
                        raise InputError(
                            f"input {spec.name!r}: axis {axis} ({dim!r}) is {size}, but in input "
                            f"{origin[dim]!r} it is {sizes[dim]}; equal names are equal sizes",
                            spec.name,
                        )
                    origin.setdefault(dim, spec.name)
                elif dim is not None and dim != size:
                    raise _unfit(spec, value)
            for axis, bound in enumerate(spec.bounds):
                if bound is not None and not bound[0] <= value.shape[axis] <= bound[1]:
                    raise InputError(
                        f"input {spec.name!r}: dim {axis} is {value.shape[axis]}, outside "
                        f"{bound[0]}..{bound[1]}; compile the model for a wider range",
                        spec.name,
                    )
        return sizes

    def check_buffers(
        self, buffers: Sequence[Array | DeviceBuffer | Device | None], inputs: Sequence[Any]
    ) -> None:
        """Raise InputError unless each buffer can take its output as far as that is known.

        buffers: for each output memory, the device on which to allocate it, or None.
        """
        if len(buffers) != len(self.outputs):
            raise InputError(
                f"expected {len(self.outputs)} outputs "
                f"({_listed([spec.name for spec in self.outputs])}), got {len(buffers)}"
            )
        sizes = self.bind(inputs)
        for spec, buffer in zip(self.outputs, buffers, strict=True):
            if buffer is None:
                continue
            if spec.kind is not ValueKind.TENSOR:
                raise InputError(
                    f"output {spec.name!r} is {spec}, for which no memory can be given, got "
                    f"{_described(buffer)}; pass None or Tensor() in its place",
                    spec.name,
                )
            if isinstance(buffer, Device):
                if spec.dtype is DType.STRING:
                    raise InputError(
                        f"output {spec.name!r} is {spec}, which cannot be put on {buffer}; pass "
                        "None or Tensor() in its place",
                        spec.name,
                    )
                continue
            dtype = spec.dtype.numpy if isinstance(buffer, np.ndarray) else spec.dtype
            if buffer.dtype != dtype or not _fits(buffer.shape, spec.shape, sizes):
                raise InputError(
                    f"output {spec.name!r}: expected a buffer of {_with_sizes(spec, sizes)}, got "
                    f"{_described(buffer)}; preallocate that, or pass Tensor() to have it "
                    "allocated",
                    spec.name,
                )
            if not isinstance(buffer, np.ndarray):
                continue
            if not buffer.flags.writeable or buffer.flags.num & PLAIN != PLAIN:
                raise InputError(
                    f"output {spec.name!r}: the buffer must be writeable and C-contiguous",
                    spec.name,
                )
        given = [buffer for buffer in buffers if isinstance(buffer, np.ndarray | DeviceBuffer)]
        for index, buffer in enumerate(given):
            if any(may_overlap(buffer, other) for other in given[:index]):
                raise InputError("two outputs were given the same memory; give each its own")

    def resized(self, dims: Sequence[Sequence[int]]) -> Signature:
        """Return the signature with every input's shape fixed.

        Raises InputError where the model forbids it.
        """
        fixed = []
        sizes: dict[str, int] = {}
        for spec, shape in zip(self.inputs, dims, strict=True):
            if spec.kind is not ValueKind.TENSOR:
                if shape:
                    raise InputError(
                        f"resize failed! Error is input {spec.name!r}: it is {spec}, which has no "
                        f"shape to fix, got {list(shape)}; give [] for it",
                        spec.name,
                    )
                fixed.append(spec)
                continue
            rank = len(spec.bounds or shape) if spec.shape is None else len(spec.shape)
            if len(shape) != rank:
                raise InputError(
                    f"resize failed! Error is input {spec.name!r}: expected {rank} "
                    f"dims as in {spec}, got {list(shape)}",
                    spec.name,
                )
            for axis, size in enumerate(shape):
                if not 1 <= size <= 2**31 - 1:
                    raise InputError(
                        f"resize failed! Error is Invalid shape! input {spec.name!r}: dim {axis} "
                        f"is {size}, expected 1..{2**31 - 1}",
                        spec.name,
                    )
                dim = spec.shape[axis] if spec.shape is not None else None
                bound = spec.bounds[axis] if spec.bounds else None
                if isinstance(dim, int) and dim != size:
                    raise InputError(
                        "resize failed! Error is The given input shape's value != original input "
                        f"shape's value. input {spec.name!r}: dim {axis} is fixed to {dim} by the "
                        f"model, got {size}; export the model with that axis open, or "
                        "with that size: engine convert MODEL OUT --input-shape NAME:SIZES",
                        spec.name,
                    )
                if bound is not None and not bound[0] <= size <= bound[1]:
                    raise InputError(
                        f"resize failed! Error is input {spec.name!r}: dim {axis} is {size}, "
                        f"outside {bound[0]}..{bound[1]}, for which the model was compiled",
                        spec.name,
                    )
                if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                    raise InputError(
                        f"resize failed! Error is input {spec.name!r}: {dim!r} is {sizes[dim]} "
                        f"in another input, got {size}; equal names are equal sizes",
                        spec.name,
                    )
            fixed.append(_reshaped(spec, tuple(int(size) for size in shape)))
        outputs = [
            spec
            if spec.shape is None
            else _reshaped(spec, tuple(_size(dim, sizes) for dim in spec.shape))
            for spec in self.outputs
        ]
        return Signature(fixed, outputs)


def known_shape(shape: tuple[Dim, ...] | None) -> tuple[int, ...] | None:
    """Return the shape if every axis is known, else None."""
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    return tuple(dim for dim in shape if isinstance(dim, int))


def _tensor(
    item: Any, spec: TensorSpec, dtype: np.dtype[Any], devices: Sequence[Device]
) -> Array | DeviceBuffer:
    """Return one input as a plain array, or as a DeviceBuffer of one of `devices`.

    Raises TypeError or InputError, saying what it should be.
    """
    if isinstance(item, Tensor):
        if item._value is None:
            raise InputError(
                f"input {spec.name!r}: the tensor has no data; call set_data_from_numpy with "
                f"{spec}",
                spec.name,
            )
        item = item._value
    elif not isinstance(item, np.ndarray | np.generic | DeviceBuffer):
        from engine.runtime.foreign import take  # rare

        item = take(given := item, spec, devices[0] if devices else None)
        if item is None:
            raise TypeError(
                f"inputs element must be Tensor, of numpy. input {spec.name!r}: expected {spec}, "
                f"got {type(given)}; convert it with numpy.asarray(..., {str(spec.dtype)!r})"
            )
    if isinstance(item, DeviceBuffer):
        return _on_device(item, spec, dtype, devices)
    return _array(item, spec, dtype)


def _array(item: Array | np.generic, spec: TensorSpec, dtype: np.dtype[Any]) -> Array:
    """Return a host array as a plain one of the input's dtype."""
    if type(item) is not np.ndarray and np.ma.is_masked(item):
        raise InputError(
            f"input {spec.name!r}: expected {spec}, got {_described(item)} with masked elements; "
            "pass what its filled() gives",
            spec.name,
        )
    array = np.asarray(item)  # a scalar, or a subclass such as memmap: the plain array of it
    if spec.dtype is DType.STRING:
        return _text(array, spec)
    if array.dtype != dtype and _native(array.dtype) != dtype:
        raise _another_type(spec, dtype, array)
    shape = known_shape(spec.shape)
    if array.ndim == 1 and shape is not None and array.size == prod(shape):
        array = array.reshape(shape)  # as np.fromfile gives it: only its size counts
    return plain(array)


def _on_device(
    buffer: DeviceBuffer, spec: TensorSpec, dtype: np.dtype[Any], devices: Sequence[Device]
) -> Array | DeviceBuffer:
    """Return memory of a device as it is where the model reads it, else a copy on the host."""
    if buffer.dtype is not spec.dtype:
        raise _another_type(spec, dtype, buffer)
    if buffer.device in devices:
        return buffer
    from engine.runtime.memory import to_host  # rare

    return plain(to_host(buffer))


def _container(item: Any, spec: TensorSpec, dtype: np.dtype[Any]) -> Any:
    """Return one input that is no tensor; see `values`."""

    def check(item: Any, spec: TensorSpec) -> Any:
        value = _tensor(item, spec, dtype, ())
        if not _fits(value.shape, spec.shape, {}):
            raise _unfit(spec, value)
        return value

    return checked(item, spec, check)


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    try:
        return dtype.newbyteorder("=")
    except TypeError:  # a type without byte order, such as numpy's StringDType
        return dtype


def _text(array: Array, spec: TensorSpec) -> Array:
    """Return an array of strings as runtimes want it: object, every element exactly a str."""
    strings = [str.__str__(item) if isinstance(item, str) else item for item in array.flat]
    others = [type(item).__name__ for item in strings if type(item) is not str]
    if array.dtype.kind not in "OUT" or others:
        raise InputError(
            f"data type not equal! input {spec.name!r}: expected {spec}, elements of type str, got "
            f"{_described(array)}{' with ' + others[0] if others else ''}; convert it with "
            "astype(str)",
            spec.name,
        )
    result: Array = np.empty(array.shape, object)
    result.reshape(-1)[:] = strings
    return result


def _fits(shape: tuple[int, ...], dims: tuple[Dim, ...] | None, sizes: dict[str, int]) -> bool:
    if dims is None:
        return True
    return len(shape) == len(dims) and all(
        _size(dim, sizes) in (size, None) or isinstance(_size(dim, sizes), str)
        for size, dim in zip(shape, dims, strict=True)
    )


def _size(dim: Dim, sizes: dict[str, int]) -> Dim:
    return sizes.get(dim, dim) if isinstance(dim, str) else dim


def _reshaped(spec: TensorSpec, shape: tuple[Dim, ...]) -> TensorSpec:
    return TensorSpec(spec.name, spec.dtype, shape, spec.kind, spec.bounds)


def _with_sizes(spec: TensorSpec, sizes: dict[str, int]) -> TensorSpec:
    if spec.shape is None:
        return spec
    return _reshaped(spec, tuple(_size(dim, sizes) for dim in spec.shape))


def _unfit(spec: TensorSpec, value: Array | DeviceBuffer) -> InputError:
    shape = known_shape(spec.shape)
    itemsize = value.itemsize if isinstance(value, np.ndarray) else (value.dtype.bits + 7) // 8
    wanted = "open" if shape is None else prod(shape) * itemsize
    # MindSpore Lite's words where it refuses too: it looks at the number of bytes alone.
    theirs = (
        f"data size not equal! Numpy size: {value.nbytes}, Tensor size: {wanted}. "
        if wanted != value.nbytes
        else ""
    )
    return InputError(
        f"{theirs}input {spec.name!r}: expected {spec}, got {_described(value)}; pass that shape; "
        "Model.resize sets the axes that a model leaves open",
        spec.name,
    )


def _another_type(spec: TensorSpec, dtype: np.dtype[Any], value: Array | DeviceBuffer) -> Exception:
    given = value.dtype if isinstance(value, np.ndarray) else value.dtype.numpy
    try:
        DType.from_numpy(given)
    except ValueError:
        return TypeError(
            f"Unsupported numpy dtype value {given.name!r}. input {spec.name!r}: expected {spec}"
        )
    return InputError(
        f"data type not equal! Numpy type: {DataType.from_numpy(given)}, Tensor type: "
        f"{DataType.from_numpy(dtype)}. input {spec.name!r}: expected {spec}, got "
        f"{_described(value)}; convert it with astype({str(spec.dtype)!r})",
        spec.name,
    )


def _described(value: Any) -> str:
    """Return a value's type and shape, for a message."""
    if isinstance(value, Device):
        return f"memory on {value}"
    if isinstance(value, DeviceBuffer):
        return f"{value.dtype}{list(value.shape)} on {value.device}"
    return f"{value.dtype.name}{list(value.shape)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
