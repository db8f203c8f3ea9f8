"""The emulated .om file: ATC's magic, a header in JSON, the model without weights, the weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

MAGIC = b"IMOD"  # what every .om begins with
MARK = b"EMULATED"  # what no real one continues with

SIZES = {0: 4, 1: 2, 2: 1, 3: 4, 4: 1, 6: 2, 7: 2, 8: 4, 9: 8, 10: 8, 11: 8, 12: 1, 16: 8, 17: 16,
         27: 2, 35: 1, 36: 1, 37: 1}  # fmt: skip
"""Bytes of one element, by aclDataType."""

FROM_ONNX = {1: 0, 2: 4, 3: 2, 4: 7, 5: 6, 6: 3, 7: 9, 9: 12, 10: 1, 11: 11, 12: 8, 13: 10, 14: 16,
             15: 17, 16: 27, 17: 36, 19: 35, 24: 37}  # fmt: skip
"""TensorProto.DataType -> aclDataType."""


@dataclass(slots=True)
class Value:
    """An input or output. dims: -1 where open. ranges: for each axis, [lowest, highest or -1]."""

    name: str
    dtype: int
    dims: list[int]
    nbytes: int
    ranges: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class Weight:
    """A constant: its ONNX type and where it lies in the weights."""

    name: str
    dtype: int
    dims: list[int]
    offset: int
    nbytes: int


@dataclass(slots=True)
class Om:
    """A compiled model.

    external: weights in files beside it: [name, offset, bytes], where the offset is behind those
    that are inside, as if all were one.
    gears: for each, the sizes of the open axes, inputs in order; gear_outputs: for each gear, the
    dims of each output. is_ranged: GE would run it with its dynamic-shape runtime.
    """

    soc: str
    inputs: list[Value]
    outputs: list[Value]
    weights: list[Weight]
    weight_size: int
    work_size: int
    is_half: bool
    is_ranged: bool
    external: list[list[Any]] = field(default_factory=list)
    gears: list[list[int]] = field(default_factory=list)
    gear_outputs: list[list[list[int]]] = field(default_factory=list)
    graph: bytes = b""
    blob: bytes = b""

    def write(self) -> bytes:
        """Return the file's bytes."""
        header = {key: value for key, value in asdict(self).items() if key not in ("graph", "blob")}
        text = json.dumps({**header, "graph_size": len(self.graph)}).encode()
        return MAGIC + MARK + len(text).to_bytes(8, "little") + text + self.graph + self.blob

    @classmethod
    def read(cls, data: bytes) -> Om:
        """Read a file's bytes; ValueError for any other one."""
        start = MAGIC + MARK
        if data[: len(start)] != start:
            raise ValueError("not an emulated .om file")
        first = len(start) + 8
        size = int.from_bytes(data[len(start) : first], "little")
        try:
            header: dict[str, Any] = json.loads(data[first : first + size])
        except ValueError as error:
            raise ValueError("the header is cut off") from error
        graph_end = first + size + header.pop("graph_size")
        header["inputs"] = [Value(**fields) for fields in header["inputs"]]
        header["outputs"] = [Value(**fields) for fields in header["outputs"]]
        header["weights"] = [Weight(**fields) for fields in header["weights"]]
        om = cls(**header, graph=data[first + size : graph_end], blob=data[graph_end:])
        if len(om.blob) != om.weight_size:
            raise ValueError(f"{len(om.blob)} bytes of weights, expected {om.weight_size}")
        return om


def write_bundle(models: list[bytes]) -> bytes:
    """Return the bytes of an emulated bundle; byte 82 says what it is, as in the real header."""
    start = MAGIC + MARK + b" of several"
    sizes = json.dumps([len(model) for model in models]).encode()
    return start.ljust(82) + b"\x05" + len(sizes).to_bytes(8, "little") + sizes + b"".join(models)


def read_bundle(data: bytes) -> list[Om]:
    """Read the bytes of an emulated bundle; ValueError for any other file."""
    if not data.startswith(MAGIC + MARK + b" of several"):
        raise ValueError("not an emulated bundle")
    length = int.from_bytes(data[83:91], "little")
    models, begin = [], 91 + length
    for size in json.loads(data[91:begin]):
        models.append(Om.read(data[begin : begin + size]))
        begin += size
    return models


def nbytes(dtype: int, dims: list[int]) -> int:
    """Return the bytes of a value without open dims."""
    return int(np.prod(dims, dtype=np.int64)) * SIZES[dtype]
