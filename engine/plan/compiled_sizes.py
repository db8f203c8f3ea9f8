"""Sizes that the user asked for, of a model that a backend had compiled for its own before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.backends import warn_once
from engine.types import Dim, ShapeRange, TensorSpec


def warn_of_other_sizes(
    name: str, inputs: Sequence[TensorSpec], asked: Mapping[str, ShapeRange]
) -> None:
    """Log a warning, once, where the settings ask for other sizes than a compiled model has.

    name: the model's. inputs: what it has. asked: `CompileOptions.shapes`.
    """
    known = {spec.name: spec for spec in inputs}
    for input_name, sizes in asked.items():
        spec = known.get(input_name)
        if spec is not None and _has(spec, sizes):
            continue
        got = "has no such input" if spec is None else f"has {spec}"
        warn_once(
            f"{name}: was compiled before it was loaded, so that input_shape, dynamic_dims and "
            f"opt_dims do not change its sizes: they name input {input_name!r}, and it {got}; "
            "compile the original model for other sizes, or leave them out"
        )


def _has(spec: TensorSpec, sizes: ShapeRange) -> bool:
    if spec.shape is None:
        return True
    return len(spec.shape) == len(sizes.lowest) and all(
        map(_is_same, spec.shape, sizes.lowest, sizes.highest)
    )


def _is_same(dim: Dim, lowest: int, highest: int) -> bool:
    if lowest == 0:  # nothing was said of it
        return True
    return dim == lowest == highest if isinstance(dim, int) else lowest != highest
