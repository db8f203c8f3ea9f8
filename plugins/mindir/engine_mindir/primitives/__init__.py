"""The table of primitives: which function writes each of them as ONNX.

A function's signature is the primitive's: parameters are taken from the node's inputs in order
and, where those end, by name from the attributes (newer files keep as an input what older ones
keep as an attribute, so one function serves both). Keyword-only parameters are attributes in
every dialect.

    @primitive("LeakyReLU", "LeakyRelu")
    def leaky_relu(g: Emitter, x: Value, alpha: float = 0.2) -> Value:
        return g.node("LeakyRelu", x, alpha=alpha)

The dtype and shape of a result are taken from the file where the function does not set them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

from engine_mindir.emit import Unsupported

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

    __slots__ = ("_parameters", "function", "writes")

    def __init__(self, function: Callable[..., Any], writes: bool) -> None:
        self.function = function
        self.writes = writes
        self._parameters: list[tuple[str, tuple[str, ...], Any]] | None = None

    @property
    def is_collective(self) -> bool:
        """True for a collective operation: all ranks take part in it."""
        return self.function.__module__.endswith(".collectives")

    def __call__(self, emitter: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Lower one node. Raises Unsupported."""
        if self._parameters is None:  # a model has few of the table's primitives
            self._parameters = _parameters(self.function)
        count = len(inputs)
        next_input = 0
        arguments: list[Any] = []
        keywords: dict[str, Any] = {}
        for kind, spellings, default in self._parameters:
            if kind is _INPUT and next_input < count:
                arguments.append(inputs[next_input])
                next_input += 1
                continue
            if kind is _REST:
                arguments += inputs[next_input:]
                next_input = count
                continue
            for name in spellings:
                if name in attributes:
                    value = attributes[name]
                    break
            else:
                value = default
                if value is _MISSING:
                    raise Unsupported(f"its argument {spellings[0]!r} is missing")
            if kind is _INPUT:
                arguments.append(value)
            else:
                keywords[spellings[0]] = value
        return self.function(emitter, *arguments, **keywords)


_INPUT, _REST, _SETTING = "an input", "the rest of them", "a setting"
_MISSING = inspect.Parameter.empty


def _parameters(function: Callable[..., Any]) -> list[tuple[str, tuple[str, ...], Any]]:
    """Return a primitive's parameters: kind, the names that each has in files, and default."""
    return [
        (
            _REST if parameter.kind is parameter.VAR_POSITIONAL
            else _SETTING if parameter.kind is parameter.KEYWORD_ONLY
            else _INPUT,
            (parameter.name, *_SYNONYMS.get(parameter.name, ())),
            parameter.default,
        )
        for parameter in list(inspect.signature(function).parameters.values())[1:]
    ]  # fmt: skip


_MODULES = (
    "activations", "adaptive_pooling", "arithmetic", "axes", "blocks", "boxes", "casts",
    "collectives", "comparison", "construction", "convolution", "diagonals", "elementwise",
    "images", "indexing", "indices", "joining", "losses", "normalisation", "padding", "pooling",
    "products", "recurrent", "reductions", "scalars", "scatter", "shapes", "slices", "sorting",
    "state", "windows",
)  # fmt: skip
TABLE: dict[str, Primitive] = {}
_is_whole = False


def primitive(*names: str, writes: bool = False) -> Callable[[Function], Function]:
    """Enter a function into the table under a primitive's name and the older names of the same."""

    def enter(function: Function) -> Function:
        row = Primitive(function, writes)
        for name in names:
            assert name not in TABLE, f"two functions for {name}"
            TABLE[name] = row
        return function

    return enter


def primitive_table() -> Mapping[str, Primitive]:
    """Return the table, with every module of primitives imported."""
    global _is_whole
    if not _is_whole:
        # Not "if TABLE is empty": another thread may be filling it. The import lock waits for it.
        for module in _MODULES:
            import_module(f"{__name__}.{module}")
        _is_whole = True
    return TABLE
