"""Sizes in the place of a specification's symbols."""

from __future__ import annotations

from engine.host.imports import ready
from engine.types import Dim, TensorSpec


def size_of(dim: Dim, sizes: dict[str, int]) -> Dim:
    """Return an axis with its symbol's size, where that is known."""
    return sizes.get(dim, dim) if isinstance(dim, str) else dim


def warn_of_sizes(name: str, axis: int, dim: str, other: str) -> None:
    """Log, once, that axis `axis` of an input has another size than its name has elsewhere."""
    ready("engine.backends")
    from engine.backends import warn_once  # rare

    warn_once(
        f"input {name!r}: axis {axis} is called {dim!r}, as an axis of input {other!r} is, but has "
        "another size; the model decides whether it can run so"
    )


def reshaped(spec: TensorSpec, shape: tuple[Dim, ...] | None) -> TensorSpec:
    """Return a specification with another shape."""
    return TensorSpec(spec.name, spec.dtype, shape, spec.kind, spec.bounds, spec.quantization)


def with_sizes(spec: TensorSpec, sizes: dict[str, int]) -> TensorSpec:
    """Return a specification with the sizes of its symbols."""
    if spec.shape is None:
        return spec
    return reshaped(spec, tuple(size_of(dim, sizes) for dim in spec.shape))
