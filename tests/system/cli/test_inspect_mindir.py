"""`engine inspect` on a MindIR file: primitives as written, and where they would run."""

from __future__ import annotations

import json
from pathlib import Path

LENET = Path(__file__).parents[2] / "data" / "mindir" / "lenet_bn.mindir"


def test_it_lists_primitives_and_whether_they_are_supported(cli) -> None:
    shown = cli("inspect", LENET)
    assert shown.status == 0
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["Conv2D", "2", "yes"] in rows
    assert ["x", "float32", "[2,", "1,", "32,", "32]"] in rows
    assert not any("no" in row[-1:] for row in rows)


def test_its_json_counts_parameters_and_shows_the_placement_of_the_lowered_nodes(cli) -> None:
    shown = cli("inspect", LENET, "--json", "--target", "cpu", "--parameters")
    values = json.loads(shown.out)
    assert values["format"] == "mindir"
    assert {"primitive": "MatMul", "count": 3, "supported": True} in values["primitives"]
    sizes = [each["size_bytes"] for each in values["parameter_list"]]
    assert values["parameters"]["size_bytes"] == sum(sizes) == 4 * 107_858
    assert {each["device"] for each in values["placement"]} == {"cpu:0"}


def test_a_damaged_file_is_one_line_and_status_1(cli, tmp_path: Path) -> None:
    (tmp_path / "cut.mindir").write_bytes(LENET.read_bytes()[:5000])
    shown = cli("inspect", tmp_path / "cut.mindir")
    assert shown.status == 1
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
