"""`engine inspect` on a MindIR file: primitives as written, and where they would run."""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).parents[2] / "data" / "mindir"
LENET = DATA / "lenet_bn.mindir"
SLICED = DATA / "sliced" / "rank1.mindir"


def test_it_lists_primitives_and_whether_they_are_supported(cli):
    shown = cli("inspect", LENET)
    assert shown.status == 0
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["Conv2D", "2", "yes"] in rows
    assert ["x", "float32", "[2,", "1,", "32,", "32]"] in rows
    assert not any("no" in row[-1:] for row in rows)


def test_its_json_counts_parameters_and_shows_the_placement_of_the_lowered_nodes(cli):
    shown = cli("inspect", LENET, "--json", "--target", "cpu", "--parameters")
    values = json.loads(shown.out)
    assert values["format"] == "mindir"
    assert {"primitive": "MatMul", "count": 3, "supported": True} in values["primitives"]
    sizes = [each["size_bytes"] for each in values["parameter_list"]]
    assert values["parameters"]["size_bytes"] == sum(sizes) == 4 * 107_858
    assert {each["device"] for each in values["placement"]} == {"cpu:0"}


def test_what_waits_for_other_ranks_is_listed_as_supported_beside_them(cli):
    rows = [line.split() for line in cli("inspect", SLICED).out.splitlines()]
    assert ["AllReduce", "1", "yes,", "beside", "the", "other", "ranks"] in rows
    values = json.loads(cli("inspect", SLICED, "--json").out)
    assert {"primitive": "AllReduce", "count": 1, "supported": True} in values["primitives"]


def test_a_part_of_a_sliced_model_is_refused_as_that(cli):
    shown = cli("run", SLICED).fails("is one rank's part of a sliced model, AllReduce")
    assert "run the model that was sliced" in shown.err


def test_a_folder_is_refused_with_what_to_do(cli, tmp_path):
    (tmp_path / "saved_model.pb").touch()
    cli("inspect", tmp_path).fails("a TensorFlow SavedModel; convert it: engine convert FOLDER net")


def test_a_damaged_file_is_one_line_and_status_1(cli, tmp_path):
    (tmp_path / "cut.mindir").write_bytes(LENET.read_bytes()[:5000])
    shown = cli("inspect", tmp_path / "cut.mindir")
    assert shown.status == 1
    assert shown.err.startswith("error: ")
    assert "damaged MindIR file: " in shown.err
    assert shown.err.endswith(" of 5,000; copy or download it again\n")
    assert shown.err.count("\n") == 1
    assert shown.err == cli("run", tmp_path / "cut.mindir").err


def test_it_shows_the_models_and_executors_of_a_bundle_for_ascend(cli, tmp_path):
    from engine_testing.compiled_mindir import bundle_attributes, compiled_mindir

    path = tmp_path / "split.mindir"
    graphs = [(["x"], ["h"]), (["h"], ["y"])]
    attributes = bundle_attributes(graphs, [(0, 1, ["x"], ["y"])], ["x"])
    path.write_bytes(compiled_mindir([b"IMOD 1", b"IMOD 2"], ["x"], attributes))
    shown = cli("inspect", path)
    assert shown.status == 0
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["CustomAscend", "2", "yes,", "on", "Ascend"] in rows
    assert ["model", "1", "h", "y", "6", "bytes"] in rows
    assert ["executor", "0", "x", "y", "model", "0,", "model", "1"] in rows
    assert json.loads(cli("inspect", path, "--json").out)["compiled"][-1] == {
        "part": "executor 0", "inputs": ["x"], "outputs": ["y"], "size_bytes": None, "runs": [0, 1],
    }  # fmt: skip
