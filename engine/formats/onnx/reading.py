"""Errors and small decoders that the readers of one model's parts share."""

from __future__ import annotations

from collections.abc import Sequence

from engine.formats.onnx import limits
from engine.formats.protobuf import Budget, WireError, signed, varints
from engine.types import DType

DTYPES: tuple[DType | None, ...] = (None, *DType)
"""Element types by ONNX's number; indexing beats DType.from_onnx for thousands of tensors."""


class ReadingBudget(Budget):
    """A limit on the work of reading a model, in proportion to its size: see limits.py."""

    __slots__ = ("_nbytes", "parts")

    def __init__(self, nbytes: int) -> None:
        super().__init__(min(limits.FIELDS, limits.FREE_FIELDS + nbytes // limits.BYTES_PER_FIELD))
        self.parts = limits.FREE_PARTS + nbytes // limits.BYTES_PER_PART
        self._nbytes = nbytes

    def take(self, parts: int = 1) -> None:
        """Count parts that are about to be read. Raises Invalid where there are too many."""
        self.parts -= parts
        if self.parts < 0:
            raise Invalid(
                "more nodes, attributes, tensors and other parts than any model of "
                f"{self._nbytes:,} bytes needs: at most {limits.FREE_PARTS:,} and one more for "
                f"every {limits.BYTES_PER_PART} bytes are read"
            )


class Invalid(ValueError):
    """The model breaks a rule. The message says which; the caller adds the file's name."""


class Repairable(Invalid):
    """The model breaks a rule, but says clearly what it means; all else has been checked."""


def text(view: memoryview) -> str:
    """Decode a name. Raises Invalid for one that is too long, UnicodeDecodeError for bad UTF-8."""
    if len(view) > limits.NAME_BYTES:
        raise Invalid(
            f"a name of {len(view):,} bytes; at most {limits.NAME_BYTES:,} bytes are read"
        )
    return str(view, "utf-8")


def is_symbol(name: str) -> bool:
    """Return whether the name of a dim stands for one size, the same wherever it stands.

    Exporters also write "?" and the like for every size that they do not know.
    """
    return name.lower() not in _UNKNOWN and not name.startswith("unk__")


_UNKNOWN = frozenset(("", "?", "*", "-1", "none", "null", "unk", "unknown"))


def int32(value: int, view: memoryview) -> int:
    """Read a varint as protobuf reads an int32 or enum; refuse what it would silently cut."""
    value = signed(value)
    if not -(1 << 31) <= value < 1 << 31:
        raise WireError(f"{value} where a number of 32 bits belongs", view, 0)
    return value


def dims(packed: memoryview, budget: Budget) -> Sequence[int]:
    """Decode packed dims, no more of them than are told apart from too many."""
    if len(packed) > 10 * limits.RANK:
        raise Invalid(f"a tensor of more than {limits.RANK} dims")
    return [signed(value) for value in varints(packed, budget)]


def dtype_of(number: int, what: str) -> DType:
    """Return the element type of `what`, by ONNX's number."""
    if 1 <= number < len(DTYPES):
        dtype = DTYPES[number]
        assert dtype is not None
        return dtype
    raise Invalid(f"{what} has element type {number}; expected one of ONNX's 1..{len(DTYPES) - 1}")


def count_elements(shape: Sequence[int], what: str) -> int:
    """Count the elements of a shape. Raises Invalid for a negative dim and absurd sizes."""
    if len(shape) > limits.RANK:
        raise Invalid(f"{what} has {len(shape)} dims; at most {limits.RANK} are possible")
    count = 1
    empty = False
    for dim in shape:
        if dim < 0:
            raise Invalid(f"{what} has a negative dim: {list(shape)}")
        if dim:
            count *= dim
        else:
            empty = True
    # Checked without the zeros: numpy and the runtimes multiply the other dims before these.
    if count > limits.ELEMENTS:
        raise Invalid(f"{what} has dims {list(shape)}, more elements than 64 bits count")
    return 0 if empty else count
