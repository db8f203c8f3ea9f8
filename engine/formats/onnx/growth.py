"""Lower bounds on sizes of what depends on inputs: what shapes are put together to, and dead code.

A model that makes gigabytes of its inputs has a right to; its caller's limits hold in predict.
Three things have none: a tensor that no machine holds, a shape of thousands of dims (shape
inference writes it out, at hundreds of bytes each), and large results that no output needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod

from engine.formats.onnx import limits
from engine.formats.onnx.folding import Values
from engine.formats.onnx.reading import Invalid
from engine.formats.onnx.scope import title
from engine.formats.onnx.work import Constant
from engine.types import NodeInfo

_RANK = 8  # of a tensor of unknown rank
_ELEMENT_BYTES = 4  # nearly always
_NOTED = 1 << 18  # elements

# Their result has at least as many elements as each input.
_BROADCAST = {
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Mod", "And", "Or", "Xor",
    "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Where", "Neg", "Abs", "Floor",
    "Ceil", "Round", "Sign", "Not", "Cast", "CastLike", "Identity", "Relu", "LeakyRelu",
    "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Gelu", "Clip", "Softmax",
    "Sin", "Cos", "Elu", "Selu", "Softplus", "Dropout", "Transpose", "Reshape", "Flatten",
    "Squeeze", "Unsqueeze",
}  # fmt: skip
_OF_SHAPES = _BROADCAST | {"Concat", "Gather", "Slice"}


class Growth:
    """Sizes in one graph, as far as they are at least something worth following.

    elements: of what depends on inputs, at least. lengths: of what is put together of shapes alone.
    large: nodes that make a megabyte or more, and the elements of that.
    """

    __slots__ = ("elements", "large", "lengths")
    followed = frozenset(_OF_SHAPES)
    """Operators by which sizes are followed, beside those that let something grow."""

    def __init__(self) -> None:
        self.elements: dict[str, int] = {}
        self.lengths: dict[str, int] = {}
        self.large: list[tuple[NodeInfo, int]] = []

    def follow(self, node: NodeInfo, constants: Mapping[str, Constant], values: Values) -> None:
        """Note the size of what a node makes. Raises Invalid where it is absurd."""
        op_type = node.op_type
        names = [name for name in node.inputs if name]
        if op_type == "Shape" or op_type == "Size":
            self.lengths.update(dict.fromkeys(node.outputs, _RANK if op_type == "Shape" else 1))
            return
        if (
            op_type in _OF_SHAPES
            and not self.lengths.keys().isdisjoint(names)
            and all(name in self.lengths or name in constants for name in names)
        ):
            self._put_together(node, names, constants)
            return
        if op_type == "Concat":
            count = sum(self._least(name, constants) for name in names)
        elif names and (op_type == "Expand" or op_type == "Tile"):
            asked = values(names[1]) if len(names) > 1 else None
            is_known = asked is not None and asked.dtype.kind in "iu"
            count = prod(map(int, asked.ravel())) if asked is not None and is_known else 1
            least = self.elements.get(names[0], 1)
            count = least * count if op_type == "Tile" else max(count, least)
        elif self.elements and op_type in _BROADCAST:
            count = max((self.elements.get(name, 0) for name in names), default=0)
        else:
            return
        if count > 1:
            self._note(node, count)

    def _least(self, name: str, constants: Mapping[str, Constant]) -> int:
        if name in constants:
            return prod(constants[name][0])
        return self.elements.get(name, 1)

    def _put_together(
        self, node: NodeInfo, names: Sequence[str], constants: Mapping[str, Constant]
    ) -> None:
        def length(name: str) -> int:
            return self.lengths[name] if name in self.lengths else prod(constants[name][0])

        if node.op_type == "Concat":
            count = sum(map(length, names))
        elif node.op_type == "Gather" and len(names) > 1:
            count = length(names[1])
        elif node.op_type in ("Slice", "Squeeze", "Unsqueeze", "Reshape"):
            count = length(names[0])
        else:
            count = max(map(length, names))
        if count > limits.SHAPE_ELEMENTS:
            raise Invalid(
                f"{title(node)} puts shapes together to {count:,} numbers; at most "
                f"{limits.SHAPE_ELEMENTS:,} are allowed"
            )
        self.lengths.update(dict.fromkeys(node.outputs, count))

    def _note(self, node: NodeInfo, count: int) -> None:
        if count > limits.EXPANDED_BYTES:
            raise Invalid(
                f"{title(node)} makes a tensor of {count:,} elements or more of inputs of any "
                f"size; at most {limits.EXPANDED_BYTES:,} are allowed"
            )
        for name in node.outputs:
            self.elements[name] = count
        if count >= _NOTED:
            self.large.append((node, count))

    def drop_used(
        self,
        nodes: Sequence[NodeInfo],
        outputs: Iterable[str],
        captured: Collection[str],
        begin: int = 0,
    ) -> None:
        """Keep of the large results, from `begin` on, those alone that no output of a graph needs.

        nodes, outputs: the graph's own. captured: names that its subgraphs read of it.
        """
        needed = {*outputs, *captured}
        for node in reversed(nodes):
            if not needed.isdisjoint(node.outputs):
                needed.update(node.inputs)
        self.large[begin:] = [
            (node, count) for node, count in self.large[begin:] if needed.isdisjoint(node.outputs)
        ]

    def check_unused(
        self,
        nodes: Sequence[NodeInfo],
        outputs: Iterable[str],
        captured: Collection[str],
        file_bytes: int,
    ) -> None:
        """Raise Invalid for large results that no output needs, which runtimes compute too.

        captured: names that subgraphs read of this graph.
        """
        most = limits.LIVE_BYTES + limits.LIVE_PER_BYTE * file_bytes
        if _ELEMENT_BYTES * sum(count for _, count in self.large) <= most:
            return
        self.drop_used(nodes, outputs, captured)
        unused = self.large
        nbytes = _ELEMENT_BYTES * sum(count for _, count in unused)
        if nbytes > most:
            raise Invalid(
                f"{title(unused[0][0])} and others make about {nbytes:,} bytes or more that no "
                f"output needs; at most {most:,} are allowed for a file of {file_bytes:,} bytes: "
                "remove them"
            )
