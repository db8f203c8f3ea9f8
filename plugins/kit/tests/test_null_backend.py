"""The null backend beyond the kit: its options, and buffers over inputs."""

import time
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.backends import open_backend
from engine.errors import DeadlineExceeded, ModelError
from engine.formats import open_source
from engine.options import parsed
from engine.types import CompileOptions
from engine_testing import models
from engine_testing.making import graph
from engine_testing.null_device import DEVICE, OPTIONS


def test_operators_can_be_declared_unsupported(null_backend: str, tmp_path: Path) -> None:
    backend = open_backend(null_backend)
    options = CompileOptions(device=DEVICE, options={"unsupported_ops": "Relu, Add"})
    loaded = backend.load(open_source(str(models.affine(tmp_path))), options)
    assert dict(loaded.unsupported) == {1: "option 'unsupported_ops' names its operator"}
    with pytest.raises(ModelError, match=r"node 1 'shift' \(ai\.onnx\.Add\)"):
        backend.compile(loaded, options)


def test_a_model_with_a_declared_gap_is_refused_by_the_core(
    null_backend: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="Add 'shift'"):
        engine.load(
            models.affine(tmp_path),
            target=null_backend,
            config={"null_context": {"unsupported_ops": "Add"}},
        )


def test_a_predict_can_be_made_to_take_long(null_backend: str, tmp_path: Path) -> None:
    config = {"null_context": {"delay_s": "0.2"}}
    x = np.ones((1, 3), np.float32)
    with engine.load(models.affine(tmp_path), target=null_backend, config=config) as model:
        start = time.monotonic()
        assert model(x=x)["y"].tolist() == [[3, 3, 3]]
        assert time.monotonic() - start >= 0.2
    config["null_context"]["delay_s"] = "300"
    with engine.load(models.affine(tmp_path), target=null_backend, config=config) as model:
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            model.predict([x], timeout_s=0.02)
        assert time.monotonic() - start < 200


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_delay_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="'delay_s': expected float from 0, got"):
        parsed({"delay_s": text}, OPTIONS)


def test_a_misspelt_option_is_told_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown option 'delay'; did you mean 'delay_s'"):
        parsed({"delay": "1"}, OPTIONS)


def test_a_deadline_is_kept_inside_a_loop(null_backend: str, tmp_path: Path) -> None:
    """A loop is one node of the main graph: the clock is looked at in its body too."""
    text = """(int64 rounds, bool go, float x) => (float y) {
        y = Loop (rounds, go, x) <
            body = body (int64 round, bool go_on, float value) => (bool still, float twice) {
                still = Identity (go_on)
                twice = Add (value, value)
            }
        >
    }"""
    path = graph(tmp_path, "endless", text)
    with engine.load(path, target=null_backend) as loop:
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            loop.predict([np.array(10**9), np.array(True), np.array(0, np.float32)], timeout_s=0.05)
        assert time.monotonic() - start < 200  # all its rounds would take hours


def test_a_buffer_over_an_input_that_is_an_output_too_is_filled_last(
    null_backend: str, tmp_path: Path
) -> None:
    text = "(float[4] x) => (float[4] y, float[4] x) { y = Neg (x) }"
    path = graph(tmp_path, "passes_on", text)
    array = np.arange(4, dtype=np.float32)
    other = np.empty(4, np.float32)
    with engine.load(path, target=null_backend) as model:
        model.predict([array], [engine.Tensor(array), engine.Tensor(other)])
    np.testing.assert_array_equal(array, [0, -1, -2, -3])
    np.testing.assert_array_equal(other, [0, 1, 2, 3])


def _refusing(null_backend: str, **options: str) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The targets and settings of a model whose Sub goes to the backend `reference`."""
    pytest.importorskip("engine_cpu", reason="needs a second backend")
    config = {"null_context": {"unsupported_ops": "Sub", **options}}
    return [null_backend, "reference"], config


def _placed(tmp_path: Path, targets: list[str], config: dict[str, dict[str, str]]) -> str:
    text = """(float[n] x) => (float[n] y) {
        a = Mul (x, x)
        b = Sub (a, x)
        c = Abs (b)
        d = Neg (c)
        y = Mul (d, x)
    }"""
    x = np.array([-2, 0, 3], np.float32)
    with engine.load(graph(tmp_path, "grouped", text), target=targets, config=config) as model:
        np.testing.assert_array_equal(model(x=x)["y"], -abs(x * x - x) * x)
        return " ".join(placed.backend for placed in model.placement)


@pytest.mark.parametrize(
    ("options", "placed"),
    [
        ({}, "null reference null null null"),
        ({"together": "Abs, Neg"}, "null reference null null null"),
        # The first and the last are in other segments.
        ({"together": "Mul"}, "reference reference null null reference"),
        ({"least_nodes": "2"}, "reference reference null null null"),
        ({"least_nodes": "4"}, "reference reference reference reference reference"),
    ],
)
def test_operators_can_be_declared_to_run_together(
    options: dict[str, str], placed: str, null_backend: str, tmp_path: Path
) -> None:
    targets, config = _refusing(null_backend, **options)
    assert _placed(tmp_path, targets, config) == placed
