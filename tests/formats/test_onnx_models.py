from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import hostile
import numpy as np
import onnx
import pytest
from graphs import parsed
from onnx import TensorProto, helper, numpy_helper, parser

from engine import formats
from engine.errors import ModelError
from engine.formats.files import READ_BYTES
from engine.types import DType, GraphInfo, ModelSource, ValueKind
from engine_testing import encode

Reader = Callable[[onnx.ModelProto], GraphInfo]

DATA = Path(onnx.__file__).parent / "backend/test/data"
LIGHT = sorted((DATA / "light").glob("*.onnx"))
STORED = sorted(DATA.glob("*/*/model.onnx"))
TYPES = [number for number in TensorProto.DataType.values() if number]


def build(
    text: str,
    initializers: Sequence[TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model in ONNX's text form: (inputs) => (outputs) { nodes }."""
    model = parsed(f"g {text}", ir_version=10)
    model.graph.initializer.extend(initializers)
    model.functions.extend(functions)
    return model


def value(name: str, dtype: int, shape: object) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def graph_of(model: onnx.ModelProto) -> GraphInfo:
    source = formats.source_from_bytes(model.SerializeToString())
    assert source.graph is not None
    return source.graph


def read(data: bytes) -> GraphInfo:
    graph = formats.source_from_bytes(data).graph
    assert graph is not None
    return graph


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_a_real_network_reads_as_with_onnx(path: Path, read_with_onnx: Reader) -> None:
    source = formats.open_source(path)
    assert source.graph == read_with_onnx(onnx.load(path))
    assert (source.format, source.path, source.folder) == ("onnx", path, path.parent)
    assert source.data == path.read_bytes()


def test_all_nine_light_networks_are_there() -> None:
    assert len(LIGHT) == 9


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parts[-3]}-{path.parts[-2]}")
def test_a_stored_test_model_reads_as_with_onnx(path: Path, read_with_onnx: Reader) -> None:
    source = formats.open_source(path)
    assert source.graph == read_with_onnx(onnx.load(path))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the cases of onnx warn while they are made
def test_all_of_onnxs_operator_tests_read_as_with_onnx(read_with_onnx: Reader) -> None:
    from onnx.backend.test.case.node import collect_testcases

    cases = [case for case in collect_testcases(None) if case.model is not None]
    assert len(cases) > 1500
    different = [case.name for case in cases if graph_of(case.model) != read_with_onnx(case.model)]
    assert different == []


@pytest.mark.parametrize("number", TYPES, ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("raw", [False, True], ids=["numbers", "raw"])
def test_weights_of_every_type_are_read_in_both_forms(
    number: int, raw: bool, read_with_onnx: Reader
) -> None:
    weights = [weight(f"w{count}", number, raw, count) for count in (0, 1, 5, 16)]
    model = build("() => (float[n] y) { y = Identity(w5) }", weights)
    model.graph.output[0].type.tensor_type.elem_type = number
    assert graph_of(model) == read_with_onnx(model)


def weight(name: str, number: int, raw: bool, count: int) -> TensorProto:
    if number == TensorProto.STRING:
        return helper.make_tensor(name, number, [count], [b"text"] * count)
    if raw:
        array = np.ones(count).astype(helper.tensor_dtype_to_np_dtype(number))
        return numpy_helper.from_array(array, name)
    return helper.make_tensor(name, number, [count], [1] * count)


def test_unpacked_numbers_are_counted_like_packed_ones() -> None:
    body = encode.tensor("w", [3], None, encode.INT64, extra=encode.many(7, [1, -1, 300]))
    node = encode.node("Identity", ["w"], ["y"])
    out = encode.value("y", encode.type_of([3], encode.INT64))
    [weight] = read(encode.model(encode.graph([node], [], [out], [body]))).parameters
    assert (weight.dtype, weight.shape, weight.nbytes) == (DType.INT64, (3,), 24)


ADD = "(float[n] x) => (float[n] y) { y = Add(x, w) }"
NEG = "(float[n] x) => (float[n] y) { y = Neg(x) }"
ZEROS = numpy_helper.from_array(np.zeros(3, np.float32), "w")


def test_an_initializer_that_is_also_an_input_is_a_parameter_only() -> None:
    graph = graph_of(build(ADD.replace("[n] x", "[n] x, float[3] w"), [ZEROS]))
    assert [spec.name for spec in graph.inputs] == ["x"]
    assert [parameter.name for parameter in graph.parameters] == ["w"]


def test_sequences_optionals_and_maps_keep_their_kind_and_inner_tensor() -> None:
    kinds = "int64[n,3] a, seq(int64[n,3]) b, optional(seq(int64[n,3])) c, map(string, float) d"
    graph = graph_of(
        build(f"({kinds}, seq(map(string, float)) e) => (int64[n,3] y) {{ y = Identity(a) }}")
    )
    assert [(spec.kind, spec.dtype, spec.shape) for spec in graph.inputs] == [
        (ValueKind.TENSOR, DType.INT64, ("n", 3)),
        (ValueKind.SEQUENCE, DType.INT64, ("n", 3)),
        (ValueKind.OPTIONAL, DType.INT64, ("n", 3)),
        (ValueKind.MAP, DType.FLOAT32, ()),
        (ValueKind.SEQUENCE, DType.FLOAT32, ()),
    ]


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        ([], ()),
        ([2, 3], (2, 3)),
        (["n", None], ("n", None)),
        ([-1, 4], (None, 4)),
        (None, None),
        (["batch", "?", "?"], ("batch", None, None)),
        (["unk__12", "None"], (None, None)),
        (["unknown", "Unknown_size", "*", "-1"], (None, "Unknown_size", None, None)),
    ],
)
def test_dims_are_sizes_names_or_unknown(dims: object, shape: object) -> None:
    model = build(NEG)
    model.graph.input[0].CopyFrom(value("x", TensorProto.FLOAT, dims))
    assert graph_of(model).inputs[0].shape == shape


def test_a_sparse_initializer_is_a_parameter_of_its_dense_shape() -> None:
    model = build(ADD)
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    flat = numpy_helper.from_array(np.array([1, 11]))
    by_axis = numpy_helper.from_array(np.array([[0, 1], [2, 3]]))
    for indices in (flat, by_axis):
        del model.graph.sparse_initializer[:]
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
        [weight] = graph_of(model).parameters
        assert (weight.name, weight.shape, weight.nbytes) == ("w", (3, 4), 48)


def test_an_output_without_a_type_takes_the_one_of_the_inner_value() -> None:
    model = build(NEG)
    model.graph.output[0].ClearField("type")
    model.graph.value_info.append(value("y", TensorProto.INT8, [7]))
    [output] = graph_of(model).outputs
    assert (output.dtype, output.shape) == (DType.INT8, (7,))


def test_outputs_may_be_inputs_or_weights() -> None:
    graph = graph_of(build("(float[n] x) => (float[n] x, float[3] w) { }", [ZEROS]))
    assert [spec.name for spec in graph.outputs] == ["x", "w"]


def test_subgraphs_read_names_from_around_them_and_may_use_those_of_another() -> None:
    model = build("""(float[n] x, bool c) => (float[n] y) {
        a = Neg(x)
        y = If (c) <then_branch = one () => (float[n] z) { z = Add(x, a) },
                    else_branch = two () => (float[n] z) { z = Abs(a) }>
    }""")
    assert [node.op_type for node in graph_of(model).nodes] == ["Neg", "If"]


def test_functions_of_the_model_may_call_each_other() -> None:
    head = '<domain: "f", opset_import: ["" : 17, "f" : 1]>'
    texts = [
        "outer (a) => (b) { t = f.inner(a)\n b = f.inner(t) }",
        "inner (a) => (b) { b = Neg(a) }",
    ]
    functions = [parser.parse_function(f"{head} {text}") for text in texts]
    [node] = graph_of(build(NEG.replace("Neg", "f.outer"), functions=functions)).nodes
    assert (node.op_type, node.domain) == ("outer", "f")


def test_many_calls_of_one_large_function_are_not_taken_for_a_bomb() -> None:
    layer = encode.function(
        "layer",
        [encode.node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(200)],
        ["v0"],
        ["v200"],
    )
    calls = [encode.node("layer", [f"x{i}"], [f"x{i + 1}"], domain="f") for i in range(96)]
    graph = encode.graph(calls, [encode.value("x0")], [encode.value("x96")])
    opsets = [encode.opset(17), encode.opset(1, "f")]
    assert len(read(encode.model(graph, opsets=opsets, extra=encode.field(25, layer))).nodes) == 96


def test_versions_newer_than_any_known_are_kept() -> None:
    data = encode.model(
        encode.graph([encode.node("Neg", ["x"], ["y"])], [encode.value("x")], [encode.value("y")]),
        ir_version=99,
        opsets=[encode.opset(99, "ai.onnx"), encode.opset(7, "com.example")],
    )
    graph = read(data)
    assert graph.ir_version == 99
    assert graph.opsets == {"": 99, "com.example": 7}


def test_the_first_ir_versions_need_no_opset() -> None:
    data = hostile.valid().replace(encode.field(8, encode.opset(17)), b"")
    assert read(encode.field(1, 1) + data[2:]).opsets == {"": 1}


def test_unknown_fields_are_passed_over() -> None:
    newer = encode.field(900, "from the future") + encode.field(901, 7)
    assert read(hostile.valid() + newer) == read(hostile.valid())


def test_the_valid_model_of_the_hostile_ones_is_valid_for_onnx() -> None:
    onnx.checker.check_model(onnx.ModelProto.FromString(hostile.valid()))


def test_bombs_are_valid_onnx(tmp_path: Path) -> None:
    for name, write in hostile.bombs():
        folder = tmp_path / name
        folder.mkdir()
        path = write(folder)
        onnx.checker.check_model(onnx.load(path))
        try:
            source = formats.open_source(path)
        except ModelError as error:
            assert "are allowed" in str(error), name  # noqa: PT017
            continue
        assert source.graph is not None
        assert [spec.name for spec in source.graph.inputs] == ["x"], name


def write_external(folder: Path, location: str = "w.bin", **entries: str) -> Path:
    path = folder / "model.onnx"
    weight = encode.tensor("w", [4], external={"location": location, **entries})
    path.write_bytes(encode.chain(encode.node("Add", ["x", "w"], ["y"]), initializers=[weight]))
    return path


@pytest.mark.parametrize(
    ("location", "entries"),
    [
        ("w.bin", {}),
        ("w.bin", {"offset": "16", "length": "16"}),
        ("w.bin", {"offset": "48", "checksum": "0" * 40}),
        ("deeper/w.bin", {}),
        ("./w.bin", {}),
        ("link.bin", {}),
        ("hard.bin", {}),
    ],
)
def test_data_inside_the_folder_is_found(
    tmp_path: Path, location: str, entries: dict[str, str]
) -> None:
    (tmp_path / "deeper").mkdir()
    for name in ("w.bin", "deeper/w.bin"):
        (tmp_path / name).write_bytes(bytes(64))
    (tmp_path / "link.bin").symlink_to("deeper/w.bin")
    os.link(tmp_path / "w.bin", tmp_path / "hard.bin")
    path = write_external(tmp_path, location, **entries)
    source = formats.open_source(path)
    assert source.graph is not None
    [weight] = source.graph.parameters
    assert (weight.location, weight.nbytes) == (location, 16)
    assert source.folder == tmp_path
    assert source.data == path.read_bytes()


def test_onnxs_own_external_data_reads_as_with_onnx(tmp_path: Path, read_with_onnx: Reader) -> None:
    weights = [
        numpy_helper.from_array(np.zeros((n, 300), np.float32), f"w{n}") for n in range(1, 6)
    ]
    nodes = "y = Sum(x, w1, w2, w3, w4, w5)"
    model = build(f"(float[n] x) => (float[n] y) {{ {nodes} }}", weights)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="all.bin")
    source = formats.open_source(path)
    assert source.graph == read_with_onnx(onnx.load(path, load_external_data=False))


def linked(folder: Path, data: str) -> Path:
    """Write a model as a hub's cache keeps it: links to the model and to its data."""
    blobs, snapshot = folder / "blobs", folder / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    write_external(blobs, "w.bin").rename(blobs / "d1")
    (snapshot / data).resolve().write_bytes(bytes(16))
    (snapshot / "model.onnx").symlink_to("../blobs/d1")
    (snapshot / "w.bin").symlink_to(data)
    return snapshot / "model.onnx"


def test_a_cache_that_links_model_and_data_into_one_folder_works(tmp_path: Path) -> None:
    path = linked(tmp_path, "../blobs/d2")
    source = formats.open_source(path)
    # Only from the path does a runtime find where the links lead.
    assert (source.data, source.path) == (None, path)


def test_a_linked_model_does_not_open_other_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="leads out of the model's folder"):
        formats.open_source(linked(tmp_path, "../secret"))


def test_external_data_of_a_model_given_as_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    data = write_external(tmp_path).read_bytes()
    with pytest.raises(ModelError, match=r"bytes has no folder .* give the model's path instead"):
        formats.source_from_bytes(data)


def write_large(path: Path, size: int) -> None:
    """Write a model of `size` bytes or a little more; its weight is a hole in the file."""
    elements = size // 4
    weight = encode.tensor("w", [elements])
    start = weight + encode.varint(9 << 3 | 2) + encode.varint(4 * elements)
    # The head of each message around the weight's data, with the lengths that they will have.
    rest = encode.many(1, [encode.node("Add", ["x", "w"], ["y"])])
    rest += encode.many(11, [encode.value("x")]) + encode.many(12, [encode.value("y")])
    initializer = len(start) + 4 * elements
    head = encode.varint(5 << 3 | 2) + encode.varint(initializer) + start
    graph = len(rest) + len(head) + 4 * elements
    with path.open("wb") as file:
        file.write(encode.field(1, 8) + encode.field(8, encode.opset(17)))
        file.write(encode.varint(7 << 3 | 2) + encode.varint(graph) + rest + head)
        file.truncate(file.tell() + 4 * elements)


def peak_of(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_large_model_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    write_large(path, 2_000_000_000)
    sources: list[ModelSource] = []
    peak = peak_of(lambda: sources.append(formats.open_source(path)))
    assert peak < 1_000_000
    [source] = sources
    assert source.data is None
    assert source.path == path
    assert source.graph is not None
    assert source.graph.parameters[0].nbytes == 2_000_000_000


def test_a_model_over_protobufs_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    write_large(path, 1 << 31)
    with pytest.raises(ModelError, match=r"protobuf's limit is 2,147,483,647 bytes.*external data"):
        formats.open_source(path)


def test_the_limit_for_reading_whole_divides_bytes_from_paths(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_large(path, READ_BYTES - 1000)
    source = formats.open_source(path)
    assert source.data is not None
    assert len(source.data) == path.stat().st_size <= READ_BYTES
    write_large(path, READ_BYTES)
    assert formats.open_source(path).data is None


def test_data_of_a_tensor_is_not_copied() -> None:
    body = encode.tensor("w", [2_500_000], bytes(10_000_000))
    data = encode.chain(encode.node("Add", ["x", "w"], ["y"]), initializers=[body])
    assert peak_of(lambda: formats.source_from_bytes(data)) < 200_000


def test_the_garbage_collector_is_as_it_was_after_reading() -> None:
    model = build(NEG)
    for read in (lambda: graph_of(model), lambda: formats.source_from_bytes(b"\x08\x08\x3a\x00")):
        for enabled in (True, False):
            (gc.enable if enabled else gc.disable)()
            try:
                with suppress(ModelError):
                    read()
                assert gc.isenabled() is enabled
            finally:
                gc.enable()
