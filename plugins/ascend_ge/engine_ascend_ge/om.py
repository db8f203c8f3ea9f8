"""An .om file, ATC's compiled form, and what CANN says of a loaded one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.types import DType
from engine_ascend_ge.acl_call import DTYPES, done, got

MAGIC = b"IMOD"  # ModelFileHeader.magic, 0x444F4D49
GEAR_INPUT = "ascend_mbatch_shape_data"  # the input through which a gear is chosen
_UNUSED = -1  # what pyACL wants for an index that it does not look at


class Om:
    """The bytes of an .om file, where a host pointer reaches them, for as long as it is open.

    A file is mapped, not read: each execution context is one more load, and the weights in it
    need not stay in host memory between two loads.
    """

    def __init__(self, data: Path | bytes, name: str) -> None:
        self.name = name
        try:
            self._bytes: np.ndarray[Any, Any] | None = (
                np.frombuffer(data, np.uint8)
                if isinstance(data, bytes)
                else np.memmap(data, np.uint8, mode="r")
            )
        except (OSError, ValueError) as error:  # not readable, or empty
            raise ModelError(f"{name}: cannot be read as an .om file: {error}", name) from error
        if self._bytes[: len(MAGIC)].tobytes() != MAGIC:
            start = self._bytes[:8].tobytes()
            self.close()
            raise ModelError(
                f"{name}: not an .om file of ATC: expected it to begin with {MAGIC!r}, got "
                f"{start!r}; compile the ONNX model instead",
                name,
            )

    @property
    def pointer(self) -> int:
        """Address of the bytes on the host."""
        assert self._bytes is not None, "use after close"
        return int(self._bytes.ctypes.data)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        assert self._bytes is not None, "use after close"
        return self._bytes.nbytes

    def close(self) -> None:
        """Unmap the file; twice does nothing."""
        self._bytes = None


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a loaded model, as CANN describes it.

    dims: -1 where it is open. nbytes: of the largest value; 0 where that is not known.
    bounds: of each axis, (lowest, None) where there is no highest; () where it is not known.
    """

    index: int
    name: str
    dtype: DType
    dims: tuple[int, ...]
    nbytes: int
    bounds: tuple[tuple[int, int | None], ...] = ()

    @property
    def is_open(self) -> bool:
        """Return whether a size is not fixed."""
        return any(dim < 0 for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Description:
    """The inputs and outputs of a loaded model.

    gears: for each, the sizes of all axes of all inputs in order, fixed ones too; () without.
    gear_input: the input through which a gear is chosen, None without gears.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    gears: tuple[tuple[int, ...], ...] = ()
    gear_input: Port | None = None

    @property
    def is_ranged(self) -> bool:
        """Return whether shapes are open and no gears: CANN's "dynamic shape" model."""
        return not self.gears and any(port.is_open for port in (*self.inputs, *self.outputs))


def describe(acl: Any, model_id: int, desc: int, name: str) -> Description:
    """Read the description of a loaded model into our own terms.

    desc: an empty model description, filled here; the caller owns it.
    """
    mdl = acl.mdl
    done(mdl.get_desc(desc, model_id), "read the model's description", name)
    inputs = [_port(mdl, desc, "input", index, name) for index in range(mdl.get_num_inputs(desc))]
    outputs = [
        _port(mdl, desc, "output", index, name) for index in range(mdl.get_num_outputs(desc))
    ]
    chooser = next((port for port in inputs if port.name == GEAR_INPUT), None)
    if chooser is None:
        return Description(tuple(inputs), tuple(outputs))
    inputs.remove(chooser)
    doing = "read the model's gears"
    count = got(mdl.get_input_dynamic_gear_count(desc, _UNUSED), doing, name)
    if count == 0:
        raise ModelError(
            f"{name}: it was compiled with --dynamic_batch_size or --dynamic_image_size; this "
            "version runs gears made with --dynamic_dims: compile it so, or give the ONNX model",
            name,
        )
    gears = got(mdl.get_input_dynamic_dims(desc, _UNUSED, count), doing, name)
    return Description(
        tuple(inputs),
        tuple(outputs),
        tuple(tuple(gear["dims"]) for gear in gears),
        chooser,
    )


def _port(mdl: Any, desc: int, kind: str, index: int, name: str) -> Port:
    # Names from here and not from the dims, where CANN shortens those over 127 characters.
    called = getattr(mdl, f"get_{kind}_name_by_index")(desc, index)
    if kind == "output":
        called = tensor_name(called)
    number = getattr(mdl, f"get_{kind}_data_type")(desc, index)
    if number not in DTYPES:
        raise ModelError(
            f"{name}: {kind} {called!r} has element type {number} of CANN, which no host array "
            "has; compile the model with another type there",
            name,
        )
    dims = got(getattr(mdl, f"get_{kind}_dims")(desc, index), f"read {kind} {called!r}", name)
    nbytes = getattr(mdl, f"get_{kind}_size_by_index")(desc, index)
    bounds: tuple[tuple[int, int | None], ...] = ()
    # In pyACL since CANN 8; without it the device itself refuses what is out of range.
    if kind == "input" and hasattr(mdl, "get_input_dims_range"):
        ranges, code = mdl.get_input_dims_range(desc, index)
        if code == 0 and len(ranges["range"]) == len(dims["dims"]):
            bounds = tuple((low, high if high >= 0 else None) for low, high in ranges["range"])
    return Port(index, called, DTYPES[number], tuple(dims["dims"]), nbytes, bounds)


def tensor_name(called: str) -> str:
    """Return the ONNX name in "node:index:name", as CANN calls outputs; else the name itself."""
    node, _, rest = called.partition(":")
    index, colon, tensor = rest.partition(":")
    return tensor if node and colon and index.isdecimal() and tensor else called
