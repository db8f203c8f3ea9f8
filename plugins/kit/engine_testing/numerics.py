"""Level of the kit: quantized and small numbers, and whole graphs against their parts."""

from __future__ import annotations

import itertools
from functools import partial
from math import erf
from typing import Any

import numpy as np
import pytest

from engine.formats.onnx.infer import types_of
from engine.plan.extract import Whole
from engine.plan.partition import Segment
from engine.types import DType
from engine_testing import numeric_models as models
from engine_testing.level import Array, Level, Trial, floats

SMALL_FLOATS = [
    DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ,
    DType.FLOAT6E2M3, DType.FLOAT6E3M2, DType.FLOAT4E2M1,
]  # fmt: skip
SMALL_INTEGERS = {DType.INT4: (-8, 7), DType.UINT4: (0, 15), DType.INT2: (-2, 1),
                  DType.UINT2: (0, 3)}  # fmt: skip
HALF_QUANTUM = 0.5 + 1e-3  # and what float32 loses on the way
# The nodes of `models.block` in three parts: the norm, the attention, the gelu.
PARTS = (
    (range(9), ("x",), ("h",)),
    (range(9, 18), ("h", "x"), ("a",)),
    (range(18, 23), ("a",), ("y",)),
)


class Numerics(Level):
    """Values of few bits, and nodes that runtimes fuse. A model that is refused is no failure."""

    @pytest.mark.parametrize("operator", ["Cast", "DequantizeLinear"])
    def test_weights_stored_as_int8_are_computed_in_float(
        self, trial: Trial, operator: str
    ) -> None:
        """Only the weight has 8 bits: a runtime that quantizes x too is off by percents."""
        x = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
        model = partial(models.stored_as_int8, operator=operator)
        [y] = trial.open_or_skip(model, x).predict(x)
        weight = models.stored_weight().astype(np.float64) * float(models.STORED_SCALE)
        limit = 100 * self.rtol
        _expect_within(y, x.astype(np.float64) @ weight, limit, "x was computed in fewer bits")

    def test_integer_products_are_exact(self, trial: Trial) -> None:
        x, wide = _quantized_input()
        [y] = trial.open_or_skip(models.integer_product, x).predict(x)
        self.assert_close(y, (wide @ models.int8_weight().astype(np.int64)).astype(np.int32))

    @pytest.mark.parametrize("form", ["QLinearMatMul", "QDQ"])
    def test_quantized_products_are_within_half_a_quantum(self, trial: Trial, form: str) -> None:
        x, wide = _quantized_input()
        x_scale, w_scale = float(models.X_SCALE), float(models.W_SCALE)
        exact = (wide @ models.int8_weight().astype(np.int64)) * (x_scale * w_scale)
        quantum = float(np.float32(np.abs(exact).max() / 120))  # nothing is clipped
        if form == "QDQ":
            real = floats(wide * x_scale)
            model = partial(models.quantize_and_back, y_scale=quantum)
            [y] = trial.open_or_skip(model, real).predict(real)
        else:
            model = partial(models.quantized_product, y_scale=quantum)
            [y] = trial.open_or_skip(model, x).predict(x)
            assert isinstance(y, np.ndarray)
            y = (y.astype(np.float64) - int(models.Y_ZERO)) * quantum
        _expect_within(y, exact, HALF_QUANTUM * quantum, "more than half a quantum")

    @pytest.mark.parametrize("dtype", [*SMALL_FLOATS, *SMALL_INTEGERS, DType.FLOAT8E8M0], ids=str)
    def test_casts_to_small_types_are_right_or_refused(self, trial: Trial, dtype: DType) -> None:
        """Numbers in the type's range: the nearest, and of two the even one."""
        pytest.importorskip("ml_dtypes", reason="the expected values need ml_dtypes")
        if dtype in SMALL_INTEGERS:
            lowest, highest = SMALL_INTEGERS[dtype]
            x = floats(np.arange(lowest, highest + 1))
        elif dtype is DType.FLOAT8E8M0:
            x = floats(2.0 ** np.arange(-20, 21))  # it has nothing but powers of two
        else:
            x = _numbers_of(dtype)
        [y] = trial.open_or_skip(partial(models.cast_and_back, dtype=dtype), x).predict(x)
        assert isinstance(y, np.ndarray)
        expected = x.astype(dtype.numpy).astype(np.float32)
        wrong = [
            f"{number!r} became {got!r} instead of {wanted!r}"
            for number, got, wanted in zip(x.tolist(), y.tolist(), expected.tolist(), strict=True)
            if got != wanted
        ]
        assert wrong == [], f"{len(wrong)} of {x.size} casts to {dtype} are wrong: {wrong[:5]}"

    def test_a_whole_graph_gives_what_its_parts_give(self, trial: Trial) -> None:
        """Against its three parts, and against the same arithmetic in double."""
        x = np.random.default_rng(2).standard_normal((4, models.BLOCK_WIDTH)).astype(np.float32)
        source = trial.source(models.block)
        [whole] = trial.run(source, x)
        values: dict[str, Any] = {"x": x}
        cutter = Whole(source)
        for number, (nodes, inputs, outputs) in enumerate(PARTS):
            types = types_of(cutter.proto, [*inputs, *outputs], guess=False)
            part = cutter.part(Segment(number, tuple(nodes), inputs, outputs), types)
            results = trial.run(part, *(values[name] for name in inputs))
            values.update(zip(outputs, results, strict=True))
        self.assert_close(values["y"], floats(_block(x.astype(np.float64))))
        assert isinstance(whole, np.ndarray)
        np.testing.assert_allclose(
            whole,
            values["y"],
            rtol=10 * self.rtol,
            atol=10 * self.atol,
            err_msg="the whole graph differs from its parts",
        )


def _quantized_input() -> tuple[Array, Array]:
    """Return x for the quantized models, with both extremes, and x - zero as int64."""
    x = np.random.default_rng(3).integers(0, 256, (4, models.QUANTIZED_WIDTH)).astype(np.uint8)
    x[0, :32], x[1, :32] = 255, 0
    return x, x.astype(np.int64) - int(models.X_ZERO)


def _numbers_of(dtype: DType) -> Array:
    """Return what a type of few bits holds exactly, and the numbers midway between those."""
    held = np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
    held = np.unique(held[np.isfinite(held)])
    midway = [(low + high) / 2 for low, high in itertools.pairwise(held.tolist())]
    return np.concatenate([held, floats(midway)])


def _expect_within(y: Any, expected: Array, limit: float, what: str) -> None:
    assert isinstance(y, np.ndarray), f"expected a host array, got {type(y)}"
    worst = float(np.abs(y - expected).max())
    assert worst <= limit, f"{what}: off by {worst:.3g}, allowed is {limit:.3g}"


def _block(x: Array) -> Array:
    """Compute `models.block` in double."""
    c: dict[str, Array] = {
        name: value.astype(np.float64) for name, value in models.block_constants().items()
    }
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    h = centred / np.sqrt(variance + c["epsilon"]) * c["gain"] + c["bias"]
    scores = (h @ c["wq"]) @ (h @ c["wk"]).T * c["scale"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    a = weights / weights.sum(-1, keepdims=True) @ (h @ c["wv"]) + x
    gate = (np.vectorize(erf)(a * c["half_root"]) + 1) / 2
    result: Array = a * gate
    return result
