"""The values that two graphs have in common, and the places where both can be cut.

Values are paired by name. A value whose name the other graph has not is paired by structure: if one
node of the other graph alone is of the same operator and reads the same values, or if its constants
tell it from others that do.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from engine.report.fault.sides import Side

WHOLE = "/whole"
"""The end of a value's name that ranks have put together, as the slicer names it."""


class Pairs:
    """Values of a's graph with those of b's that stand for the same: `names`, b's by a's.

    computed: all that a's nodes make, in order. cuts: the places in a's order where it can be cut:
    before its first node, after its last, and wherever all values that cross have a counterpart.
    unpaired: values of a, and of b, without one.
    """

    def __init__(
        self, a: Side, b: Side, is_sliced: bool = False, known: Mapping[str, str] | None = None
    ) -> None:
        """Pair the values. is_sliced: one side is the ranks of the other.

        known: pairs to begin with, where equal names do not stand for the same values.

        A rank's value then has the name of the whole one, of which it is a part or a term of the
        sum; only what ranks have put together is the same.
        """
        self._a, self._b = a, b
        self.names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._inputs = _by_name_or_place(a.inputs, b.inputs)
        self.outputs = _by_name_or_place(a.outputs, b.outputs)
        self.computed = self._computed(a)
        for name, other in (known or {}).items():
            self._pair(name, other)
        for name in self.computed if known is None else ():
            other = name
            if is_sliced:
                other = name.removesuffix(WHOLE) if name.endswith(WHOLE) else f"{name}{WHOLE}"
            if other in b.makers and other not in b.constants:
                # One operator may give two shapes: that is a fault. Two operators have one name.
                is_one = other == name and operator(a, name) == operator(b, name)
                self._pair(name, other, is_one)
        for one, other in self.outputs.items():
            if one in a.makers and other in b.makers:
                self._pair(one, other)
        if not is_sliced:
            self._pair_by_structure()
        self.names = {name: self.names[name] for name in self.computed if name in self.names}
        self.unpaired = (
            tuple(name for name in self.computed if name not in self.names),
            tuple(name for name in self._computed(b) if name not in self._taken),
        )
        self._boundaries = self._all_boundaries()
        last = len(a.order)
        self.cuts = [
            place
            for place, names in enumerate(self._boundaries)
            if place in (0, last) or all(name in self.names for name in names)
        ]

    def at(self, place: int) -> list[str]:
        """Return the values of a's graph that cross a place in its order."""
        return self._boundaries[place]

    def of_b(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by b's names instead of a's."""
        return {self.name_b(name): value for name, value in values.items()}

    def name_b(self, name: str) -> str:
        """Return the name in b's graph of an input, a value or an output of a's."""
        for names in (self.names, self.outputs, self._inputs):
            if name in names:
                return names[name]
        return name

    def _pair(self, one: str, other: str, with_any_shape: bool = False) -> None:
        a, b = self._a, self._b
        if one not in a.types or other not in b.types or other in self._taken:
            return
        if with_any_shape or _may_agree(a, one, b, other):
            self.names[one] = other
            self._taken.add(other)

    def _computed(self, side: Side) -> list[str]:
        return [name for index in side.order for name in side.graph.nodes[index].writes]

    def _all_boundaries(self) -> list[list[str]]:
        graph, order = self._a.graph, self._a.order
        last = {
            name: place for place, index in enumerate(order) for name in graph.nodes[index].reads
        }
        last.update(dict.fromkeys(graph.outputs, len(order)))
        crossing: list[str] = []
        found: list[list[str]] = [[]]
        for place, index in enumerate(order):
            crossing = [
                name
                for name in (*crossing, *graph.nodes[index].writes)
                if last.get(name, -1) > place
            ]
            found.append(crossing)
        return found

    def _pair_by_structure(self) -> None:
        a, b = self._a, self._b
        readers: dict[str, list[int]] = defaultdict(list)
        for index in b.order:
            for name in b.graph.nodes[index].reads:
                readers[name].append(index)
        for index in a.order:
            node = a.nodes[index]
            both = {**self._inputs, **self.names}
            key = [_known(a, name, both.get(name)) for name in node.input]
            if None in key or all(name in self.names for name in a.graph.nodes[index].writes):
                continue
            first = next((name for name in key if name), "")
            alike = [
                other
                for other in readers.get(first, ())
                if (b.nodes[other].op_type, b.nodes[other].domain) == (node.op_type, node.domain)
                and [_known(b, name, name) for name in b.nodes[other].input] == key
                and len(b.nodes[other].output) == len(node.output)
                and self._taken.isdisjoint(b.graph.nodes[other].writes)
            ]
            if len(alike) > 1:
                own = _constants(a, index)
                alike = [other for other in alike if _constants(b, other) == own]
            if len(alike) == 1:
                for one, other_name in zip(node.output, b.nodes[alike[0]].output, strict=True):
                    if one and other_name and one not in self.names:
                        self._pair(one, other_name)


def _by_name_or_place(a: Sequence[str], b: Sequence[str]) -> dict[str, str]:
    return dict(zip(a, a if {*a} == {*b} else b, strict=True))


def _known(side: Side, name: str, paired: str | None) -> str | None:
    """Return what an input of a node is in b's graph: "" for a constant, None where unknown."""
    return "" if not name or name in side.constants else paired


def operator(side: Side, value: str) -> tuple[str, str]:
    """Return the domain and the type of the node that makes a value."""
    node = side.nodes[side.makers[value]]
    return node.domain, node.op_type


def _may_agree(a: Side, one: str, b: Side, other: str) -> bool:
    """Return whether two values are tensors of shapes that can be the same."""
    tensors = a.types[one].tensor_type, b.types[other].tensor_type
    if not all(tensor.HasField("shape") for tensor in tensors):
        return True
    shapes = [[dim.dim_value for dim in tensor.shape.dim] for tensor in tensors]
    return len(shapes[0]) == len(shapes[1]) and all(
        x == y or not (x and y) for x, y in zip(*shapes, strict=True)
    )


def _constants(side: Side, index: int) -> list[str]:
    """Return a digest of each initializer that a node reads."""
    tensors = {tensor.name: tensor for tensor in side.whole.proto.graph.initializer}
    return [_digest(side, tensors[name]) for name in side.nodes[index].input if name in tensors]


def _digest(side: Side, tensor: TensorProto) -> str:
    digest = hashlib.sha256(f"{tensor.data_type} {list(tensor.dims)}".encode())
    if uses_external_data(tensor):
        info = ExternalDataInfo(tensor)
        held = side.source.files.get(info.location)
        start = info.offset or 0
        if held is None:  # in a file beside the model's
            return f"{info.location} {start}"
        digest.update(memoryview(held)[start : start + (info.length or 0)])
    else:
        bare = TensorProto()
        bare.CopyFrom(tensor)
        bare.ClearField("name")
        digest.update(bare.SerializeToString(deterministic=True))
    return digest.hexdigest()
