"""Slices may round otherwise by as much as the model itself is off; more is an error."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from slicing_models import Builder

from engine.context import Context
from engine.errors import ModelError
from engine.sharding import slice_model
from engine.sharding.slicing import check
from engine.sharding.slicing.exact import run_exactly

needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="onnx's own evaluator does not compute in float64"
)


def cancelling(folder: Path) -> Path:
    """Normalise values that differ in their last bits alone: 3,000 and a little."""
    g = Builder()
    h = g.add("Relu", g.add("MatMul", "x", g.weight(16, 64)))
    h = g.add("MatMul", h, g.weight(64, 16))
    h = g.add("Add", h, g.constant(np.full(16, 3000, np.float32)))
    scale, bias = g.constant(np.ones(16, np.float32)), g.constant(np.zeros(16, np.float32))
    y = g.add("LayerNormalization", h, scale, bias, axis=-1)
    return g.save(folder / "model.onnx", {"x": [8, 16]}, [y])


@needs_cpu
def test_results_in_float64_are_those_of_arithmetic(tmp_path: Path) -> None:
    path = cancelling(tmp_path)
    first, second, *_ = (onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer)
    x = np.random.default_rng(2).standard_normal((8, 16)).astype(np.float32)
    h = np.maximum(x.astype(np.float64) @ first, 0) @ second.astype(np.float64) + 3000
    h = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + np.float32(1e-5))
    name = onnx.load(path).graph.output[0].name
    found = run_exactly(path, {"x": x}, [name])
    assert found is not None
    np.testing.assert_allclose(found[name], h, rtol=1e-9, atol=1e-9)


@needs_cpu
def test_a_model_that_cancels_is_sliced(null_context: Context, tmp_path: Path) -> None:
    report = slice_model(cancelling(tmp_path), tmp_path / "out", tp=2, context=null_context)
    [one] = report.differences
    assert one.difference > check.LIMIT * one.largest  # or the limit alone would have done
    assert report.collectives


@needs_cpu
def test_more_than_the_models_own_distance_is_refused(
    null_context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "OWN_DISTANCE", 0.01)
    with pytest.raises(ModelError, match=r"from those in float64; nothing was written"):
        slice_model(cancelling(tmp_path), tmp_path / "out", tp=2, context=null_context)


@pytest.mark.parametrize("is_quantized", [True, False])
def test_weights_that_alone_are_quantized_may_round_as_quantized_models_do(
    is_quantized: bool, null_context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime rounds what meets such weights to 8 bits, in the whole model or in a slice."""
    run_ranks = check.run_ranks

    def rounded(*given: Any) -> list[dict[str, Any]]:
        results = run_ranks(*given)
        return [{name: value * 1.0093 for name, value in one.items()} for one in results]

    monkeypatch.setattr(check, "run_ranks", rounded)
    g = Builder()
    weight = g.weight(16, 64)
    if is_quantized:
        integers = g.constant(np.arange(16 * 64).reshape(16, 64) % 251, np.uint8)
        weight = g.add("DequantizeLinear", integers, g.constant(0.01, np.float32))
    path = g.save(tmp_path / "model.onnx", {"x": [4, 16]}, [g.add("MatMul", "x", weight)])
    if is_quantized:
        assert slice_model(path, tmp_path / "out", tp=2, context=null_context).differences
    else:
        with pytest.raises(ModelError, match="differs from the original's"):
            slice_model(path, tmp_path / "out", tp=2, context=null_context)
