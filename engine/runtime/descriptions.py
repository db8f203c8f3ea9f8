"""Descriptions of a model's inputs and outputs as the API has them: Tensor and TensorMeta."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.host.imports import ready
from engine.tensor import Tensor, TensorMeta
from engine.tensor.description import Description
from engine.tensor.enums import DataType, Format
from engine.tensor.values import tensor_of

if TYPE_CHECKING:
    from engine.types import Dim, TensorSpec


class Specs(tuple["TensorSpec", ...]):
    """Inputs or outputs of a model, in its order; prints as name: type[shape]."""

    __slots__ = ()

    def __repr__(self) -> str:
        ready("engine.config.text")
        from engine.config.text import plain  # rare

        return plain(f"({', '.join(f'{spec.name}: {spec}' for spec in self)})")


def description_for(spec: TensorSpec) -> Description:
    """Return what the tensors of one input or output have in common; open axes are -1."""
    shape = tuple(dim if isinstance(dim, int) else -1 for dim in spec.shape or ())
    dtype = DataType.__members__.get(spec.dtype.name, DataType.UNKNOWN)
    return Description(spec.name, dtype, shape, Format.NCHW)


def tensor_for(spec: TensorSpec) -> Tensor:
    """Return a tensor without data that an input or output's value would fit."""
    return tensor_of(None, description_for(spec))


def meta_for(spec: TensorSpec) -> TensorMeta:
    """Return what Model.get_outputs says of an output."""
    tensor = tensor_for(spec)
    meta = TensorMeta()
    meta.name, meta.dtype, meta.shape = tensor.name, tensor.dtype, tensor.shape
    meta.format = tensor.format
    meta.element_num, meta.data_size = tensor.element_num, tensor.data_size
    return meta


def known_shape(shape: tuple[Dim, ...] | None) -> tuple[int, ...] | None:
    """Return the shape if every axis is known, else None."""
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    return tuple(dim for dim in shape if isinstance(dim, int))
