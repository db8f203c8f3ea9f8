"""Shortcuts in loading change nothing of the loaded model."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from engine.formats import open_source, source_from_bytes
from engine.formats.onnx import read_model
from engine_mindir import assemble, storage

DATA = Path(__file__).parents[3] / "tests" / "data" / "mindir"
FILES = [
    each
    for each in json.loads((DATA / "manifest.json").read_text())["files"]
    if "dec_key" not in each
]


@pytest.mark.parametrize("entry", FILES, ids=lambda entry: entry["name"])
def test_what_is_told_of_a_model_is_what_the_reader_says(entry: dict[str, Any]) -> None:
    path = DATA / entry["file"]
    source = open_source(path)
    assert source.data is not None
    assert source.graph == read_model(memoryview(source.data), path, "again", source.files).graph


def test_most_models_need_no_second_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    graph_info_of_written = assemble.graph_info_of_written
    monkeypatch.setattr(
        assemble,
        "graph_info_of_written",
        lambda *given: told.append(graph_info_of_written(*given)) or told[-1],
    )
    open_source(DATA / "lenet_bn.mindir")
    assert told[0] is not None
    open_source(DATA / "nets" / "ifnested.mindir")  # has graphs in its attributes
    assert told[1] is None


def _normalised(
    mindir: SimpleNamespace, biased: bool, read_twice: bool = False, assigned: str = ""
) -> Any:
    """A 1x1 convolution, normalised: the file, and what each of its constants is."""
    random = np.random.default_rng(0)
    w = random.standard_normal((4, 3, 1, 1)).astype(np.float32)
    b, gamma, beta, mean = random.standard_normal((4, 4)).astype(np.float32)
    variance = np.array([0.5, 1, 2, 3], np.float32)
    arrays = {"w": w, "b": b, "gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    convolved = ["G:x", "G:w", *(["G:b"] if biased else [])]
    nodes = [
        mindir.node(
            "Conv2D", convolved, "G:c",
            mindir.scalar("pad_mode", "valid"), mindir.typed(1, 4, 2, 2),
        ),
        mindir.node(
            "BatchNorm", ["G:c", "G:gamma", "G:beta", "G:mean", "G:variance"], "G:n",
            mindir.scalar("epsilon", 1e-3),
        ),
        mindir.constant("zero", 0),
        mindir.node("TupleGetItem", ["G:n", "zero"], "G:y", mindir.typed(1, 4, 2, 2)),
    ]  # fmt: skip
    if read_twice:
        nodes.append(mindir.node("Add", ["G:y", "G:c"], "G:z", mindir.typed(1, 4, 2, 2)))
    if assigned:
        nodes.append(mindir.node("Assign", [f"G:{assigned}", f"G:{assigned}"], "G:assigned"))
        nodes.append(mindir.node("Depend", ["G:y", "G:assigned"], "G:z"))
    used = {name: array for name, array in arrays.items() if biased or name != "b"}
    return mindir.net(
        nodes,
        {"G:x": (1, 3, 2, 2)},
        {"G:z" if read_twice or assigned else "G:y": (1, 4, 2, 2)},
        parameters=[mindir.tensor(f"G:{name}", array) for name, array in used.items()],
    ), arrays


@pytest.mark.parametrize("biased", [False, True])
def test_a_normalisation_joins_its_convolution(mindir: SimpleNamespace, biased: bool) -> None:
    data, a = _normalised(mindir, biased)
    source = source_from_bytes(data)
    assert source.graph is not None
    assert [node.op_type for node in source.graph.nodes] == ["Conv"]
    x = np.random.default_rng(1).standard_normal((1, 3, 2, 2)).astype(np.float32)
    [y] = ReferenceEvaluator(onnx.load_from_string(source.data or b"")).run(None, {"x": x})
    wide = {name: array.astype(np.float64).reshape(-1, 1, 1) for name, array in a.items()}
    convolved = np.einsum("nchw,oc->nohw", x, a["w"][:, :, 0, 0])
    if biased:
        convolved = convolved + wide["b"]
    deviation = np.sqrt(wide["variance"] + 1e-3)
    expected = (convolved - wide["mean"]) / deviation * wide["gamma"] + wide["beta"]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_a_convolution_that_something_else_reads_stays_as_it_is(mindir: SimpleNamespace) -> None:
    data, _ = _normalised(mindir, biased=False, read_twice=True)
    source = source_from_bytes(data)
    assert source.graph is not None
    assert [node.op_type for node in source.graph.nodes] == ["Conv", "BatchNormalization", "Add"]


def test_weights_of_a_large_file_are_not_computed_anew(
    mindir: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = _normalised(mindir, biased=False)
    monkeypatch.setattr(storage, "SMALL_BYTES", len(data) - 1)
    source = source_from_bytes(data)
    assert source.graph is not None
    assert [node.op_type for node in source.graph.nodes] == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize("name", ["mean", "w"])
def test_what_the_model_assigns_to_is_not_computed_with(mindir: SimpleNamespace, name: str) -> None:
    data, _ = _normalised(mindir, biased=False, assigned=name)
    source = source_from_bytes(data)
    assert source.graph is not None
    assert [node.op_type for node in source.graph.nodes][:2] == ["Conv", "BatchNormalization"]
    assert name in [spec.name for spec in source.graph.inputs]


def test_numbers_that_stand_one_by_one_take_no_minutes(mindir: SimpleNamespace) -> None:
    count = 200_000
    numbers = b"".join(mindir.real(3, 1.0) for _ in range(count))
    tensor = mindir.number(1, count) + mindir.number(2, 1) + mindir.text(7, "t") + numbers
    constant = mindir.node(
        "Constant", (), "c",
        mindir.text(1, "value") + mindir.text(12, tensor) + mindir.number(16, 19),
    )  # fmt: skip
    add = mindir.node("Add", ["G:x", "c"], "G:y", mindir.typed(count))
    data = mindir.net([constant, add], {"G:x": (count,)}, {"G:y": (count,)})
    start = time.monotonic()
    source = source_from_bytes(data)
    assert time.monotonic() - start < 60
    assert source.graph is not None
    assert source.graph.parameters[0].shape == (count,)
