"""`engine run`: what it prints, and what it does with every kind of input."""

from __future__ import annotations

import io
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from graphs import written

import engine
from engine.report.measurement import DeviceShare, devices_text
from engine.report.parts import arrays_of, described, value_of
from engine.types import DType
from engine_testing import models

MINDIR = Path(__file__).parents[2] / "data" / "mindir"


def test_prints_each_output_in_the_manner_of_the_tutorial(cli, tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    done = cli("run", models.affine(tmp_path), "--input", tmp_path / "x.npy")
    assert done.status == 0
    assert (
        "tensor name is: y, tensor size is: 24 bytes, tensor elements num is: 6, "
        "tensor shape is: float32[2, 3]\noutput data is: 1 3 5 7 9 11\n"
    ) in done.out
    assert f"input x: float32[2, 3], from {tmp_path / 'x.npy'}" in done.out
    assert done.err == ""


def test_prints_every_output_in_the_models_order(cli, tmp_path):
    done = cli("run", models.several(tmp_path))
    names = re.findall(r"tensor name is: (\w+),", done.out)
    values = re.findall(r"output data is: (.*)", done.out)
    assert names == ["y", "b", "x"]
    assert values == ["0 0 0 0 0 0", "1 1 1 1 1 1", "2 2 2 2 2 2"]  # of inputs that are all ones


def test_prints_the_first_values_of_a_long_output_and_says_so(cli, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32))
    path = models.identity(tmp_path)
    done = cli("run", path, "--input", tmp_path / "x.npy", "--values", 3)
    assert "output data is: 0 1 2 ... (first 3 of 8)" in done.out
    none = cli("run", path, "--input", tmp_path / "x.npy", "--values", 0)
    assert "output data is" not in none.out
    assert "tensor elements num is: 8" in none.out


def test_says_that_inputs_were_generated_and_how(cli, tmp_path):
    path = models.doubled(tmp_path, DType.INT64)
    done = cli("run", path, "--shape", "x=4")
    assert "input x: int64[4], generated: all ones" in done.out
    assert "output data is: 2 2 2 2\n" in done.out
    zeros = cli("run", path, "--fill", "zeros")
    assert "input x: int64[1], generated: all zeros" in zeros.out
    assert "output data is: 0\n" in zeros.out


def test_random_inputs_are_within_their_range_and_follow_the_seed(cli, tmp_path):
    path = models.identity(tmp_path)
    arguments = ("run", path, "--shape", "x=500", "--fill", "random", "--values", 500, "--json")
    first, again, other = (cli(*arguments, "--seed", seed).json for seed in (1, 1, 2))
    values = first["outputs"][0]["first_values"]
    assert values == again["outputs"][0]["first_values"]
    assert values != other["outputs"][0]["first_values"]
    assert len(set(values)) > 400
    assert all(0 <= value < 1 for value in values)
    assert "seed 1" in first["inputs"][0]["source"]
    assert "uniform in [0, 1)" in first["inputs"][0]["source"]


def test_random_whole_numbers_and_booleans_are_0_or_1(cli, tmp_path):
    arguments = ("--shape", "x=64", "--fill", "random", "--values", "64", "--json")
    doubled = cli("run", models.doubled(tmp_path, DType.INT32), *arguments).json
    assert set(doubled["outputs"][0]["first_values"]) == {0, 2}
    negated = cli("run", models.negated(tmp_path), *arguments).json
    assert set(negated["outputs"][0]["first_values"]) == {False, True}


def test_equal_symbolic_sizes_are_equal_in_generated_inputs(cli, tmp_path):
    path = models.shared_dims(tmp_path)
    done = cli("run", path, "--shape", "left=2,5", "--json").json
    assert [each["shape"] for each in done["inputs"]] == [[2, 5], [5, 1]]
    assert done["outputs"][0]["first_values"] == [5.0, 5.0]
    np.save(tmp_path / "right.npy", np.ones((4, 3), np.float32))
    done = cli("run", path, "--input", f"right={tmp_path / 'right.npy'}", "--json").json
    assert [each["shape"] for each in done["inputs"]] == [[1, 4], [4, 3]]


def test_a_model_without_inputs_runs(cli, tmp_path):
    done = cli("run", models.constant(tmp_path))
    assert done.status == 0
    assert "output data is: 1 2 3\n" in done.out


# -------------------------------------------------------------------------------- input files


def test_an_npz_gives_every_input_by_name_and_the_rest_of_it_is_noted(cli, tmp_path):
    z, a, m = np.full((2, 3), 5, np.float32), np.full((2, 3), 3, np.float32), np.arange(3.0)
    np.savez(tmp_path / "in.npz", m=m.astype(np.float32), a=a, z=z, label=np.zeros(2))
    done = cli("run", models.several(tmp_path), "--input", tmp_path / "in.npz", "--json")
    outputs = {each["name"]: each["first_values"] for each in done.json["outputs"]}
    assert outputs == {"y": [2] * 6, "b": [0, 3, 6] * 2, "x": [5, 6, 7] * 2}
    assert done.err == f"note: {tmp_path / 'in.npz'}: not used: 'label'\n"


def test_files_without_a_name_go_to_the_inputs_that_have_none_in_order(cli, tmp_path):
    for name, value in (("one", 1), ("two", 2)):
        np.save(tmp_path / f"{name}.npy", np.full((2, 3), value, np.float32))
    np.save(tmp_path / "row.npy", np.full(3, 10, np.float32))
    done = cli(
        "run", models.several(tmp_path), "--json",
        "-i", tmp_path / "two.npy", "-i", f"z={tmp_path / 'one.npy'}", "-i", tmp_path / "row.npy",
    )  # fmt: skip
    assert [each["source"] for each in done.json["inputs"]] == [
        f"from {tmp_path / name}" for name in ("one.npy", "two.npy", "row.npy")
    ]
    assert [each["first_values"][0] for each in done.json["outputs"]] == [-1, 20, 11]


def test_a_bin_file_fills_the_open_axis_or_the_given_shape(cli, tmp_path):
    raw = tmp_path / "x.bin"
    np.arange(12, dtype=np.float32).tofile(raw)
    done = cli("run", models.affine(tmp_path), "--input", raw, "--values", 12, "--json").json
    assert done["inputs"][0]["shape"] == [4, 3]
    assert done["outputs"][0]["first_values"] == [2.0 * i + 1 for i in range(12)]
    np.arange(6, dtype=np.float32).tofile(raw)
    path = models.shared_dims(tmp_path)
    done = cli("run", path, "--input", f"left={raw}", "--shape", "left=2,3", "--json").json
    assert done["outputs"][0]["first_values"] == [0 + 1 + 2, 3 + 4 + 5]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.ones((2, 3)), "expected float32[batch, 3], got float64[2, 3]; save it as array.astype"),
        (np.ones((2, 4), np.float32), "expected float32[batch, 3], got float32[2, 4]"),
        (np.ones(3, np.float32), "expected float32[batch, 3], got float32[3]"),
    ],
)
def test_an_array_that_does_not_fit_is_named_with_its_file(cli, tmp_path, array, expected):
    np.save(tmp_path / "x.npy", array)
    done = cli("run", models.affine(tmp_path), "--input", tmp_path / "x.npy")
    assert done.status == 1
    assert done.out == ""
    assert done.err.startswith(f"error: {tmp_path / 'x.npy'}: input 'x': {expected}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ((8, 8, 3), "array[None].transpose(0, 3, 1, 2) has the axes in that order: save that"),
        ((1, 8, 8, 3), "array.transpose(0, 3, 1, 2) has the axes in that order: save that"),
        ((3, 8, 8), "array[None] adds the first: save that"),
        ((3, 64), "save an array of that shape"),
    ],
)
def test_a_picture_with_its_axes_in_another_order_is_not_to_be_reshaped(
    cli, tmp_path, shape, advice
):
    sizes = "float[1, 3, 8, 8]"
    written(
        tmp_path / "net.onnx", f"net ({sizes} image) => ({sizes} same) {{ same = Identity(image) }}"
    )
    np.save(tmp_path / "image.npy", np.zeros(shape, np.float32))
    done = cli("run", tmp_path / "net.onnx", "--input", tmp_path / "image.npy")
    got = ", ".join(map(str, shape))
    assert done.err.endswith(f"expected float32[1, 3, 8, 8], got float32[{got}]; {advice}\n")


def cut(path: Path) -> None:
    np.save(path, np.ones((2, 3), np.float32))
    path.write_bytes(path.read_bytes()[:-5])


# Makes an `--input` that cannot be used: its ending and content, and the words for it.
UNUSABLE = {
    "missing key": (".npz", lambda path: np.savez(path, other=np.ones(3)), "{}"),
    "named, missing key": (".npz", lambda path: np.savez(path, other=np.ones(3)), "x={}"),
    "not an npy": (".npy", lambda path: path.write_bytes(b"plain text"), "{}"),
    "cut npy": (".npy", cut, "{}"),
    "pickle": (".npy", lambda path: np.save(path, np.array([{}], object), True), "{}"),
    "npz called npy": (".npy", lambda path: path.write_bytes(archive()), "{}"),
    "not an npz": (".npz", lambda path: path.write_bytes(b"PK\x03\x04 and no more"), "{}"),
    "odd bin": (".bin", lambda path: path.write_bytes(bytes(13)), "{}"),
    "empty bin": (".bin", lambda path: path.touch(), "{}"),
    "image": (".png", lambda path: path.write_bytes(b"\x89PNG"), "{}"),
    "unknown name": (".npy", lambda path: None, "nope={}"),
    "no ending": ("", lambda path: path.touch(), "{}"),
    "no file": ("", lambda path: None, "x="),
    "folder": (".npy", lambda path: path.mkdir(), "{}"),
    "absent": (".npy", lambda path: None, "{}"),
    "pipe": (".npy", os.mkfifo, "{}"),
}


def archive() -> bytes:
    held = io.BytesIO()
    np.savez(held, x=np.ones(3))
    return held.getvalue()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("absent", r"x\.npy: no such file"),
        ("missing key", r"no array 'x' for .*; it holds: 'other'; name it .*\{'x': array\}\)"),
        ("named, missing key", r"no array 'x' for input float32\[batch, 3\]; it holds: 'other'"),
        ("not an npy", r"x\.npy: not a readable \.npy file: .*starts with 70 6c 61 69 6e 20, "),
        ("cut npy", r"x\.npy: not a readable \.npy file: "),
        ("pickle", r"x\.npy: not a readable \.npy file: "),
        ("npz called npy", r"expected one array \(\.npy\), got an archive"),
        ("not an npz", r"x\.npz: not a readable \.npz file: "),
        ("odd bin", r"expected a multiple of 12 bytes, got 13 bytes"),
        ("empty bin", r"expected a multiple of 12 bytes, got 0 bytes"),
        ("pipe", r"x\.npy: is a pipe or a device; expected a \.npy, \.npz, \.bin"),
        ("image", r"x\.png: is an image, but input 'x' is float32\[.*, and not one image: .*\.npy"),
        ("unknown name", r"the model has no input 'nope'; it has: 'x'"),
        ("folder", r"x\.npy: is a folder without images or \.npy files; expected some, "),
        ("no ending", r"x: expected a \.npy, \.npz, .* file, got a name without an ending"),
        ("no file", r"--input x=: expected a file behind the equals sign"),
    ],
)
def test_an_input_file_that_cannot_be_used_is_one_line_of_error(cli, tmp_path, kind, expected):
    suffix, make, words = UNUSABLE[kind]
    make(tmp_path / f"x{suffix}")
    done = cli("run", models.affine(tmp_path), "--input", words.format(tmp_path / f"x{suffix}"))
    assert done.status == 1
    assert done.out == ""
    assert re.match(rf"error: .*{expected}", done.err)
    assert done.err.count("\n") == 1


def test_an_input_given_twice_or_too_often_is_refused(cli, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    path = models.affine(tmp_path)
    cli("run", path, "-i", f"x={tmp_path / 'x.npy'}", "-i", f"x={tmp_path / 'x.npy'}").fails(
        "input 'x' is given twice"
    )
    cli("run", path, "-i", f"x={tmp_path / 'x.npy'}", "-i", tmp_path / "x.npy").fails(
        "no input is left for it"
    )


@pytest.mark.parametrize(
    ("shapes", "status", "expected"),
    [
        (["x=2,4"], 1, r"expected float32\[batch, 3\], got float32\[2, 4\]"),
        (["nope=2,3"], 1, "the model has no input 'nope'; it has: 'x'"),
        (["x=1000000000000000,3"], 1, "(?i)out of memory: unable|allocate|too big"),
        (["x=2,-3"], 2, "expected NAME=SIZE,SIZE,..."),
        (["2,3"], 2, "expected NAME=SIZE,SIZE,..."),
        (["x=1,3", "x=2,3"], 2, "--shape: expected one shape for each input, got two for 'x'"),
    ],
)
def test_a_shape_that_cannot_be_had_is_refused(cli, tmp_path, shapes, status, expected):
    done = cli("run", models.affine(tmp_path), *(f"--shape={shape}" for shape in shapes))
    assert (done.status, done.out) == (status, "")
    assert re.search(expected, done.err)


@pytest.mark.parametrize("damage", ["member", "header", "shape", "empty", "cut"])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_damaged_file_of_arrays_is_one_line_of_error(cli, tmp_path, damage, suffix):
    path = tmp_path / f"x{suffix}"
    x = io.BytesIO()
    np.save(x, np.ones((2, 3), np.float32))
    whole = x.getvalue()
    content = {
        "member": b"no array",
        "header": whole.replace(b"(2, 3)", b"(2,,3)"),
        "shape": whole.replace(b"(2, 3), ", b"(9**99),"),
        "empty": b"",
        "cut": whole[:-5],
    }[damage]
    if suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x" if damage == "member" else "x.npy", content)
    else:
        path.write_bytes(content)
    done = cli("run", models.affine(tmp_path), "--input", path)
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert f"x{suffix}: not a readable {suffix} file: " in done.err


def test_records_of_as_many_bytes_are_not_taken_for_numbers(cli, tmp_path):
    records = np.zeros((2, 3), [("a", np.int16), ("b", np.int16)])
    for name, array in {"fields": records, "opaque": records.view("V4")}.items():
        np.save(tmp_path / f"{name}.npy", array)
        cli("run", models.affine(tmp_path), "--input", tmp_path / f"{name}.npy").fails(
            "expected float32[batch, 3], got void32[2, 3]"
        )


def test_the_backend_is_told_where_two_serve_one_device(cli, tmp_path):
    path = models.affine(tmp_path)
    assert "ran on cpu:0 (onnxruntime:CPUExecutionProvider): " in cli("run", path).out
    places = [
        DeviceShare("cpu", "cpu:0", "CPUExecutionProvider", 5),
        DeviceShare("reference", "cpu:0", "reference", 1),
    ]
    assert devices_text(places) == "cpu:0 (cpu, CPUExecutionProvider), cpu:0 (reference)"


def test_a_shape_that_a_file_contradicts_is_refused(cli, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    np.savez(tmp_path / "x.npz", x=np.ones((1, 3), np.float32))
    for name in ("x.npy", "x.npz"):
        cli("run", models.affine(tmp_path), "-i", tmp_path / name, "--shape", "x=2,3").fails(
            "--shape says [2, 3], got float32[1, 3]"
        )


# ------------------------------------------------------------------- what is no single array


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


# -------------------------------------------------------------------------------- output files


def test_outputs_are_written_as_npz_by_name(cli, tmp_path):
    out = tmp_path / "out.npz"
    done = cli("run", models.several(tmp_path), "--output", out)
    assert f"outputs written to {out}" in done.out
    with np.load(out) as stored:
        assert sorted(stored.files) == ["b", "x", "y"]
        np.testing.assert_array_equal(stored["x"], np.full((2, 3), 2, np.float32))
        assert stored["x"].dtype == np.float32


def test_a_single_output_is_written_as_npy(cli, tmp_path):
    done = cli("run", models.affine(tmp_path), "-o", tmp_path / "y.npy", "--json")
    assert done.json["output_file"] == str(tmp_path / "y.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.full((1, 3), 3, np.float32))


@pytest.mark.parametrize(
    ("name", "status", "expected"),
    [
        ("out.npy", 2, "the model has 3 outputs, and .npy holds one"),
        ("out.txt", 2, "expected a file name ending in .npz, .npy or .json, or -, got"),
        ("absent/out.npz", 1, "absent/out.npz: no such folder: "),
        ("folder.npz", 1, "folder.npz: is a directory"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused(cli, tmp_path, name, status, expected):
    (tmp_path / "folder.npz").mkdir()
    done = cli("run", models.several(tmp_path), "--output", tmp_path / name).fails(expected, status)
    assert done.out == ""
    assert not list(tmp_path.rglob("*out*"))


# ------------------------------------------------------------------------ building and running


def test_json_holds_what_the_text_says(cli, tmp_path):
    done = cli("run", models.mixed_dtypes(tmp_path), "--shape", "x=2", "--json").json
    assert done["outputs"] == [
        {"name": "y", "dtype": "float32", "shape": [2], "size_bytes": 8, "elements": 2,
         "first_values": [1.0, 1.0]},
        {"name": "is_big", "dtype": "bool", "shape": [2], "size_bytes": 2, "elements": 2,
         "first_values": [False, False]},
    ]  # fmt: skip
    assert done["backend"] == "cpu"
    assert done["devices"][0]["device"] == "cpu:0"
    assert sum(each["nodes"] for each in done["devices"]) == 2
    assert 0 < done["predict_s"] < 60
    assert 0 < done["build_s"] < 60


def test_json_stays_json_where_a_value_is_not_finite(cli, tmp_path):
    np.save(tmp_path / "x.npy", np.array([np.nan, np.inf, -np.inf, 1], np.float32))
    done = cli("run", models.identity(tmp_path), "-i", tmp_path / "x.npy", "--json").json
    assert done["outputs"][0]["first_values"] == ["nan", "inf", "-inf", 1.0]


@pytest.mark.parametrize("dtype", [DType.STRING, DType.FLOAT16, DType.FLOAT64, DType.UINT8])
def test_every_kind_of_element_is_read_printed_and_written(cli, tmp_path, dtype):
    out = tmp_path / "y.npy"
    done = cli("run", models.moved(tmp_path, dtype), "--json", "--output", out)
    assert done.status == 0, done.err
    one = "1" if dtype is DType.STRING else 1
    assert done.json["outputs"][0]["first_values"] == [one] * 6
    assert np.load(out).tolist() == [[one] * 2] * 3


def test_what_a_file_had_to_hold_in_another_type_is_an_input_again(cli, tmp_path):
    path = models.moved(tmp_path, DType.BFLOAT16)
    done = cli("run", path, "-o", tmp_path / "y.npy")
    assert done.err == f"note: {tmp_path / 'y.npy'}: y is stored as float32, exactly\n"
    x = np.load(tmp_path / "y.npy").reshape(2, 3) * np.arange(6).reshape(2, 3)
    x[0, 0] = np.nan
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    done = cli("run", path, "-i", tmp_path / "x.npy", "--json")
    assert done.json["outputs"][0]["first_values"] == ["nan", 3, 1, 4, 2, 5]
    np.save(tmp_path / "x.npy", np.full((2, 3), 0.1, np.float32))  # which bfloat16 does not have
    cli("run", path, "-i", tmp_path / "x.npy").fails(
        "got float32[2, 3]; save it as array.astype(ml_dtypes.bfloat16)", out=""
    )


def test_a_run_that_takes_too_long_is_stopped(cli, tmp_path):
    path = models.slow(tmp_path)
    done = cli("run", path, "--shape", "x=20000,256", "--timeout", 0.05)
    assert done.status == 1
    assert done.err.startswith("error: it took longer than --timeout, 0.05 s: ")
    assert done.err.endswith("leave --timeout out\n")
    assert done.out == "input x: float32[20000, 256], generated: all ones\n"
    cli("run", path, "--timeout", 0).fails("above 0, got 0", 2)


def test_a_target_that_is_not_there_is_refused_with_the_reason(cli, tmp_path):
    done = cli("run", models.affine(tmp_path), "--target", "tpu").fails("got tpu", 2)
    assert "installed: " in done.err
    cli("run", models.affine(tmp_path), "--target", "cpu,").fails("targets with commas between", 2)


def test_the_number_of_a_device_is_for_every_target_but_the_host_behind_another(cli, tmp_path):
    path = models.affine(tmp_path)
    cli("run", path, "--device-id", 1).fails("device 'cpu:1' is not there", out="")
    assert "cpu:1" in cli("inspect", path, "--target", "cpu", "--device-id", 1).err
    assert "ran on cpu:0 " in cli("run", path, "--target", "gpu,cpu", "--device-id", 1).out


def test_a_later_target_is_used_where_the_first_cannot_be_had(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "gpu_trt")
    done = cli("run", models.affine(tmp_path), "--target", "gpu,cpu", "--json")
    assert done.json["backend"] == "cpu"
    assert re.search(r"warning: .*'gpu' passed over", done.err)


def test_settings_reach_the_backend_and_win_over_the_file(cli, tmp_path):
    path = models.affine(tmp_path)
    config = tmp_path / "config.ini"
    config.write_text("[cpu_context]\nspin_us = soon\n")
    cli("run", path, "--config", config).fails("'spin_us': expected int")
    good = cli("run", path, "--config", config, "--set", "cpu_context.spin_us=0")
    assert (good.status, good.err) == (0, "")
    for misspelt, near in (
        ("cpu_context.spin_uss", "'spin_us'"),
        ("cpu_contex.spin_us", "[cpu_context]"),
    ):
        cli("run", path, "--set", f"{misspelt}=1").fails(
            f"unknown and not read; did you mean {near}?", 2, out=""
        )
    of_another = cli("run", path, "--set", "gpu_trt_context.optimization_level=1")
    assert of_another.status == 0
    config.write_text("[cpu_context]\nspin_uss = 1\n")
    told = cli("run", path, "--config", config)
    assert (told.status, "did you mean 'spin_us'?" in told.err) == (0, True)
    cli("run", path, "--config", tmp_path / "absent.ini").fails("absent.ini: no such file")
    cli("run", path, "--set", "other_key=1").fails("expected SECTION.KEY=VALUE", 2)


def test_a_mindir_is_resized_for_the_input_that_is_given(cli, tmp_path):
    """Its file fixes the batch, as MindSpore exports models; Model.resize changes that."""
    path = MINDIR / "mlp.mindir"
    with engine.load(path) as model:
        [spec] = model.inputs
        fixed, rest = spec.shape[0], spec.shape[1:]
        assert isinstance(fixed, int)
        rows = np.random.default_rng(0).random((fixed + 3, *rest), np.float32)
        [expected] = model({spec.name: rows[:fixed]}).values()
    np.save(tmp_path / "rows.npy", rows)
    given = cli("run", path, "--input", tmp_path / "rows.npy", "-o", tmp_path / "y.npy")
    assert given.status == 0, given.err
    assert f"note: resized from {spec}" in given.err
    y = np.load(tmp_path / "y.npy")
    assert y.shape[0] == fixed + 3
    np.testing.assert_allclose(y[:fixed], expected, rtol=1e-5, atol=1e-6)
    sizes = ",".join(map(str, rows.shape))
    made = cli("bench", path, "--shape", f"{spec.name}={sizes}", "--runs", 2, "--warmup", 0)
    assert made.status == 0, made.err
    cli("run", path, "--shape", f"{spec.name}={fixed},{rest[0] + 1}").fails(f"expected {spec}, got")
