"""Calibration data: which files are found, how they become inputs, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.converter.quantize.calibration import find_samples, split
from engine.converter.quantize.settings import Data, read_settings
from engine.errors import InputError, ModelError
from engine.types import DType, TensorSpec

NCHW = TensorSpec("x", DType.FLOAT32, ("batch", 3, 4, 6))
NHWC = TensorSpec("x", DType.FLOAT32, (1, 4, 6, 3))


def data(path: Path | str, **keys: str) -> Data:
    """The section as the converter reads it, so that quotes and spaces are covered too."""
    section = {"calibrate_path": str(path), "input_type": "BIN", **keys}
    config = {"common_quant_param": {"quant_type": "FULL_QUANT"}, "data_preprocess_param": section}
    return read_settings(config).data


@pytest.fixture
def pixels() -> np.ndarray[Any, Any]:
    """An image of 4x6 pixels in which every number is another."""
    return np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


@pytest.fixture
def images(tmp_path: Path, pixels: np.ndarray[Any, Any]) -> Path:
    Image.fromarray(pixels).save(tmp_path / "one.png")
    return tmp_path


def read(folder: Path, spec: TensorSpec, **keys: str) -> np.ndarray[Any, Any]:
    samples = find_samples(data(f"x:{folder}", **{"input_type": "IMAGE", **keys}), [spec])
    return samples.read(0)["x"]


def spec_of(*shape: Any, dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec("x", dtype, shape)


# For an input and settings, the array that an image becomes.
BECOMES = {
    "channels first": (NCHW, {}, lambda pixels: pixels.transpose(2, 0, 1)[None]),
    "channels last": (NHWC, {}, lambda pixels: pixels[None]),
    "no batch": (spec_of(3, 4, 6, dtype=DType.UINT8), {}, lambda pixels: pixels.transpose(2, 0, 1)),
    "a fixed batch has it as often as it needs": (
        spec_of(2, 4, 6, 3, dtype=DType.FLOAT16), {}, lambda pixels: np.stack([pixels, pixels])),
    "BGR": (NHWC, {"image_to_format": "BGR"}, lambda pixels: pixels[None, ..., ::-1]),
    "gray weighs the channels as ITU-R 601 does": (
        spec_of(1, 1, 4, 6), {"image_to_format": "GRAY"},
        lambda pixels: (pixels @ [0.299, 0.587, 0.114])[None, None]),
    "normalization subtracts, then divides": (
        NHWC, {"normalize_mean": '"[1, 2, 3]"', "normalize_std": " [2,4,8] "},
        lambda pixels: (pixels[None] - [1.0, 2.0, 3.0]) / [2.0, 4.0, 8.0]),
    "a crop is of the centre": (
        spec_of(1, 2, 2, 3), {"center_crop_width": "2", "center_crop_height": "2"},
        lambda pixels: pixels[None, 1:3, 2:4]),
    "a resize comes before the crop": (
        spec_of(1, 4, 4, 3),
        {"resize_width": "12", "resize_height": "8", "resize_method": "NEAREST",
         "center_crop_width": "4", "center_crop_height": "4"},
        lambda pixels: pixels.repeat(2, axis=0).repeat(2, axis=1)[None, 2:6, 4:8]),
}  # fmt: skip


@pytest.mark.parametrize("case", BECOMES)
def test_an_image_becomes_what_the_input_and_the_settings_say(images, pixels, case):
    spec, keys, expected = BECOMES[case]
    found = read(images, spec, **keys)
    assert found.dtype == spec.dtype.numpy
    assert found.flags.c_contiguous
    atol = 0.51 if "gray" in case else 1e-6  # of whole numbers
    np.testing.assert_allclose(found, expected(pixels), atol=atol, rtol=1e-6)


def test_raw_files_have_the_type_and_shape_of_the_input(tmp_path):
    values = np.arange(6, dtype=np.int32)
    values.tofile(tmp_path / "b.bin")
    (values + 1).tofile(tmp_path / "a.data")
    (tmp_path / ".hidden").write_bytes(b"?")
    (tmp_path / "folder").mkdir()
    samples = find_samples(data(f"'x:{tmp_path}'"), [TensorSpec("x", DType.INT32, (None, 3))])
    assert len(samples) == 2
    np.testing.assert_array_equal(samples.read(0)["x"], [[1, 2, 3], [4, 5, 6]])  # sorted by name
    np.testing.assert_array_equal(samples.read(1)["x"], [[0, 1, 2], [3, 4, 5]])


def test_npy_files_say_their_shape_themselves(tmp_path):
    values = np.ones((2, 5), np.float32)
    np.save(tmp_path / "a.npy", values)
    [spec] = [TensorSpec("x", DType.FLOAT32, ("n", "m"))]
    np.testing.assert_array_equal(find_samples(data(f"x:{tmp_path}"), [spec]).read(0)["x"], values)


def test_several_inputs_are_paired_by_sorted_names_and_may_have_colons_in_theirs(tmp_path):
    specs = [TensorSpec(name, DType.UINT8, (1,)) for name in ("in", "in:0")]
    for folder, start in (("p", 10), ("q", 20)):
        (tmp_path / folder).mkdir()
        for place in range(3):
            (tmp_path / folder / f"{place}.bin").write_bytes(bytes([start + place]))
    samples = find_samples(data(f"in:0:{tmp_path}/q, in:{tmp_path}/p"), specs)
    assert [{name: int(a[0]) for name, a in samples.read(i).items()} for i in range(3)] == [
        {"in": 10 + place, "in:0": 20 + place} for place in range(3)
    ]


def test_one_input_needs_no_name(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\1")
    assert len(find_samples(data(tmp_path), [TensorSpec("x", DType.UINT8, (1,))])) == 1


# --------------------------------------------------------------------------------- what is wrong


def one_file(folder: Path) -> None:
    (folder / "a.bin").write_bytes(bytes(5))


def nothing(folder: Path) -> None:
    """An empty folder."""


@pytest.mark.parametrize(
    ("make", "path", "says"),
    [
        (nothing, "x:{0}", r"input 'x': .* is empty; expected one file a sample"),
        (nothing, "x:{0}/none", r"input 'x': .*none: no such folder"),
        (one_file, "x:{0}/a.bin", r"a\.bin: not a folder"),
        (one_file, "y:{0}", r"'y:.*' names no input of the model; expected .* one of: 'x'"),
        (one_file, "x:{0},x:{0}", r"input 'x' is given twice"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named(tmp_path, make, path, says):
    make(tmp_path)
    with pytest.raises(ModelError, match=says):
        find_samples(data(path.format(tmp_path)), [TensorSpec("x", DType.UINT8, (5,))])


def test_an_input_without_a_folder_is_named(tmp_path):
    one_file(tmp_path)
    specs = [TensorSpec(name, DType.UINT8, (5,)) for name in "xy"]
    with pytest.raises(ModelError, match=r"no folder for input 'y'.*'x'; add y:/folder"):
        find_samples(data(f"x:{tmp_path}"), specs)


def test_folders_of_unequal_size_are_counted(tmp_path):
    for name, count in (("x", 2), ("y", 3)):
        (tmp_path / name).mkdir()
        for place in range(count):
            (tmp_path / name / str(place)).write_bytes(bytes(5))
    specs = [TensorSpec(name, DType.UINT8, (5,)) for name in "xy"]
    with pytest.raises(ModelError, match=r"as many files for each.*'x' has 2 in .*'y' has 3 in"):
        find_samples(data(f"x:{tmp_path}/x,y:{tmp_path}/y"), specs)


@pytest.mark.parametrize(
    ("size", "shape", "says"),
    [
        (5, (4,), r"a\.bin: input 'x' is uint8\[4\]: expected 4 bytes, got 5 bytes"),
        (5, (None, 2), r"expected a multiple of 2 bytes, got 5 bytes"),
        (5, (None, None), r"a raw file has no shape of its own; save samples as \.npy"),
        (5, None, r"a raw file has no shape of its own"),
        (0, (None, 2), r"a\.bin: input 'x' is uint8.* got 0 bytes"),
        (0, (4,), r"a\.bin: input 'x' is uint8.* got 0 bytes"),
    ],
)
def test_raw_files_of_another_size_are_named(tmp_path, size, shape, says):
    (tmp_path / "a.bin").write_bytes(bytes(size))
    samples = find_samples(data(f"x:{tmp_path}"), [TensorSpec("x", DType.UINT8, shape)])
    with pytest.raises(InputError, match=says):
        samples.read(0)


def test_npy_files_of_another_type_or_shape_or_none_at_all_are_named(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.zeros((2, 4), np.float32))
    (tmp_path / "c.npy").write_bytes(b"no array")
    samples = find_samples(data(f"x:{tmp_path}"), [TensorSpec("x", DType.FLOAT32, ("n", 3))])
    for place, says in enumerate(
        (
            r"a\.npy: input 'x': expected float32\[n, 3\], got float64\[2, 3\]",
            r"b\.npy: .* got float32\[2, 4\]",
            r"c\.npy: not a readable \.npy file",
        )
    ):
        with pytest.raises(InputError, match=says):
            samples.read(place)


def test_a_file_that_is_no_image_is_named(images):
    (images / "broken.png").write_bytes((images / "one.png").read_bytes()[:45])
    with pytest.raises(InputError, match=r"broken\.png: not a readable image"):
        read(images, NHWC)


def test_an_image_of_another_size_is_named(images):
    with pytest.raises(InputError, match=r"expected 9x8 pixels, got 6x4; set resize_width"):
        read(images, TensorSpec("x", DType.FLOAT32, (1, 3, 8, 9)))
    with pytest.raises(InputError, match=r"expected at most 6x4, the image's size, got 7x2"):
        read(images, NHWC, center_crop_width="7", center_crop_height="2")


@pytest.mark.parametrize(
    ("spec", "keys", "says"),
    [
        (TensorSpec("x", DType.FLOAT32, (1, 10)), {}, r"expected an image of 3 or 1 channels"),
        (NCHW, {"image_to_format": "GRAY"}, r"GRAY: input 'x' is .* an image of 1 channels"),
        (NCHW, {"normalize_mean": "[1, 2]"}, r"normalize_mean: .* expected 3 numbers, got 2"),
        (TensorSpec("x", DType.UINT8, (1, 3, 4, 6)), {"normalize_std": "[2]"},
         r"whole numbers; leave them out"),
    ],
)  # fmt: skip
def test_image_settings_that_do_not_fit_the_input_are_refused_before_any_file_is_read(
    images, spec, keys, says
):
    with pytest.raises(ModelError, match=says):
        find_samples(data(f"x:{images}", input_type="IMAGE", **keys), [spec])


# ------------------------------------------------------------------------------ who does what


def test_samples_beyond_calibrate_size_compare():
    parts = split(7, 4)
    assert parts.calibrate == (0, 1, 2, 3)
    assert parts.compare == (4, 5, 6)
    assert "4 calibrated, 3 others compared" in parts.note


def test_every_fifth_is_held_back_where_all_were_to_calibrate():
    parts = split(20, 50)
    assert parts.compare == (4, 9, 14, 19)
    assert sorted(parts.calibrate + parts.compare) == list(range(20))
    assert "20 samples found, fewer than calibrate_size=50" in parts.note


def test_few_samples_do_both_and_it_is_said():
    parts = split(9, None)
    assert parts.calibrate == parts.compare == tuple(range(9))
    assert "too few to hold any back" in parts.note


def test_of_many_others_an_even_choice_compares():
    parts = split(1010, 10)
    assert len(parts.compare) <= 100
    assert set(np.diff(parts.compare)) == {10}
