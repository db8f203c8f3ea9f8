"""Compare the ranks' files with the original on generated inputs, before they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto

from engine.context import Context
from engine.converter.sample_inputs import FLOATS
from engine.errors import EngineError, ModelError, one_line
from engine.formats.micro_batches import MicroBatches
from engine.plan.disagreement import sizes_and_disagreement
from engine.plan.open_sizes import Shapes, first_that_runs
from engine.sharding.slicing.check_inputs import drawn, generated, input_specs, shapes_to_try
from engine.sharding.slicing.emulate import run_original, run_ranks
from engine.sharding.slicing.exact import run_exactly
from engine.sharding.slicing.near_ties import explained, rounded_otherwise
from engine.sharding.slicing.original import Original
from engine.sharding.slicing.report import Difference
from engine.types import DType

Array: TypeAlias = "np.ndarray[Any, Any]"

LIMIT = 1e-4
"""Largest difference that is taken for rounding, as a part of a result's largest value."""
HALF_LIMIT = 2e-2
"""The same for results in float16 and bfloat16, and of quantized models, be it that only weights
are quantized: a runtime chooses kernels for them, by their shapes, that round in their own ways."""

OWN_DISTANCE = 4
"""A slice may be as many times as far from the original as that is from its results in float64."""

_NOTHING_WRITTEN = "nothing was written (this is an error of the slicer: report it with the model)"


def compare(
    model: Original, path: Path, files: Sequence[Path], context: Context
) -> tuple[list[Difference], str]:
    """Run the original and the ranks on generated inputs; returns differences, and a note.

    Raises ModelError where a result is not the original's, or nothing could be run.
    """
    worst: dict[str, Difference] = {}
    for inputs, expected in _expected(model, path, len(files), context):
        results = run_ranks(files, inputs, context)
        if any(map(model.is_random, model.nodes)):
            return [], "it draws random numbers, so nothing was compared; its slices ran"
        for one in _Comparison(model, path, files, context, inputs, expected).differences(results):
            if one.output not in worst or one.difference > worst[one.output].difference:
                worst[one.output] = one
    return list(worst.values()), ""


def compare_parts(
    model: Original, path: Path, files: Sequence[Path], context: Context, batches: MicroBatches
) -> None:
    """Run the ranks on the halves of a batch, and compare these with the original on all of it.

    Raises ModelError where its rows are not independent of each other.
    """
    if any(map(model.is_random, model.nodes)):
        return
    shapes, _ = first_that_runs(
        shapes_to_try(model),
        lambda shapes: run_original(path, generated(model, shapes), context),
        partial(sizes_and_disagreement, model.source, input_specs(model)),
        "say sizes that fit together (--input-shape)",
    )
    halves = [generated(model, shapes, draw=draw, draws=2) for draw in range(2)]
    whole = {
        name: np.concatenate([half[name] for half in halves]) if name in batches.inputs else value
        for name, value in halves[0].items()
    }
    shared = {name: value for name, value in whole.items() if name not in batches.inputs}
    runs = [run_ranks(files, half | shared, context) for half in halves]
    joined = [
        {name: np.concatenate([one[name] for one in of_rank]) for name in of_rank[0]}
        for of_rank in zip(*runs, strict=True)
    ]
    try:
        expected = run_original(path, whole, context)
        list(_Comparison(model, path, files, context, whole, expected).differences(joined))
    except ModelError as error:
        raise ModelError(
            f"{model.name}: gives other results for {2 * batches.rows} rows than for "
            f"{batches.rows} and {batches.rows} of them; slice it without micro-batches ({error})"
        ) from error


def _expected(
    model: Original, path: Path, parts: int, context: Context
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield inputs with which the original runs, and what it gives."""
    failure: ModelError | None = None
    first: Shapes | None = None
    for shapes in shapes_to_try(model):
        has_run = False
        first = first or shapes
        for inputs in drawn(model, shapes, parts):
            try:
                expected = run_original(path, inputs, context)
            except ModelError as error:
                failure = failure or error
            except EngineError:
                raise
            except Exception as error:  # a backend's own, of inputs that do not go together
                failure = failure or ModelError(one_line(error))
            else:
                has_run = True
                yield inputs, expected
        if has_run:
            return
    assert first is not None, "there are shapes to try"
    sizes = sizes_and_disagreement(model.source, input_specs(model), first)
    why = "; ".join(filter(None, (str(failure), sizes)))
    raise ModelError(
        f"{model.name}: does not run on generated inputs ({why}), so its slices cannot be checked; "
        "say how large its open dims are (--input-shape), or slice unchecked (--no-check)"
    ) from failure


class _Comparison:
    """Results of the ranks beside those of the original, for one set of inputs."""

    def __init__(
        self,
        model: Original,
        path: Path,
        files: Sequence[Path],
        context: Context,
        inputs: Mapping[str, Any],
        expected: Mapping[str, Any],
    ) -> None:
        self._path, self._files, self._context = path, files, context
        self._inputs = inputs
        self._expected = {n: v for n, v in expected.items() if isinstance(v, np.ndarray)}
        self._limit = HALF_LIMIT if any(map(_is_quantized, model.nodes)) else LIMIT
        self._rounded: Mapping[str, Sequence[Array]] | None = None
        self._exact: Mapping[str, Any] | None = None

    def differences(self, results: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
        """Yield how each rank's results differ. Raises ModelError for what is no rounding."""
        for name, value in self._expected.items():
            for file, result in zip(self._files, results, strict=True):
                if name in result:
                    yield self._difference(name, value, result[name], file)

    def _difference(self, name: str, expected: Array, got: Any, file: Path) -> Difference:
        if (
            not isinstance(got, np.ndarray)
            or got.shape != expected.shape
            or (got.dtype != expected.dtype)
        ):
            shown = f"{got.dtype}{list(got.shape)}" if isinstance(got, np.ndarray) else type(got)
            raise ModelError(
                f"{file.name}: output {name!r} is {shown}, but the original's is "
                f"{expected.dtype}{list(expected.shape)}; {_NOTHING_WRITTEN}"
            )
        if got.tobytes() == expected.tobytes():
            return Difference(name, 0.0, _largest(expected), True)
        dtype = DType.from_numpy(expected.dtype)
        if dtype not in FLOATS:
            wrong = int(np.count_nonzero(got != expected))
            unexplained = int(np.count_nonzero(~self._explained(name, expected, got)))
            if unexplained:
                raise ModelError(
                    f"{file.name}: output {name!r} differs from the original's in {unexplained} of "
                    f"{expected.size} elements, and not by rounding; {_NOTHING_WRITTEN}"
                )
            return Difference(name, float(wrong), _largest(expected), not wrong)
        one, other = got.astype(np.float64), expected.astype(np.float64)
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        with np.errstate(invalid="ignore"):
            difference = float(np.max(np.where(same, 0, np.abs(one - other)), initial=0))
        largest = _largest(expected)
        limit = HALF_LIMIT if expected.dtype.itemsize < 4 else self._limit
        if difference <= limit * max(largest, 1e-30):
            return Difference(name, difference, largest, bool(same.all()))
        own = self._own_distance(name, other)
        if own is None or not difference <= OWN_DISTANCE * own:
            beside = "" if own is None else f" and are {own:.3g} from those in float64"
            raise ModelError(
                f"{file.name}: output {name!r} differs from the original's by {difference:.3g}, "
                f"and its values go to {largest:.3g}{beside}; {_NOTHING_WRITTEN}"
            )
        return Difference(name, difference, largest, False)

    def _own_distance(self, name: str, expected: Array) -> float | None:
        """Return how far the original's result is from the one in float64; None if not known."""
        if self._exact is None:
            self._exact = run_exactly(self._path, self._inputs, [*self._expected]) or {}
        exact = self._exact.get(name)
        if exact is None or np.shape(exact) != expected.shape:
            return None
        with np.errstate(invalid="ignore"):
            apart = np.abs(np.asarray(exact, np.float64) - expected)
        return float(np.max(apart, where=np.isfinite(apart), initial=0))

    def _explained(self, name: str, expected: Array, got: Array) -> Array:
        """Return which integers are the original's, or others because of a rounding before them."""
        if self._rounded is None:
            integers = [
                name
                for name, value in self._expected.items()
                if DType.from_numpy(value.dtype) not in FLOATS
            ]
            self._rounded = rounded_otherwise(
                self._path, integers, self._inputs, self._limit, self._context
            )
        return explained(self._rounded.get(name, ()), expected, got)


def _is_quantized(node: NodeProto) -> bool:
    """Return whether a node is of a quantized model, be it that only its weights are."""
    return "quantize" in node.op_type.lower() or "NBits" in node.op_type


def _largest(array: Array) -> float:
    if array.dtype.kind not in "fiub" and DType.from_numpy(array.dtype) not in FLOATS:
        return 0.0
    wide = array.astype(np.float64)
    return float(np.max(np.abs(wide, where=np.isfinite(wide), out=np.zeros_like(wide)), initial=0))
