"""One model on two real backends: ONNX Runtime and onnx's reference evaluator."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from graphs import written

import engine

X = np.linspace(-2, 2, 7, dtype=np.float32)
REFUSES = {"null_context": {"unsupported_ops": "Tanh,Gelu,FusedMatMul"}}


def save(folder: Path, nodes: str, **constants: np.ndarray) -> Path:
    text = f"mixed (float[n] x) => (float[n] y) {{ {nodes} }}"
    return written(folder / "mixed.onnx", text, **constants)


def test_a_model_of_200_nodes_runs_on_two_backends_in_21_segments(null_backend, tmp_path):
    names = ["x", *(f"v{i}" for i in range(1, 200)), "y"]
    nodes = [
        f"{made} = Tanh({given})" if i % 20 == 10 else f"{made} = Add({given}, step)"
        for i, (given, made) in enumerate(itertools.pairwise(names))
    ]
    path = save(tmp_path, "\n".join(nodes), step=np.array(0.001, np.float32))
    with engine.load(path, target=["null", "cpu"], config=REFUSES) as model:
        backends = [each.backend for each in model.placement]
        assert backends == ["cpu" if i % 20 == 10 else "null" for i in range(200)]
        changes = sum(a != b for a, b in itertools.pairwise(backends))
        assert changes + 1 == 21
        y = model(x=X)["y"]
        buffer = engine.Tensor(np.zeros(7, np.float32))
        for _ in range(3):
            model.predict([X], [buffer])
            np.testing.assert_array_equal(buffer.get_data_to_numpy(), y)
    with engine.load(path, target="cpu") as whole:
        np.testing.assert_allclose(y, whole(x=X)["y"], rtol=1e-5)


def test_operators_that_only_onnxruntime_knows_may_stand_in_the_middle(null_backend, tmp_path):
    """onnx cannot infer what Gelu makes: the type of what crosses behind it is told otherwise."""
    nodes = """
        a = Neg(x)
        b = com.microsoft.Gelu(a)
        c = Unsqueeze(b, axes)
        d = Squeeze(c, axes)
        e = com.microsoft.Gelu(d)
        y = Abs(e)
    """
    path = save(tmp_path, nodes, axes=np.array([0], np.int64))
    with engine.load(path, target=["null", "cpu"]) as model:
        assert [each.backend for each in model.placement] == [
            "null", "cpu", "null", "null", "cpu", "null",
        ]  # fmt: skip
        assert "reference evaluator does not know it" in model.placement[1].reason
        y = model(x=X)["y"]
    with engine.load(path, target="cpu") as whole:
        np.testing.assert_allclose(y, whole(x=X)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["cpu:reference", "reference"])
def test_the_reference_backend_is_a_target_of_its_own(tmp_path, target):
    path = save(tmp_path, "y = Tanh(x)")
    with engine.load(path, target=target) as model:
        np.testing.assert_allclose(model(x=X)["y"], np.tanh(X), rtol=1e-6)
        [placed] = model.placement
        assert (placed.backend, placed.device, placed.provider) == (
            "reference", "cpu:0", "reference",
        )  # fmt: skip


def test_the_word_cpu_goes_on_meaning_the_cpu_backend(tmp_path):
    path = save(tmp_path, "y = Tanh(x)")
    with engine.load(path, target="cpu") as model:
        assert {placed.backend for placed in model.placement} == {"cpu"}
