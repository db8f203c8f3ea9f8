"""May requests for a model share a run, and does it pay?

They may where each sample's results do not depend on its neighbours. That is proven (the batch is
followed through the graph, `engine.layouts.batch`), and then tried, for kernels whose bits depend
on the size: a batched run gives the very bits of single ones. It pays where a sample in a batch
takes clearly less time: a model bound by reading its weights, or by the cost of calls.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from engine.errors import Cancelled, EngineError, one_line
from engine.plan.open_sizes import shapes_of_size
from engine.serving.other_axes import listed, proven_elsewhere
from engine.types import DType, ModelSource, TensorSpec, ValueKind

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[Array]], Sequence[Array]]

INSIST = (
    ', or pass batching="force" if other requests may change a result; they are not kept apart then'
)
"""The advice to insist, and what that gives up."""
INSIST_ON_ROUNDING = (
    ', or pass batching="force" if a result may be rounded otherwise by how many share its run'
)
"""The same for a model of which it is proven that samples do not meet."""

SIZES = (1, 2, 4, 8, 16, 32)
"""The batch sizes that are measured."""

# The cost of a request that another thread serves: putting it in, taking it out, waking its thread.
_HANDOFF_S = 60e-6
# A sample in a batch must take at most this part of its time alone.
_WORTHWHILE = 0.75
# Clients that wait for each result come back at once: so long a wait for them fills the next run.
_DELAY_SHARE = 0.25  # of a run of one sample
_MOST_DELAY_S = 1e-3
_BUDGET_S = 2.0
# Other processes take a CPU for a few milliseconds at a time: within so long some run is alone.
_LEAST_S = 0.01
_FORCED = 8  # samples in a run, where the user insists and nothing was measured
_OPEN_DIM = 32  # for open axes other than the batch, of which nobody knows the usual size
# Beside it: with few rows in a sample, a batch may get another kernel than a sample alone.
_OPEN_DIMS = (_OPEN_DIM, 1, 7)
# Samples that show in others' results wherever any value of theirs does: for floats, for integers.
_EXTREMES = ((float("nan"), 0), (float("inf"), 1), (float("-inf"), 0), (1e4, 1))
_MOST_BYTES = 1 << 28
_SAMPLES = 8  # that a trial makes; larger batches repeat them
# Of a narrow model these are few numbers, which round alike by chance: then it makes more samples,
# of several magnitudes, until the outputs have so many numbers or the time is over.
_NUMBERS, _SCALES, _FURTHER_S = 4096, (10.0, 0.1, 1.0), 0.3


@dataclass(frozen=True, slots=True)
class Batching:
    """Rule by which requests share runs.

    most: samples in a run, 1 where they do not. reason: why so. delay_s: how long a request waits
    for others: from its slot on for any, until `most` have come; or, where `only_recent`, from the
    end of the last run on, until as many have come as that has served. same: axes of inputs (place
    and axis) that are to have one size in a request that shares a run. rounded: where `most` is 1
    because results are rounded otherwise in a run of several samples, how many it would be else;
    pays: why that many.
    """

    most: int
    reason: str
    delay_s: float = 0.0
    only_recent: bool = False
    same: tuple[tuple[tuple[int, int], ...], ...] = ()
    rounded: int = 0
    pays: str = ""

    def __str__(self) -> str:
        waits = ""
        if self.most > 1 and self.delay_s:
            whom = "whom the last run served" if self.only_recent else "others"
            waits = f"; a request waits up to {self.delay_s * 1e3:.3g} ms for {whom}"
        return f"{f'up to {self.most}' if self.most > 1 else 'off'}: {self.reason}{waits}"


def why_not(
    open_again: Callable[[], ModelSource],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> str:
    """Return why requests for a model may not share a run; "" where that is proven harmless.

    open_again: gives the model, weights whose values may be exchanged as inputs. Names the node
    that stands in the way.
    """
    if reason := without_batch_axis(inputs, outputs):
        return reason
    try:
        from engine.layouts.batch.source import prove_source  # with the onnx package
    except ImportError:
        return "to follow the batch through it takes the onnx package; run: pip install onnx"
    first = dict.fromkeys((spec.name for spec in inputs), 0)
    proof = prove_source(open_again, first)
    if proof.reason:
        elsewhere = proven_elsewhere(open_again, inputs, first)
        if not elsewhere:
            return proof.reason
        return (
            f"{proof.reason}; if the batch is {listed(elsewhere)}, export it with the batch first"
        )
    for spec in outputs:
        found = proof.outputs.get(spec.name)
        if found is None or found.axis != 0 or not found.is_each:
            return f"output {spec.name!r} has not one entry of its first axis for each sample"
    return ""


def without_batch_axis(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """Return which input or output cannot be joined or divided along its first axis; "" for none.

    Each request shows if the open first axes of the inputs are one size.
    """
    if not inputs or not outputs:
        return "it has no inputs or no outputs"
    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if spec.kind is not ValueKind.TENSOR or spec.dtype is DType.STRING:
                return f"{kind} {spec.name!r} is {spec}"
    for spec in inputs:
        if not spec.shape or isinstance(spec.shape[0], int):
            return f"input {spec.name!r} has no open first axis: it is {spec}"
    return ""


def same_sizes(inputs: Sequence[TensorSpec]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return which axes of inputs have one name, each as places of input and axis.

    The proof takes them for equal, and so requests share runs in which they are.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for place, spec in enumerate(inputs):
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, str):
                places.setdefault(dim, []).append((place, axis))
    return tuple(tuple(axes) for axes in places.values() if len(axes) > 1)


# --------------------------------------------------------------------------------------- by trial


def tried(
    run: Run, inputs: Sequence[TensorSpec], asked: int | None, original: Run | None = None
) -> Batching:
    """Return how requests for a model share runs, after trying it.

    run: the model on arrays. asked: the number of samples that the user wants in a run at most;
        None measures where it pays. original: the model whose results for single samples are to be
        met, where `run` is another build of it.
    Takes two seconds, or a few runs of a slow model. The delay is chosen from the time of a run of
    one sample.
    """
    chance = np.random.default_rng(0)
    try:
        if asked is None:
            times_s = _measured(run, inputs, chance)
            most = best_size(times_s)
            if len(times_s) == 1:
                return Batching(1, f"too slow or too large to measure: {_curve(times_s)}")
            if most == 1:
                return Batching(1, f"{_why_single(times_s)}: {_curve(times_s)}")
            reason = f"a batch is faster: {_curve(times_s)}"
        else:
            times_s = _measured(run, inputs, chance, SIZES[:1])
            most, reason = asked, "as asked for"
        with np.errstate(all="ignore"):  # of extremes, in backends that use numpy
            found, is_rounding = _difference(run, inputs, most, chance, original or run)
        if found:
            if is_rounding:
                return Batching(1, found, rounded=most, pays=reason)
            return Batching(1, found)
    except Cancelled:
        raise
    except (EngineError, MemoryError) as error:
        return Batching(1, f"a trial with generated inputs failed: {one_line(error)}")
    return Batching(most, reason, min(_DELAY_SHARE * times_s[1], _MOST_DELAY_S), only_recent=True)


def forced(found: Batching, asked: int | None, reason: str) -> Batching:
    """Return how requests share runs where the user insists, whatever was found.

    reason: why it is not proven that samples do not meet; "" where it is.
    """
    most = found.most if found.most > 1 else asked or _FORCED
    if reason:
        why = f"forced, and a request may change others' results: {reason}"
    elif found.most > 1:
        why = found.reason
    elif not found.rounded:
        why = (
            "forced; it is proven that samples do not meet, but not tried whether results round "
            f"alike: {found.reason}"
        )
    else:
        why = (
            "forced; it is proven that samples do not meet, but a result may be rounded otherwise "
            f"by how many share its run: {found.reason}"
        )
    return Batching(most, why, found.delay_s or _MOST_DELAY_S, only_recent=True)


def best_size(times_s: dict[int, float]) -> int:
    """Return the batch size with the least time a sample, hand-off included; 1 if not worth it.

    times_s: of a run, by its number of samples.
    """
    each = {size: (run_s + (size - 1) * _HANDOFF_S) / size for size, run_s in times_s.items()}
    best = min(each, key=lambda size: each[size])
    return best if each[best] <= _WORTHWHILE * each[1] else 1


def _why_single(times_s: dict[int, float]) -> str:
    """Return why `best_size` finds no batch worth it."""
    if min(run_s / size for size, run_s in times_s.items()) <= _WORTHWHILE * times_s[1]:
        costs = f"{_HANDOFF_S * 1e3:.2g} ms"
        return f"a batch saves less than the {costs} that each request in it costs"
    return "a batch is no faster"


def _measured(
    run: Run,
    inputs: Sequence[TensorSpec],
    chance: np.random.Generator,
    sizes: Sequence[int] = SIZES,
) -> dict[int, float]:
    """Return the time of a run by its number of samples, up to where more do not help."""
    end_s = time.monotonic() + _BUDGET_S
    times_s: dict[int, float] = {}
    for size in sizes:
        try:
            arrays = _generated(inputs, size, chance)
        except MemoryError:
            if size == 1:
                raise
            break
        begin = time.perf_counter()
        run(arrays)  # what a first run of new shapes costs
        if size == 1 and time.monotonic() > end_s:
            return {1: time.perf_counter() - begin}
        times_s[size] = _least(run, arrays, end_s)
        if size > 2 and times_s[size] / size > 0.95 * times_s[size // 2] / (size // 2):
            break
        if time.monotonic() > end_s and size > 1:
            break
    return times_s


def _least(run: Run, arrays: Sequence[Array], end_s: float) -> float:
    """Return the least time of a run, of at least five and of as many as take `_LEAST_S`."""
    runs, least, first = 0, float("inf"), time.perf_counter()
    begin = first
    while begin < first + _LEAST_S or runs < 5:
        run(arrays)
        end = time.perf_counter()
        runs, least, begin = runs + 1, min(least, end - begin), end
        if time.monotonic() > end_s:
            break
    return least


def _difference(
    run: Run, inputs: Sequence[TensorSpec], most: int, chance: np.random.Generator, original: Run
) -> tuple[str, bool]:
    """Return how a run of up to `most` samples changes results of single ones; "" for not.

    original: gives the results of single ones. Beside it: the values of others have no part in it.
    """
    is_open = any(not isinstance(dim, int) for spec in inputs for dim in (spec.shape or ())[1:])
    numbers = 0
    for open_dim in _OPEN_DIMS if is_open else _OPEN_DIMS[:1]:
        arrays = _generated(inputs, min(most, _SAMPLES), chance, open_dim)
        rows = [[array[i : i + 1].copy() for array in arrays] for i in range(len(arrays[0]))]
        try:
            alone = [original(row) for row in rows]
        except (EngineError, MemoryError) as error:
            if open_dim == _OPEN_DIM or isinstance(error, Cancelled):
                raise
            continue  # not a size for this model
        numbers = max(numbers, sum(array.size for outputs in alone for array in outputs))
        # Kernels take rows by dozens or fewer, and what remains by other code.
        sizes = {*range(2, 14), 16, 31, 32, most - 1, most}
        for place in range(len(rows)) if original is not run else ():
            if not _is_same(run, rows, alone, [place], [place]):
                return "a sample alone gives other bits than in the original", True
        for size in sorted(size for size in sizes if 1 < size <= most):
            places = [i % len(rows) for i in range(size)]
            if not _is_same(run, rows, alone, places, places):
                return f"{size} samples in one run give other bits than one by one", True
        for number, whole in _EXTREMES:
            extreme = [_filled(array, number, whole) for array in rows[0]]
            places, compared = [0, len(rows), 1], [0, None, 1]
            try:
                same = _is_same(run, [*rows, extreme], alone, places[:most], compared[:most])
            except Cancelled:
                raise
            except EngineError:
                continue  # not a value for this model
            if not same:
                return f"a sample of {number} changes the results of its neighbours", False
    if numbers < _NUMBERS and (size := _further_difference(run, inputs, most, chance, original)):
        return f"{size} samples in one run give other bits than one by one", True
    return "", False


def _further_difference(
    run: Run, inputs: Sequence[TensorSpec], most: int, chance: np.random.Generator, original: Run
) -> int:
    """Return the size of a run that changes bits of further samples; 0 if there is none."""
    sizes, numbers = sorted({min(most, 3), min(most, _SAMPLES)}), 0
    end_s = time.monotonic() + _FURTHER_S
    scales = list(_SCALES)  # but those that the model refuses
    for turn in itertools.count():
        scale = scales[turn % len(scales)]
        arrays = [
            array * array.dtype.type(scale) if array.dtype.kind == "f" else array
            for array in _generated(inputs, sizes[-1], chance)
        ]
        rows = [[array[i : i + 1].copy() for array in arrays] for i in range(len(arrays[0]))]
        try:
            alone = [original(row) for row in rows]
            for size in sizes:
                if not _is_same(run, rows, alone, range(size), range(size)):
                    return size
            numbers += sum(array.size for outputs in alone for array in outputs)
        except Cancelled:
            raise
        except EngineError:
            scales.remove(scale)
        is_over = numbers >= _NUMBERS or time.monotonic() > end_s
        if is_over or not scales or turn > _NUMBERS:
            break
    return 0


def _is_same(
    run: Run,
    rows: Sequence[Sequence[Array]],
    alone: Sequence[Sequence[Array]],
    places: Sequence[int],
    compared: Sequence[int | None],
) -> bool:
    """Return whether a run of the samples at `places` gives the bits of single ones.

    compared: the place in `alone` of each one's results, None for one that is not compared.
    """
    batch = [np.concatenate(column) for column in zip(*(rows[i] for i in places), strict=True)]
    together = run(batch)
    if any(array.shape[:1] != (len(places),) for array in together):
        return False
    for row, place in enumerate(compared):
        for whole, single in zip(together, alone[place] if place is not None else (), strict=False):
            part = whole[row : row + 1]
            if part.shape != single.shape or part.tobytes() != single.tobytes():
                return False
    return True


def _filled(array: Array, number: float, whole: int) -> Array:
    return np.full_like(array, number if array.dtype.kind not in "iub" else whole)


def _generated(
    inputs: Sequence[TensorSpec],
    size: int,
    chance: np.random.Generator,
    open_dim: int = _OPEN_DIM,
) -> list[Array]:
    arrays = []
    shapes = shapes_of_size(inputs, size, open_dim)
    for spec in inputs:
        shape = shapes[spec.name]
        if prod(shape) * max(1, spec.dtype.bits // 8) > _MOST_BYTES:
            raise MemoryError(f"input {spec.name!r} of {list(shape)} is too large to try")
        if spec.dtype.numpy.kind == "f" or spec.dtype is DType.BFLOAT16:
            arrays.append(chance.standard_normal(shape).astype(spec.dtype.numpy))
        else:  # 0 and 1 are valid indices of any embedding table, and valid masks
            arrays.append(chance.integers(0, 2, shape).astype(spec.dtype.numpy))
    return arrays


def _curve(times_s: dict[int, float]) -> str:
    """Say what a sample takes in runs of each size."""
    curve = ", ".join(f"{size}: {run_s / size * 1e3:.3g} ms" for size, run_s in times_s.items())
    return f"{curve} a sample"
