"""The inputs of `engine run`: files of arrays, and what is generated."""

from __future__ import annotations

import io
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from graphs import written

from engine.types import DType
from engine_testing import models


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


def test_a_shape_that_a_file_contradicts_is_refused(cli, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    np.savez(tmp_path / "x.npz", x=np.ones((1, 3), np.float32))
    for name in ("x.npy", "x.npz"):
        cli("run", models.affine(tmp_path), "-i", tmp_path / name, "--shape", "x=2,3").fails(
            "--shape says [2, 3], got float32[1, 3]"
        )
