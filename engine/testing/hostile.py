"""Hostile and damaged model files, each to be refused with a clear error.

`cases` are refused by `engine.formats` before any runtime sees them. `bombs` are valid ONNX that
asks a runtime for absurd memory or time: a backend must answer with an error, within its limits.
Both are written without the onnx package, which would refuse to write most of them.
"""

from __future__ import annotations

import os
import random
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

Writer: TypeAlias = Callable[[Path], Path]
"""Writes one model into the empty folder given and returns its path."""

FLOAT, UINT8, INT64, STRING = 1, 2, 7, 8

_CASES: list[tuple[str, Writer]] = []
_BOMBS: list[tuple[str, Writer]] = []


def cases() -> Iterator[tuple[str, Writer]]:
    """Yield (name, writer) of each file that must be refused with a ModelError."""
    yield from _CASES


def bombs() -> Iterator[tuple[str, Writer]]:
    """Yield (name, writer) of valid models that would take terabytes or forever to run.

    Each takes one input "x", float32 of any length. Building or running one must end in an error
    or at the deadline. Run them in a process with limited memory (RLIMIT_AS): "concat_doubling"
    takes as much as it is given.
    """
    yield from _BOMBS


# ------------------------------------------------------------------- protobuf and ONNX, by hand


def field(number: int, value: int | str | bytes, wire: int | None = None) -> bytes:
    """One field: an int as a varint, text and bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3 | (wire or 0)) + varint(value)
    body = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | (2 if wire is None else wire)) + varint(len(body)) + body


def varint(value: int) -> bytes:
    """A protobuf varint; negative numbers as int64."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def many(number: int, values: Iterable[int | str | bytes]) -> bytes:
    """A repeated field."""
    return b"".join(field(number, value) for value in values)


def tensor(
    name: str,
    dims: Iterable[int],
    raw: bytes | None = None,
    dtype: int = FLOAT,
    external: dict[str, str] | None = None,
    extra: bytes = b"",
) -> bytes:
    """A TensorProto. external: entries of external data."""
    body = many(1, dims) + field(2, dtype) + field(8, name)
    if raw is not None:
        body += field(9, raw)
    if external is not None:
        body += many(13, [field(1, k) + field(2, v) for k, v in external.items()]) + field(14, 1)
    return body + extra


def ints(name: str, *values: int) -> bytes:
    """An int64 tensor of one dim."""
    raw = b"".join(value.to_bytes(8, "little", signed=True) for value in values)
    return tensor(name, [len(values)], raw, INT64)


def floats(name: str, count: int = 1) -> bytes:
    """A float32 tensor of one dim, all zero."""
    return tensor(name, [count], bytes(4 * count))


def type_of(dims: Iterable[int | str] = ("n",), dtype: int = FLOAT) -> bytes:
    """A TypeProto of a tensor."""
    shape = b"".join(
        field(1, field(1, dim) if isinstance(dim, int) else field(2, dim)) for dim in dims
    )
    return field(1, field(1, dtype) + field(2, shape))


def value(name: str, kind: bytes | None = None) -> bytes:
    """A ValueInfoProto, float32 of one symbolic dim unless `kind` is given."""
    return field(1, name) + field(2, type_of() if kind is None else kind)


def node(
    op: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    attributes: Iterable[bytes] = (),
    domain: str = "",
    name: str = "",
) -> bytes:
    """A NodeProto."""
    body = many(1, inputs) + many(2, outputs) + (field(3, name) if name else b"")
    return body + field(4, op) + many(5, attributes) + (field(7, domain) if domain else b"")


def attribute(name: str, number: int, content: int | str | bytes, kind: int) -> bytes:
    """An AttributeProto. number: the field of `content`; kind: its AttributeType."""
    return field(1, name) + field(number, content) + field(20, kind)


def graph(
    nodes: Iterable[bytes],
    inputs: Iterable[bytes] = (),
    outputs: Iterable[bytes] = (),
    initializers: Iterable[bytes] = (),
    extra: bytes = b"",
) -> bytes:
    """A GraphProto."""
    body = many(1, nodes) + field(2, "g") + many(5, initializers)
    return body + many(11, inputs) + many(12, outputs) + extra


def function(
    name: str, nodes: Iterable[bytes], inputs: Iterable[str], outputs: Iterable[str]
) -> bytes:
    """A FunctionProto of domain "f"."""
    body = field(1, name) + many(4, inputs) + many(5, outputs) + many(7, nodes)
    return body + many(9, [opset(17), opset(1, "f")]) + field(10, "f")


def opset(version: int, domain: str = "") -> bytes:
    """An OperatorSetIdProto."""
    return field(1, domain) + field(2, version)


def model(
    body: bytes, ir_version: int = 8, opsets: Iterable[bytes] = (), extra: bytes = b""
) -> bytes:
    """A ModelProto around a graph."""
    versions = list(opsets) or [opset(17)]
    return field(1, ir_version) + field(2, "hostile") + field(7, body) + many(8, versions) + extra


def chain(*nodes: bytes, initializers: Iterable[bytes] = (), extra: bytes = b"") -> bytes:
    """A model from "x" to "y"."""
    return model(graph(nodes, [value("x")], [value("y")], initializers), extra=extra)


def valid() -> bytes:
    """A small model that is in order: y = x + w."""
    return chain(node("Add", ["x", "w"], ["y"], name="add"), initializers=[floats("w")])


def _case(writer: Writer) -> Writer:
    _CASES.append((writer.__name__, writer))
    return writer


def _bytes(name: str, make: Callable[[], bytes], where: list[tuple[str, Writer]] = _CASES) -> None:
    """Add a case that is only bytes; they are made when it is written."""

    def write(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(make())
        return path

    where.append((name, write))


# --------------------------------------------------------------------------- not a model at all

_bytes("empty", lambda: b"")
_bytes("random", lambda: random.Random(0).randbytes(4096))
_bytes("zeros", lambda: bytes(4096))
_bytes("truncated", lambda: valid()[:-20])
_bytes("truncated_after_first_field", lambda: valid()[:9])
_bytes("truncated_in_graph", lambda: valid()[:40])
_bytes("no_graph", lambda: field(1, 8) + field(2, "hostile") + field(8, opset(17)))
_bytes("two_graphs", lambda: valid() + field(7, graph([node("Neg", ["x"], ["z"])])))
_bytes("group", lambda: valid() + varint(30 << 3 | 3))
_bytes("endless_varint", lambda: model(b"\xff" * 4096))
_bytes("two_gigabyte_length", lambda: field(1, 8) + varint(7 << 3 | 2) + varint((1 << 31) - 1))
_bytes("eight_exabyte_length", lambda: field(1, 8) + varint(7 << 3 | 2) + varint((1 << 63) - 1))
_bytes("name_not_utf8", lambda: chain(node("Neg", ["x"], ["y"]) + field(3, b"\xff\xfe")))
_bytes("tflite", lambda: b"\x1c\0\0\0TFL3" + bytes(64))
_bytes("tensorflow_graph", lambda: field(1, field(1, "w") + field(2, "Const")) + field(4, b""))
_bytes(
    "tensorflow_saved_model",
    lambda: field(1, 1) + field(2, field(1, field(5, "2.15")) + field(2, field(1, b"\0\1"))),
)
_bytes("tensorrt_engine", lambda: b"ftrt" + bytes(range(200)))
_bytes("ascend_model", lambda: b"IMOD" + bytes(range(200)))
_bytes("onnxruntime_model", lambda: b"\x1c\0\0\0ORTM" + bytes(64))
_bytes("pytorch_pickle", lambda: b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + bytes(32))
_bytes("pickle", lambda: b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05numpy." + bytes(32))
_bytes("hdf5", lambda: b"\x89HDF\r\n\x1a\n" + bytes(64))
_bytes("safetensors", lambda: (16).to_bytes(8, "little") + b'{"__metadata__":' + bytes(64))
_bytes("gguf", lambda: b"GGUF\3\0\0\0" + bytes(64))
_bytes("git_lfs_pointer", lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
_bytes("web_page", lambda: b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n")
_bytes("onnx_text", lambda: b'ir_version: 8\nproducer_name: "me"\ngraph {\n  name: "g"\n}\n')
_bytes(
    "onnx_language", lambda: b'<\n  ir_version: 8,\n  opset_import: ["" : 17]\n>\ng (x) => (y) {}'
)
_bytes("onnx_json", lambda: b'{"irVersion": "8", "graph": {"name": "g"}}')
_bytes("onnx_tensor", lambda: floats("w"))
_bytes("mindir", lambda: field(1, "1.1") + field(2, "MindSpore") + field(7, field(2, "net")))
_bytes("encrypted_mindir", lambda: b"\xd8\x5e\x3a\x7f" + bytes(64))


@_case
def missing(folder: Path) -> Path:
    """A path where nothing is."""
    return folder / "model.onnx"


@_case
def folder_instead_of_file(folder: Path) -> Path:
    """A folder, with a model in it."""
    (folder / "model.onnx").write_bytes(valid())
    return folder


@_case
def saved_model_folder(folder: Path) -> Path:
    """TensorFlow's folder form."""
    (folder / "saved_model.pb").write_bytes(b"\x08\x01")
    return folder


@_case
def pipe(folder: Path) -> Path:
    """A named pipe that nobody writes to: opening it must not wait."""
    os.mkfifo(folder / "model.onnx")
    return folder / "model.onnx"


@_case
def device(folder: Path) -> Path:
    """A link to a device that never ends."""
    (folder / "model.onnx").symlink_to("/dev/zero")
    return folder / "model.onnx"


@_case
def link_to_itself(folder: Path) -> Path:
    """A link that leads nowhere."""
    (folder / "model.onnx").symlink_to("model.onnx")
    return folder / "model.onnx"


@_case
def pytorch_zip(folder: Path) -> Path:
    """What torch.save writes."""
    with zipfile.ZipFile(folder / "model.onnx", "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02}.")
    return folder / "model.onnx"


@_case
def zip_of_a_model(folder: Path) -> Path:
    """A model that somebody packed."""
    with zipfile.ZipFile(folder / "model.onnx", "w") as archive:
        archive.writestr("net.onnx", valid())
    return folder / "model.onnx"


# ---------------------------------------------------------------------------------- the header

_bytes("no_opset", lambda: valid().replace(field(8, opset(17)), b""))
_bytes("opset_zero", lambda: valid().replace(field(8, opset(17)), field(8, opset(0))))
_bytes("opset_absurd", lambda: valid().replace(field(8, opset(17)), field(8, opset(1 << 40))))
_bytes("two_opsets", lambda: valid() + field(8, opset(18, "ai.onnx")))
_bytes("ir_version_zero", lambda: field(1, 0) + valid()[2:])
_bytes("ir_version_negative", lambda: field(1, -3) + valid()[2:])
_bytes("ir_version_absurd", lambda: field(1, 1 << 40) + valid()[2:])

# ----------------------------------------------------------------------------- names and order

_ADD = ("Add", ["x", "w"], ["y"])
_bytes("unknown_input", lambda: chain(node("Add", ["x", "ghost"], ["y"], name="add")))
_bytes("unsorted", lambda: chain(node("Neg", ["a"], ["y"]), node("Neg", ["x"], ["a"], name="late")))
_bytes(
    "cycle",
    lambda: chain(
        node("Add", ["x", "b"], ["a"], name="first"), node("Neg", ["a"], ["b"], name="second"),
        node("Neg", ["b"], ["y"]),
    ),
)  # fmt: skip
_bytes("node_reads_itself", lambda: chain(node("Add", ["x", "y"], ["y"], name="ouroboros")))
_bytes(
    "long_cycle",
    lambda: chain(
        *[node("Neg", [f"v{(i or 50_000) - 1}"], [f"v{i}"]) for i in range(50_000)],
        node("Add", ["x", "v0"], ["y"]),
    ),
)
_bytes("output_twice", lambda: chain(node("Neg", ["x"], ["y"]), node("Abs", ["x"], ["y"])))
_bytes("output_is_input", lambda: chain(node("Neg", ["x"], ["x"]), node("Abs", ["x"], ["y"])))
_bytes(
    "two_inputs_of_one_name",
    lambda: model(graph([node("Neg", ["x"], ["y"])], [value("x"), value("x")], [value("y")])),
)
_bytes(
    "two_initializers_of_one_name",
    lambda: chain(node(*_ADD), initializers=[floats("w"), floats("w")]),
)
_bytes("initializer_without_name", lambda: chain(node(*_ADD), initializers=[floats("")]))
_bytes("output_of_nobody", lambda: chain(node("Neg", ["x"], ["z"])))
_bytes("no_outputs", lambda: model(graph([node("Neg", ["x"], ["y"])], [value("x")])))
_bytes("empty_graph", lambda: model(b""))
_bytes("node_without_operator", lambda: chain(many(1, ["x"]) + many(2, ["y"])))
_bytes("long_name", lambda: chain(node("Neg", ["x"], ["y"], name="n" * 100_000)))
_bytes(
    "too_many_nodes",
    lambda: model(field(1, node("A", [], [])) * 1_000_001 + field(12, value("y"))),
)


def _branch(*nodes: bytes, initializers: Iterable[bytes] = (), out: str = "z") -> bytes:
    return attribute("body", 6, graph(nodes, (), [value(out)], initializers), 5)


_bytes(
    "unknown_input_in_subgraph",
    lambda: chain(node("If", ["x"], ["y"], [_branch(node("Neg", ["ghost"], ["z"]))], name="if")),
)
_bytes(
    "subgraph_reads_a_later_node",
    lambda: chain(
        node("If", ["x"], ["y"], [_branch(node("Neg", ["later"], ["z"]))]),
        node("Neg", ["x"], ["later"]),
    ),
)

# ------------------------------------------------------------------------------ inputs, outputs

_NEG = ("Neg", ["x"], ["y"])


def _with_input(kind: bytes) -> bytes:
    return model(graph([node(*_NEG)], [value("x", kind)], [value("y")]))


_bytes("input_without_type", lambda: _with_input(b""))
_bytes("input_of_unknown_element", lambda: _with_input(type_of(dtype=99)))
_bytes("input_of_undefined_element", lambda: _with_input(type_of(dtype=0)))
_bytes("input_with_negative_dim", lambda: _with_input(type_of([-7])))
_bytes("input_larger_than_memory", lambda: _with_input(type_of([1 << 40, 1 << 40])))
_bytes("input_of_too_many_dims", lambda: _with_input(type_of([1] * 65)))
_bytes("input_of_two_types", lambda: _with_input(type_of() + field(4, field(1, type_of()))))
_bytes("sparse_input", lambda: _with_input(field(8, field(1, FLOAT))))
_bytes("opaque_input", lambda: _with_input(field(7, field(2, "thing"))))
_bytes("sequence_of_nothing", lambda: _with_input(field(4, b"")))
_bytes(
    "output_without_type",
    lambda: model(graph([node(*_NEG)], [value("x")], [field(1, "y")])),
)

# ------------------------------------------------------------------------------------- tensors


def _with_tensor(body: bytes) -> bytes:
    return chain(node(*_ADD), initializers=[body])


_bytes("tensor_negative_dim", lambda: _with_tensor(tensor("w", [-1], b"")))
_bytes("tensor_dims_overflow", lambda: _with_tensor(tensor("w", [1 << 33] * 2, b"")))
_bytes("tensor_dims_overflow_beside_zero", lambda: _with_tensor(tensor("w", [0, *[1 << 33] * 2])))
_bytes("billions_of_elements", lambda: _with_tensor(tensor("w", [1 << 31, 4])))
_bytes("tensor_too_short", lambda: _with_tensor(tensor("w", [1000], bytes(16))))
_bytes("tensor_too_long", lambda: _with_tensor(tensor("w", [2], bytes(4096))))
_bytes("tensor_without_data", lambda: _with_tensor(tensor("w", [3])))
_bytes("tensor_of_unknown_element", lambda: _with_tensor(tensor("w", [1], bytes(4), 77)))
_bytes("tensor_of_undefined_element", lambda: _with_tensor(tensor("w", [1], bytes(4), 0)))
_bytes("tensor_of_too_many_dims", lambda: _with_tensor(tensor("w", [1] * 65, bytes(4))))
_bytes(
    "tensor_of_packed_dims",
    lambda: _with_tensor(field(1, b"\x01" * 100_000) + tensor("w", [], bytes(4))),
)
_bytes(
    "tensor_in_the_wrong_field",
    lambda: _with_tensor(tensor("w", [1], extra=field(7, varint(1)))),
)
_bytes(
    "tensor_with_too_few_numbers",
    lambda: _with_tensor(tensor("w", [9], None, INT64, extra=field(7, varint(-1) * 3))),
)
_bytes(
    "tensor_with_a_cut_number",
    lambda: _with_tensor(tensor("w", [2], None, INT64, extra=field(7, b"\x01\xff"))),
)
_bytes("tensor_with_half_a_float", lambda: _with_tensor(tensor("w", [1], extra=field(4, b"abc"))))
_bytes(
    "tensor_stored_twice",
    lambda: _with_tensor(tensor("w", [1], bytes(4), extra=field(4, bytes(4)))),
)
_bytes("raw_strings", lambda: _with_tensor(tensor("w", [1], b"text", STRING)))
_bytes("tensor_in_segments", lambda: _with_tensor(tensor("w", [1], bytes(4), extra=field(3, b""))))
_bytes("sparse_index_outside", lambda: _sparse([4], [9]))
_bytes("sparse_index_negative", lambda: _sparse([4], [-1]))
_bytes("sparse_unfolds_to_terabytes", lambda: _sparse([1 << 40], [3]))


def _sparse(dims: list[int], index: list[int]) -> bytes:
    body = field(1, floats("w")) + field(2, ints("", *index)) + many(3, dims)
    return model(graph([node(*_ADD)], [value("x")], [value("y")], extra=field(15, body)))


# ------------------------------------------------------------------------------- external data


def _external(
    name: str,
    prepare: Callable[[Path], object],
    dims: Iterable[int] = (4,),
    wrap: Callable[[bytes], bytes] = _with_tensor,
    **entries: str,
) -> None:
    """Add a case of a model whose tensor "w" lies outside it, as `entries` say."""

    def write(folder: Path) -> Path:
        inner = folder / "model"
        inner.mkdir()
        (folder / "secret.bin").write_bytes(bytes(64))
        prepare(inner)
        path = inner / "model.onnx"
        found = {k: v.replace("FOLDER", str(folder)) for k, v in entries.items()}
        path.write_bytes(wrap(tensor("w", dims, external=found)))
        return path

    _CASES.append((name, write))


def _data(folder: Path) -> None:
    (folder / "w.bin").write_bytes(bytes(16))


def _nothing(_: Path) -> None: ...


_external("external_absolute", _nothing, location="FOLDER/secret.bin")
_external("external_parent", _nothing, location="../secret.bin")
_external("external_parent_inside", _data, location="deeper/../w.bin")
_external("external_backslash", _data, location="..\\secret.bin")
_external("external_nul", _data, location="w.bin\0.txt")
_external("external_nowhere", _data, location="")
_external("external_no_entry", _data)
_external(
    "external_link_out", lambda f: (f / "w.bin").symlink_to("../secret.bin"), location="w.bin"
)
_external(
    "external_folder_link_out", lambda f: (f / "up").symlink_to(".."), location="up/secret.bin"
)
_external(
    "external_link_to_device", lambda f: (f / "w.bin").symlink_to("/dev/zero"), location="w.bin"
)
_external(
    "external_dangling_link", lambda f: (f / "w.bin").symlink_to("gone.bin"), location="w.bin"
)
_external("external_link_to_itself", lambda f: (f / "w.bin").symlink_to("w.bin"), location="w.bin")
_external("external_missing", _nothing, location="w.bin")
_external("external_folder", lambda f: (f / "w.bin").mkdir(), location="w.bin")
_external("external_pipe", lambda f: os.mkfifo(f / "w.bin"), location="w.bin")
_external("external_too_short", _data, dims=[1000], location="w.bin")
_external("external_billions", _data, dims=[1 << 31, 4], location="w.bin")
_external("external_offset_past_end", _data, location="w.bin", offset="8", length="16")
_external("external_offset_negative", _data, location="w.bin", offset="-16")
_external("external_offset_huge", _data, location="w.bin", offset="9" * 30)
_external("external_length_differs", _data, location="w.bin", length="8")
_external("external_memory_address", _data, location="*/_ORT_MEM_ADDR_/*", offset="4096")
_external(
    "external_in_attribute", _nothing, location="../secret.bin",
    wrap=lambda w: chain(node("Constant", [], ["c"], [attribute("value", 5, w, 4)]), node(*_NEG)),
)  # fmt: skip
_external(
    "external_in_attribute_list", _nothing, location="../secret.bin",
    wrap=lambda w: chain(node("Neg", ["x"], ["y"], [attribute("values", 10, w, 9)])),
)  # fmt: skip
_external(
    "external_in_subgraph", _nothing, location="../secret.bin",
    wrap=lambda w: chain(
        node("If", ["x"], ["y"], [_branch(node("Neg", ["w"], ["z"]), initializers=[w])])
    ),
)  # fmt: skip
_external(
    "external_in_function", _nothing, location="../secret.bin",
    wrap=lambda w: chain(
        node(*_NEG),
        extra=field(
            25,
            function("f", [node("Constant", [], ["b"], [attribute("value", 5, w, 4)])], [], ["b"]),
        ),
    ),
)  # fmt: skip
_external(
    "external_in_sparse_values", _nothing, dims=[1], location="../secret.bin",
    wrap=lambda w: model(
        graph(
            [node(*_ADD)], [value("x")], [value("y")],
            extra=field(15, field(1, w) + field(2, ints("", 0)) + field(3, 4)),
        )
    ),
)  # fmt: skip


@_case
def external_location_twice(folder: Path) -> Path:
    """Two locations: readers differ in which they take."""
    _data(folder)
    twice = field(13, field(1, "location") + field(2, "../secret.bin"))
    body = tensor("w", [4], external={"location": "w.bin"}, extra=twice)
    (folder / "model.onnx").write_bytes(_with_tensor(body))
    return folder / "model.onnx"


# ------------------------------------------------------------------------------ depth and growth


def _nested_type(depth: int) -> bytes:
    kind = type_of()
    for level in range(depth):
        kind = field(4 if level % 2 else 9, field(1, kind))
    return kind


def _nested_subgraphs(depth: int) -> bytes:
    body = graph([node("Neg", ["x"], ["z"])], (), [value("z")])
    for _ in range(depth):
        inner = attribute("then_branch", 6, body, 5)
        body = graph([node("If", ["x"], ["z"], [inner])], (), [value("z")])
    return body


_bytes(
    "deep_subgraphs",
    lambda: chain(node("If", ["x"], ["y"], [attribute("b", 6, _nested_subgraphs(100), 5)])),
)
_bytes(
    "very_deep_subgraphs",
    lambda: chain(node("If", ["x"], ["y"], [attribute("b", 6, _nested_subgraphs(3000), 5)])),
)
_bytes("deep_type", lambda: _with_input(_nested_type(200)))
_bytes("very_deep_type", lambda: _with_input(_nested_type(10_000)))
_bytes(
    "deep_type_of_inner_value",
    lambda: model(
        graph(
            [node(*_NEG)], [value("x")], [value("y")],
            extra=field(13, value("inner", _nested_type(200))),
        )
    ),
)  # fmt: skip
_bytes(
    "deep_type_in_attribute",
    lambda: chain(node("Neg", ["x"], ["y"], [attribute("type", 14, _nested_type(200), 13)])),
)


def _with_functions(*functions: bytes, call: str) -> bytes:
    return model(
        graph([node(call, ["x"], ["y"], domain="f")], [value("x")], [value("y")]),
        opsets=[opset(17), opset(1, "f")],
        extra=many(25, functions),
    )


def _calls(name: str, *callees: str) -> bytes:
    steps = [node(callee, [f"v{i}"], [f"v{i + 1}"], domain="f") for i, callee in enumerate(callees)]
    return function(name, steps, ["v0"], [f"v{len(callees)}"])


_LEAF = function("f0", [node("Neg", ["a"], ["b"])], ["a"], ["b"])
_bytes("function_calls_itself", lambda: _with_functions(_calls("f0", "f0"), call="f0"))
_bytes(
    "functions_call_each_other",
    lambda: _with_functions(_calls("f0", "f1"), _calls("f1", "f0"), call="f0"),
)
_bytes(
    "functions_double",
    lambda: _with_functions(
        _LEAF, *[_calls(f"f{i}", f"f{i - 1}", f"f{i - 1}") for i in range(1, 61)], call="f60"
    ),
)
_bytes(
    "functions_chain",
    lambda: _with_functions(
        _LEAF, *[_calls(f"f{i}", f"f{i - 1}") for i in range(1, 3001)], call="f3000"
    ),
)
_bytes("function_twice", lambda: _with_functions(_LEAF, _LEAF, call="f0"))
_bytes(
    "function_reads_unknown_name",
    lambda: _with_functions(
        function("f0", [node("Neg", ["ghost"], ["b"])], ["a"], ["b"]), call="f0"
    ),
)
_bytes(
    "constant_of_terabytes",
    lambda: chain(
        node("ConstantOfShape", ["s"], ["c"], name="fill"), node("Add", ["x", "c"], ["y"]),
        initializers=[ints("s", 1 << 30, 1 << 10)],
    ),
)  # fmt: skip
_bytes(
    "constant_of_terabytes_from_constants",
    lambda: chain(
        node("Constant", [], ["s"], [attribute("value", 5, ints("", 1 << 40), 4)]),
        node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"], ["y"]),
    ),
)  # fmt: skip
_bytes(
    "many_large_constants",
    lambda: chain(
        *[node("ConstantOfShape", ["s"], [f"c{i}"]) for i in range(1000)],
        node("Sum", ["x", *[f"c{i}" for i in range(1000)]], ["y"]),
        initializers=[ints("s", 200_000_000)],
    ),
)
_bytes(
    "expand_to_terabytes",
    lambda: chain(
        node("Expand", ["x", "s"], ["e"]), node("ReduceSum", ["e"], ["y"]),
        initializers=[ints("s", 1 << 40, 1)],
    ),
)  # fmt: skip
_bytes(
    "tile_to_terabytes",
    lambda: chain(node("Tile", ["x", "s"], ["y"]), initializers=[ints("s", 1 << 40)]),
)

# -------------------------------------------------------------------- valid, but not to be run

_SUM = attribute("keepdims", 3, 0, 2)


def _bomb(name: str, *nodes: bytes, initializers: Iterable[bytes] = ()) -> None:
    """Add a model that reduces the huge tensor "h" and adds it to "x"."""
    parts = list(initializers)
    steps = [*nodes, node("ReduceSum", ["h"], ["r"], [_SUM]), node("Add", ["x", "r"], ["y"])]
    _bytes(name, lambda: chain(*steps, initializers=parts), _BOMBS)


_HUGE = 1 << 41
_bomb(
    "concat_doubling",
    *[
        node(
            "Concat", [f"c{i}"] * 2, [f"c{i + 1}" if i < 49 else "h"], [attribute("axis", 3, 0, 2)]
        )
        for i in range(50)
    ],
    initializers=[floats("c0")],
)
_bomb(
    "concat_doubling_of_input",
    *[
        node("Concat", [f"c{i}" if i else "x"] * 2, [f"c{i + 1}" if i < 49 else "h"],
             [attribute("axis", 3, 0, 2)])
        for i in range(50)
    ],
)  # fmt: skip
_bomb(
    "expand_by_computed_shape",
    node("Shape", ["x"], ["n"]), node("Mul", ["n", "k"], ["s"]),
    node("ConstantOfShape", ["s"], ["h"]),
    initializers=[ints("k", _HUGE)],
)  # fmt: skip
_bomb(
    "pad",
    node("Pad", ["one", "k"], ["h"]),
    initializers=[floats("one"), ints("k", 0, _HUGE)],
)
_bomb(
    "resize",
    node("Resize", ["one", "", "", "k"], ["h"]),
    initializers=[tensor("one", [1, 1, 1, 1], bytes(4)), ints("k", 1, 1, 1 << 21, 1 << 21)],
)
_bomb(
    "one_hot",
    node("OneHot", ["i", "k", "v"], ["h"]),
    initializers=[ints("i", 0), ints("k", _HUGE), floats("v", 2)],
)
_bomb(
    "range",
    node("Range", ["a", "b", "c"], ["i"]),
    node("Cast", ["i"], ["h"], [attribute("to", 3, FLOAT, 2)]),
    initializers=[
        tensor("a", [], bytes(8), INT64),
        tensor("b", [], _HUGE.to_bytes(8, "little"), INT64),
        tensor("c", [], (1).to_bytes(8, "little"), INT64),
    ],
)
_bomb(
    "random_normal",
    node("RandomNormal", [], ["h"], [attribute("shape", 8, _HUGE, 7)]),
)
_bomb(
    "endless_loop",
    node(
        "Loop", ["m", "go", "zero"], ["h"],
        [
            attribute(
                "body", 6,
                graph(
                    [node("Identity", ["c"], ["d"]), node("Add", ["v", "v"], ["w"])],
                    [value("i", type_of([], INT64)), value("c", type_of([], 9)), value("v")],
                    [value("d", type_of([], 9)), value("w")],
                ),
                5,
            )
        ],
    ),
    initializers=[
        tensor("m", [], _HUGE.to_bytes(8, "little"), INT64),
        tensor("go", [], b"\1", 9),
        floats("zero"),
    ],
)  # fmt: skip
