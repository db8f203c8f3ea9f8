"""onnx's own tools drive an installed backend."""

import unittest
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test import BackendTest

from engine.errors import BackendNotInstalled, InputError, ModelError
from engine_testing import models, plugins
from engine_testing.onnx_backend import Backend, backend_for

OFF = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="off")

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    return [y * 2 for y in null.engine_predict(context, inputs, outputs, deadline_s)]
"""


@pytest.fixture
def null(null_backend: str) -> type[Backend]:
    return backend_for(null_backend)


@pytest.fixture
def affine(tmp_path: Path) -> onnx.ModelProto:
    return onnx.load(models.affine(tmp_path))  # y = 2x + 1, x: float32[batch, 3]


def test_a_model_is_prepared_once_and_run_often(
    null: type[Backend], affine: onnx.ModelProto
) -> None:
    prepared = null.prepare(affine)
    with prepared.model:
        for value in (1, 2):
            x = np.full((1, 3), value, np.float32)
            [y] = prepared.run([x])
            assert y.tolist() == [[2 * value + 1] * 3]
            assert prepared.run(x)["y"].tolist() == prepared.run({"x": x}).y.tolist() == y.tolist()


def test_a_model_is_run_in_one_go(null: type[Backend], affine: onnx.ModelProto) -> None:
    [y] = null.run_model(affine, [np.ones((2, 3), np.float32)])
    assert y.tolist() == [[3, 3, 3]] * 2


def test_a_model_that_is_not_taken_is_incompatible(
    null_backend: str, affine: onnx.ModelProto
) -> None:
    without_add = backend_for(null_backend, {"null_context": {"unsupported_ops": "Add"}})
    assert backend_for(null_backend).is_compatible(affine)
    assert not without_add.is_compatible(affine)
    with pytest.raises(ModelError, match="option 'unsupported_ops' names its operator"):
        without_add.prepare(affine)


def test_one_operator_is_run_as_a_model(null: type[Backend]) -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    x, high = np.array([1, 5], np.float32), np.array(3, np.float32)
    for y in (
        null.run_node(node, [x, high]),
        null.run_node(node, {"high": high, "x": x}, opset_version=12),
        null.run_node(node, [x, high], outputs_info=[(np.float32, (2,))]),
    ):
        assert y["y"].tolist() == [1, 3]
    twice = null.run_node(helper.make_node("Add", ["x", "x"], ["y"]), [x])
    assert twice[0].tolist() == [2, 10]
    with pytest.raises(InputError, match=r"expected 2 inputs \['x', 'high'\], got 1"):
        null.run_node(node, [x])
    with pytest.raises(InputError, match=r"expected the inputs \['x', 'high'\], got \['x'\]"):
        null.run_node(node, {"x": x})


def test_one_operator_takes_a_sequence(null: type[Backend]) -> None:
    node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    parts = [np.array([1, 2], np.int64), np.array([3], np.int64)]
    [y] = null.run_node(node, [parts], outputs_info=[(np.int64, (3,))])
    assert y.tolist() == [1, 2, 3]


def test_the_device_of_onnxs_tests_is_any_backends_own(
    null: type[Backend], affine: onnx.ModelProto
) -> None:
    """Onnx knows "CPU" and "CUDA"; a backend for another device is run as "CPU"."""
    assert null.supports_device("CPU")
    assert null.supports_device("null:0")
    assert not null.supports_device("null:1")
    assert not null.supports_device("CUDA")
    prepared = null.prepare(affine, "null:0")
    assert {place.device for place in prepared.model.placement} == {"null:0"}


def test_a_backend_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(BackendNotInstalled, match="'absent'"):
        backend_for("absent")
    assert not type("Absent", (Backend,), {"backend": "absent"}).supports_device("CPU")


def test_the_environment_names_the_backend(
    null_backend: str, affine: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_ONNX_BACKEND", null_backend)
    placement = Backend.prepare(affine).model.placement
    assert {place.backend for place in placement} == {"null"}


def outcome(backend: type[Backend], names: str) -> unittest.TestResult:
    suite = BackendTest(backend, __name__).include(names).test_suite
    result = unittest.TestResult()
    suite.run(result)
    return result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of onnx, when it computes what its tests want
def test_onnxs_own_runner_passes_it_and_fails_a_faulty_one(
    null: type[Backend], plugin_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "^test_(and2d|add|Linear|operator_mm)_cpu$"
    right = outcome(null, names)
    assert right.wasSuccessful()
    assert right.testsRun - len(right.skipped) == 4
    plugins.install(plugin_folder, "off", "off_plugin", source=OFF)
    wrong = outcome(backend_for("off"), names)
    assert len(wrong.failures) + len(wrong.errors) == 4, wrong
