"""The table of primitives: which function writes each of them as ONNX.

A function's signature is the primitive's: parameters are taken from the node's inputs in order
and, where those end, by name from the attributes (newer files keep as an input what older ones
keep as an attribute, so one function serves both). Keyword-only parameters are attributes in
every dialect.

    @primitive("LeakyReLU", "LeakyRelu")
    def leaky_relu(g: Emitter, x: Value, alpha: float = 0.2) -> Value:
        return g.node("LeakyRelu", x, alpha=alpha)

What a function does not say of its result - type and shape - is taken from the file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from engine.formats.mindir.emit import Unsupported

Function = TypeVar("Function", bound=Callable[..., Any])

_SYNONYMS = {
    "keep_dims": ("keepdims", "keep_dim"),
    "epsilon": ("eps",),
    "format": ("data_format",),
    "transpose_a": ("transpose_x1", "adj_x1"),
    "transpose_b": ("transpose_x2", "adj_x2"),
    "group": ("groups",),
    "strides": ("stride",),
    "stride": ("strides",),
    "kernel_size": ("ksize", "ksizes"),
    "output_num": ("num_split", "split_num"),
    "align_corners": ("aligned",),
    "axis": ("dim", "axes"),
    "negative_slope": ("alpha",),
    "dst_type": ("DstT", "dst_t"),
}


class Primitive:
    """One row of the table. writes: it assigns to the parameter that is its first argument."""

    __slots__ = ("_places", "function", "writes")

    def __init__(self, function: Callable[..., Any], writes: bool) -> None:
        self.function = function
        self.writes = writes
        self._places: tuple[inspect.Parameter, ...] | None = None

    def __call__(self, emitter: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Lower one node. Raises Unsupported."""
        given = list(inputs)
        places: list[Any] = []
        names: dict[str, Any] = {}
        if self._places is None:  # a model has few of the table's primitives
            self._places = tuple(inspect.signature(self.function).parameters.values())[1:]
        for place in self._places:
            if place.kind is place.VAR_POSITIONAL:
                places += given
                given = []
            elif place.kind is place.KEYWORD_ONLY:
                names[place.name] = _attribute(place, attributes)
            else:
                places.append(given.pop(0) if given else _attribute(place, attributes))
        return self.function(emitter, *places, **names)


def _attribute(place: inspect.Parameter, attributes: Mapping[str, Any]) -> Any:
    for name in (place.name, *_SYNONYMS.get(place.name, ())):
        if name in attributes:
            return attributes[name]
    if place.default is place.empty:
        raise Unsupported(f"its argument {place.name!r} is missing")
    return place.default


TABLE: dict[str, Primitive] = {}


def primitive(*names: str, writes: bool = False) -> Callable[[Function], Function]:
    """Enter a function into the table under a primitive's name and the older names of the same."""

    def enter(function: Function) -> Function:
        row = Primitive(function, writes)
        for name in names:
            assert name not in TABLE, f"two functions for {name}"
            TABLE[name] = row
        return function

    return enter


def known() -> Mapping[str, Primitive]:
    """The whole table."""
    if not TABLE:
        from engine.formats.mindir.primitives import (  # noqa: F401
            activations,
            arithmetic,
            collectives,
            convolution,
            images,
            indexing,
            normalisation,
            products,
            recurrent,
            reductions,
            scalars,
            shapes,
            sorting,
            state,
        )
    return TABLE
