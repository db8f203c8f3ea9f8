"""Checks of a caller's values against a model's signature, and what a backend gets of them.

For all that a thread's state does not take at a glance: another order in memory, other kinds than
arrays, other libraries' values, and whatever is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.config.wording import followed, translated
from engine.errors import InputError
from engine.host.imports import ready
from engine.runtime.descriptions import known_shape
from engine.runtime.signature import listed
from engine.runtime.sizes import size_of, warn_of_sizes, with_sizes
from engine.tensor import Tensor
from engine.tensor.description import Array, canonical, plain
from engine.tensor.enums import DataType
from engine.tensor.values import PLAIN, value_of
from engine.types import Device, DeviceBuffer, Dim, DType, TensorSpec, ValueKind

if TYPE_CHECKING:
    from engine.runtime.signature import Signature


def values(signature: Signature, inputs: Any, devices: Sequence[Device]) -> list[Any]:
    """Return the inputs of one call as values a backend can read, checked.

    devices: those whose memory the backend reads as it is; other devices' memory is copied to
    the host. An array that is not C-contiguous, aligned and in native byte order is copied.
    All are arrays or DeviceBuffers where the signature `is_plain`.
    """
    items = signature.ordered(inputs)
    try:
        values = [
            _tensor(item, spec, dtype, devices)
            if spec.kind is ValueKind.TENSOR
            else _container(item, spec, dtype)
            for item, spec, dtype in zip(items, signature.inputs, signature.dtypes, strict=True)
        ]
        bind(signature, values, items)
    except InputError as error:
        ready("engine.runtime.advice")
        from engine.runtime import advice

        item = dict(zip(signature.names, items, strict=True)).get(error.name)
        if advice.is_of_torch(item):
            translated(error, advice.in_torch_words)
        elif isinstance(item, Tensor):
            # MindSpore Lite checks arrays before it runs, and Tensors when it does.
            followed(error, "predict failed!")
        raise
    return values


def check_buffers(
    signature: Signature,
    buffers: Sequence[Array | DeviceBuffer | Device | None],
    inputs: Sequence[Any],
    results: Sequence[bool] = (),
) -> None:
    """Raise InputError unless each buffer can take its output as far as that is known.

    buffers: for each output memory, the device on which to allocate it, or None. results:
    whether each is a result of this model, whose shape the model has given, whatever its file
    declares.
    """
    if len(buffers) != len(signature.outputs):
        raise InputError(
            f"expected {len(signature.outputs)} outputs "
            f"({listed([spec.name for spec in signature.outputs])}), got {len(buffers)}"
        )
    sizes = bind(signature, inputs)
    own = results or (False,) * len(buffers)
    for spec, buffer, is_result in zip(signature.outputs, buffers, own, strict=True):
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
        if buffer.dtype != dtype or not (is_result or _fits(buffer.shape, spec.shape, sizes)):
            raise InputError(
                f"output {spec.name!r}: expected a buffer of {with_sizes(spec, sizes)}, got "
                f"{_described(buffer)}; preallocate that, or pass Tensor() to have it "
                "allocated",
                spec.name,
            )
        if not isinstance(buffer, np.ndarray):
            if buffer.strides is not None:
                ready("engine.plan.transfer")
                from engine.tensor.device_memory import REPEATED, repeats

                if repeats(buffer):
                    raise InputError(f"output {spec.name!r}: elements of {REPEATED}", spec.name)
            continue
        if not buffer.flags.writeable or buffer.flags.num & PLAIN != PLAIN:
            raise InputError(
                f"output {spec.name!r}: the buffer must be writeable and C-contiguous",
                spec.name,
            )
    given = [buffer for buffer in buffers if isinstance(buffer, np.ndarray | DeviceBuffer)]
    if len(given) > 1:
        ready("engine.plan.transfer")
        from engine.tensor.device_memory import may_overlap
    for index, buffer in enumerate(given):
        if any(may_overlap(buffer, other) for other in given[:index]):
            raise InputError("two outputs were given the same memory; give each its own")


def bind(signature: Signature, values: Sequence[Any], items: Sequence[Any] = ()) -> dict[str, int]:
    """Return the sizes of the symbolic axes. Raises InputError where shapes do not fit.

    items: what the caller gave for the values, where that is known. A symbol of which inputs have
    different sizes is left out: names are what an exporter wrote, and a runtime goes by the sizes.
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    differing: set[str] = set()
    declared = signature.declared or (None,) * len(values)
    given = items or values
    for value, spec, was, item in zip(values, signature.inputs, declared, given, strict=True):
        if spec.kind is not ValueKind.TENSOR:
            continue
        rank = len(spec.bounds or value.shape) if spec.shape is None else len(spec.shape)
        if len(value.shape) != rank:
            raise _unfit(spec, value, was, item)
        for axis, (size, dim) in enumerate(zip(value.shape, spec.shape or (), strict=False)):
            if isinstance(dim, str):
                if sizes.setdefault(dim, size) != size and dim not in differing:
                    warn_of_sizes(spec.name, axis, dim, origin[dim])
                    differing.add(dim)
                origin.setdefault(dim, spec.name)
            elif dim is not None and dim != size:
                may_resize = signature.is_rebuildable and signature.is_plain
                shapes = [value.shape for value in values] if may_resize else ()
                raise _unfit(spec, value, was, item, shapes)
        for axis, bound in enumerate(spec.bounds):
            if bound is not None and not bound[0] <= value.shape[axis] <= bound[1]:
                raise InputError(
                    f"input {spec.name!r}: dim {axis} is {value.shape[axis]}, outside "
                    f"{bound[0]}..{bound[1]}; compile the model for a wider range",
                    spec.name,
                )
    return {dim: size for dim, size in sizes.items() if dim not in differing}


def _tensor(
    item: Any, spec: TensorSpec, dtype: np.dtype[Any], devices: Sequence[Device]
) -> Array | DeviceBuffer:
    """Return one input as a plain array, or as a DeviceBuffer of one of `devices`.

    Raises TypeError or InputError, saying what it should be.
    """
    is_tensor = isinstance(item, Tensor)
    if is_tensor:
        if value_of(item) is None:
            raise InputError(
                f"input {spec.name!r}: the tensor has no data; call set_data_from_numpy with "
                f"{spec}",
                spec.name,
            )
        item = value_of(item)
    elif not isinstance(item, np.ndarray | np.generic | DeviceBuffer):
        ready("engine.runtime.foreign")
        from engine.runtime.foreign import take  # rare

        # A text is no array of one, as numpy would have it, but a path or a name.
        is_text = isinstance(given := item, str) and spec.dtype is not DType.STRING
        item = None if is_text else take(given, spec, devices[0] if devices else None)
        if item is None and not is_text:
            ready("engine.runtime.casting")
            from engine.runtime.casting import listed

            item = listed(given, spec, dtype)
        if item is None:
            ready("engine.runtime.advice")
            from engine.runtime import advice

            raise TypeError(
                f"inputs element must be Tensor, of numpy. input {spec.name!r}: expected {spec}, "
                f"got {type(given)}; {advice.for_kind(given, str(spec.dtype))}"
            )
    if isinstance(item, DeviceBuffer):
        return _on_device(item, spec, dtype, devices)
    return _array(item, spec, dtype, is_tensor)


def _array(
    item: Array | np.generic, spec: TensorSpec, dtype: np.dtype[Any], is_tensor: bool
) -> Array:
    """Return a host array as a plain one of the input's dtype.

    is_tensor: it was said to be of its type, as MindSpore Lite's scripts do, and is not cast.
    """
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
        ready("engine.runtime.casting")
        from engine.runtime.casting import widened  # rare

        cast = None if is_tensor else widened(array, dtype)
        if cast is None:
            raise _another_type(spec, dtype, array)
        array = cast
    shape = known_shape(spec.shape)
    if array.ndim == 1 and shape is not None and array.size == prod(shape):
        array = array.reshape(shape)  # as np.fromfile gives it: only its size counts
    return canonical(plain(array))


def _on_device(
    buffer: DeviceBuffer, spec: TensorSpec, dtype: np.dtype[Any], devices: Sequence[Device]
) -> Array | DeviceBuffer:
    """Return memory of a device as it is where the model reads it, else a copy on the host."""
    if buffer.dtype is not spec.dtype:
        raise _another_type(spec, dtype, buffer)
    if buffer.device in devices:
        return buffer
    ready("engine.tensor.memory")
    from engine.tensor.memory import to_host  # rare

    return plain(to_host(buffer))


def _container(item: Any, spec: TensorSpec, dtype: np.dtype[Any]) -> Any:
    """Return one input that is no tensor; see `values`."""

    def check(item: Any, spec: TensorSpec) -> Any:
        value = _tensor(item, spec, dtype, ())
        if not _fits(value.shape, spec.shape, {}):
            raise _unfit(spec, value)
        return value

    ready("engine.runtime.containers")
    from engine.runtime.containers import checked  # rare

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
        error = InputError(
            f"input {spec.name!r}: expected {spec}, elements of type str, got "
            f"{_described(array)}{' with ' + others[0] if others else ''}; convert it with "
            "astype(str)",
            spec.name,
        )
        raise followed(error, "data type not equal!")
    result: Array = np.empty(array.shape, object)
    result.reshape(-1)[:] = strings
    return result


def _fits(shape: tuple[int, ...], dims: tuple[Dim, ...] | None, sizes: dict[str, int]) -> bool:
    if dims is None:
        return True
    return len(shape) == len(dims) and all(
        size_of(dim, sizes) in (size, None) or isinstance(size_of(dim, sizes), str)
        for size, dim in zip(shape, dims, strict=True)
    )


def _unfit(
    spec: TensorSpec,
    value: Array | DeviceBuffer,
    declared: TensorSpec | None = None,
    item: Any = None,
    shapes: Sequence[Any] = (),
) -> InputError:
    shape = known_shape(spec.shape)
    itemsize = value.itemsize if isinstance(value, np.ndarray) else (value.dtype.bits + 7) // 8
    wanted = "open" if shape is None else prod(shape) * itemsize
    ready("engine.runtime.advice")
    from engine.runtime import advice  # rare

    todo = advice.for_shape(spec, value.shape, declared, item, shapes)
    error = InputError(
        f"input {spec.name!r}: expected {spec}, got {_described(value)}; {todo}", spec.name
    )
    if (
        wanted == value.nbytes
    ):  # MindSpore Lite, which looks at the number of bytes alone, says nothing
        return error
    return followed(
        error, f"data size not equal! Numpy size: {value.nbytes}, Tensor size: {wanted}"
    )


def _another_type(spec: TensorSpec, dtype: np.dtype[Any], value: Array | DeviceBuffer) -> Exception:
    given = value.dtype if isinstance(value, np.ndarray) else value.dtype.numpy
    try:
        DType.from_numpy(given)
    except ValueError:
        error: Exception = TypeError(
            f"input {spec.name!r}: expected {spec}, got {_described(value)}; convert it with "
            f"astype({str(spec.dtype)!r})"
        )
        return followed(error, f"Unsupported numpy dtype value {given.name!r}")
    error = InputError(
        f"input {spec.name!r}: expected {spec}, got {_described(value)}; convert it with "
        f"astype({str(spec.dtype)!r})",
        spec.name,
    )
    return followed(
        error,
        f"data type not equal! Numpy type: {given.type}, Tensor type: {DataType.from_numpy(dtype)}",
    )


def _described(value: Any) -> str:
    """Return a value's type and shape, for a message."""
    if isinstance(value, Device):
        return f"memory on {value}"
    if isinstance(value, DeviceBuffer):
        return f"{value.dtype}{list(value.shape)} on {value.device}"
    return f"{value.dtype.name}{list(value.shape)}"
