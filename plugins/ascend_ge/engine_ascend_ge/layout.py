"""Match of a model file's inputs and outputs with those of its compiled form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import ModelError
from engine.types import Dim, DType, GraphInfo, TensorSpec
from engine_ascend_ge import om
from engine_ascend_ge.shapes import Shapes


@dataclass(frozen=True, slots=True)
class Input:
    """An input as users know it, and as CANN has it: None where the compiled model has it not."""

    spec: TensorSpec
    port: om.Port | None


@dataclass(frozen=True, slots=True)
class Output:
    """An output as users know it, and as CANN has it."""

    spec: TensorSpec
    port: om.Port


@dataclass(frozen=True, slots=True)
class Layout:
    """The inputs and outputs of an executable, in the model file's order.

    gears: the sizes of all axes of all inputs that the compiled model has, for each gear.
    is_ranged: shapes are open and not chosen from gears; CANN calls it a dynamic-shape model.
    """

    ins: tuple[Input, ...]
    outs: tuple[Output, ...]
    gears: frozenset[tuple[int, ...]]
    is_ranged: bool

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Specs of what callers give."""
        return tuple(item.spec for item in self.ins)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Specs of what callers get."""
        return tuple(item.spec for item in self.outs)


def of_om(description: om.Description) -> Layout:
    """Return the layout of an .om file, which is all that is known of the model."""
    columns = list(zip(*description.gears, strict=True))
    ins, first = [], 0
    for port in description.inputs:
        bounds: list[tuple[int, int] | None] = []
        for axis, dim in enumerate(port.dims):
            if dim >= 0:
                bounds.append(None)
            elif columns:
                column = columns[first + axis]
                bounds.append((min(column), max(column)))
            else:
                low, high = port.bounds[axis] if port.bounds else (0, None)
                bounds.append((low, high) if high is not None else None)
        first += len(port.dims)
        ins.append(Input(_spec(port.name, port.dtype, _shape(port), bounds), port))
    outs = [
        Output(TensorSpec(port.name, port.dtype, _shape(port)), port)
        for port in description.outputs
    ]
    return Layout(tuple(ins), tuple(outs), frozenset(description.gears), description.is_ranged)


def of_graph(
    description: om.Description, graph: GraphInfo, compiled_for: Shapes, name: str
) -> Layout:
    """Return the layout of a compiled ONNX model.

    The file's order, names and symbols are what users know; element types are CANN's, because
    options may change them. Raises ModelError where the two do not fit.
    """
    ports = {port.name: port for port in description.inputs}
    strangers = sorted(set(ports) - {spec.name for spec in graph.inputs})
    if strangers:
        raise ModelError(
            f"{name}: ATC's model wants inputs {strangers}, which the file does not have", name
        )
    if len(description.outputs) != len(graph.outputs):
        raise ModelError(
            f"{name}: ATC's model has {len(description.outputs)} outputs, "
            f"the file {len(graph.outputs)}",
            name,
        )
    fixed: dict[str, int] = {}
    ins = []
    for spec in graph.inputs:
        port = ports.get(spec.name)  # None: ATC saw that nothing reads it
        axes = compiled_for.axes[spec.name]
        declared = spec.shape if spec.shape is not None else (None,) * len(axes)
        shape: list[Dim] = []
        for axis, dim in zip(axes, declared, strict=True):
            if isinstance(axis, int) and isinstance(dim, str):
                fixed[dim] = axis
            shape.append(axis if isinstance(axis, int) else dim)
        bounds = [
            (axis[0], axis[1]) if not isinstance(axis, int) and axis[1] is not None else None
            for axis in axes
        ]
        dtype = port.dtype if port is not None else spec.dtype
        ins.append(Input(_spec(spec.name, dtype, tuple(shape), bounds), port))
    outs = _outputs(description, graph.outputs, fixed)
    return Layout(tuple(ins), tuple(outs), frozenset(description.gears), description.is_ranged)


def _outputs(
    description: om.Description, declared: Sequence[TensorSpec], fixed: Mapping[str, int]
) -> list[Output]:
    by_name = {port.name: port for port in description.outputs}
    is_named = len(by_name) == len(declared) and all(spec.name in by_name for spec in declared)
    outs = []
    for spec, in_order in zip(declared, description.outputs, strict=True):
        port = by_name[spec.name] if is_named else in_order
        shape: tuple[Dim, ...] | None = spec.shape
        if shape is not None:
            shape = tuple(fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in shape)
        if not port.is_open:
            shape = settled(shape, port.dims)
        outs.append(Output(TensorSpec(spec.name, port.dtype, shape), port))
    return outs


def settled(declared: Sequence[Dim] | None, actual: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a result: as declared where complete and as large, else as CANN has it.

    CANN gives some scalars one dim.
    """
    sizes = tuple(dim for dim in declared or () if isinstance(dim, int))
    is_complete = declared is not None and len(sizes) == len(declared)
    return sizes if is_complete and math.prod(sizes) == math.prod(actual) else actual


def resolved(declared: Sequence[Dim] | None, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return a shape with the sizes of its symbols; None where a size stays unknown."""
    if declared is None:
        return None
    shape = tuple(sizes.get(dim) if isinstance(dim, str) else dim for dim in declared)
    known = tuple(dim for dim in shape if dim is not None)
    return known if len(known) == len(shape) else None


def _spec(
    name: str,
    dtype: DType,
    shape: tuple[Dim, ...] | None,
    bounds: Sequence[tuple[int, int] | None],
) -> TensorSpec:
    return TensorSpec(name, dtype, shape, bounds=tuple(bounds) if any(bounds) else ())


def _shape(port: om.Port) -> tuple[Dim, ...]:
    return tuple(dim if dim >= 0 else None for dim in port.dims)
