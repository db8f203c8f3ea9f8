"""Shapes beyond onnx's inference: sizes that a model computes while it runs, found to be equal.

A model whose shapes are computed (Shape, Gather, Concat, Reshape) leaves onnx with open sizes of
made-up names. Two sizes that an operator needs to be equal are one from here on, and one that a
weight fixes is a number. These shapes steer only which axes are divided: the slices are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count
from math import prod
from typing import TypeAlias

from onnx import NodeProto

from engine.layouts.rules.elementwise import NAMES
from engine.types import Dim

Shape: TypeAlias = "list[Dim]"

_MADE_UP = "unk__"


class Sizes:
    """Open sizes by name, and what each was found to be: a number, or another name."""

    def __init__(self) -> None:
        self._found: dict[str, Dim] = {}
        self._numbers = count()

    def open(self) -> str:
        """Return a new name."""
        return f"{_MADE_UP}{next(self._numbers)}?"

    def of(self, dim: Dim) -> Dim:
        """Return what a size is known to be."""
        while isinstance(dim, str) and dim in self._found:
            dim = self._found[dim]
        return dim

    def equal(self, one: Dim, other: Dim) -> None:
        """Note that two sizes are one: a number, else the file's own name, else either."""
        one, other = self.of(one), self.of(other)
        if one == other or one is None or other is None:
            return
        if isinstance(one, int) or (isinstance(other, str) and other.startswith(_MADE_UP)):
            one, other = other, one
        if isinstance(one, str) and (one.startswith(_MADE_UP) or isinstance(other, int)):
            self._found[one] = other


def refined(
    nodes: Iterable[NodeProto],
    shapes: Mapping[str, tuple[Dim, ...] | None],
    cut_axes: Mapping[str, set[int]],
) -> dict[str, tuple[Dim, ...] | None]:
    """Return the shapes with all sizes that follow from others.

    cut_axes: which axes a Slice cuts, by the name of what it makes, where that is known.
    """
    sizes = Sizes()
    held: dict[str, Shape] = {
        name: [sizes.open() if dim is None else dim for dim in shape]
        for name, shape in shapes.items()
        if shape is not None
    }
    ordered = list(nodes)
    for _ in range(2):
        for node in ordered:
            given = [held[name] for name in node.input if name in held]
            made = held.get(node.output[0]) if node.output else None
            if made is None or len(given) < len([name for name in node.input if name]):
                continue
            if node.op_type in NAMES:
                _broadcast(sizes, given, made)
            elif node.op_type == "MatMul" and len(given[0]) > 1 and len(given[1]) > 1:
                sizes.equal(given[0][-1], given[1][-2])
                sizes.equal(made[-1], given[1][-1])
                sizes.equal(made[-2], given[0][-2])
                _broadcast(sizes, [given[0][:-2], given[1][:-2]], made[:-2])
            elif node.op_type == "Reshape":
                _same_product(sizes, given[0], made)
            elif node.op_type == "Slice" and len(made) == len(given[0]):
                for axis in {*range(len(made))} - cut_axes.get(node.output[0], {*range(len(made))}):
                    sizes.equal(made[axis], given[0][axis])
    return {
        name: None if shape is None else tuple(sizes.of(dim) for dim in held[name])
        for name, shape in shapes.items()
    }


def _broadcast(sizes: Sizes, given: Iterable[Shape], made: Shape) -> None:
    for place in range(1, len(made) + 1):
        dims = [sizes.of(shape[-place]) for shape in given if place <= len(shape)]
        dims = [dim for dim in dims if dim != 1]
        # Of sizes that are not known to be 1 each is the result's, but one may turn out to be 1.
        dims.sort(key=lambda dim: (not isinstance(dim, int), str(dim).startswith(_MADE_UP)))
        if dims:
            sizes.equal(made[-place], dims[0])


def _same_product(sizes: Sizes, given: Shape, made: Shape) -> None:
    """Two shapes of as many elements: what is left when equal sizes are struck out is equal."""
    one, other = ([sizes.of(dim) for dim in shape] for shape in (given, made))
    names = [Counter(dim for dim in shape if isinstance(dim, str)) for shape in (one, other)]
    numbers = [prod(dim for dim in shape if isinstance(dim, int)) for shape in (one, other)]
    if 0 in numbers:
        return
    left, right = (list((names[a] - names[1 - a]).elements()) for a in (0, 1))
    if len(left) == len(right) == 1 and numbers[0] == numbers[1]:
        sizes.equal(left[0], right[0])
    elif not left and len(right) == 1 and numbers[0] % numbers[1] == 0:
        sizes.equal(right[0], numbers[0] // numbers[1])
    elif not right and len(left) == 1 and numbers[1] % numbers[0] == 0:
        sizes.equal(left[0], numbers[1] // numbers[0])
