"""A node as the formulas of its work see it: attributes, and the shapes of its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

Shape: TypeAlias = "tuple[int, ...] | None"

LEFT_OUT: Shape = None
"""An input or output that a node leaves out."""
UNKNOWN: Shape = (-1,)
"""A shape that is not known."""


class Work(NamedTuple):
    """A node as the formulas see it. version: of its operator set."""

    op_type: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    version: int = 1

    def input(self, place: int) -> tuple[int, ...]:
        """Return the shape of an input. Raises Unknown."""
        return _known(self.inputs, place)

    def output(self, place: int = 0) -> tuple[int, ...]:
        """Return the shape of an output. Raises Unknown."""
        return _known(self.outputs, place)

    def has(self, place: int) -> bool:
        """Return whether an input is given, of whatever shape."""
        return place < len(self.inputs) and self.inputs[place] is not LEFT_OUT

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute, or the default of its operator."""
        return self.attributes.get(name, default)

    def number(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is a whole number. Raises LookupError where it is missing."""
        return int(self.attributes[name] if default is None else self.get(name, default))


class Unknown(Exception):
    """A shape that a formula needs is not known."""


def _known(shapes: Sequence[Shape], place: int) -> tuple[int, ...]:
    shape = shapes[place] if place < len(shapes) else None
    if shape is None or any(size < 0 for size in shape):
        raise Unknown
    return shape
