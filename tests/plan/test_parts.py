"""A part of a model is a whole model: what it needs is in it, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from plan_models import Config, external, refusing, save

import engine
from engine.errors import ModelError
from engine.formats import open_source
from engine.formats.onnx.infer import types_of
from engine.plan.extract import Whole
from engine.plan.partition import Segment
from engine.types import ModelSource

Install = Callable[..., ModuleType]
X = np.linspace(-1, 1, 7, dtype=np.float32)


NO_TANH = refusing(null="Tanh")


def build(path: Path, config: Config = NO_TANH) -> engine.Model:
    return engine.load(path, target=["null", "second"], config=config)


def proto(source: ModelSource) -> onnx.ModelProto:
    assert source.data is not None
    model = onnx.load_model_from_string(source.data)
    onnx.checker.check_model(model)
    return model


def test_a_part_says_of_itself_what_the_whole_says(second: ModuleType, tmp_path: Path) -> None:
    path = save(
        tmp_path,
        "a = Neg(x); b = Tanh(a); y = Neg(b)",
        "(float[batch,3] x) => (float[batch,3] y)",
        opsets={"": 16, "own.domain": 4},
        producer_name="a trainer",
    )
    whole = onnx.load(path)
    helper.set_model_props(whole, {"author": "somebody"})
    onnx.save(whole, path)
    build(path)
    [source] = second.loads
    assert (source.path, source.folder, source.name) == (path, path.parent, str(path))
    part = proto(source)
    assert part.ir_version == whole.ir_version
    assert part.opset_import == whole.opset_import
    assert part.metadata_props == whole.metadata_props
    assert (part.producer_name, part.graph.name) == ("a trainer", "model")
    assert [node.name for node in part.graph.node] == ["make_b"]
    graph = source.graph
    assert [(s.name, s.shape) for s in graph.inputs] == [("a", ("batch", 3))]
    assert [(s.name, s.shape) for s in graph.outputs] == [("b", ("batch", 3))]


def test_initializers_are_in_the_parts_that_read_them(
    install: Install, second: ModuleType, tmp_path: Path
) -> None:
    first = install("first")
    constants = {name: np.full(7, i, np.float32) for i, name in enumerate(("p", "q", "both"))}
    nodes = "a = Add(x, p); b = Mul(a, both); c = Sum(b, q, both); y = Sub(c, both)"
    path = save(tmp_path, nodes, constants=constants)
    model = engine.load(path, target=["first", "second"], config=refusing(first="Sum"))
    parts = [[info.name for info in s.graph.parameters] for s in first.loads[1:] + second.loads]
    assert sorted(parts) == [["both"], ["p", "both"], ["q", "both"]]
    p, q, both = constants.values()
    np.testing.assert_array_equal(model(x=X)["y"], (X + p) * both + q + both - both)


WITH_FLAG = "(float[n] x, bool flag) => (float[n] y)"
THREES = {"w": np.full(7, 3, np.float32)}


@pytest.mark.usefixtures("second")
def test_what_a_branch_reads_from_outside_reaches_it(tmp_path: Path) -> None:
    """The branch is the null backend's; `b` comes from the other one, `w` is an initializer."""
    nodes = """b = Tanh(x); y = If (flag) <
        then_branch = one () => (float[n] d) {
            d = If (flag) <then_branch = deep () => (float[n] i) { i = Mul(b, w) },
                           else_branch = same () => (float[n] j) { j = Mul(b, w) }>
        },
        else_branch = other () => (float[n] s) { s = Add(b, x) }>"""
    model = build(save(tmp_path, nodes, WITH_FLAG, THREES))
    assert [placed.backend for placed in model.placement] == ["second", "null"]
    np.testing.assert_allclose(model(x=X, flag=np.array(True))["y"], 3 * np.tanh(X), rtol=1e-6)
    np.testing.assert_allclose(model(x=X, flag=np.array(False))["y"], np.tanh(X) + X, rtol=1e-6)


def test_a_branch_may_be_in_the_part_of_another(second: ModuleType, tmp_path: Path) -> None:
    nodes = """a = Neg(x); y = If (flag) <
        then_branch = one () => (float[n] s) { s = Add(a, w) },
        else_branch = two () => (float[n] t) { t = Add(a, w) }>"""
    model = build(save(tmp_path, nodes, WITH_FLAG, THREES), refusing(null="If"))
    np.testing.assert_array_equal(model(x=X, flag=np.array(True))["y"], 3 - X)
    assert [spec.name for spec in second.loads[0].graph.inputs] == ["flag", "a"]


def test_functions_go_with_their_calls(second: ModuleType, tmp_path: Path) -> None:
    head = '<domain: "own", opset_import: ["" : 17, "own" : 1]>'
    functions = ["Inner (i) => (o) { o = Neg(i) }", "Outer (i) => (o) { o = own.Inner(i) }",
                 "Unused (i) => (o) { o = Abs(i) }"]  # fmt: skip
    path = save(
        tmp_path,
        "a = Tanh(x); y = own.Outer(a)",
        opsets={"": 17, "own": 1},
        functions=[parser.parse_function(head + text) for text in functions],
    )
    for refused, taken in (("Tanh", []), ("Outer", ["Inner", "Outer"])):
        model = build(path, refusing(null=refused))
        np.testing.assert_allclose(model(x=X)["y"], -np.tanh(X), rtol=1e-6)
        assert [function.name for function in proto(second.loads[-1]).functions] == taken


@pytest.mark.usefixtures("second")
def test_initializers_that_old_files_list_as_inputs_too_stay_constants(tmp_path: Path) -> None:
    values = "(float[n] x, float[7] w) => (float[n] y)"
    model = build(save(tmp_path, "a = Tanh(x); y = Add(a, w)", values, THREES))
    np.testing.assert_allclose(model(x=X)["y"], np.tanh(X) + 3, rtol=1e-6)


def test_sparse_initializers_go_along(tmp_path: Path) -> None:
    path = save(tmp_path, "a = Neg(x); y = Add(a, w)")
    whole = onnx.load(path)
    sparse = onnx.SparseTensorProto(dims=[7])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([5], np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([2], np.int64)))
    whole.graph.sparse_initializer.append(sparse)
    onnx.save(whole, path)
    cutter = Whole(open_source(path))
    names = ["x", "a", "y"]
    types = types_of(cutter.proto, names, guess=False)
    parts = [
        cutter.part(Segment(0, (index,), (reads,), (writes,)), types)
        for index, (reads, writes) in enumerate(itertools.pairwise(names))
    ]
    found = [[(each.name, each.shape) for each in part.graph.parameters] for part in parts]
    assert found == [[], [("w", (7,))]]


LENET = Path(__file__).parents[1] / "data" / "mindir" / "lenet_bn.mindir"


def run_lenet(*target: str, config: Config | None = None) -> engine.Model:
    """Run a network whose weights are in memory; check its output."""
    x = np.load(LENET.with_suffix(".npz"))
    model = engine.load(LENET, target=[*target], config=config or {})
    [y] = model.predict([x["in_0"]])
    np.testing.assert_allclose(y.get_data_to_numpy(), x["out_0"], rtol=1e-4, atol=1e-5)
    return model


def test_weights_in_memory_reach_a_backend_that_reads_them_there(install: Install) -> None:
    reads = install("reads")
    run_lenet("reads")
    [source] = reads.loads
    assert [len(data) for data in source.files.values()] == [784 * 120 * 4]
    assert len(source.data) < 60_000


def test_weights_in_memory_are_in_the_model_for_any_other_backend(install: Install) -> None:
    other = install("other", capabilities=frozenset())
    run_lenet("other")
    [source] = other.loads
    assert not source.files
    tensors = onnx.load_from_string(source.data).graph.initializer
    assert not any(tensor.external_data for tensor in tensors)


def test_weights_in_memory_go_along_with_the_parts_of_a_model(install: Install) -> None:
    first, second = install("first"), install("second", capabilities=frozenset())
    model = run_lenet("first", "second", config=refusing(first="Relu"))
    assert {placed.backend for placed in model.placement} == {"first", "second"}
    assert any(source.files for source in first.loads)
    assert not any(source.files for source in second.loads)


@pytest.fixture
def ramp(tmp_path: Path) -> Path:
    """y = tanh(x + ramp) + ramp; the ramp is in a file."""
    constants = {"ramp": np.linspace(-1, 1, 256, dtype=np.float32)}
    values = "(float[n,256] x) => (float[n,256] y)"
    nodes = "a = Add(x, ramp); b = Tanh(a); y = Add(b, ramp)"
    return external(save(tmp_path, nodes, values, constants))


def check_ramp(path: Path) -> None:
    x, ramp = np.ones((2, 256), np.float32), np.linspace(-1, 1, 256, dtype=np.float32)
    np.testing.assert_allclose(build(path)(x=x)["y"], np.tanh(x + ramp) + ramp, rtol=1e-6)


def test_external_data_stays_where_it_is(
    second: ModuleType, ramp: Path, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    check_ramp(ramp)
    build(ramp, refusing(null="Add"))
    for source in second.loads[1:]:
        [parameter] = source.graph.parameters
        assert (parameter.location, source.folder) == ("w.bin", ramp.parent)
        assert len(source.data) < 1024


@pytest.mark.usefixtures("second")
def test_external_data_is_found_through_a_caches_links(ramp: Path) -> None:
    blobs, snapshot = ramp.parent / "blobs", ramp.parent / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for file, blob in ((ramp, "0a1b"), (ramp.with_name("w.bin"), "2c3d")):
        file.rename(blobs / blob)
        (snapshot / file.name).symlink_to(f"../blobs/{blob}")
    check_ramp(snapshot / ramp.name)


def shape_of(kind: onnx.TypeProto) -> tuple[int, list[object] | None]:
    tensor = kind.tensor_type
    dims = [d.dim_param or d.dim_value for d in tensor.shape.dim]
    return tensor.elem_type, dims if tensor.HasField("shape") else None


def test_types_are_taken_from_the_file_or_inferred(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        "s = Shape(x); r = Reshape(w, axes); c = Cast <to = 7> (x)",
        "(float[n,3] x) => (float[2,3] r, int64[2] s) <int64[declared,3] c>",
        {"w": np.zeros((600, 600), np.float32), "axes": [300, -1]},
    )
    types = types_of(onnx.load(path), ["r", "s", "c", "x", "w"], guess=False)
    assert shape_of(types["s"]) == (TensorProto.INT64, [2])
    assert shape_of(types["c"]) == (TensorProto.INT64, ["declared", 3])
    assert shape_of(types["x"]) == (TensorProto.FLOAT, ["n", 3])
    assert shape_of(types["w"]) == (TensorProto.FLOAT, [600, 600])


OWN = {"": 17, "own": 1}


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        ("Add(t, w)", TensorProto.DOUBLE),  # of the type of its other input
        ("Neg(t)", TensorProto.DOUBLE),  # ... or of its output
        ("Reshape(w, t)", TensorProto.INT64),  # the only one that it takes
        ("Where(t, w, w)", TensorProto.BOOL),
        ("Cast <to = 11> (t)", TensorProto.FLOAT),  # it takes any: as x
        ("own.Odd(t)", TensorProto.FLOAT),  # nobody knows: as x
    ],
)
def test_what_an_unknown_operator_makes_is_told_by_its_reader(
    tmp_path: Path, reader: str, expected: int
) -> None:
    values, weight = "(float[n] x) => (double[] u)", {"w": np.zeros(3)}
    path = save(tmp_path, f"t = own.Odd(x); u = {reader}", values, weight, opsets=OWN)
    assert types_of(onnx.load(path), ["t"], guess=False) == {}
    assert shape_of(types_of(onnx.load(path), ["t"], guess=True)["t"]) == (expected, None)


def test_types_behind_a_row_of_unknown_operators_are_found(tmp_path: Path) -> None:
    nodes = "a = own.Odd(x); b = Neg(a); c = own.Odd(b); d = Shape(c); y = own.Odd(d)"
    types = types_of(onnx.load(save(tmp_path, nodes, opsets=OWN)), ["b", "c", "d"], guess=True)
    assert shape_of(types["b"])[0] == shape_of(types["c"])[0] == TensorProto.FLOAT
    assert shape_of(types["d"])[0] == TensorProto.INT64


@pytest.mark.usefixtures("second")
def test_a_type_that_cannot_be_told_is_asked_for_by_name(tmp_path: Path) -> None:
    path = save(tmp_path, "t = own.Odd(); y = Cast <to = 1> (t)", opsets=OWN)
    with pytest.raises(
        ModelError, match=r"the type of 't', .* cannot infer it; add it to .*value_info"
    ):
        build(path)


def test_a_shape_that_only_a_backend_knows_reaches_the_next(
    install: Install, tmp_path: Path
) -> None:
    knows = """
from dataclasses import replace as _replace
_load = engine_load

@hookimpl
def engine_load(source, options):
    loaded = _load(source, options)
    loaded.outputs = tuple(_replace(spec, shape=("pairs", 2)) for spec in loaded.outputs)
    return loaded
"""
    first, second = install("first"), install("second", extra=knows)
    values = "(float[n] x, int64[axes] shape) => (float[?,?] y)"
    path = save(tmp_path, "a = Reshape(x, shape); y = Neg(a)", values)
    engine.load(path, target=["first", "second"], config=refusing(first="Reshape"))
    assert second.loads[0].graph.outputs[0].shape is None
    assert first.loads[1].graph.inputs[0].shape == ("pairs", 2)


def test_a_part_may_compute_as_much_from_its_weights_as_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are not in its own bytes, and count as if they were: 5 MiB of copies of 1 MiB."""
    monkeypatch.setattr("engine.formats.onnx.limits.LIVE_BYTES", 1 << 20)
    weight = np.zeros((512, 512), np.float32)
    copies = "; ".join(f"w{n} = Identity(w)" for n in range(5))
    products = "; ".join(f"x{n + 1} = MatMul(x{n}, w{n})" for n in range(5))
    path = save(
        tmp_path,
        f"{copies}; {products}; y = Relu(x5)",
        "(float[1,512] x0) => (float[1,512] y)",
        {"w": weight},
    )
    whole = Whole(open_source(path))
    nodes = whole.graph.nodes
    types = types_of(whole.proto, {"x0", "x5"}, guess=True)
    part = whole.part(Segment(0, tuple(range(len(nodes) - 1)), ("x0",), ("x5",)), types)
    assert len(part.data or b"") < 10_000
    assert part.graph is not None
    assert len(part.graph.nodes) == 10
