"""Cutting a request and joining its parts gives what the model gives for the request as a whole."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InputError, ModelError
from engine.types import Dim, DType, TensorSpec, ValueKind
from engine.workers.slicing import Slicing

Array = np.ndarray[Any, Any]


def spec(name: str, *shape: Dim, dtype: DType = DType.FLOAT32, **others: Any) -> TensorSpec:
    return TensorSpec(name, dtype, shape, **others)


def sizes(parts: Sequence[Sequence[Array]], place: int = 0, axis: int = 0) -> list[int]:
    return [part[place].shape[axis] for part in parts]


def in_order(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


OPEN = Slicing([spec("x", "N", 3)], [spec("y", "N", 3)])


@given(
    batch=st.integers(0, 40),
    workers=st.integers(1, 9),
    shape=st.lists(st.integers(0, 4), max_size=3),
    axis=st.integers(0, 2),
    dtype=st.sampled_from(
        [np.float32, np.float64, np.int8, np.bool_, ml_dtypes.bfloat16, ml_dtypes.int4, object]
    ),
)
def test_what_is_joined_is_what_one_run_gives(batch, workers, shape, axis, dtype) -> None:
    # y[n] = a[n] + b (b goes to all), with a's batch at axis 0 and z's = y's at `axis`.
    dims = [batch, *shape]
    a = np.arange(np.prod(dims)).reshape(dims) % 7
    a = a.astype(str).astype(object) if dtype is object else a.astype(dtype)
    b = a[:0].sum(axis=0) if dtype is not object else np.full(shape, "!", object)
    axis = min(axis, len(shape))

    def run(inputs: Sequence[Array]) -> list[Array]:
        y = inputs[0] if inputs[0].dtype == bool else inputs[0] + inputs[1]
        return [y, np.moveaxis(y, 0, axis), inputs[1]]

    of = DType.from_numpy(a.dtype)
    slicing = Slicing(
        [spec("a", "N", *shape, dtype=of), spec("b", *shape, dtype=of)],
        [
            spec("y", "N", *shape, dtype=of),
            spec("z", *shape[:axis], "N", *shape[axis:], dtype=of),
            spec("b2", *shape, dtype=of),
        ],
    )
    parts = slicing.cut([a, b], workers)
    assert len(parts) == max(1, min(batch, workers))
    found = slicing.join([run(part) for part in parts])
    for value, wanted in zip(found, run([a, b]), strict=True):
        assert value.dtype == wanted.dtype
        assert value.shape == wanted.shape
        assert value.tolist() == wanted.tolist()


@given(batch=st.integers(1, 60), workers=st.integers(1, 9))
def test_parts_differ_by_one_sample_at_most_and_the_larger_come_first(batch, workers) -> None:
    found = sizes(OPEN.cut([in_order(batch, 3)], workers))
    assert sum(found) == batch
    assert found == sorted(found, reverse=True)
    assert found[0] - found[-1] <= 1


@given(
    times=st.integers(1, 9), own=st.integers(1, 4), workers=st.integers(1, 4), wide=st.booleans()
)
def test_a_model_of_fixed_batch_gets_its_own_batch_each_time(times, own, workers, wide) -> None:
    slicing = Slicing([spec("x", own, 3), spec("w", own)], [spec("y", own, 3)])
    x, w = in_order(times * own, 3), in_order(times * own if wide else own)

    def run(inputs: Sequence[Array]) -> list[Array]:
        assert inputs[0].shape == (own, 3)
        return [inputs[0] * inputs[1][:, None]]

    [y] = slicing.join([run(part) for part in slicing.cut([x, w], workers)])
    weights = w if wide else np.tile(w, times)
    np.testing.assert_array_equal(y, x * weights[:, None])


X3, Y3 = spec("x", "N", 3), spec("y", "N", 3)
BOUNDED = spec("x", "N", 3, bounds=((2, 4), None))
CUTS = {
    "seven over three workers": (OPEN, [(7, 3)], 3, [3, 2, 2]),
    "fewer samples than workers": (OPEN, [(2, 3)], 8, [1, 1]),
    "a batch of one": (OPEN, [(1, 3)], 4, [1]),
    "a batch of none": (OPEN, [(0, 3)], 4, [0]),
    "sizes that it was compiled for": (Slicing([BOUNDED], [Y3]), [(16, 3)], 2, [4, 4, 4, 4]),
    "sizes from 2 to 4": (Slicing([BOUNDED], [Y3]), [(5, 3)], 4, [3, 2]),
    # Requests that the model would refuse or decide are left to it in one piece.
    "it may broadcast": (Slicing([X3, spec("m", "N")], [Y3]), [(4, 3), (1,)], 2, [4]),
    "another rank": (Slicing([X3, spec("m", "N")], [Y3]), [(12,), (4,)], 2, [12]),
    "as np.fromfile gives it": (Slicing([spec("x", 1, 3)], [spec("y", 1, 3)]), [(3,)], 2, [3]),
    "the own shape of a fixed model": (
        Slicing([spec("x", 4, 3)], [spec("y", 4)]), [(4, 3)], 4, [4]
    ),
    "no axis is given for any input": (
        Slicing([X3], [spec("y", None, 3)], {"x": None}), [(8, 3)], 4, [8]
    ),
    "an axis is given for an output": (
        Slicing([spec("x", None, 3)], [spec("y", None)], {"y": 0}), [(4, 3)], 2, [2, 2]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CUTS)
def test_parts_have_these_sizes(case: str) -> None:
    slicing, shapes, workers, expected = CUTS[case]
    assert sizes(slicing.cut([in_order(*shape) for shape in shapes], workers)) == expected


TABLE = spec("table", "K", 3)
AXES = {
    "the most frequent open first axis": (
        [TABLE, X3, spec("mask", "N")], [spec("y", "N")], None, (None, 0, 0), (0,)
    ),
    "of two, the one that outputs have": ([TABLE, X3], [spec("y", "N")], None, (None, 0), (0,)),
    "an output of another first size than the fixed batch": (
        [spec("x", 2, 3)], [spec("y", 2), spec("weights", 3)], None, (0,), (0, None)
    ),
    "given, and the rest follows from their names": (
        [spec("x", "T", "B"), spec("mask", "B", "T"), spec("table", "T", 4)],
        [spec("y", "B", 2)], {"x": 1, "table": None}, (1, 0, None), (0,),
    ),
    "counted from the end": ([spec("x", 3, "B")], [spec("y", "B")], {"x": -1}, (1,), (0,)),
}  # fmt: skip


@pytest.mark.parametrize("case", AXES)
def test_the_batch_is_at_these_axes(case: str) -> None:
    inputs, outputs, axes, of_inputs, of_outputs = AXES[case]
    found = Slicing(inputs, outputs, axes).axes
    assert (found.inputs, found.outputs) == (of_inputs, of_outputs)


def test_given_axes_of_a_fixed_model_cut_along_them() -> None:
    slicing = Slicing([spec("x", 3, 2)], [spec("y", 2)], {"x": 1, "y": 0})
    assert sizes(slicing.cut([in_order(3, 6)], 2), axis=1) == [2, 2, 2]


@pytest.mark.parametrize(
    ("own", "shapes", "says"),
    [
        ([(4, 3)], [(6, 3)], "'x0': axis 0 is 6, no multiple of the model's 4; pass"),
        ([(4, 3)], [(0, 3)], "axis 0 is 0, no multiple"),
        ([(1, 3), (2,)], [(4, 3), (6,)], "'x1' is 3 times the model's batch, but input 'x0' is 4"),
    ],
)
def test_no_multiple_of_a_fixed_batch_is_refused(own: Any, shapes: Any, says: str) -> None:
    inputs = [spec(f"x{place}", *shape) for place, shape in enumerate(own)]
    with pytest.raises(InputError, match=says):
        Slicing(inputs, [spec("y", own[0][0])]).cut([in_order(*shape) for shape in shapes], 2)


def test_parts_are_views_of_what_was_given() -> None:
    x = in_order(7, 3)
    assert all(np.shares_memory(part, x) for [part] in OPEN.cut([x], 3))


def test_inputs_without_a_batch_go_to_every_part() -> None:
    inputs = [spec("x", "N", 3), spec("k", dtype=DType.INT64), spec("table", "K", 3)]
    slicing = Slicing(inputs, [spec("y", "N", 3)])
    assert slicing.axes.inputs == (0, None, None)
    k, table = np.array(7), in_order(5, 3)
    for part in slicing.cut([in_order(4, 3), k, table], 2):
        assert part[1] is k
        assert part[2] is table


def test_the_batch_is_found_at_other_axes_by_its_name() -> None:
    inputs = [spec("x", "N", "T"), spec("length", "N"), spec("state", 2, "N", 8)]
    slicing = Slicing(inputs, [spec("y", "T", "N"), spec("state'", 2, "N", 8)])
    assert slicing.axes.inputs == (0, 0, 1)
    assert slicing.axes.outputs == (1, 1)
    parts = slicing.cut([in_order(5, 6), in_order(5), in_order(2, 5, 8)], 2)
    assert sizes(parts, 2, axis=1) == [3, 2]


def test_four_times_a_fixed_batch_are_four_parts_however_many_workers() -> None:
    inputs = [spec("latents", 1, 4, 8, 8), spec("text", 1, 7, 16), spec("step", 1)]
    slicing = Slicing(inputs, [spec("noise", 1, 4, 8, 8)])
    step = in_order(1)
    parts = slicing.cut([in_order(4, 4, 8, 8), in_order(4, 7, 16), step], 2)
    assert sizes(parts) == sizes(parts, 1) == [1, 1, 1, 1]
    assert all(part[2] is step for part in parts)


@pytest.mark.parametrize(
    ("given_axes", "message"),
    [
        ({"z": 0}, "no input or output 'z', only 'x', 'y', 's'"),
        ({"x": 2}, r"'x' is float32\[N, 3\], which has no axis 2"),
        ({"x": -3}, "has no axis -3"),
        ({"s": 0}, r"'s' is sequence\(float32\[\]\), which has no axis 0"),
        ({"x": 0}, "output 's' is .* batch axis is not known"),
    ],
)
def test_axes_that_do_not_fit_are_refused(given_axes: Mapping[str, int], message: str) -> None:
    outputs = [spec("y", "N"), spec("s", kind=ValueKind.SEQUENCE)]
    with pytest.raises(InputError, match=message):
        Slicing([spec("x", "N", 3)], outputs, given_axes)


@pytest.mark.parametrize("wrong", [["x"], {"x": "0"}, {"x": 0.5}])
def test_axes_of_the_wrong_type_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="batch_axes"):
        Slicing([spec("x", "N", 3)], [spec("y", "N")], wrong)


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ([spec("a", "N"), spec("b", "M")], [spec("y", 3)], "which open axis is the batch"),
        ([spec("a", None), spec("b", None)], [spec("y", 3)], "which open axis is the batch"),
        ([spec("x", "N", "N")], [spec("y", "N")], "'x' is .* with the batch in two places"),
        ([spec("x", "N")], [spec("y", "found", 7)], "output 'y' is .* batch axis is not"),
        ([spec("x", None)], [spec("y", None)], "output 'y' is .* batch axis is not"),
        (
            [spec("x", "N")],
            [TensorSpec("y", DType.INT8, None)],
            "output 'y' is .* batch axis is not",
        ),
    ],
)
def test_where_the_batch_cannot_be_told_requests_stay_whole_and_a_warning_says_why(
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    reason: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.backends.doors._warned", set())
    slicing = Slicing(inputs, outputs)
    arrays = [np.zeros((4,) * len(spec.shape or ()), np.float32) for spec in inputs]
    with caplog.at_level(logging.WARNING, "engine"):
        assert len(slicing.cut(arrays, 2)) == len(slicing.cut(arrays, 2)) == 1
    [record] = caplog.records
    assert re.search(reason, record.getMessage())
    assert "pass batch_axes=" in record.getMessage()


def nonzero() -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Inputs and outputs of a model that tells where x is not 0."""
    return [spec("x", "N", 3)], [spec("y", 2, "K", dtype=DType.INT64)]


def classifier(*others: TensorSpec) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Inputs and outputs as skl2onnx names them."""
    return [spec("X", None, 4)], [spec("label", None, dtype=DType.INT64), *others]


SCORES = spec("probabilities", None, 3)
MAPS = spec("output_probability", kind=ValueKind.SEQUENCE)


@pytest.mark.parametrize(
    ("inputs", "outputs", "advised"),
    [
        (*nonzero(), [{"x": None}]),
        (*classifier(SCORES), [{"X": None}, {"label": 0, "probabilities": 0}]),
        (*classifier(MAPS), [{"X": None}]),
        ([spec("x", "N", "N")], [spec("y", "N")], [{"x": None}]),
        ([spec("x", "N", 3)], [spec("pairs", "N", "N")], [{"x": None}]),
        ([spec("x", "N", 3), spec("w", 4)], [spec("y", "K")], [{"x": None, "w": None}, {"y": 0}]),
        (
            [spec("a", "N"), spec("b", "M")],
            [spec("y", 3)],
            [{"a": None, "b": None}, {"a": 0}, {"b": 0}],
        ),
        (
            [spec("ids", None, 8), spec("mask", None, 8)],
            [spec("y", None)],
            [{"ids": None, "mask": None}, {"ids": 0, "mask": 0, "y": 0}],
        ),
        (
            [spec("x", "N"), spec("z", "N"), spec("table", "K")],
            [spec("y", "K", None)],
            [{"x": None, "z": None, "table": None}],
        ),
    ],
)
def test_all_that_the_warning_advises_fits_as_it_stands(inputs, outputs, advised) -> None:
    reason = Slicing(inputs, outputs).axes.reason
    found = [ast.literal_eval(text) for text in re.findall(r"batch_axes=(\{.*?\})", reason)]
    whole, *others = found
    assert others == advised[1:]
    assert whole.items() >= advised[0].items()
    arrays = [np.zeros((4,) * len(spec.shape or ()), np.float32) for spec in inputs]
    assert len(Slicing(inputs, outputs, whole).cut(arrays, 2)) == 1
    for axes in others:
        assert len(Slicing(inputs, outputs, axes).cut(arrays, 2)) == 2


def test_the_error_of_too_few_axes_asks_for_all_that_are_missing() -> None:
    with pytest.raises(
        InputError, match=r"'probabilities' is .*\{'label': 0, 'probabilities': 0\}"
    ):
        Slicing(*classifier(SCORES), {"label": 0})
    whole = r"'output_probability' is .*; pass batch_axes=\{'X': None\} to keep requests whole$"
    for axes in ({"label": 0}, {"output_probability": 0}):
        with pytest.raises(InputError, match=whole):
            Slicing(*classifier(MAPS), axes)


def test_an_output_without_axes_that_differs_is_not_asked_for_one() -> None:
    slicing = Slicing(*classifier(MAPS), {"label": 0, "output_probability": None})
    with pytest.raises(
        ModelError, match=r"than part 1; pass batch_axes=\{'X': None\} to keep .*e$"
    ):
        slicing.join([[in_order(1), [1.0]], [in_order(1), [2.0]]])


def test_a_fixed_model_whose_output_cannot_be_joined_takes_its_own_batch_only() -> None:
    slicing = Slicing([spec("x", 1, 3)], [spec("boxes", None, 7)])
    assert len(slicing.cut([in_order(1, 3)], 2)) == 1
    with pytest.raises(
        InputError, match=r"4 times the .* but output 'boxes'.* the model's own batch, or"
    ):
        slicing.cut([in_order(4, 3)], 2)


def test_one_part_gives_its_own_arrays() -> None:
    y = in_order(2, 3)
    assert OPEN.join([[y]])[0] is y


def test_an_output_without_a_batch_that_differs_is_refused() -> None:
    slicing = Slicing([spec("x", "N")], [spec("mean"), spec("y", "N")])
    y = in_order(1)
    with pytest.raises(ModelError, match=r"'mean'.* part 3 of 3 .* batch_axes=\{'x': None\}"):
        slicing.join([[np.float32(1), y], [np.float32(1), y], [np.float32(2), y]])


def test_equal_bits_are_the_same_value_also_where_they_are_nan() -> None:
    slicing = Slicing([spec("x", "N")], [spec("bias", 2)])
    nan = np.array([np.nan, 1], np.float32)
    assert slicing.join([[nan], [nan.copy()]])[0] is nan
    with pytest.raises(ModelError, match="'bias'"):
        slicing.join([[np.zeros(2, np.float32)], [-np.zeros(2, np.float32)]])


def test_strings_lists_and_maps_are_compared_by_value() -> None:
    outputs = [
        spec("text", 1, dtype=DType.STRING),
        spec("list", kind=ValueKind.SEQUENCE),
        spec("map", kind=ValueKind.MAP),
        spec("maybe", kind=ValueKind.OPTIONAL),
    ]
    axes = {"list": None, "map": None, "maybe": None}
    slicing = Slicing([spec("x", "N")], outputs, axes)

    def results() -> list[Any]:
        return [np.array(["a"], object), [in_order(2)], {"k": float("nan")}, None]

    assert slicing.join([results(), results()])[1][0].tolist() == [0, 1]
    for place, other in enumerate([np.array(["b"], object), [], {"k": 1.0}, in_order(1)]):
        changed = results()
        changed[place] = other
        with pytest.raises(ModelError, match=repr(outputs[place].name)):
            slicing.join([results(), changed])


def test_parts_that_do_not_fit_together_are_refused() -> None:
    slicing = Slicing([spec("x", "N")], [spec("y", "N", None)])
    with pytest.raises(ModelError, match=r"'y' cannot be joined .* 0: .*\(2, 3\), \(1, 4\)"):
        slicing.join([[in_order(2, 3)], [in_order(1, 4)]])
