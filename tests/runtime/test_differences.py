"""Two runs' outputs compared element by element: the rule, what is largest, what cannot be less."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from engine.errors import InputError
from engine.report.differences import OutputComparison, compare_outputs


def one(a: object, b: object, **tolerances: float) -> OutputComparison:
    [output] = compare_outputs({"y": np.asarray(a)}, {"y": np.asarray(b)}, **tolerances).outputs
    return output


def test_the_largest_errors_are_told_with_their_places_and_values() -> None:
    found = one([[1.0, 2.0], [10.0, 0.0]], [[1.5, 2.0], [11.0, 0.0]])
    assert (found.absolute.error, found.absolute.at) == (1.0, (1, 0))
    assert (found.absolute.a, found.absolute.b) == (10.0, 11.0)
    assert (found.relative.error, found.relative.at) == (pytest.approx(0.5 / 1.5), (0, 0))
    assert (found.differing, found.is_within, found.verdict) == (2, False, "differs: 2 of 4 values")


def test_what_is_within_is_numpys_rule_with_b_as_the_reference() -> None:
    generator = np.random.default_rng(0)
    b = generator.standard_normal(1000)
    a = b + generator.standard_normal(1000) * 1e-3
    for rtol, atol in ((0.0, 1e-3), (1e-3, 0.0), (1e-3, 1e-4), (0.1, 0.1)):
        expected = int((~np.isclose(a, b, rtol=rtol, atol=atol)).sum())
        assert one(a, b, rtol=rtol, atol=atol).differing == expected


def test_nan_and_infinity_must_be_on_both_sides() -> None:
    nan, infinite = math.nan, math.inf
    same = one([nan, infinite, -infinite, 1.0], [nan, infinite, -infinite, 1.0])
    assert (same.is_equal, same.nans, same.infinities) == (True, (1, 1), (2, 2))
    other = one([nan, infinite, 1.0, 2.0], [1.0, -infinite, nan, 2.0], rtol=1e9, atol=1e9)
    assert (other.differing, other.nans, other.infinities) == (3, (1, 1), (1, 1))
    assert (other.absolute.error, other.absolute.at) == (0.0, (3,))


def test_whole_numbers_have_no_relative_error_to_allow() -> None:
    assert one([1000, 7], [1001, 7]).differing == 1
    assert one([1000, 7], [1001, 7], rtol=0.5).differing == 1
    assert one(np.uint8([0, 255]), np.uint8([1, 254]), atol=1).is_within
    # Numbers that float64 cannot tell apart, and that int64 cannot hold.
    large = one([2**53], [2**53 + 1])
    assert (large.differing, large.absolute.error) == (1, 1.0)
    assert one([-(2**63)], [2**63 - 1]).absolute.error == float(2**64 - 1)


def test_the_less_precise_type_sets_the_tolerance() -> None:
    b = np.float32([1.0, 2.0])
    assert not one(b * np.float32(1.005), b).is_within
    assert one((b * np.float32(1.005)).astype(np.float16), b).is_within
    assert one((b * 1.005).astype(ml_dtypes.bfloat16), b).dtypes == ("bfloat16", "float32")
    assert one(np.bool_([True]), np.bool_([False])).differing == 1
    assert one(np.complex64([1 + 1j]), np.complex64([1 + 1.00001j])).is_within


def test_text_is_equal_or_not() -> None:
    found = one(np.array(["a", "b"], object), np.array(["a", "c"], object))
    assert (found.differing, found.absolute, found.dtypes) == (1, None, ("string", "string"))


def test_other_shapes_differ_and_empty_outputs_are_equal() -> None:
    assert one(np.zeros((2, 3)), np.zeros((3, 2))).reason == "shape [2, 3] in a, [3, 2] in b"
    assert one(np.zeros((0, 3)), np.zeros((0, 3))).is_equal


def test_outputs_of_other_names_are_compared_by_place() -> None:
    x, y = np.float32([1]), np.float32([2])
    assert compare_outputs({"x": x, "y": y}, {"y": y, "x": x}).is_within
    assert compare_outputs({"x": x, "y": y}, {"u": x, "v": y}).is_within
    with pytest.raises(InputError, match=r"a has 2 \(x, y\) and b has 1 \(u\)"):
        compare_outputs({"x": x, "y": y}, {"u": x})
    with pytest.raises(InputError, match="rtol: expected a number of 0 or more, got -1"):
        compare_outputs({"x": x}, {"x": x}, rtol=-1)


def test_names_are_printed_without_their_control_characters() -> None:
    one = {"a\x1b[2J\nb": np.zeros(1)}
    assert str(compare_outputs(one, one)).startswith(r"a\x1b[2J\nb: equal")


LOWEST, HIGHEST, WIDEST = -(2**63), 2**63 - 1, 2**64 - 1


@pytest.mark.parametrize("a", [LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST])
@pytest.mark.parametrize("b", [0, 1, HIGHEST, HIGHEST + 1, HIGHEST + 2, WIDEST])
def test_signed_and_unsigned_numbers_are_compared_exactly(a: int, b: int) -> None:
    for found in (
        one(np.array([a], np.int64), np.array([b], np.uint64)),
        one(np.array([b], np.uint64), np.array([a], np.int64)),
    ):
        assert found.is_equal == (a == b)
        assert found.is_within == (a == b)
        assert found.absolute is not None
        assert found.absolute.error == float(min(abs(a - b), WIDEST))
    near = one(np.array([a], np.int64), np.array([b], np.uint64), atol=1)
    assert near.is_within == (abs(a - b) <= 1)


def test_the_lowest_number_has_a_relative_error() -> None:
    found = one(np.array([0]), np.array([LOWEST]))
    assert (found.relative.error, found.absolute and found.absolute.error) == (1.0, 2.0**63)
