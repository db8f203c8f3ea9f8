"""Files that hold no ONNX model, a damaged one, or one with a senseless header."""

from __future__ import annotations

import os
import random
import zipfile
from pathlib import Path

from engine_testing.encode import (
    chain,
    field,
    floats,
    graph,
    model,
    node,
    opset,
    valid,
    varint,
)
from hostile.registry import add, case

add("empty", lambda: b"")
add("random", lambda: random.Random(0).randbytes(4096))
add("zeros", lambda: bytes(4096))
add("truncated", lambda: valid()[:-20])
add("truncated_after_first_field", lambda: valid()[:9])
add("truncated_in_graph", lambda: valid()[:40])
add("no_graph", lambda: field(1, 8) + field(2, "hostile") + field(8, opset(17)))
add("two_graphs", lambda: valid() + field(7, graph([node("Neg", ["x"], ["z"])])))
add("group", lambda: valid() + varint(30 << 3 | 3))
add("endless_varint", lambda: model(b"\xff" * 4096))
add("two_gigabyte_length", lambda: field(1, 8) + varint(7 << 3 | 2) + varint((1 << 31) - 1))
add("eight_exabyte_length", lambda: field(1, 8) + varint(7 << 3 | 2) + varint((1 << 63) - 1))
add("name_not_utf8", lambda: chain(node("Neg", ["x"], ["y"]) + field(3, b"\xff\xfe")))
add("tflite", lambda: b"\x1c\0\0\0TFL3" + bytes(64))
add("tensorflow_graph", lambda: field(1, field(1, "w") + field(2, "Const")) + field(4, b""))
add(
    "tensorflow_saved_model",
    lambda: field(1, 1) + field(2, field(1, field(5, "2.15")) + field(2, field(1, b"\0\1"))),
)
add("tensorrt_engine", lambda: b"ftrt" + bytes(range(200)))
add("ascend_model", lambda: b"IMOD" + bytes(range(200)))
add("onnx_marked_as_onnxruntime_model", lambda: field(1, 8) + field(2, "ORTM") + valid()[11:])
add("onnxruntime_model", lambda: b"\x1c\0\0\0ORTM" + bytes(64))
add("pytorch_pickle", lambda: b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + bytes(32))
add("pickle", lambda: b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05numpy." + bytes(32))
add("hdf5", lambda: b"\x89HDF\r\n\x1a\n" + bytes(64))
add("safetensors", lambda: (16).to_bytes(8, "little") + b'{"__metadata__":' + bytes(64))
add("gguf", lambda: b"GGUF\3\0\0\0" + bytes(64))
add("git_lfs_pointer", lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
add("web_page", lambda: b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n")
add("onnx_text", lambda: b'ir_version: 8\nproducer_name: "me"\ngraph {\n  name: "g"\n}\n')
add("onnx_language", lambda: b'<\n  ir_version: 8,\n  opset_import: ["" : 17]\n>\ng (x) => (y) {}')
add("onnx_json", lambda: b'{"irVersion": "8", "graph": {"name": "g"}}')
add("onnx_tensor", lambda: floats("w"))
add("mindir", lambda: field(1, "1.1") + field(2, "MindSpore") + field(7, field(2, "net")))
add("encrypted_mindir", lambda: b"\xd8\x5e\x3a\x7f" + bytes(64))


@case
def missing(folder: Path) -> Path:
    """A path where nothing is."""
    return folder / "model.onnx"


@case
def folder_instead_of_file(folder: Path) -> Path:
    """A folder, with a model in it."""
    (folder / "model.onnx").write_bytes(valid())
    return folder


@case
def saved_model_folder(folder: Path) -> Path:
    """TensorFlow's folder form."""
    (folder / "saved_model.pb").write_bytes(b"\x08\x01")
    return folder


@case
def pipe(folder: Path) -> Path:
    """A named pipe that nobody writes to: opening it must not wait."""
    os.mkfifo(folder / "model.onnx")
    return folder / "model.onnx"


@case
def device(folder: Path) -> Path:
    """A link to a device that never ends."""
    (folder / "model.onnx").symlink_to("/dev/zero")
    return folder / "model.onnx"


@case
def link_to_itself(folder: Path) -> Path:
    """A link that leads nowhere."""
    (folder / "model.onnx").symlink_to("model.onnx")
    return folder / "model.onnx"


@case
def pytorch_zip(folder: Path) -> Path:
    """Write a file as torch.save does."""
    with zipfile.ZipFile(folder / "model.onnx", "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02}.")
    return folder / "model.onnx"


@case
def zip_of_a_model(folder: Path) -> Path:
    """A model that somebody packed."""
    with zipfile.ZipFile(folder / "model.onnx", "w") as archive:
        archive.writestr("net.onnx", valid())
    return folder / "model.onnx"


add("no_opset", lambda: valid().replace(field(8, opset(17)), b""))
add("opset_zero", lambda: valid().replace(field(8, opset(17)), field(8, opset(0))))
add("opset_absurd", lambda: valid().replace(field(8, opset(17)), field(8, opset(1 << 40))))
add("two_opsets", lambda: valid() + field(8, opset(18, "ai.onnx")))
add("ir_version_zero", lambda: field(1, 0) + valid()[2:])
add("ir_version_negative", lambda: field(1, -3) + valid()[2:])
add("ir_version_absurd", lambda: field(1, 1 << 40) + valid()[2:])
