"""The axis of each input and output of a model that is the batch."""

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


def find_inputs(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], given: Given | None
) -> tuple[Axes, bool]:
    """Return the batch axis of each input, and whether the model takes any batch.

    No axis where they cannot be told. Raises InputError for `given` that does not fit the model.
    """
    try:
        found = _found(inputs, outputs, _checked(given or {}, inputs, outputs))
    except _Unknown as unknown:
        return unknown.inputs or (None,) * len(inputs), unknown.is_open
    return found.inputs, found.is_open


def find(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    given: Given | None = None,
    proven: Sequence[int | None] = (),
) -> BatchAxes:
    """Return the batch axes of a model.

    proven: the axis of each output, where that was followed through the model.

    given: axes by the names of inputs and outputs. The others follow from the batch's name, which
        is that of the open dim at axis 0 of most inputs, or of those at the given axes. Where no
        input is open there, they are axis 0 of every input and of the outputs of the same size.
    Raises InputError for `given` that does not fit the model or does not say enough.
    """
    axes = _checked(given or {}, inputs, outputs)
    for spec, axis in zip(outputs, proven):
        if axes.setdefault(spec.name, axis) != axis:
            raise InputError(
                f"batch_axes: output {spec.name!r} has its batch at axis {axis}, but got "
                f"{axes[spec.name]}; leave it out",
                spec.name,
            )
    try:
        return _found(inputs, outputs, axes)
    except _Unknown as error:
        unknown = error
    choices = _choices(inputs, outputs, axes, unknown)
    is_any_request = given or unknown.is_open  # else those larger than a fixed batch
    keep = keep_whole(inputs) if is_any_request else "pass the model's own batch"
    others = "".join(f", or batch_axes={choice}" for choice in choices)
    condition = " if the samples lie in order along that" if choices else ""
    reason = f"{unknown}; {keep}{others}{condition}"
    if given:
        raise InputError(reason, unknown.name)
    nothing: Axes = (None,) * len(outputs)
    return BatchAxes(unknown.inputs or (None,) * len(inputs), nothing, unknown.is_open, reason)


def keep_whole(inputs: Sequence[TensorSpec]) -> str:
    """Return the advice to pass the axes with which requests are not cut."""
    names = {spec.name: None for spec in inputs if has_axes(spec)}
    return f"pass batch_axes={names} to keep requests whole"


def has_axes(spec: TensorSpec) -> bool:
    """Return whether it is a tensor of rank 1 or more, or of any."""
    return spec.kind is ValueKind.TENSOR and spec.shape != ()


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
    """The batch axis of an input or of outputs cannot be told.

    name: of the first. choices: axes that may tell it, of which one is right. inputs, is_open: as
        far as they were found, see BatchAxes; () where they were not.
    """

    def __init__(
        self,
        what: str,
        name: str,
        choices: Sequence[dict[str, int | None]] = (),
        inputs: Axes = (),
        is_open: bool = True,
    ) -> None:
        super().__init__(what)
        self.name, self.choices, self.inputs, self.is_open = name, choices, inputs, is_open


def _found(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], axes: Given) -> BatchAxes:
    """Return the axes that follow from these. Raises _Unknown."""
    if lone := _lone_unnamed(inputs, axes):
        axes = {**axes, lone: 0}
    batch = _open_dims(inputs, outputs, axes)
    found = tuple(_input_axis(spec, batch, axes) for spec in inputs)
    if all(axis is None for axis in found):
        return BatchAxes(found, (None,) * len(outputs))
    sizes = {dim_at(spec, axis) for spec, axis in zip(inputs, found) if axis is not None}
    names = {dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)}
    joined, unknown = [], []
    for spec in outputs:
        try:
            joined.append(_output_axis(spec, batch, sizes, names, axes))
        except LookupError:
            unknown.append(spec)
    if not unknown:
        return BatchAxes(found, tuple(joined), bool(batch))
    # Of an output with the batch in two places, as of pairs of samples, parts are not the whole.
    may_be_first = all(
        has_axes(spec) and not isinstance(first := dim_at(spec, 0), int) and first not in names
        for spec in unknown
    )
    shown = " and ".join(f"output {spec.name!r} is {spec}" for spec in unknown)
    raise _Unknown(
        f"{shown}, of which the batch axis is not known",
        unknown[0].name,
        [{spec.name: 0 for spec in unknown}] if may_be_first else [],
        found,
        bool(batch),
    )


def _choices(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], axes: Given, unknown: _Unknown
) -> list[dict[str, int | None]]:
    """Return those of an error's choices that say enough, with what else they need."""
    complete = []
    for choice in unknown.choices:
        more = {**axes, **choice}
        try:
            _found(inputs, outputs, more)
        except _Unknown as error:
            complete += _choices(inputs, outputs, more, error)
        else:
            complete.append(more)
    return complete


def _checked(
    given: Given, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> dict[str, int | None]:
    """Return given axes counted from the front; InputError for what the model does not have."""
    known = {spec.name: spec for spec in (*inputs, *outputs)}
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
        if not has_axes(spec) or not -rank <= axis < rank:
            advice = "pass one that it has, or None"
            if not has_axes(spec):
                advice = "leave it out" if spec in inputs else keep_whole(inputs)
            raise InputError(
                f"batch_axes: {name!r} is {spec}, which has no axis {axis}; {advice}", name
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
        most = [dim for dim in votes if votes[dim] == max(votes.values())] or most
    if len(most) == 1:
        return {*most}
    shown = ", ".join(f"{spec.name!r} {spec}" for spec in open_first)
    choices: list[dict[str, int | None]] = [
        {spec.name: 0 for spec in open_first if _first(spec) == dim} for dim in most or [None]
    ]
    raise _Unknown(
        f"which open axis is the batch is not known ({shown})", open_first[0].name, choices
    )


def _input_axis(spec: TensorSpec, batch: set[Dim], axes: Given) -> int | None:
    if spec.name in axes:
        return axes[spec.name]
    if spec.kind is not ValueKind.TENSOR or not spec.shape:
        return None
    if not batch:
        return 0 if isinstance(spec.shape[0], int) else None
    places = _places(spec, batch)
    if len(places) > 1:
        raise _Unknown(f"{spec.name!r} is {spec}, with the batch in two places", spec.name)
    return places[0] if places else None


def _output_axis(
    spec: TensorSpec, batch: set[Dim], sizes: set[Dim], names: set[str], axes: Given
) -> int | None:
    """Return an output's axis. Raises LookupError where it cannot be told.

    sizes: of the inputs at theirs. names: all of the inputs, of which one that is not the batch's
        has the same size in each part.
    """
    if spec.name in axes:
        return axes[spec.name]
    if spec.kind is ValueKind.TENSOR and spec.shape is not None:
        places = _places(spec, batch)
        if len(places) == 1:
            return places[0]
        if not batch and spec.shape and spec.shape[0] in sizes:
            return 0
        if not places and all(isinstance(dim, int) or dim in names for dim in spec.shape):
            return None
    raise LookupError(spec.name)


def _places(spec: TensorSpec, batch: set[Dim]) -> list[int]:
    """Return the axes with a name of the batch."""
    return [
        axis for axis, dim in enumerate(spec.shape or ()) if isinstance(dim, str) and dim in batch
    ]


def _first(spec: TensorSpec) -> Dim:
    return spec.shape[0] if spec.shape and spec.kind is ValueKind.TENSOR else 0


def _is_open_first(spec: TensorSpec, axes: Given) -> bool:
    return spec.name not in axes and not isinstance(_first(spec), int)
