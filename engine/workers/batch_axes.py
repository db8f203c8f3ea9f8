"""Which axis of each input and output of a model is the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.config.checks import require, require_int
from engine.errors import InputError
from engine.types import Dim, TensorSpec, ValueKind

Axes: TypeAlias = "tuple[int | None, ...]"
Given: TypeAlias = "Mapping[str, int | None]"


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """The batch axis of each input and output; None for one that has none.

    is_open: the model takes any batch. reason: why the axes cannot be told; "" where they can.
    """

    inputs: Axes
    outputs: Axes
    is_open: bool = False
    reason: str = ""


def find(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], given: Given | None = None
) -> BatchAxes:
    """Return the batch axes of a model.

    given: axes by the names of inputs and outputs. The others follow from the batch's name, which
        is that of the open dim at axis 0 of most inputs, or of those at the given axes. Where no
        input is open there, they are axis 0 of every input and of the outputs of the same size.
    Raises InputError for `given` that does not fit the model or does not say enough.
    """
    axes = _checked(given or {}, (*inputs, *outputs))
    found: Axes = (None,) * len(inputs)
    nothing: Axes = (None,) * len(outputs)
    batch: set[Dim] | None = None
    try:
        if lone := _lone_unnamed(inputs, axes):
            axes = {**axes, lone: 0}
        batch = _open_dims(inputs, outputs, axes)
        found = tuple(_input_axis(spec, batch, axes) for spec in inputs)
        if all(axis is None for axis in found):
            return BatchAxes(found, nothing)
        sizes = {dim_at(spec, axis) for spec, axis in zip(inputs, found) if axis is not None}
        names = {dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)}
        joined = tuple(_output_axis(spec, batch, sizes, names, axes) for spec in outputs)
    except _Unknown as error:
        if given:
            raise InputError(str(error), error.name) from None
        return BatchAxes(found, nothing, batch is None or bool(batch), str(error))
    return BatchAxes(found, joined, bool(batch))


def dim_at(spec: TensorSpec, axis: int) -> Dim:
    """Return the size or name of an axis; None where even the rank is unknown."""
    return None if spec.shape is None else spec.shape[axis]


def check_axes(given: object) -> None:
    """Raise TypeError unless these are axes by name, whatever the model."""
    for name, axis in require("batch_axes", given, Mapping).items():  # type: ignore[type-abstract]
        require("batch_axes' names", name, str)
        if axis is not None:
            require_int(f"batch_axes[{name!r}]", axis)


class _Unknown(Exception):
    """The batch axis of an input or output cannot be told."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(
            f"{what}; pass batch_axes={{{name!r}: 0}} with the axis of its batch, or None where it "
            "has none"
        )
        self.name = name


def _checked(given: Given, specs: Sequence[TensorSpec]) -> dict[str, int | None]:
    """Return given axes counted from the front; InputError for what the model does not have."""
    known = {spec.name: spec for spec in specs}
    axes: dict[str, int | None] = {}
    for name, axis in require("batch_axes", given, Mapping).items():  # type: ignore[type-abstract]
        if name not in known:
            raise InputError(
                f"batch_axes: the model has no input or output {name!r}, only "
                f"{', '.join(map(repr, known))}",
                str(name),
            )
        spec = known[name]
        if axis is None:
            axes[name] = None
            continue
        axis = require_int(f"batch_axes[{name!r}]", axis)
        rank = axis + 1 if spec.shape is None else len(spec.shape)
        if spec.kind is not ValueKind.TENSOR or not -rank <= axis < rank:
            raise InputError(
                f"batch_axes: {name!r} is {spec}, which has no axis {axis}; pass one that it has, "
                "or None",
                name,
            )
        axes[name] = axis % rank
    return axes


def _lone_unnamed(inputs: Sequence[TensorSpec], axes: Given) -> str:
    """Return the only input that is open at axis 0, if that axis has no name; else ""."""
    if any(axes.get(spec.name) is not None for spec in inputs):
        return ""
    names = [spec.name for spec in inputs if _is_open_first(spec, axes)]
    unnamed = [spec.name for spec in inputs if _is_open_first(spec, axes) and not _first(spec)]
    return names[0] if len(names) == 1 and unnamed else ""


def _open_dims(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], axes: Given
) -> set[Dim]:
    """Return the names of the batch's open dims, None standing for no name; none if it is fixed."""
    at_given = [dim_at(spec, axis) for spec in inputs if (axis := axes.get(spec.name)) is not None]
    if at_given:
        return {dim for dim in at_given if not isinstance(dim, int)}
    open_first = [spec for spec in inputs if _is_open_first(spec, axes)]
    if not open_first:
        return set()
    votes = Counter(_first(spec) for spec in open_first if _first(spec) is not None)
    most = [dim for dim in votes if votes[dim] == max(votes.values())]
    if len(most) > 1:  # the batch is what the outputs have too
        votes = Counter(_first(spec) for spec in outputs if _first(spec) in most)
        most = [dim for dim in votes if votes[dim] == max(votes.values())]
    if len(most) == 1:
        return {*most}
    names = ", ".join(f"{spec.name!r} {spec}" for spec in open_first)
    raise _Unknown(f"which open axis is the batch is not known ({names})", open_first[0].name)


def _input_axis(spec: TensorSpec, batch: set[Dim], axes: Given) -> int | None:
    if spec.name in axes:
        return axes[spec.name]
    if spec.kind is not ValueKind.TENSOR or not spec.shape:
        return None
    if not batch:
        return 0 if isinstance(spec.shape[0], int) else None
    return _place(spec, batch)


def _output_axis(
    spec: TensorSpec, batch: set[Dim], sizes: set[Dim], names: set[str], axes: Given
) -> int | None:
    """Return an output's axis.

    sizes: of the inputs at theirs. names: all of the inputs, of which one that is not the batch's
        has the same size in each part.
    """
    if spec.name in axes:
        return axes[spec.name]
    if spec.kind is ValueKind.TENSOR and spec.shape is not None:
        place = _place(spec, batch)
        if place is not None:
            return place
        if not batch and spec.shape and spec.shape[0] in sizes:
            return 0
        if all(isinstance(dim, int) or dim in names for dim in spec.shape):
            return None
    raise _Unknown(
        f"output {spec.name!r} is {spec}, of which the batch axis is not known", spec.name
    )


def _place(spec: TensorSpec, batch: set[Dim]) -> int | None:
    """Return the axis with a name of the batch."""
    places = [
        axis for axis, dim in enumerate(spec.shape or ()) if isinstance(dim, str) and dim in batch
    ]
    if len(places) > 1:
        raise _Unknown(f"{spec.name!r} is {spec}, with the batch in two places", spec.name)
    return places[0] if places else None


def _first(spec: TensorSpec) -> Dim:
    return spec.shape[0] if spec.shape and spec.kind is ValueKind.TENSOR else 0


def _is_open_first(spec: TensorSpec, axes: Given) -> bool:
    return spec.name not in axes and not isinstance(_first(spec), int)
