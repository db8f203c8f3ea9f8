from __future__ import annotations

import gzip
import io
import pickle
import subprocess
import sys
from pathlib import Path

import hostile
import numpy as np
import onnx
import pytest

from engine import formats
from engine.errors import ModelError
from engine.formats import kinds
from engine_testing import encode

MINDIR = Path(__file__).resolve().parents[3] / "shared/data/mindir"
CASES = dict(hostile.cases())


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


CONTENTS = {
    "onnx": hostile.valid(),
    "mindir": encode.field(1, "0.1.1") + encode.field(2, "MindSpore") + encode.field(7, b""),
    "encrypted_mindir": b"\xda\x5e\x3a\x7f" + bytes(40),
    "plan": b"ptrt" + bytes(40),
    "mslite": b"\x1c\0\0\0MSL2" + bytes(64),
    "gzip": gzip.compress(hostile.valid()),
    "numpy": npy(),
    "pickle": pickle.dumps({"weights": [1.0]}),
    "json": b'{"layers": []}',
    "text": "a r\u00e9sum\u00e9, not a model\n".encode(),
    "openvino": b'<?xml version="1.0"?>\n<net name="m" version="11"></net>',
    "coreml": encode.field(1, 5) + encode.field(2, b"\x0a\x00") + encode.field(500, b"\x0a\x00"),
    "paddle": encode.field(1, b"\x08\x00\x10" + b"\xff" * 9 + b"\x01"),
    "protobuf": encode.field(3, "some") + encode.field(4, 7) + encode.field(90, "message"),
    "unknown": bytes(range(128, 256)),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_file_is_recognised_by_its_content(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(CONTENTS[kind])
    assert formats.recognise(path) == kind
    assert formats.recognise(str(path)) == kind


def test_every_kind_can_be_explained() -> None:
    ours = {kinds.ONNX, kinds.MINDIR, kinds.ENCRYPTED_MINDIR}
    assert CONTENTS.keys() - ours <= kinds.FOREIGN.keys()


@pytest.mark.skipif(not MINDIR.is_dir(), reason="the MindIR samples are not beside the checkout")
def test_real_mindir_files_are_recognised_whole_and_cut() -> None:
    paths = sorted(MINDIR.rglob("*.mindir"))
    assert len(paths) > 100
    for path in paths:
        data = path.read_bytes()
        assert kinds.kind_of(memoryview(data)) == "mindir", path
        assert kinds.kind_of(memoryview(data[: len(data) // 2])) == "mindir", path


@pytest.mark.parametrize("field", [2, 3, 5])
def test_onnx_is_recognised_in_any_order_of_fields(field: int) -> None:
    parts = [
        encode.field(1, 8),
        encode.field(2, "maker"),
        encode.field(7, encode.graph([], [encode.value("x")], [encode.value("x")])),
        encode.field(8, encode.opset(17)),
        encode.field(field, "1" if field != 5 else 3),
    ]
    for turn in range(len(parts)):
        data = b"".join(parts[turn:] + parts[:turn])
        assert formats.source_from_bytes(data).graph is not None


def test_a_name_that_looks_like_a_magic_number_does_not_hide_an_onnx_model() -> None:
    data = encode.field(1, 8) + encode.field(2, "TFL3") + hostile.valid()[11:]
    assert data[4:8] == b"TFL3"
    assert formats.source_from_bytes(data).graph is not None


def test_every_cut_of_a_model_is_still_called_onnx() -> None:
    data = hostile.valid()
    for end in range(9, len(data)):
        with pytest.raises(ModelError, match=r"ONNX model|ONNX file"):
            formats.source_from_bytes(data[:end])
        assert kinds.kind_of(memoryview(data[:end])) == "onnx"


def test_a_serialized_onnx_tensor_is_no_model() -> None:
    tensor = onnx.numpy_helper.from_array(np.zeros((2, 3), np.float32), "x")
    with pytest.raises(ModelError, match="an ONNX tensor, not a model"):
        formats.source_from_bytes(tensor.SerializeToString())


SUFFIXES = {".engine": "plan", ".plan": "plan", ".fake": "fake"}


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("net.engine", b"ftrt" + bytes(40), "plan"),
        ("net.bin", b"ptrt" + bytes(40), "plan"),
        ("net.FAKE", b"anything", "fake"),
        ("net.fake", b'{"emulated": 1}', "fake"),
    ],
)
def test_a_compiled_form_is_passed_on_unread(
    tmp_path: Path, name: str, content: bytes, form: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    source = formats.open_source(path, SUFFIXES)
    assert (source.format, source.path, source.data, source.graph) == (form, path, None, None)


def test_onnx_under_a_compiled_forms_name_is_onnx(tmp_path: Path) -> None:
    path = tmp_path / "net.engine"
    path.write_bytes(hostile.valid())
    assert formats.open_source(path, SUFFIXES).format == "onnx"


def test_a_compiled_form_of_another_backend_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.om"
    path.write_bytes(b"IMOD" + bytes(40))
    with pytest.raises(
        ModelError, match=r"an Ascend offline model; .*this target does not read it"
    ):
        formats.open_source(path, SUFFIXES)


@pytest.mark.parametrize("name", ["missing.engine", "folder.engine", "empty.engine"])
def test_a_compiled_form_must_be_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.engine").mkdir()
    (tmp_path / "empty.engine").touch()
    with pytest.raises(ModelError, match=r"no such file|is a folder|empty file"):
        formats.open_source(tmp_path / name, SUFFIXES)


def test_importing_formats_imports_no_onnx() -> None:
    code = "import engine.formats, sys; print(*{'onnx', 'google.protobuf'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
