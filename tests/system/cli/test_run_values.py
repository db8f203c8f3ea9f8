"""`engine run` with sequences, maps and optionals."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import written

from engine.report.parts import arrays_of, described, value_of
from engine.types import DType
from engine_testing import models


def test_a_sequence_goes_in_and_out_as_arrays_with_a_number(cli, tmp_path):
    path = models.sequences(tmp_path)
    xs = [np.arange(2, dtype=np.float32), np.arange(3, dtype=np.float32) + 10]
    for place, x in enumerate(xs):
        np.save(tmp_path / f"{place}.npy", x)
    np.save(tmp_path / "at.npy", np.int64(1))
    files = [f"xs={tmp_path / '0.npy'}", f"xs={tmp_path / '1.npy'}", f"at={tmp_path / 'at.npy'}"]
    given = [word for file in files for word in ("-i", file)]
    out = tmp_path / "out.npz"
    done = cli("run", path, *given, "--json", "--output", out)
    assert done.status == 0, done.err
    shown = {each["name"]: each["first_values"] for each in done.json["outputs"]}
    expected = {"one": [10, 11, 12], "longer[0]": [0, 1], "longer[1]": [10, 11, 12]}
    assert shown == {**expected, "longer[2]": [10, 11, 12]}
    text = cli("run", path, *given).out
    assert "input xs: sequence of 2: float32[2], float32[3], from " in text
    assert "tensor name is: longer[1], tensor size is: 12 bytes" in text
    # The written files can be read again, under the names of the inputs.
    with np.load(out) as stored:
        assert sorted(stored.files) == ["longer[0]", "longer[1]", "longer[2]", "one"]
        again = {f"xs[{place}]": stored[f"longer[{place}]"] for place in range(3)}
    np.savez(tmp_path / "again.npz", at=np.int64(0), **again)
    done = cli("run", path, "-i", tmp_path / "again.npz", "--json").json
    assert [each["name"] for each in done["outputs"]][1:] == [f"longer[{n}]" for n in range(4)]
    assert done["outputs"][0]["first_values"] == [0, 1]
    generated = cli("run", path, "--fill", "zeros")
    assert "input xs: sequence of 1: float32[1], generated: all zeros" in generated.out


def test_an_array_for_a_sequence_is_refused_with_the_names_that_are_wanted(cli, tmp_path):
    np.savez(tmp_path / "in.npz", xs=np.ones(3, np.float32), at=np.int64(0))
    cli("run", models.sequences(tmp_path), "-i", tmp_path / "in.npz").fails(
        "no array 'xs[0]' for input sequence(float32[n]); it holds: 'xs', 'at'", out=""
    )
    cli("run", models.sequences(tmp_path), "-o", tmp_path / "y.npy").fails(
        "the model has 2 outputs", 2
    )


def test_an_optional_is_absent_unless_it_is_given(cli, tmp_path):
    path = models.optionals(tmp_path)
    absent = cli("run", path)
    assert "input x: absent, no file is given for it" in absent.out
    assert "output data is: -1\n" in absent.out
    np.save(tmp_path / "x.npy", np.full(2, 7, np.float32))
    for given in (("-i", tmp_path / "x.npy"), ("--shape", "x=2")):
        shown = {each["name"]: each for each in cli("run", path, *given, "--json").json["outputs"]}
        assert shown["there"]["first_values"] == [True]
        assert shown["y"]["first_values"] == ([7, 7] if given[0] == "-i" else [1, 1])


def test_a_map_is_its_keys_and_values(cli, tmp_path):
    path = models.vectorised(tmp_path)
    values = {"x.keys": np.array(["c", "a"]), "x.values": np.array([3, 1], np.float32)}
    np.savez(tmp_path / "in.npz", **values)
    done = cli("run", path, "-i", tmp_path / "in.npz", "--json")
    assert done.json["outputs"][0]["first_values"] == [1, 0, 3]
    assert done.err == ""
    cli("run", path).fails("arrays 'x.keys' and 'x.values'")


@pytest.mark.parametrize("key", [str, int])
def test_maps_come_out_as_keys_and_values_of_their_types(cli, tmp_path, key):
    kind, labels = {
        str: ("string", '<classlabels_strings = ["a", "b"]>'),
        int: ("int64", "<classlabels_int64s = [3, 5]>"),
    }[key]
    ends = f"(float[n, 2] x) => (seq(map({kind}, float)) y)"
    path = written(tmp_path / "maps.onnx", f"maps {ends} {{ y = ai.onnx.ml.ZipMap {labels} (x) }}")
    np.save(tmp_path / "x.npy", np.array([[0.25, 0.75], [1, 0]], np.float32))
    arguments = ("run", path, "-i", tmp_path / "x.npy", "-o", tmp_path / "y.npz")
    keys = ["a", "b"] if key is str else [3, 5]
    shown = {each["name"]: each for each in cli(*arguments, "--json").json["outputs"]}
    assert shown["y[0].keys"]["first_values"] == keys
    assert shown["y[1].values"]["first_values"] == [1, 0]
    assert shown["y[1].values"]["dtype"] == "float32"
    with np.load(tmp_path / "y.npz") as stored:
        assert stored["y[1].keys"].tolist() == keys
        assert stored["y[0].values"].tolist() == [0.25, 0.75]
        assert stored["y[0].values"].dtype == np.float32
    text = cli("run", path, "-i", tmp_path / "x.npy").out
    assert f"output data is: {' '.join(map(repr, keys))}\n" in text
    converted = cli("convert", path, tmp_path / "net", "--infer")
    assert converted.status == 0, converted.err
    assert f"y[0].keys {kind}[2]" in converted.text
    assert "y[0].values float32[2]" in converted.text


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3),
        [np.zeros(2), np.ones((1, 1))],
        [[np.zeros(1)], [np.ones(1), np.ones(2)]],
        {"a": 1.5, "b": 2.5},
        [{0: 0.25, 7: 0.75}, {0: 1.0, 7: 0.0}],
    ],
    ids=["array", "sequence", "sequence of sequences", "map", "sequence of maps"],
)
def test_a_value_survives_being_taken_apart(value):
    arrays = arrays_of("v", value, DType.FLOAT64)
    assert all(isinstance(each, np.ndarray) for each in arrays.values())
    back = value_of("v", {**arrays, "w": np.zeros(1), "v2[0]": np.zeros(1)})
    assert str(back) == str(value)
    assert described(back) == described(value)
    assert value_of("v", {"w": np.zeros(1)}) is None
