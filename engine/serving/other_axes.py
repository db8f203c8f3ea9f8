"""Find another axis of the inputs that may be the batch, where samples meet along the first one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from engine.plan.open_sizes import Role, open_axes
from engine.types import Dim, ModelSource, TensorSpec, ValueKind

_MOST = 4  # proofs; each follows the whole graph


def proven_elsewhere(
    open_again: Callable[[], ModelSource],
    inputs: Sequence[TensorSpec],
    tried: Mapping[str, int | None],
) -> dict[str, int]:
    """Return open axes of the inputs along which no sample changes another's; {} for none.

    tried: the axes of which that is not so. Axes named as a batch come first; those that count
    tokens, or are a picture's, are no batch. Needs the onnx package.
    """
    from engine.layouts.batch.source import prove_source

    known = {name: axis for name, axis in tried.items() if axis is not None}
    for axes in islice((axes for axes in _candidates(inputs) if axes != known), _MOST):
        if not prove_source(open_again, axes).reason:
            return axes
    return {}


def listed(axes: Mapping[str, int]) -> str:
    """Return axes by input for people."""
    return " and ".join(f"axis {axis} of {name!r}" for name, axis in axes.items())


def _candidates(inputs: Sequence[TensorSpec]) -> Iterator[dict[str, int]]:
    """Yield axes that may be the batch, by input: those of one name, or of one place without."""
    specs = [spec for spec in inputs if spec.kind is ValueKind.TENSOR and spec.shape]
    found = open_axes(specs)
    named = {dim for spec in specs for dim in spec.shape or () if dim in found}
    for axis in sorted(found.values(), key=lambda axis: axis.role is not Role.BATCH):
        if axis.role not in (Role.BATCH, Role.OTHER):
            continue

        def belongs(dim: Dim, place: int, name: str = axis.name, at: int = axis.place) -> bool:
            if name in named:
                return dim == name
            return not isinstance(dim, int) and dim not in named and place == at

        yield {
            spec.name: place
            for spec in specs
            for place, dim in enumerate(spec.shape or ())
            if belongs(dim, place)
        }
