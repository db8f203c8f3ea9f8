"""A node as the rules of the proof see it: what it reads, and what it makes of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from onnx import AttributeProto, GraphProto, NodeProto, helper

from engine.layouts.batch.sizes import Dim, Symbols
from engine.layouts.batch.values import Kind, Mixes, Value, ints, is_dim

T = TypeVar("T")
Run: TypeAlias = Callable[[GraphProto, Sequence[Value]], list[Value]]
"""run(body, inputs): what a body of a node makes of these inputs."""


class Node:
    """One node. inputs: None where one is left out. version: of its operator set."""

    def __init__(
        self,
        proto: NodeProto,
        inputs: Sequence[Value | None],
        version: int,
        symbols: Symbols,
        given: dict[str, AttributeProto],
        run: Run,
    ) -> None:
        self.proto = proto
        self.op_type = proto.op_type
        self.inputs = inputs
        self.version = version
        self.symbols = symbols
        self.run = run
        self._given = given

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The values of the attributes; those of a function that refers to its own included."""
        found = {}
        for attribute in self.proto.attribute:
            if attribute.name in found:
                raise Mixes(f"it has attribute {attribute.name!r} twice")
            one = attribute
            if attribute.ref_attr_name:
                if attribute.ref_attr_name not in self._given:
                    continue
                one = self._given[attribute.ref_attr_name]
            value = helper.get_attribute_value(one)
            found[attribute.name] = value.decode() if isinstance(value, bytes) else value
        return found

    @property
    def count(self) -> int:
        """The number of outputs."""
        return len(self.proto.output)

    def makes(self, index: int) -> bool:
        """Return whether an output is there and has a name."""
        return index < self.count and bool(self.proto.output[index])

    def has(self, index: int) -> bool:
        """Return whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Value:
        """Return an input. Raises Mixes where it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise Mixes(f"its input {index} is left out")
        return value

    def maybe(self, index: int) -> Value | None:
        """Return an input; None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def given(self) -> list[Value]:
        """The inputs that are not left out."""
        return [value for value in self.inputs if value is not None]

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """Return an axis that is an attribute, counted from the left."""
        return counted(self.attributes.get(name, default), rank)

    def ints(self, index: int, attribute: str = "") -> list[int] | None:
        """Return numbers that an input or an attribute holds; None where they are not known."""
        if attribute and attribute in self.attributes:
            found = self.attributes[attribute]
            return [int(x) for x in found] if isinstance(found, list | tuple) else [int(found)]
        numbers = ints(self.maybe(index))
        if numbers is None or not all(isinstance(number, int) for number in numbers):
            return None
        return [int(number) for number in numbers if isinstance(number, int)]

    def dims(self, index: int) -> list[Dim] | None:
        """Return sizes that an input holds; each that is not known is a new one.

        None where their number is not known, or where they depend on the batch in unknown ways.
        """
        value = self.input(index)
        if value.elements is not None:
            found: list[Dim] = []
            elements: list[Any] = list(value.elements.flat)
            for element in elements:
                if is_dim(element):
                    found.append(element)
                elif getattr(element, "is_whole", True):
                    found.append(self.symbols.new())
                else:
                    return None
            return found
        if not value.is_whole or value.shape is None or len(value.shape) != 1:
            return None
        length = value.shape[0]
        if not isinstance(length, int) or length > 64:
            return None
        return [self.symbols.new() for _ in range(length)]

    def require_whole(self, *indices: int) -> None:
        """Raise Mixes where one of these inputs is not the same for every sample."""
        for index in indices:
            value = self.maybe(index)
            if value is not None and not value.is_whole:
                raise Mixes(f"its input {index} is {value.kind.value}")


def counted(axis: int, rank: int) -> int:
    """Return an axis counted from the left. Raises Mixes for one that is not there."""
    if not -rank <= axis < rank:
        raise Mixes(f"there is no axis {axis} among {rank}")
    return axis % rank


def require(condition: bool, reason: str) -> None:
    """Raise Mixes where a condition does not hold."""
    if not condition:
        raise Mixes(reason)


def require_known(value: T | None, reason: str) -> T:
    """Return a value. Raises Mixes where it is not known."""
    if value is None:
        raise Mixes(reason)
    return value


def require_beside(values: Sequence[Value]) -> bool:
    """Return whether all values are divided along axis 0. Raises Mixes where only some are."""
    if not any(value.is_divided for value in values):
        return False
    require(
        all(value.is_divided and value.axis == 0 for value in values)
        and len({value.size for value in values}) == 1,
        "not all its inputs are divided along their first axis",
    )
    return True


def only_data(values: Sequence[Value]) -> None:
    """Raise Mixes where one of the values is neither whole nor divided."""
    for value in values:
        if value.kind not in (Kind.WHOLE, Kind.DIVIDED):
            raise Mixes(f"it reads what is {value.kind.value}")
