"""Recognises what a file is by its content.

Most formats start with a magic number. ONNX has none: it is a bare protobuf message, so it is
known by its structure, field by field, before magic numbers are looked for (four bytes of an
ONNX file's producer name can stand where a flatbuffer has its magic number).
"""

from __future__ import annotations

import re

from engine.formats.onnx import schema
from engine.formats.protobuf import BYTES, VARINT, Budget, WireError, fields, key

ONNX = "onnx"
MINDIR = "mindir"
ENCRYPTED_MINDIR = "encrypted_mindir"  # encrypted as MindSpore does it; ONNX may be in it too
UNKNOWN = "unknown"

_ONNX_KEYS = frozenset(value for name, value in vars(schema).items() if name.startswith("MODEL_"))
_TORCH = "export it: torch.onnx.export(model, example_inputs, 'model.onnx')"
_CONVERT = "convert it: engine convert FILE net"
_TEXT = "store it in binary: onnx.save(onnx.load(FILE), 'model.onnx')"
_BUILT = "this target does not read it; build from the ONNX model that it was made of"

# kind: what it is, what to do. Kinds of compiled models are named as backends name the format.
FOREIGN = {
    MINDIR: ("a MindIR model", "install the package that reads it"),
    "plan": ("a TensorRT engine", _BUILT),
    "om": ("an Ascend offline model", _BUILT),
    "ort": ("an onnxruntime model in ORT format", "load the ONNX file that it was made of"),
    "mslite": ("a MindSpore Lite .ms model for devices", "export MindIR or ONNX instead"),
    "tflite": ("a TensorFlow Lite model", _CONVERT),
    "tensorflow": ("a TensorFlow graph", f"{_CONVERT} (FILE may be a SavedModel's folder)"),
    "keras": ("a Keras model", _CONVERT),
    "hdf5": ("an HDF5 file, probably a Keras model", _CONVERT),
    "pytorch": ("a PyTorch file", f"{_CONVERT} (of torch.export or torch.jit), or {_TORCH}"),
    "pickle": (
        "a Python pickle, probably of PyTorch or scikit-learn",
        "export the model from there",
    ),
    "safetensors": ("weights in safetensors format, without a graph", _TORCH),
    "gguf": ("a GGUF model for llama.cpp", "get or export the ONNX form of the model"),
    "coreml": ("a Core ML model", "export ONNX from the framework that it was trained in"),
    "openvino": ("an OpenVINO model", "load the ONNX file that it was made of"),
    "paddle": ("a PaddlePaddle program", "convert it: paddle2onnx --model_dir DIR"),
    "onnx_tensor": ("an ONNX tensor, not a model", "give the model that it belongs to"),
    "onnx_text": ("ONNX in text form", _TEXT),
    "onnx_json": ("ONNX as JSON", _TEXT),
    "json": ("a JSON file", "give the model file itself"),
    "xml": ("an XML or HTML page, perhaps an error page that was saved", "download it again"),
    "lfs": ("a Git LFS pointer, not the file itself", "run: git lfs pull"),
    "zip": ("a zip archive", "unpack it and give the model file in it"),
    "gzip": ("a gzip file", "unpack it: gunzip FILE"),
    "numpy": ("a numpy array", "give the model file itself"),
    "protobuf": ("a protobuf message, but not of ONNX", "export the model from its framework"),
    "text": ("a text file", "give the model file itself"),
    UNKNOWN: ("of no format known here", "check that it is the right file and complete"),
}

ENCRYPTIONS = {
    b"\xd8\x5e\x3a\x7f": "AES-GCM", b"\xd9\x5e\x3a\x7f": "AES-CBC", b"\xda\x5e\x3a\x7f": "SM4-CBC",
}  # fmt: skip
"""The mode of an encrypted file, by its first bytes."""

_STARTS = (
    *((start, ENCRYPTED_MINDIR) for start in ENCRYPTIONS),
    (b"ptrt", "plan"),
    (b"ftrt", "plan"),
    (b"IMOD", "om"),
    (b"GGUF", "gguf"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"\x1f\x8b", "gzip"),
    (b"\x93NUMPY", "numpy"),
    (b"version https://git-lfs", "lfs"),
)
_FLATBUFFERS = {
    b"TFL3": "tflite", b"ORTM": "ort", b"MSL0": "mslite", b"MSL1": "mslite", b"MSL2": "mslite",
}  # fmt: skip
_TORCH_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # a long that torch.save once wrote first


def kind_of(view: memoryview) -> str:
    """Name what `view` holds: "onnx", "mindir", "encrypted_mindir" or a key of FOREIGN."""
    return recognised_kind(view)[0]


def recognised_kind(view: memoryview) -> tuple[str, bool]:
    """Return what `kind_of` does, and whether that is certain: ONNX with no field that is not."""
    head = bytes(view[:4096])
    # onnxruntime takes a model with this mark for its own format, whatever else it is: what was
    # checked as ONNX would be read as something else.
    if head[4:8] == b"ORTM":
        return "ort", False
    seen, complete = _fields_of(view)
    by_structure = _protobuf_kind(view, seen, complete)
    if complete and by_structure in (ONNX, MINDIR):
        return by_structure, by_structure == ONNX and seen.keys() <= _ONNX_KEYS
    return _magic_kind(head, view) or by_structure or _text_kind(head) or UNKNOWN, False


def encryption_of(head: bytes | memoryview) -> str:
    """Return the mode in which a file that begins so is encrypted, "" for not at all."""
    return ENCRYPTIONS.get(bytes(head[:4]), "")


def _magic_kind(head: bytes, view: memoryview) -> str:
    for start, kind in _STARTS:
        if head.startswith(start):
            return kind
    if head[4:8] in _FLATBUFFERS and 8 <= int.from_bytes(head[:4], "little") < len(view):
        return _FLATBUFFERS[head[4:8]]
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(view)
    if re.match(rb"\x80[\x02-\x05]", head):
        return "pytorch" if _TORCH_MAGIC in head[:32] else "pickle"
    header = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and 2 <= header <= len(view) - 8 and head[9:].lstrip()[:1] in (b'"', b"}"):
        return "safetensors"
    return ""


def _zip_kind(view: memoryview) -> str:
    # Names stand in the archive's head and in its directory at the end.
    ends = bytes(view[:4096]) + bytes(view[-4096:])
    if re.search(rb"/(data\.pkl|constants\.pkl|archive_format|model\.json)", ends):
        return "pytorch"
    if b"model.weights.h5" in ends:
        return "keras"
    return "zip"


def _text_kind(head: bytes) -> str:
    try:
        # A character cut in two at the end of the head is no reason to doubt the rest.
        shown = head.decode("utf-8", "ignore" if len(head) == 4096 else "strict").lstrip("\ufeff")
    except UnicodeDecodeError:
        return ""
    if any(ord(c) < 32 and c not in "\t\r\n\f" for c in shown):
        return ""
    start = shown.lstrip()
    if start.startswith("{"):
        return "onnx_json" if re.search(r'"(irVersion|opsetImport)"', shown) else "json"
    if re.search(r"\bir_version\s*:", shown):
        return "onnx_text"
    if start.startswith("<"):
        return "openvino" if re.search(r"<net\s", shown) else "xml"
    return "text"


def _fields_of(view: memoryview) -> tuple[dict[int, memoryview | int], bool]:
    """Return the first of each field of the message, and whether the message is whole."""
    seen: dict[int, memoryview | int] = {}
    try:
        for tag, value in fields(view, Budget(100_000)):
            seen.setdefault(tag, value)
    except WireError:
        return seen, False
    return seen, True


def _protobuf_kind(view: memoryview, seen: dict[int, memoryview | int], complete: bool) -> str:
    """Return the kind of protobuf message, "" for none."""
    first = seen.get(key(1, BYTES))
    if isinstance(first, memoryview):
        if re.fullmatch(rb"\d+(\.\d+){1,3}", bytes(first[:16])):  # MindIR's version is a string
            return MINDIR
        if bytes(first[:4]) == b"\x08\x00\x10\xff":  # a block: index 0, parent -1
            return "paddle"
        if complete and bytes(first[:1]) == b"\x0a" and min(seen) == key(1, BYTES):
            return "tensorflow"
    version = seen.get(schema.MODEL_IR_VERSION)
    if schema.MODEL_GRAPH in seen and (version or schema.MODEL_OPSET_IMPORT in seen):
        return ONNX
    if key(2, VARINT) in seen and {schema.TENSOR_RAW_DATA, schema.TENSOR_DIMS} & seen.keys():
        return "onnx_tensor"
    if version and complete and max(seen) >> 3 >= 200:
        return "coreml"
    producer = seen.get(schema.MODEL_PRODUCER_NAME, b"")
    if isinstance(producer, memoryview) and not _is_text(producer):
        return "tensorflow" if complete else ""
    if version and len(view) > 2 and seen.keys() <= _ONNX_KEYS:
        return ONNX  # damaged, or without a graph: the reader says which
    return "protobuf" if complete and len(seen) > 1 else ""


def _is_text(view: memoryview) -> bool:
    return len(view) < 1024 and str(view, "utf-8", "replace").isprintable()
