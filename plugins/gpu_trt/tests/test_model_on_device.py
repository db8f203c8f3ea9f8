"""Tensors on the (emulated) device through Model: what goes in, what comes out, what is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import engine
from engine import Tensor
from engine.backends import open_backend
from engine.types import CompileOptions, LoadedModel, ModelSource
from engine_testing import making, models


def rows(count: int, start: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(start, start + 3 * count, dtype=np.float32).reshape(count, 3)


def test_a_device_tensor_goes_in_and_the_result_stays_where_it_is_asked_for(
    tmp_path: Path, emulated: Any
) -> None:
    with engine.load(models.affine(tmp_path), target="gpu") as model:
        x = Tensor(rows(4), device="gpu:0")
        assert (x.device, x.shape) == ("gpu:0", [4, 3])
        model.predict([x])
        with emulated.counting() as counts:
            [y] = model.predict([x])
        assert (counts["host to device"], counts["device to host"]) == (0, rows(4).nbytes)
        assert y.device == "None:-1"
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * rows(4) + 1)

        result = Tensor(device="gpu:0")
        with emulated.counting() as counts:
            [y] = model.predict([x], [result])
        assert y is result
        assert (y.device, y.shape) == ("gpu:0", [4, 3])
        assert counts["host to device"] == counts["device to host"] == 0
        with emulated.counting() as counts:
            array = y.get_data_to_numpy()
        assert counts["device to host"] == array.nbytes
        np.testing.assert_array_equal(array, 2 * rows(4) + 1)


def chain(folder: Path) -> Path:
    """y = -2 relu(x + 1) in three nodes: add, bend, scale."""
    nodes = [
        helper.make_node("Add", ["x", "one"], ["a"], name="add"),
        helper.make_node("Relu", ["a"], ["b"], name="bend"),
        helper.make_node("Mul", ["b", "factor"], ["y"], name="scale"),
    ]
    x, y = ([making.tensor(name, ["n", 3])] for name in "xy")
    constants = {"one": making.floats(1), "factor": making.floats(-2)}
    return making.write(folder, "chain", x, y, nodes, constants)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let the backend refuse node 1 of whole models, so that a second target gets it.

    The names of the nodes of each load.
    """
    backend = open_backend("gpu_trt")
    loads: list[list[str]] = []
    load = backend.load

    def refusing(source: ModelSource, options: CompileOptions) -> LoadedModel:
        assert source.graph is not None
        loaded: Any = load(source, options)
        loads.append([node.name for node in source.graph.nodes])
        if len(loads[-1]) == 3:
            loaded.unsupported = {1: "refused by the test"}
        return loaded  # type: ignore[no-any-return]

    monkeypatch.setattr(backend, "load", refusing)
    return loads


def test_segments_of_one_device_copy_the_first_input_and_the_last_output_only(
    tmp_path: Path, cut: list[list[str]], emulated: Any
) -> None:
    with engine.load(chain(tmp_path), target=["gpu", "gpu:tensorrt"]) as model:
        assert cut[0] == ["add", "bend", "scale"]
        assert sorted(map(tuple, cut[1:])) == [("add",), ("bend",), ("scale",)]
        assert [placement.device for placement in model.placement] == ["gpu:0"] * 3
        before = 0
        for count, start in ((4, -6), (4, 5), (7, -9), (7, 2), (4, 0), (4, -1)):
            x = rows(count, start)
            with emulated.counting() as counts:
                y = model(x=x)["y"]
            np.testing.assert_array_equal(y, -2 * np.maximum(x + 1, 0))
            assert counts["host to device"] == counts["device to host"] == x.nbytes
            assert counts["device to device"] == counts["between devices"] == 0
            if count == before:  # other sizes free what held the earlier results, which waits
                assert counts["synchronisations"] == 1, "only the last output is waited for"
            before = count


def test_a_chain_of_segments_between_device_tensors_copies_nothing(
    tmp_path: Path, cut: list[list[str]], emulated: Any
) -> None:
    with engine.load(chain(tmp_path), target=["gpu", "gpu:tensorrt"]) as model:
        x, result = Tensor(rows(4, -6), device="gpu:0"), Tensor(device="gpu:0")
        for _ in range(3):
            with emulated.counting() as counts:
                [y] = model.predict([x], [result])
            assert y.device == "gpu:0"
            assert counts["host to device"] == counts["device to host"] == 0
            assert counts["device to device"] == counts["between devices"] == 0
        expected = -2 * np.maximum(rows(4, -6) + 1, 0)
        np.testing.assert_array_equal(y.get_data_to_numpy(), expected)
    assert len(cut) == 4
