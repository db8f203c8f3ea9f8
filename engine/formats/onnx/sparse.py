"""Sparse tensors: read as the dense ones that they stand for, which runtimes make of them."""

from __future__ import annotations

import numpy as np

from engine.formats.onnx import limits, schema
from engine.formats.onnx.external import ExternalFiles
from engine.formats.onnx.reading import Invalid, count_elements, dims
from engine.formats.onnx.tensor import Tensor, read_ints, read_tensor
from engine.formats.protobuf import Budget, fields, signed
from engine.types import DType


def read_sparse(view: memoryview, files: ExternalFiles, budget: Budget, where: str) -> Tensor:
    """Read a SparseTensorProto. Returns the dense tensor that it stands for, without data."""
    shape: list[int] = []
    values: memoryview | None = None
    indices: memoryview | None = None
    for tag, value in fields(view, budget):
        if tag == schema.SPARSE_TENSOR_DIMS:
            shape.append(signed(value))
            if len(shape) > limits.RANK:
                raise Invalid(f"{where} has a tensor of more than {limits.RANK} dims")
        elif tag == schema.SPARSE_TENSOR_DIMS_PACKED:
            shape += dims(value, budget)
            if len(shape) > limits.RANK:
                raise Invalid(f"{where} has a tensor of more than {limits.RANK} dims")
        elif tag == schema.SPARSE_TENSOR_VALUES:
            if values is not None:
                raise Invalid(f"{where} has a sparse tensor with two sets of values")
            values = value
        elif tag == schema.SPARSE_TENSOR_INDICES:
            if indices is not None:
                raise Invalid(f"{where} has a sparse tensor with two sets of indices")
            indices = value
    if values is None:
        raise Invalid(f"{where} has a sparse tensor without values")
    held = read_tensor(values, files, budget, where)
    what = f"sparse tensor {held.name!r}" if held.name else where
    elements = count_elements(shape, what)
    nbytes = (elements * (held.dtype.bits or 8) + 7) // 8
    if nbytes > limits.EXPANDED_BYTES:
        raise Invalid(
            f"{what} expands to {nbytes:,} bytes; at most {limits.EXPANDED_BYTES:,} are allowed"
        )
    if len(held.shape) != 1:
        raise Invalid(f"{what} has values of {len(held.shape)} dims; expected 1")
    [count] = held.shape
    if indices is not None:
        _check_indices(read_tensor(indices, files, budget, where), count, shape, what, budget)
    elif count:
        raise Invalid(f"{what} has {count:,} values but no indices")
    return Tensor(held.name, held.dtype, tuple(shape), nbytes, held.location, None, ())


def _check_indices(
    indices: Tensor, count: int, shape: list[int], what: str, budget: Budget
) -> None:
    """Hold the indices of a sparse tensor against its shape; outside it a runtime would write."""
    flat = indices.shape == (count,)
    if indices.dtype is not DType.INT64 or not (flat or indices.shape == (count, len(shape))):
        raise Invalid(
            f"{what} has indices {indices.dtype}{list(indices.shape)}; expected int64[{count}] "
            f"or int64[{count}, {len(shape)}]"
        )
    if indices.location:
        raise Invalid(f"{what} keeps its indices in external data; expected them in the model")
    if indices.raw is not None:
        flat_indices = np.frombuffer(indices.raw, "<i8")
    else:
        flat_indices = np.array(read_ints(indices, budget) or [], np.int64)
    if len(flat_indices) != count * (1 if flat else len(shape)):
        raise Invalid(f"{what} has indices that are not packed")
    if not count:
        return
    highest = np.array([np.prod(shape, dtype=np.int64)] if flat else shape, np.int64)
    table = flat_indices.reshape(count, -1)
    if (table < 0).any() or (table >= highest).any():
        raise Invalid(f"{what} has an index outside its dims {shape}")
