"""MindIR files of models that are compiled for Ascend: recognised, shown, and refused elsewhere."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.formats import ModelFile
from engine_mindir.compiled import Executor, SubGraph
from engine_testing import models
from engine_testing.compiled_mindir import bundle_attributes, compiled_mindir
from engine_testing.plugins import install

OM = b"IMOD of CANN, %d"
EXTENDED = "extended_subgraph_input_output"
GRAPHS = [(["x"], ["h"]), (["h", "m"], ["y", "h2"]), (["h2"], ["z"])]
EXECUTORS = [(0, 2, ["x", "m"], ["z"]), (1, 1, ["h", "m"], ["y", "h2"]), (0, 1, [], ["y"])]
STEPS = (
    "is a bundle of 3 models compiled for Ascend; run it with target 'ascend', or give the model "
    "that it was converted from, which runs on every target"
)


@pytest.fixture
def bundle(tmp_path: Path) -> Callable[..., Path]:
    """bundle(attribute=value, ...) -> a .mindir of three models; None leaves an attribute out."""

    def write(**changed: Any) -> Path:
        attributes = bundle_attributes(GRAPHS, EXECUTORS, ["x", "m"]) | changed
        kept = {name: value for name, value in attributes.items() if value is not None}
        path = tmp_path / "split.mindir"
        oms = [OM % number for number in range(3)]
        path.write_bytes(compiled_mindir(oms, ["x", "m"], kept))
        return path

    return write


def test_the_models_and_executors_of_a_bundle_are_found(bundle: Any) -> None:
    found = ModelFile(bundle()).compiled_models()
    assert found is not None
    size = len(OM % 0)
    assert found.graphs == (
        SubGraph(size, ("x",), ("h",)),
        SubGraph(size, ("h", "m"), ("y", "h2")),
        SubGraph(size, ("h2",), ("z",)),
    )
    assert found.executors == (
        Executor(0, 2, ("x", "m"), ("z",)),
        Executor(1, 1, ("h", "m"), ("y", "h2")),
        Executor(0, 1, ("x", "m"), ("y",)),  # those of its models that are the whole's
    )


def test_each_compiled_model_is_given_to_who_runs_om_files(bundle: Any) -> None:
    path = bundle()
    for number in range(3):
        file = ModelFile(path)
        file.entry = str(number)
        source = file({".om": "om"})
        assert (source.format, source.data, source.graph) == ("om", OM % number, None)
        assert source.name == str(path)


def custom(mindir: Any, held: bytes, nbytes: int, *more: bytes, end: str = "y") -> bytes:
    """A .mindir of one compiled model. held: fields of its parameter, of so many bytes."""
    node = mindir.node("REF::Custom:0", ["x", "om"], "y", mindir.typed(1, 3))
    om = mindir.tensor("om", dims=[nbytes], data_type=2) + held
    name = mindir.scalar("uniq_name", "CustomAscend")
    return bytes(
        mindir.net(
            [node, *more], {"x": (1, 3)}, {end: (1, 3)}, parameters=[om],
            primitives=[mindir.primitive("Custom:0", "Custom", name)],
        )
    )  # fmt: skip


def refused(read: Callable[[], object], message: str) -> str:
    """Return the error, which is one line."""
    with pytest.raises(engine.ModelError, match=message) as caught:
        read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_node_that_computes_beside_compiled_ones_is_named(mindir: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.mindir"
    add = mindir.node("Add", ["y", "y"], "sum", mindir.typed(1, 3))
    path.write_bytes(custom(mindir, mindir.text(9, b"IMOD"), 4, add, end="sum"))
    refused(lambda: ModelFile(path)({".om": "om"}), "'sum' is Add beside one that is compiled")


OM_BACKEND = """
from dataclasses import replace

from engine.formats import source_from_bytes
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *


@hookimpl
def engine_backend():
    info = null.engine_backend()
    return replace(info, name="om", formats=("onnx", "om"), suffixes={".om": "om"})


@hookimpl
def engine_load(source, options):
    return null.engine_load(source_from_bytes(source.data.removeprefix(b"IMOD")), options)
"""
"""A null backend whose .om files are ONNX models behind the mark of an .om file."""


def test_no_worker_is_started_with_another_compiled_model_in_a_data_file(
    mindir: Any, plugin_folder: Path, tmp_path: Path
) -> None:
    install(plugin_folder, "om", "plugin_om", source=OM_BACKEND)
    om = b"IMOD" + models.affine(tmp_path).read_bytes()
    path = tmp_path / "net.mindir"
    place = mindir.text(1, "data_0") + mindir.number(2, 64) + mindir.number(3, len(om))
    path.write_bytes(custom(mindir, mindir.text(12, place), len(om)))
    (tmp_path / "data_0").write_bytes(b"\x01" + bytes(63) + om)
    context = engine.Context()
    context.target = ["om"]
    x = np.ones((1, 3), np.float32)
    with engine.MultiDeviceRunner(path, (0,), context) as runner:
        assert runner.predict([x])[0].get_data_to_numpy().tolist() == [[3, 3, 3]]
        (tmp_path / "new").write_bytes((tmp_path / "data_0").read_bytes())
        (tmp_path / "new").replace(tmp_path / "data_0")
        os.kill(runner.statistics().workers[0].pid, signal.SIGKILL)
        with pytest.raises(engine.ModelError, match="data_0: was changed since the runner was"):
            runner.predict([x], timeout_s=60)


def test_a_file_of_a_graph_has_no_compiled_models(mindir: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.mindir"
    node = mindir.node("REF::Custom:0", ["net:x"], "net:y", mindir.typed(2))
    custom = mindir.primitive("Custom:0", "Custom", mindir.scalar("func_type", "aot"))
    path.write_bytes(mindir.net([node], {"net:x": (2,)}, {"net:y": (2,)}, primitives=[custom]))
    assert ModelFile(path).compiled_models() is None
    with pytest.raises(engine.ModelError, match="Custom"):
        ModelFile(path)()


def test_targets_that_run_no_om_files_say_what_it_is_and_what_to_do(
    bundle: Any, null_context: engine.Context, tmp_path: Path
) -> None:
    path = bundle()
    data = path.read_bytes()
    ways: list[Callable[[], object]] = [
        lambda: engine.load(path, "null"),
        lambda: engine.load(data, "null"),
        lambda: engine.load(path, "null", variable_weights=["w"]),
        lambda: engine.MultiModelRunner().build_from_file(
            str(path), engine.ModelType.MINDIR, null_context
        ),
        lambda: engine.Model().build_from_file(str(path), engine.ModelType.MINDIR, null_context),
        lambda: engine.Converter().convert(engine.FmkType.MINDIR, str(path), str(tmp_path / "o")),
    ]
    for way in ways:
        refused(way, re.escape(STEPS))


def test_one_compiled_model_is_told_without_a_number(
    null_context: engine.Context, tmp_path: Path
) -> None:
    path = tmp_path / "net.mindir"
    path.write_bytes(compiled_mindir([OM % 0]))
    with pytest.raises(engine.ModelError, match="is a model compiled for Ascend; run it with"):
        engine.load(path, "null")


def test_the_summary_shows_what_is_in_a_bundle(bundle: Any) -> None:
    summary = engine.inspect(bundle())
    assert [part.name for part in summary.compiled] == [
        "model 0", "model 1", "model 2", "executor 0", "executor 1", "executor 2",
    ]  # fmt: skip
    assert summary.compiled[3].runs == (0, 1, 2)
    assert "x, m -> z" in str(summary)
    assert [(op.name, op.support) for op in summary.operators] == [
        ("CustomAscend", "yes, on Ascend")
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"subgraph_input_names": None}, "has no attribute 'subgraph_input_names', without which"),
        ({"subgraph_output_names": None}, "has no attribute 'subgraph_output_names'"),
        ({"graph_input_names": None}, "has no attribute 'graph_input_names'"),
        ({"subgraph_infer_path": None}, "has no attribute 'subgraph_infer_path'"),
        ({EXTENDED: None}, f"has no attribute '{EXTENDED}'"),
        ({"subgraph_input_names": [["x"], ["h", "m"]]}, "is of 2 models; the graph has 3"),
        ({"subgraph_output_names": [["h"]] * 4}, "is of 4 models; the graph has 3"),
        ({"subgraph_infer_path": [[0, 3]]}, r"executor 0 runs models \[0, 3\]; .* of 0 to 2"),
        ({"subgraph_infer_path": [[2, 1]]}, r"executor 0 runs models \[2, 1\]"),
        ({"subgraph_infer_path": [[-1, 1]]}, r"executor 0 runs models \[-1, 1\]"),
        ({"subgraph_infer_path": [[1]]}, r"executor 0 runs models \[1\]; expected the first and"),
        ({"subgraph_infer_path": [[0, 2]] * 1001}, "more than 1,000 executors, which is beyond"),
        ({"graph_input_names": ["x"] * 10_001}, "more than 10,000 names of inputs and outputs"),
        ({"subgraph_infer_path": []}, "names no executor"),
        ({"subgraph_infer_path": [[0, 0]] * 4}, "is of 3 executors; there are 4"),
        ({"subgraph_infer_path": ["0-2"]}, "expected two numbers for each executor, got"),
        ({"subgraph_input_names": "x"}, "expected a list of names for each model, got 'x'"),
        ({"graph_input_names": [1]}, r"expected a list of names, got \(1,\)"),
        ({EXTENDED: [[["x"]]] * 3},
         "executor 0 has 1 lists of names; expected its inputs and its outputs"),
        ({EXTENDED: [[["x", "w"], ["z"]]] * 3},
         "executor 0 has the input 'w', which none of its models has; they have: 'x', 'h', 'm'"),
        ({EXTENDED: [[["x"], ["x"]]] * 3},
         "executor 0 has the output 'x', which none of its models has; they have: 'h', 'y'"),
        ({EXTENDED: [[["x"], []]] * 3}, "executor 0 has no outputs"),
    ],
)  # fmt: skip
def test_damage_to_what_a_bundle_says_of_itself_is_named(
    changed: dict[str, Any], message: str, bundle: Any
) -> None:
    path = bundle(**changed)
    for read in (engine.inspect, lambda path: ModelFile(path)({".om": "om"})):
        error = refused(lambda read=read: read(str(path)), message)
        assert error.startswith(f"{path}: not a valid MindIR model: ")


def test_damage_to_the_nodes_of_a_bundle_is_named(tmp_path: Path) -> None:
    sound = compiled_mindir([OM % 0])
    path = tmp_path / "net.mindir"
    for change, message in (
        ((b"net:ACL_om_data_0", b"net:ACL_om_data_1"), "none of its inputs is a parameter"),
        ((b"IMOD", b"ELF\0"), "its compiled model 0 begins with b'ELF.*begins with b'IMOD'"),
        ((b"CustomAscend", b"CustomAkgOpX"), "Custom"),
    ):
        path.write_bytes(sound.replace(*change, 1))
        refused(lambda: ModelFile(path)({".om": "om"}), message)
    for length in range(len(sound) - 2):  # the last two bytes are a version that nobody needs
        path.write_bytes(sound[:length])
        refused(lambda: ModelFile(path)({".om": "om"}), r"net\.mindir")


def test_a_file_of_more_models_than_any_split_makes_is_refused(tmp_path: Path) -> None:
    count = 1001
    graphs = [([f"i{number}"], [f"o{number}"]) for number in range(count)]
    attributes = bundle_attributes(graphs, [(0, count - 1, [], ["o0"])], ["i0"])
    path = tmp_path / "many.mindir"
    path.write_bytes(compiled_mindir([OM % 0] * count, ["i0"], attributes))
    with pytest.raises(engine.ModelError, match="compiled models"):
        ModelFile(path).compiled_models()
