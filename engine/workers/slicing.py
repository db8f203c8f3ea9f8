"""Cut a request along the batch into parts for several workers, and join their outputs.

A model of open batch takes parts of any size, so a request becomes as many as there are workers.
A model of fixed batch takes parts of its own size: four times its batch are four parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from engine.backends import warn_once
from engine.errors import InputError, ModelError
from engine.serving.batchable import same_sizes
from engine.serving.other_axes import listed
from engine.types import TensorSpec
from engine.workers.batch_axes import dim_at, find, has_axes, keep_whole
from engine.workers.protocol import Cuts

Array: TypeAlias = "np.ndarray[Any, Any]"


class Slicing:
    """Cuts a model's requests and joins their outputs. Immutable; shared by threads.

    batch_axes: for inputs and outputs by name the axis of the batch, None for one that has none;
        the others are found, see `batch_axes.find`. In `axes` is what was found. Where it cannot be
        told, requests are not cut, and `axes.reason` says why.
    cuts: what is proven of cutting an open batch; None where that is not asked for.
    is_forced: requests are cut also where that is not proven, with a warning.
    Raises InputError for `batch_axes` that do not fit the model or do not say enough.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        batch_axes: Mapping[str, int | None] | None = None,
        cuts: Cuts | None = None,
        *,
        is_forced: bool = False,
    ) -> None:
        self._risk = ""  # why parts may give other results than the whole
        if is_forced and cuts is not None and cuts.reason:
            self._risk, cuts = cuts.reason, None
        self.axes = find(inputs, outputs, batch_axes, cuts.outputs if cuts is not None else ())
        if cuts is not None and cuts.reason:
            self.axes = replace(self.axes, reason=cuts.reason)
        self._elsewhere = dict(cuts.elsewhere) if cuts is not None else {}
        self._is_unproven = cuts is not None and bool(cuts.reason)
        self._same = same_sizes(inputs) if cuts is not None else ()
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._sliced = [
            (place, spec, axis)
            for place, (spec, axis) in enumerate(zip(inputs, self.axes.inputs, strict=True))
            if axis is not None
        ]
        bounds = [spec.bounds[axis] for _, spec, axis in self._sliced if spec.bounds]
        self._lowest = max((bound[0] for bound in bounds if bound), default=1) or 1
        self._highest = min((bound[1] for bound in bounds if bound), default=None)

    @property
    def _advice_to_insist(self) -> str:
        if not self._is_unproven:
            return ""
        elsewhere = ""
        if axes := self._elsewhere:
            elsewhere = f"; if the batch is {listed(axes)}, pass batch_axes={axes}"
        return (
            f"{elsewhere}; {keep_whole(self._inputs)} without this warning, or "
            'batching="force" to cut them where the results of parts may be others'
        )

    def cut(self, arrays: Sequence[Any], workers: int) -> list[list[Any]]:
        """Return the inputs of each part of a request, in order; the arrays are views.

        Of an open batch there are as many parts as workers (fewer where it is smaller, more where
        the model's bounds ask for that), of sizes that differ by 1 at most. Of a fixed batch there
        are as many as its size goes into the request's, to be dealt to the workers in turn. What
        the model is going to refuse is one part.
        Raises InputError where arrays are no multiple of a fixed batch.
        """
        if not self.axes.is_open:
            return self._cut_to_size(arrays)
        if self.axes.reason:
            if workers > 1:
                warn_once(f"requests are kept whole: {self.axes.reason}{self._advice_to_insist}")
            return [list(arrays)]
        if self._risk and workers > 1:
            warn_once(f"requests are cut as asked for, and parts may differ: {self._risk}")
        batch = self._batch(arrays)
        count = min(workers, batch // self._lowest)
        if self._highest is not None:
            count = max(count, -(-batch // self._highest))
        if count <= 1:
            return [list(arrays)]
        size, larger = divmod(batch, count)
        ends = [size * i + min(i, larger) for i in range(count + 1)]
        return self._parts(arrays, {place: ends for place, _, _ in self._sliced})

    def join(self, results: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the outputs of a request from those of its parts, in the order of `cut`.

        Joined outputs are new arrays; those of one part are its own.
        Raises ModelError where an output without a batch axis differs between parts, or where the
        parts of one with a batch axis have different shapes.
        """
        if len(results) == 1:
            return list(results[0])
        return [
            self._only(spec, values) if axis is None else self._joined(spec, axis, values)
            for spec, axis, *values in zip(self._outputs, self.axes.outputs, *results, strict=True)
        ]

    @property
    def description(self) -> str:
        """The way in which requests are cut, or the reason why they are not."""
        axes = self.axes
        if all(axis is None for axis in axes.inputs):
            return f"kept whole: {axes.reason or 'no input has a batch'}"
        if not axes.is_open:
            return "cut into the model's own batch"
        if axes.reason:
            return f"kept whole: {axes.reason}"
        forced = f"; forced, and parts may give other results: {self._risk}" if self._risk else ""
        return f"cut along the batch{forced}"

    def _batch(self, arrays: Sequence[Any]) -> int:
        """Return the size of the batch; 1, so that nothing is cut, where arrays have no one size.

        The names of axes are an exporter's: whether the model runs with other sizes, it says.
        """
        sizes = set()
        for place, spec, axis in self._sliced:
            shape = arrays[place].shape
            if len(shape) <= axis or (spec.shape is not None and len(shape) != len(spec.shape)):
                return 1
            sizes.add(shape[axis])
        if any(len({arrays[at].shape[axis] for at, axis in axes}) > 1 for axes in self._same):
            return 1  # what is proven is so for axes of one name that have one size
        return sizes.pop() if len(sizes) == 1 else 1

    def _cut_to_size(self, arrays: Sequence[Any]) -> list[list[Any]]:
        """Return parts of the model's own batch; inputs that have its size go to all."""
        ends: dict[int, list[int]] = {}
        for place, spec, axis in self._sliced:
            shape, own = arrays[place].shape, dim_at(spec, axis)
            assert isinstance(own, int), "the batch is fixed"
            if len(shape) != len(spec.shape or ()):
                return [list(arrays)]
            if shape[axis] == own:
                continue
            count, rest = divmod(shape[axis], own) if own else (0, 0)
            if rest or not count:
                raise InputError(
                    f"input {spec.name!r}: axis {axis} is {shape[axis]}, no multiple of the "
                    f"model's {own}; pass {spec}, or a multiple of it along that axis",
                    spec.name,
                )
            ends[place] = [own * i for i in range(count + 1)]
        if not ends:
            return [list(arrays)]
        (first, cuts), *others = ends.items()
        for place, other in others:
            if len(other) != len(cuts):
                raise InputError(
                    f"input {self._inputs[place].name!r} is {len(other) - 1} times the model's "
                    f"batch, but input {self._inputs[first].name!r} is {len(cuts) - 1} times; pass "
                    "the same number of samples",
                    self._inputs[place].name,
                )
        if self.axes.reason:
            raise InputError(
                f"input {self._inputs[first].name!r} is {len(cuts) - 1} times the model's batch, "
                f"but {self.axes.reason}",
                self._inputs[first].name,
            )
        return self._parts(arrays, ends)

    def _parts(self, arrays: Sequence[Any], ends: Mapping[int, Sequence[int]]) -> list[list[Any]]:
        """Return the parts of arrays, which end where `ends` says by the array's place."""
        count = len(next(iter(ends.values()))) - 1
        parts = [list(arrays) for _ in range(count)]
        for place, cuts in ends.items():
            before = (slice(None),) * (self.axes.inputs[place] or 0)
            for part, begin, end in zip(parts, cuts[:-1], cuts[1:], strict=True):
                part[place] = part[place][(*before, slice(begin, end))]
        return parts

    def _only(self, spec: TensorSpec, values: Sequence[Any]) -> Any:
        """Return the value of an output that is to be the same from every part."""
        for number, value in enumerate(values):
            if not _is_same(value, values[0]):
                raise ModelError(
                    f"output {spec.name!r} is {spec}, which has no batch axis, but part "
                    f"{number + 1} of {len(values)} of the request gives another value than part "
                    f"1; {self._advice(spec)}"
                )
        return values[0]

    def _joined(self, spec: TensorSpec, axis: int, values: Sequence[Array]) -> Array:
        try:
            return np.concatenate(values, axis)
        except ValueError as error:
            shapes = ", ".join(str(value.shape) for value in values)
            raise ModelError(
                f"output {spec.name!r} cannot be joined along axis {axis}: the parts of the "
                f"request give shapes {shapes}; {self._advice(spec)}"
            ) from error

    def _advice(self, spec: TensorSpec) -> str:
        whole = keep_whole(self._inputs)
        if not has_axes(spec):
            return whole
        return f"{whole}, or batch_axes={{{spec.name!r}: axis}} with the axis of its batch"


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two outputs are equal bit by bit: tensors, lists, dicts or None."""
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        if value.shape != other.shape or value.dtype != other.dtype:
            return False
        if value.dtype.hasobject:
            return bool(value.tolist() == other.tolist())
        return value.tobytes() == other.tobytes()
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_is_same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(
            _is_same(value[key], other[key]) for key in value
        )
    return bool(value == other) or (value != value and other != other)
