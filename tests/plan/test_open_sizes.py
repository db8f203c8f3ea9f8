"""Sizes of open axes fit together: by their symbols, by their names, or by trial."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from engine.errors import InputError, ModelError
from engine.plan.open_sizes import (
    described,
    first_that_runs,
    fitting_shapes,
    shapes_of_size,
)
from engine.types import DType, TensorSpec

ADVICE = "say sizes that fit together: --shape NAME=SIZES"


def spec(name: str, *shape: Any, dtype: DType = DType.FLOAT32, bounds: Any = ()) -> TensorSpec:
    return TensorSpec(name, dtype, shape, bounds=bounds)


def decoder(
    batch: Any = "batch_size", new: Any = "sequence_length", mask: Any = "total_sequence_length",
    past: Any = "past_sequence_length",
) -> list[TensorSpec]:  # fmt: skip
    return [
        spec("input_ids", batch, new, dtype=DType.INT64),
        spec("attention_mask", batch, mask, dtype=DType.INT64),
        spec("position_ids", batch, new, dtype=DType.INT64),
        spec("past_key_values.0.key", batch, 4, past, 16),
        spec("past_key_values.0.value", batch, 4, past, 16),
    ]


def first(
    specs: Sequence[TensorSpec],
    given: Mapping[str, tuple[int, ...]] | None = None,
    size: int = 1,
) -> list[tuple[int, ...]]:
    shapes = next(fitting_shapes(specs, given, size))
    return [shapes[each.name] for each in specs]


@pytest.mark.parametrize(
    "specs",
    [
        decoder(),
        decoder("s10", "s70", "s53", "s15"),  # as torch's exporter names what nobody has named
        decoder(mask="past_sequence_length + 1"),
        decoder(mask="past_sequence_length + sequence_length"),
        decoder(None, None, None, None),
    ],
    ids=["by name", "by input", "sum", "sum of names", "without names"],
)
def test_a_mask_is_of_the_past_and_of_what_is_new(specs: list[TensorSpec]) -> None:
    cache = (1, 4, 1, 16)
    assert first(specs) == [(1, 1), (1, 2), (1, 1), cache, cache]
    cache = (3, 4, 3, 16)
    assert first(specs, size=3) == [(3, 3), (3, 6), (3, 3), cache, cache]


def test_sizes_that_are_said_are_kept_and_the_others_follow() -> None:
    specs = decoder("s10", "s70", "s53", "s15")
    cache = (2, 4, 1, 16)
    assert first(specs, {"input_ids": (2, 5)}) == [(2, 5), (2, 6), (2, 5), cache, cache]
    cache = (2, 4, 4, 16)
    given = {"input_ids": (2, 5), "attention_mask": (2, 9)}
    assert first(specs, given) == [(2, 5), (2, 9), (2, 5), cache, cache]
    cache = (2, 4, 0, 16)
    given = {"past_key_values.0.key": cache, "input_ids": (2, 5)}
    assert first(specs, given) == [(2, 5), (2, 5), (2, 5), cache, cache]


def test_sizes_that_disagree_are_named_with_what_sets_them() -> None:
    given = {"input_ids": (1, 5), "attention_mask": (1, 3)}
    message = (
        "input 'attention_mask': its total_sequence_length is 3 and sequence_length of input "
        "'input_ids' 5, which leaves no room for a past; expected 5 or more; change --shape"
    )
    with pytest.raises(InputError) as caught:
        next(fitting_shapes(decoder(), given, advice="change --shape"))
    assert str(caught.value) == message


def test_pictures_have_a_height_and_a_width_and_other_axes_are_1() -> None:
    assert first([spec("x", "n", 3, "h", "w")]) == [(1, 3, 64, 64)]
    assert first([spec("x", "n", 3, "?", "?")]) == [(1, 3, 64, 64)]
    assert first([spec("x", "d0", 3, None, "d2")]) == [(1, 3, 64, 64)]
    assert first([spec("x", None, "height", "width", 3)]) == [(1, 64, 64, 3)]
    assert first([spec("x", "n", 3), spec("y", 3, "m")]) == [(1, 3), (3, 1)]
    assert first([spec("x", "n"), spec("y")], {"x": (7,)}) == [(7,), ()]
    # "?" is no name: it does not say that axes are equal.
    assert first([spec("x", 1, 3, "?", "?")], {"x": (1, 3, 4, 8)}) == [(1, 3, 4, 8)]


def test_an_expression_of_symbols_has_the_size_that_it_says() -> None:
    specs = [spec("x", "n", "m"), spec("y", "2*n + m - 1", 4), spec("z", "m // 2")]
    assert first(specs, {"x": (3, 8)}) == [(3, 8), (13, 4), (4,)]
    assert first([spec("x", "n", "__import__('os').abort() + n")]) == [(1, 1)]
    assert first([spec("x", "n", "9**9**9**9 + n")]) == [(1, 1)]


def test_sizes_stay_within_what_a_model_was_compiled_for() -> None:
    bounds = ((2, 8), None, (32, 48), (32, 48))
    assert first([spec("x", "n", 3, "h", "w", bounds=bounds)]) == [(2, 3, 48, 48)]


@pytest.mark.parametrize(
    ("runs", "chosen"),
    [
        (lambda x: x[2] == x[3] == 224, (1, 3, 224, 224)),
        (lambda x: x[0] > 1, (2, 3, 64, 64)),
        (lambda x: x[2] % 32 == 0, (1, 3, 64, 64)),
    ],
)
def test_a_few_combinations_are_tried(
    runs: Callable[[tuple[int, ...]], bool], chosen: tuple[int, ...]
) -> None:
    specs = [spec("x", "n", 3, "h", "w")]

    def run(shapes: Mapping[str, tuple[int, ...]]) -> int:
        if not runs(shapes["x"]):
            raise ModelError("it does not fit")
        return 5

    found = first_that_runs(fitting_shapes(specs), run, lambda shapes: "", ADVICE)
    assert found == ({"x": chosen}, 5)


def test_masks_of_the_past_alone_are_tried_and_a_cache_that_is_empty() -> None:
    """So are decoders that write into a cache of its full length."""
    tried = []

    def run(shapes: Mapping[str, tuple[int, ...]]) -> None:
        tried.append((shapes["attention_mask"][1], shapes["past_key_values.0.key"][2]))
        raise ModelError("it does not fit")

    with pytest.raises(ModelError):
        first_that_runs(fitting_shapes(decoder(), size=4), run, lambda shapes: "", ADVICE)
    assert tried[0] == (8, 4)
    assert {(4, 4), (4, 0)} <= {*tried}
    assert len(tried) < 12


def test_the_first_error_is_raised_with_the_sizes_and_the_flag() -> None:
    specs = [spec("x", "n", "k")]

    def run(shapes: Mapping[str, tuple[int, ...]]) -> None:
        raise ModelError(f"no kernel for {shapes['x']}")

    with pytest.raises(ModelError) as caught:
        first_that_runs(fitting_shapes(specs), run, lambda shapes: described(specs, shapes), ADVICE)
    text = str(caught.value)
    assert text.startswith("no kernel for (1, 1); sizes of open axes were chosen, and none of ")
    assert text.endswith(f"choices runs, as n 1, k 1; {ADVICE}")


def test_an_error_that_has_nothing_to_do_with_sizes_is_raised_at_once() -> None:
    count = 0

    def run(shapes: Mapping[str, tuple[int, ...]]) -> None:
        nonlocal count
        count += 1
        raise TimeoutError

    with pytest.raises(TimeoutError):
        first_that_runs(fitting_shapes(decoder()), run, lambda shapes: "", ADVICE)
    assert count == 1


def test_what_a_signal_handler_raises_is_no_misfit() -> None:
    """A task queue's time limit, say, whatever its class is."""
    count = 0

    def handle(*_: object) -> None:
        raise InputError("the task's time is over")

    def run(shapes: Mapping[str, tuple[int, ...]]) -> None:
        nonlocal count
        count += 1
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(InputError, match=r"^the task's time is over$"):
            first_that_runs(
                fitting_shapes(decoder()), run, lambda shapes: "", "", misfits=(Exception,)
            )
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert count == 1


def test_a_trial_of_batches_gives_all_axes_one_size_but_sums() -> None:
    shapes = shapes_of_size(decoder("s10", "s70", "s53", "s15"), 3, 7)
    cache = (3, 4, 7, 16)
    assert [*shapes.values()] == [(3, 7), (3, 14), (3, 7), cache, cache]
    bounds = (None, None, (32, 48), None)
    shapes = shapes_of_size([spec("x", "n", 3, "h", "w", bounds=bounds)], 3, 7)
    assert shapes == {"x": (3, 3, 32, 7)}
