"""Models that give other shapes than their file declares: their own results may be filled again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
from predict_steps import parsed

import engine
from engine import InputError, Tensor

pytestmark = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)


def halved(declared: str, target: str) -> engine.Model:
    """y = -x with two rows in one, for x: float32[n, 6]. declared: what the file says of y."""
    return parsed(
        f"(float[n,6] x) => (float[{declared}] y) <int64[2] shape = {{-1, 12}}>"
        "{r = Reshape(x, shape) y = Neg(r)}",
        target,
    )


def expected(x: np.ndarray) -> np.ndarray:
    return -x.reshape(-1, 12)


@pytest.mark.parametrize(
    ("target", "declared"),
    [
        *(("cpu", dims) for dims in ("1, 12", "n, 12", "7", "1, 1, 12", "2, 12", "m, 12")),
        *(("reference", dims) for dims in ("1, 12", "n, 12")),  # it refuses another rank
    ],
)
@pytest.mark.parametrize("rows", [4, 2000])
def test_a_result_may_be_filled_again_whatever_shape_the_file_declares(
    target: str, declared: str, rows: int
) -> None:
    model = halved(declared, target)
    x = np.random.default_rng(0).standard_normal((rows, 6)).astype(np.float32)
    results = model.predict([x])
    memory = results[0].get_data_to_numpy()
    for factor in (2, 3, 4, 5):
        given = np.float32(factor) * x
        again = model.predict([given], results)
        assert again[0].get_data_to_numpy() is memory
        np.testing.assert_array_equal(memory, expected(given))


def test_a_result_of_one_thread_may_be_filled_in_another() -> None:
    model = halved("1, 12", "cpu")
    x = np.ones((4, 6), np.float32)
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(model.predict, [0 * x]).result()
    model.predict([x], found)
    np.testing.assert_array_equal(found[0].get_data_to_numpy(), expected(x))


def test_memory_of_the_caller_that_contradicts_the_file_is_refused_before_the_run(tmp_path) -> None:
    model = halved("1, 12", "cpu")
    x = np.ones((4, 6), np.float32)
    with pytest.raises(InputError, match=r"expected a buffer of float32\[1, 12\]"):
        model.predict([x], [Tensor(np.empty((2, 12), np.float32))])


def test_a_result_of_other_sizes_is_refused_and_left_as_it_is() -> None:
    model = halved("1, 12", "cpu")
    small = model.predict([np.zeros((4, 6), np.float32)])
    with pytest.raises(InputError, match=r"y.*\[3, 12\].*\[2, 12\]"):
        model.predict([np.ones((6, 6), np.float32)], small)
    np.testing.assert_array_equal(small[0].get_data_to_numpy(), np.zeros((2, 12)))
