"""A model's signature at other shapes of its inputs, and what a user may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import InputError, ModelError
from engine.runtime.descriptions import known_shape
from engine.runtime.signature import Signature
from engine.runtime.sizes import reshaped, size_of, warn_of_sizes, with_sizes
from engine.tensor import Tensor
from engine.types import Dim, TensorSpec, ValueKind

if TYPE_CHECKING:
    from engine.plan.source_model import SourceModel

OPEN = -1
"""A size that stands for an open axis: it is to be as open as in the model's file."""


def check_resize(inputs: object, dims: object) -> None:
    """Check the arguments of Model.resize, whatever the model. Raises TypeError, ValueError."""
    if not isinstance(inputs, list | tuple):
        raise TypeError(f"inputs must be list or tuple of Lite Tensor, but got {type(inputs)}.")
    if not isinstance(dims, list | tuple):
        raise TypeError(f"dims must be list or tuple of shape, but got {type(dims)}.")
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"inputs element must be Tensor, but got {type(tensor)} at index {index}."
            )
    for i, shape in enumerate(dims):
        if not isinstance(shape, list | tuple):
            raise TypeError(
                f"dims element must be list or tuple of int, but got {type(shape)} at index {i}."
            )
        for j, dim in enumerate(shape):
            if not isinstance(dim, int | np.integer) or isinstance(dim, bool):
                raise TypeError(
                    f"dims element's element must be int, but got {type(dim)} at {i}th dims "
                    f"element's {j}th element."
                )
    if len(inputs) != len(dims):
        raise ValueError(
            "inputs' size does not match dims' size, but got "
            f"inputs: {len(inputs)} and dims: {len(dims)}."
        )


def resized(
    signature: Signature, dims: Sequence[Sequence[int]], declared: tuple[TensorSpec, ...] = ()
) -> Signature:
    """Return a signature with every input's shape fixed.

    declared: the inputs as in the model's file, where it was built anew for other sizes.
    Sizes that the model itself fixes are not looked at: see `fixed_axis_changed`. Raises
    InputError where the shapes cannot be.
    """
    fixed = []
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    differing: set[str] = set()
    for spec, shape in zip(signature.inputs, dims, strict=True):
        if spec.kind is not ValueKind.TENSOR:
            if shape:
                raise InputError(
                    f"resize failed! Error is input {spec.name!r}: it is {spec}, which has no "
                    f"shape to fix, got {list(shape)}; give [] for it",
                    spec.name,
                )
            fixed.append(spec)
            continue
        rank = len(spec.bounds or shape) if spec.shape is None else len(spec.shape)
        if len(shape) != rank:
            raise InputError(
                f"resize failed! Error is input {spec.name!r}: expected {rank} "
                f"dims as in {spec}, got {list(shape)}",
                spec.name,
            )
        for axis, size in enumerate(shape):
            dim = spec.shape[axis] if spec.shape is not None else None
            if size == OPEN and not isinstance(dim, int):
                continue
            least = 1 if isinstance(dim, int) else 0  # of an open axis none is a size: no past yet
            if not least <= size <= 2**31 - 1:
                raise InputError(
                    f"resize failed! Error is Invalid shape! input {spec.name!r}: dim {axis} "
                    f"is {size}, expected {least}..{2**31 - 1}"
                    + (f"; the model fixes it to {dim}" if isinstance(dim, int) else ""),
                    spec.name,
                )
            bound = spec.bounds[axis] if spec.bounds else None
            if bound is not None and not bound[0] <= size <= bound[1]:
                raise InputError(
                    f"resize failed! Error is input {spec.name!r}: dim {axis} is {size}, "
                    f"outside {bound[0]}..{bound[1]}, for which the model was compiled",
                    spec.name,
                )
            if isinstance(dim, str):
                if sizes.setdefault(dim, size) != size and dim not in differing:
                    warn_of_sizes(spec.name, axis, dim, origin[dim])
                    differing.add(dim)
                origin.setdefault(dim, spec.name)
        own: Sequence[Dim] = spec.shape or (None,) * len(shape)
        sized = (dim if size == OPEN else int(size) for dim, size in zip(own, shape))
        fixed.append(reshaped(spec, tuple(sized)))
    sizes = {dim: size for dim, size in sizes.items() if dim not in differing}
    outputs = [
        spec
        if spec.shape is None
        else reshaped(spec, tuple(size_of(dim, sizes) for dim in spec.shape))
        for spec in signature.outputs
    ]
    return Signature(fixed, outputs, declared or signature.inputs, signature.is_rebuildable)


def fixed_axis_changed(signature: Signature, dims: Sequence[Sequence[int]]) -> str:
    """Describe the first axis that has another size here than the model fixes; "" for none."""
    for spec, shape in zip(signature.inputs, dims, strict=True):
        if spec.kind is ValueKind.TENSOR:
            for axis, (dim, size) in enumerate(zip(spec.shape or (), shape)):
                if isinstance(dim, int) and dim != size:
                    return (
                        f"input {spec.name!r}: dim {axis} is fixed to {dim} by the model, got "
                        f"{size}"
                    )
    return ""


def symbols_of(signature: Signature, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the sizes of the symbols where all inputs that have them agree."""
    found: dict[str, set[int]] = {}
    for spec, shape in zip(signature.inputs, shapes, strict=True):
        for dim, size in zip(spec.shape or (), shape):
            if isinstance(dim, str):
                found.setdefault(dim, set()).add(int(size))
    return {dim: sizes.pop() for dim, sizes in found.items() if len(sizes) == 1}


def sized_outputs(
    signature: Signature,
    shapes: Sequence[tuple[int, ...]],
    seen: Sequence[Sequence[tuple[int, ...] | None]],
    original: SourceModel | None,
) -> list[TensorSpec]:
    """Return the outputs with their sizes where the inputs have these shapes.

    seen: what the outputs' shapes were, if the model has run so. original: infers those that
    do not follow from the symbols.
    """
    sizes = symbols_of(signature, shapes)
    specs = [with_sizes(spec, sizes) for spec in signature.outputs]
    last = seen[0] if seen else [None] * len(specs)
    specs = [
        spec if shape is None else reshaped(spec, tuple(shape))
        for spec, shape in zip(specs, last, strict=True)
    ]
    names = [spec.name for spec in specs if known_shape(spec.shape) is None]
    if not names or original is None or not signature.is_plain:
        return specs
    try:
        inferred = original.output_shapes(dict(zip(signature.names, shapes)), names)
    except ModelError:  # the file is gone: the first run will tell
        return specs
    return [
        reshaped(spec, inferred.get(spec.name, spec.shape)) if spec.name in names else spec
        for spec in specs
    ]
