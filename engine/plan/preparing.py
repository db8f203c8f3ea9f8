"""Have backends prepare for the shapes that are known before the first predict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.backends import Backend
from engine.backends.attribution import attribute_errors_to
from engine.plan.reports import InParts
from engine.types import Capability, CompileOptions, Device, Dim, TensorSpec, ValueKind

if TYPE_CHECKING:
    from engine.plan.plan import Plan

Shapes = Mapping[str, Sequence[Dim]]


def prepare_built(backend: Backend, executable: Any, options: CompileOptions) -> None:
    """Prepare for the shapes that a build is for: those of each profile, usual or fixed ones."""
    for ranges in options.profiles or (options.shapes,):
        shapes = {name: each.usual for name, each in ranges.items()}
        _prepare(backend, executable, options.device, shapes, options.progress, options.cancel)


def prepare_resized(plan: Plan, inputs: Sequence[TensorSpec]) -> None:
    """Prepare every part of a plan whose shapes follow from those of the model's inputs."""
    shapes = {spec.name: spec.shape for spec in inputs if spec.shape is not None}
    named = {
        (dim, size)
        for spec in plan.executable.inputs
        for dim, size in zip(spec.shape or (), shapes.get(spec.name, ()))
        if isinstance(dim, str)
    }
    often = Counter(dim for dim, _ in named)  # twice where sizes contradict a symbol
    sizes = {dim: size for dim, size in named if often[dim] == 1}
    for backend, part, device in _parts(plan.backend, plan.executable, plan.device):
        inner = {
            spec.name: [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape]
            for spec in part.inputs
            if spec.shape is not None
        }
        _prepare(backend, part, device, {**inner, **shapes})


def _parts(backend: Backend, executable: Any, device: Device) -> list[tuple[Backend, Any, Device]]:
    is_backends = not isinstance(executable, InParts)
    if is_backends:
        return [(backend, executable, device)]
    if not hasattr(executable, "segments"):  # weights or state around it
        return _parts(backend, executable.inner, device)
    return [(part.backend, part.executable, part.device) for part in executable.segments]


def _prepare(
    backend: Backend, executable: Any, device: Device, shapes: Shapes, *watchers: Any
) -> None:
    """Prepare for shapes by name, for another input its declared ones; if all are known."""
    if backend.lacks(Capability.PREPARE, device):
        return
    known, symbols = {}, dict[str, Any]()
    for spec in executable.inputs:
        dims = shapes.get(spec.name, spec.shape)
        if spec.kind is not ValueKind.TENSOR or dims is None:
            return
        if not all(isinstance(dim, int) and dim >= 0 for dim in dims):
            return
        # Sizes that contradict a symbol may run all the same: the model judges them in a predict.
        for symbol, size in zip(spec.shape or (), dims):
            if isinstance(symbol, str) and symbols.setdefault(symbol, size) != size:
                return
        known[spec.name] = tuple(dims)
    with attribute_errors_to(backend, "prepare"):
        executable.prepare(known, *(watchers or (None, None)))
