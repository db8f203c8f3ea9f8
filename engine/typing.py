"""Type aliases of the API's arguments, for type checkers and for functions around a model.

    from engine.typing import Inputs

    def answer(inputs: Inputs) -> list[Tensor]:
        return runner.predict(inputs, timeout_s=1)

Nothing here is looked at while a program runs: predict itself checks what it is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

import numpy as np

__all__ = [
    "ArrayLike",
    "CheckpointFormat",
    "DecMode",
    "Inputs",
    "SupportsArray",
    "SupportsCudaArray",
    "SupportsDLPack",
    "WhenFull",
    "WorkerKind",
]

T_co = TypeVar("T_co", covariant=True)

DecMode: TypeAlias = Literal["AES-GCM", "AES-CBC", "SM4-CBC"]
"""The mode in which a file is encrypted."""

WhenFull: TypeAlias = Literal["wait", "raise"]
"""Behaviour of a runner's full queue: `submit` waits for room, or every request is refused."""

WorkerKind: TypeAlias = Literal["process", "ray"]
"""Workers of a MultiDeviceRunner: processes of this machine, or actors that Ray places."""

CheckpointFormat: TypeAlias = Literal["ckpt", "safetensors"]
"""The form in which the functions of engine.sharding write weights."""


class SupportsArray(Protocol):
    """An array that numpy can convert: torch's, jax's, TensorFlow's, a pandas DataFrame."""

    def __array__(self) -> np.ndarray[Any, Any]:
        """Return the contents as a numpy array."""


class SupportsDLPack(Protocol):
    """An array or tensor whose memory others can share by DLPack, on any device."""

    def __dlpack__(self) -> Any:
        """Return a capsule that holds the memory."""

    def __dlpack_device__(self) -> tuple[Any, Any]:
        """Return the type and the number of the device that the memory is on."""


class SupportsCudaArray(Protocol):
    """An array in a GPU's memory, as CUDA libraries for Python give it to each other."""

    @property
    def __cuda_array_interface__(self) -> Any:
        """Return the pointer, shape and element type."""


class _SequenceNotStr(Protocol[T_co]):
    """A list or a tuple; str and bytes differ from it in `__contains__`."""

    def __contains__(self, value: object, /) -> bool: ...
    @overload
    def __getitem__(self, index: int, /) -> T_co: ...
    @overload
    def __getitem__(self, index: slice, /) -> Sequence[T_co]: ...
    def __iter__(self) -> Iterator[T_co]: ...
    def __len__(self) -> int: ...


_Tensor: TypeAlias = SupportsArray | SupportsDLPack | SupportsCudaArray

ArrayLike: TypeAlias = (
    "_Tensor | complex | str | bytes | _SequenceNotStr[ArrayLike] | Mapping[Any, Any] | None"
)
"""One input: an array or tensor of any library, a number, a text, or lists of these.

For a sequence a list of arrays, for a map a dict, for an optional that is absent None.
"""

Inputs: TypeAlias = "_Tensor | _SequenceNotStr[ArrayLike] | Mapping[str, ArrayLike]"
"""All inputs of a predict: in the model's order, by name, or the array of its only input."""
