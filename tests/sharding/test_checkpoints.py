"""Checkpoint files: MindSpore's .ckpt, against Google's protobuf, and .safetensors."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from sliced_jobs import assert_equal, messages

from engine import sharding
from engine.errors import ModelError
from engine.sharding import ckpt

RANDOM = np.random.default_rng(0)
VALUES: dict[str, Any] = {
    "float32": RANDOM.standard_normal((3, 4)).astype(np.float32),
    "float16": RANDOM.standard_normal(5).astype(np.float16),
    "bfloat16": RANDOM.standard_normal((2, 2)).astype(ml_dtypes.bfloat16),
    "int64": np.arange(6).reshape(2, 3),
    "uint8": np.arange(4, dtype=np.uint8),
    "bool": np.array([True, False]),
    "scalar": np.array(0.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "one": np.ones((1,), np.int32),
}


@pytest.fixture(scope="module")
def message() -> Any:
    """checkpoint.proto's Checkpoint, as Google's protobuf makes it."""
    return messages({
        "TensorProto": [
            ("dims", 1, "int64*"), ("tensor_type", 2, "string"), ("tensor_content", 3, "bytes"),
        ],
        "Value": [("tag", 1, "string"), ("tensor", 2, "TensorProto")],
        "Checkpoint": [("value", 1, "Value*")],
    })["Checkpoint"]  # fmt: skip


def assert_same(got: dict[str, Any], expected: dict[str, Any] = VALUES) -> None:
    assert_equal({name: value.data for name, value in got.items()}, expected)


@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
def test_parameters_read_back_as_they_were_written(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / f"net.{suffix}"
    sharding.save_checkpoint(VALUES, path)
    assert_same(sharding.load_checkpoint(path))
    assert path.stat().st_mode & 0o777 == 0o600
    sharding.save_checkpoint([{"name": "w", "data": np.ones(2)}], path)  # in its place
    assert list(sharding.load_checkpoint(path)) == ["w"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "save_obj must be a dict of arrays by name, or a list of .* got <class 'NoneType'>"),
        ([np.ones(2)], "got <class 'numpy.ndarray'> at index 0"),
        ([{"name": "w", "data": np.ones(2)}, {"name": "b"}], "got <class 'dict'> at index 1"),
        (["w"], "got <class 'str'> at index 0"),
        ({1: np.ones(2)}, "name must be str, but got <class 'int'>"),
        ({"w": 0.5}, "parameter 'w' must be an array, a Tensor or a Parameter"),
    ],
    ids=["None", "an array", "no data", "a name", "a number for a name", "a float"],
)
def test_what_is_no_set_of_parameters_is_refused(given: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=says):
        sharding.save_checkpoint(given, tmp_path / "net.ckpt")
    assert not list(tmp_path.iterdir())


def test_what_is_written_is_what_protobuf_reads(message: Any, tmp_path: Path) -> None:
    sharding.save_checkpoint(VALUES, tmp_path / "net.ckpt")
    whole = message.FromString((tmp_path / "net.ckpt").read_bytes())
    found = {value.tag: value.tensor for value in whole.value}
    assert list(found) == list(VALUES)
    assert (found["float32"].tensor_type, list(found["float32"].dims)) == ("Float32", [3, 4])
    assert found["float32"].tensor_content == VALUES["float32"].tobytes()
    assert (found["bfloat16"].tensor_type, found["uint8"].tensor_type) == ("BFloat16", "UInt8")
    assert list(found["scalar"].dims) == [0]  # MindSpore's way


def test_parts_of_one_name_follow_each_other(message: Any, tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    whole = message()
    for part in np.array_split(array, 3):
        value = whole.value.add(tag="w")
        value.tensor.dims.extend(array.shape)
        value.tensor.tensor_type, value.tensor.tensor_content = "Float32", part.tobytes()
    (tmp_path / "net.ckpt").write_bytes(whole.SerializeToString())
    assert_same(sharding.load_checkpoint(tmp_path / "net.ckpt"), {"w": array})


def test_large_parameters_are_written_in_parts(
    message: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ckpt, "_PIECE_BYTES", 64)
    array = np.arange(50, dtype=np.int64).reshape(5, 10)
    sharding.save_checkpoint({"w": array}, tmp_path / "net.ckpt")
    whole = message.FromString((tmp_path / "net.ckpt").read_bytes())
    assert [len(value.tensor.tensor_content) for value in whole.value] == [64] * 6 + [16]
    assert {tuple(value.tensor.dims) for value in whole.value} == {(5, 10)}
    assert_same(sharding.load_checkpoint(tmp_path / "net.ckpt"), {"w": array})


def test_texts_and_older_names_of_types_are_read(message: Any, tmp_path: Path) -> None:
    whole = message()
    text = whole.value.add(tag="comment")
    text.tensor.dims.append(0)
    text.tensor.tensor_type = "str"
    text.tensor.tensor_content = np.array("epoch 3").tobytes()
    old = whole.value.add(tag="w")
    old.tensor.dims.append(2)
    old.tensor.tensor_type, old.tensor.tensor_content = "Uint8", b"\x01\x02"
    wide = whole.value.add(tag="b")  # bfloat16 that a version kept as float32
    wide.tensor.dims.append(2)
    wide.tensor.tensor_type = "BFloat16"
    wide.tensor.tensor_content = np.array([1.5, -2], np.float32).tobytes()
    folder = tmp_path / "in" / "rank_0"
    folder.mkdir(parents=True)
    (folder / "net.ckpt").write_bytes(whole.SerializeToString())
    got = sharding.load_checkpoint(folder / "net.ckpt")
    assert got["comment"] == "epoch 3"
    arrays = {
        "w": np.array([1, 2], np.uint8),
        "b": np.array([1.5, -2], ml_dtypes.bfloat16),
    }
    assert_same({name: got[name] for name in arrays}, arrays)
    sharding.transform_checkpoints(tmp_path / "in", tmp_path / "out", "n")
    again = sharding.load_checkpoint(tmp_path / "out" / "rank_0" / "n0.ckpt")
    assert again["comment"] == "epoch 3"
    assert_same({name: again[name] for name in arrays}, arrays)
    with pytest.raises(ModelError, match="'comment' is str, which safetensors cannot hold"):
        sharding.transform_checkpoints(
            tmp_path / "in", tmp_path / "safe", "n", output_format="safetensors"
        )
    assert list((tmp_path / "safe").iterdir()) == []


def test_a_checksum_is_compared_where_it_is_asked_for(message: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.ckpt"
    sharding.save_checkpoint({"w": np.arange(8)}, path, crc_check=True)
    content = path.read_bytes()
    assert content[-17:-10] == b"crc_num"
    assert int.from_bytes(content[-10:], "big") == zlib.crc32(content[:-17])
    assert sharding.load_checkpoint(path, crc_check=True)["w"].shape == (8,)
    path.write_bytes(content.replace(bytes([7]), bytes([6])))
    assert sharding.load_checkpoint(path)["w"].shape == (8,)
    with pytest.raises(ModelError, match="checksum is not that of its content"):
        sharding.load_checkpoint(path, crc_check=True)


def test_safetensors_are_those_of_the_package(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    plain = {name: array for name, array in VALUES.items() if name != "bfloat16"}
    sharding.save_checkpoint(plain, tmp_path / "ours.safetensors")
    theirs = package.load_file(tmp_path / "ours.safetensors")
    for name, array in plain.items():
        np.testing.assert_array_equal(theirs[name], array)
    package.save_file(plain, tmp_path / "theirs.safetensors", {"format": "pt"})
    assert_same(sharding.load_checkpoint(tmp_path / "theirs.safetensors"), plain)


def test_a_safetensors_file_written_by_hand_is_read(tmp_path: Path) -> None:
    entry = {"dtype": "I16", "shape": [2, 1], "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": {"format": "ms"}, "w": entry}).encode()
    path = tmp_path / "net.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<hh", 3, -1))
    assert_same(sharding.load_checkpoint(path), {"w": np.array([[3], [-1]], np.int16)})


def safe(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


W = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\x01", "1 bytes, too few for a header"),
        (b"\xff" * 8, "claims a header of 18,446,744,073,709,551,615 bytes"),
        (safe(b"{"), "its header is no JSON"),
        (safe([1]), "no JSON object of tensors"),
        (safe({"w": 3}), "parameter 'w' is described by 3"),
        (safe({"w": {**W, "data_offsets": [0, 8, 9]}}, b"12345678"), "'w' is described by"),
        (safe({"w": W}, b"1234"), "'w' wants bytes 0 to 8 of 4"),
        (safe({"w": {**W, "shape": [3]}}, b"12345678"), r"'w' is float32\[3\], 12 bytes, but .* 8"),
        (safe({"w": W, "v": W}, b"12345678"), "begins at byte 0 of the data; expected 8"),
        (safe({"w": W}, b"123456789"), "9 bytes of data, of which tensors take 8"),
        (safe({}), "holds no parameters"),
        (safe({"w": {**W, "shape": [10**4000, 10**4000]}}, b"12345678"), "'w' has the dims"),
        (safe({"w": {**W, "shape": [0, 1 << 62], "data_offsets": [0, 0]}}), "'w' has the dims"),
        (safe({"\ud800": W}, b"12345678"), "has a name that is no text"),
    ],
)
def test_damaged_safetensors_are_refused(content: bytes, text: str, tmp_path: Path) -> None:
    refused(tmp_path / "net.safetensors", content, text)


def refused(path: Path, content: bytes, text: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ModelError, match=text) as raised:
        sharding.load_checkpoint(path)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff" * 20, "damaged at byte 0: .* expected a checkpoint of MindSpore"),
        (b"\x0a\x40abc", "damaged at byte 0: field 1 claims 64 bytes where 3 are left"),
        (b"\x08\x01", "holds no parameters"),
        (b"", "is empty; expected a checkpoint"),
        (
            b"\x0a\x14\x0a\x01w\x12\x0f\x08\x02\x12\x07Float32\x1a\x02ab",
            r"parameter 'w' is Float32\[2\], 8 bytes, but its data has 2 bytes",
        ),
        (
            b"\x0a\x1c\x0a\x01w\x12\x17\x08\x00\x08" + 8 * b"\xff" + b"\x7f\x12\x07Float32\x1a\x00",
            "parameter 'w' has the dims",
        ),
    ],
)
def test_damaged_checkpoints_are_refused(content: bytes, text: str, tmp_path: Path) -> None:
    refused(tmp_path / "net.ckpt", content, text)


def test_each_truncation_is_refused_or_holds_less(tmp_path: Path) -> None:
    for suffix in ("ckpt", "safetensors"):
        sharding.save_checkpoint({"a": np.arange(3), "b": np.ones(2)}, tmp_path / f"net.{suffix}")
        content = (tmp_path / f"net.{suffix}").read_bytes()
        cut = tmp_path / f"cut.{suffix}"
        for length in range(len(content)):
            cut.write_bytes(content[:length])
            try:
                got = sharding.load_checkpoint(cut)
            except ModelError:
                continue
            assert list(got) == ["a"], length


def test_missing_files_folders_and_pipes_are_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ckpt")
    for path, text in (
        (tmp_path / "none.ckpt", "no such file; expected a checkpoint"),
        (tmp_path, "is a folder"),
        (tmp_path / "pipe.ckpt", "not a regular file"),
    ):
        with pytest.raises(ModelError, match=text):
            sharding.load_checkpoint(path)


def test_encrypted_checkpoints_take_their_key(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from engine.formats.encryption import encrypt

    sharding.save_checkpoint({"w": np.arange(4)}, tmp_path / "plain.ckpt")
    plain = (tmp_path / "plain.ckpt").read_bytes()
    folder = tmp_path / "in" / "rank_0"
    folder.mkdir(parents=True)
    path = folder / "net.ckpt"
    for mode, key in (("AES-GCM", b"k" * 16), ("AES-CBC", b"k" * 32), ("SM4-CBC", b"k" * 16)):
        path.write_bytes(encrypt(plain, key, mode))
        got = sharding.load_checkpoint(path, dec_key=key, dec_mode=mode)
        assert_same(got, {"w": np.arange(4)})
        with pytest.raises(ModelError, match=f"encrypted with {mode}; pass its key: dec_key=") as r:
            sharding.load_checkpoint(path)
        assert str(path) in str(r.value)
    path.write_bytes(encrypt(plain, b"k" * 16))
    with pytest.raises(ModelError, match="the key is wrong"):
        sharding.load_checkpoint(path, dec_key=b"x" * 16)
    with pytest.raises(ModelError, match="is not encrypted, but dec_key was given"):
        sharding.load_checkpoint(tmp_path / "plain.ckpt", dec_key=b"k" * 16)
    with pytest.raises(
        ModelError, match=r"is encrypted, and what would be .* give its key to load"
    ):
        sharding.transform_checkpoints(tmp_path / "in", tmp_path / "out", "n")


def test_a_folder_of_checkpoints_is_loaded_as_one(tmp_path: Path) -> None:
    sharding.save_checkpoint({"a": np.zeros(2), "b": np.zeros(1)}, tmp_path / "net-1.ckpt")
    sharding.save_checkpoint({"b": np.ones(3)}, tmp_path / "net-2.safetensors")
    got = sharding.load_segmented_checkpoints(tmp_path)
    assert_same(got, {"a": np.zeros(2), "b": np.ones(3)})
    got = sharding.load_segmented_checkpoints(tmp_path, choice_func=lambda name: name == "a")
    assert list(got) == ["a"]
    with pytest.raises(ValueError, match="chose none of its 2 parameters"):
        sharding.load_checkpoint(tmp_path / "net-1.ckpt", choice_func=lambda name: False)


def test_arrays_of_a_large_file_are_views_of_it(tmp_path: Path) -> None:
    sharding.save_checkpoint({"w": np.arange(1 << 18, dtype=np.float64)}, tmp_path / "net.ckpt")
    array = sharding.load_checkpoint(tmp_path / "net.ckpt")["w"].data
    assert not array.flags.writeable
    assert not array.flags.owndata
