"""Places of a model's weights: in its file, in data files beside it, in bytes, behind links."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import engine
from engine.errors import ModelError
from engine.formats import encryption, open_source, source_from_bytes
from engine.formats.onnx.inline import inlined
from engine.types import ModelSource
from engine_mindir import storage

KEY = bytes(range(16))
W = np.arange(20_000, dtype=np.float32)  # larger than what is written into the ONNX model
DATA = b"\x01" + bytes(63) + W.tobytes()
X = np.full(len(W), 2, np.float32)


@pytest.fixture
def split(mindir: SimpleNamespace) -> bytes:
    """y = x * w + c; w is in data_0, c in the file."""
    return bytes(mindir.split(len(W)))


def _y(source: ModelSource) -> Any:
    folder = str(source.folder) if source.folder is not None else ""
    model = onnx.load_from_string(inlined(source).data or b"")
    onnx.load_external_data_for_model(model, folder)
    [y] = ReferenceEvaluator(model).run(None, {"x": X})
    return y


def test_weights_in_a_data_file_stay_there_and_others_are_given_in_memory(
    split: bytes, tmp_path: Path
) -> None:
    (tmp_path / "net.mindir").write_bytes(split)
    (tmp_path / "data_0").write_bytes(DATA)
    source = open_source(tmp_path / "net.mindir")
    assert source.graph is not None
    places = {each.name: each.location for each in source.graph.parameters}
    assert places == {"w": "data_0", "c": ""}
    assert [bytes(each) for each in source.files.values()] == [(W + 1).tobytes()]
    np.testing.assert_array_equal(_y(source), X * W + W + 1)


@pytest.mark.parametrize("location", ["%0", "%1"])
def test_a_data_file_is_not_taken_for_what_is_in_memory(
    location: str, mindir: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "net.mindir").write_bytes(mindir.split(len(W), location))
    (tmp_path / location).write_bytes(DATA)
    np.testing.assert_array_equal(_y(open_source(tmp_path / "net.mindir")), X * W + W + 1)


def test_weights_may_be_given_as_bytes(split: bytes) -> None:
    np.testing.assert_array_equal(_y(source_from_bytes(split, DATA)), X * W + W + 1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x00" + DATA[1:], "'data_0' is big endian"),
        (encryption.encrypt(DATA, KEY, "AES-GCM"),
         "'data_0' does not begin as one; is it encrypted"),
        (b"", "'data_0' does not begin as one"),
        (DATA[:-1], "'w' is bytes 64 to 80,064 of 'data_0', which has 80,063"),
    ],
    ids=["big endian", "encrypted", "empty", "short"],
)  # fmt: skip
def test_what_is_no_data_file_is_refused(
    data: bytes, says: str, split: bytes, tmp_path: Path
) -> None:
    path, keyed = tmp_path / "net.mindir", tmp_path / "keyed"
    path.write_bytes(split)
    (tmp_path / "data_0").write_bytes(data)
    keyed.mkdir()
    (keyed / "net.mindir").write_bytes(encryption.encrypt(split, KEY, "AES-GCM"))
    (keyed / "data_0").write_bytes(encryption.encrypt(data, KEY, "AES-GCM"))
    with pytest.raises(ModelError, match=says):
        open_source(path)
    with pytest.raises(ModelError, match=says):
        open_source(keyed / "net.mindir", dec_key=KEY)
    if data:
        with pytest.raises(ModelError, match=says):
            source_from_bytes(split, data)


def test_an_encrypted_data_file_that_changes_while_the_model_is_read_is_noticed(
    split: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _encrypted(split, tmp_path)
    np.testing.assert_array_equal(_y(open_source(path, dec_key=KEY)), X * W + W + 1)
    decrypt = encryption.decrypt

    def replacing(data: memoryview, *how: Any) -> bytes:
        (tmp_path / "new").write_bytes(encryption.encrypt(DATA, KEY))
        (tmp_path / "new").replace(tmp_path / "data_0")
        return decrypt(data, *how)

    monkeypatch.setattr(storage.encryption, "decrypt", replacing)
    with pytest.raises(ModelError, match="'data_0' was changed while the model was read"):
        open_source(path, dec_key=KEY)


def test_no_worker_is_started_with_another_encrypted_data_file(
    split: bytes, tmp_path: Path, null_backend: str
) -> None:
    path = _encrypted(split, tmp_path)
    context = engine.Context()
    context.target = [null_backend]
    with engine.MultiDeviceRunner(path, (0,), context, dec_key=KEY) as runner:
        np.testing.assert_array_equal(runner.predict([X])[0].get_data_to_numpy(), X * W + W + 1)
        other = DATA[:64] + (W + 5).tobytes()
        (tmp_path / "new").write_bytes(encryption.encrypt(other, KEY))
        (tmp_path / "new").replace(tmp_path / "data_0")
        os.kill(runner.statistics().workers[0].pid, signal.SIGKILL)
        with pytest.raises(ModelError, match="data_0: was changed since the runner was built"):
            runner.predict([X], timeout_s=60)


def _encrypted(split: bytes, folder: Path) -> Path:
    """Write the model and its data file, encrypted."""
    (folder / "net.mindir").write_bytes(encryption.encrypt(split, KEY))
    (folder / "data_0").write_bytes(encryption.encrypt(DATA, KEY))
    return folder / "net.mindir"


def test_weights_for_a_model_that_has_its_own_are_left_out_and_that_is_said(
    mindir: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    source = source_from_bytes(
        mindir.net([mindir.node("Add", ["x", "x"], "y")], {"x": (2,)}, {"y": (2,)}), DATA
    )
    assert [node.op_type for node in source.graph.nodes] == ["Add"]
    assert "weight_bytes are not used" in caplog.text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_in_place_of_a_data_file_is_refused_and_not_waited_for(
    split: bytes, tmp_path: Path
) -> None:
    (tmp_path / "net.mindir").write_bytes(split)
    os.mkfifo(tmp_path / "data_0")
    with pytest.raises(ModelError, match="data_0: not a regular file"):
        open_source(tmp_path / "net.mindir")


def _linked(folder: Path, **files: bytes) -> Path:
    """Files as caches keep them: content in one folder, links with the names in another."""
    blobs, names = folder / "blobs", folder / "snapshot"
    blobs.mkdir()
    names.mkdir()
    for number, (name, content) in enumerate(files.items()):
        (blobs / f"blob{number}").write_bytes(content)
        (names / name).symlink_to(blobs / f"blob{number}")
    return names


def test_linked_data_files_are_found(split: bytes, tmp_path: Path) -> None:
    names = _linked(tmp_path, net=split, data_0=DATA)
    source = open_source(names / "net")
    assert source.folder == tmp_path / "blobs"
    np.testing.assert_array_equal(_y(source), X * W + W + 1)


def test_a_link_that_leads_elsewhere_is_not_followed(split: bytes, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(DATA)
    model = tmp_path / "model"
    model.mkdir()
    (model / "net.mindir").write_bytes(split)
    (model / "data_0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="leads out of the model's folder"):
        open_source(model / "net.mindir")


@pytest.fixture
def whole(mindir: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """y = x * w, all of it in one file, which counts as a large one."""
    size = len(W)
    nodes = [mindir.node("Mul", ["w", "x"], "y")]
    values = [mindir.value("x", size)], [mindir.value("y", size)]
    data = bytes(mindir.model(mindir.graph("G", nodes, *values, [mindir.tensor("w", W)])))
    monkeypatch.setattr(storage, "SMALL_BYTES", len(data) - 1)
    return data


def test_a_large_file_that_is_a_link_is_read_where_it_is(whole: bytes, tmp_path: Path) -> None:
    source = open_source(_linked(tmp_path, net=whole) / "net")
    assert (source.folder, dict(source.files)) == (tmp_path / "blobs", {})
    np.testing.assert_array_equal(_y(source), X * W)


def test_a_large_file_with_a_name_that_is_no_text_is_held_in_memory(
    whole: bytes, tmp_path: Path
) -> None:
    name = os.fsencode(tmp_path) + b"/net\xff.mindir"
    try:
        Path(os.fsdecode(name)).write_bytes(whole)
    except OSError:
        pytest.skip("this file system takes no such name")
    source = open_source(os.fsdecode(name))
    assert len(source.files) == 1
    np.testing.assert_array_equal(_y(source), X * W)


def test_state_may_begin_in_a_data_file(
    mindir: SimpleNamespace, tmp_path: Path, null_backend: str
) -> None:
    (tmp_path / "net.mindir").write_bytes(mindir.split(len(W), writes="AssignAdd"))
    (tmp_path / "data_0").write_bytes(DATA)
    model = engine.load(tmp_path / "net.mindir", target=null_backend)
    for count in (1, 2):
        np.testing.assert_array_equal(model(x=X)["y"], W + count * X + W + 1)
    *_, held = model.memory().parts
    assert (held.backend, held.private_bytes) == ("", W.nbytes), "the core's"


def test_a_model_with_state_does_not_keep_the_file_it_came_from(mindir: SimpleNamespace) -> None:
    source = source_from_bytes(mindir.split(len(W), writes="AssignAdd"), DATA)
    [slot] = source.state
    np.testing.assert_array_equal(slot.initial, W)
    assert slot.initial.base is None, "not a view of the file"
