"""A part of a model is a whole model: what it needs is in it, and nothing else."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plan_models import REFUSES_TANH, node, save, value

import engine
from engine.errors import ModelError
from engine.formats import open_source
from engine.formats.onnx.infer import types_of
from engine.plan.extract import Whole
from engine.plan.partition import Segment
from engine.types import ModelSource

Install = Callable[..., ModuleType]
X = np.linspace(-1, 1, 7, dtype=np.float32)


@pytest.fixture
def second(null_backend: str, install: Install) -> ModuleType:
    """The backend that gets every Tanh of the null backend."""
    return install("second")


def build(path: Path) -> engine.Model:
    return engine.load(path, target=["null", "second"], config=REFUSES_TANH)


def proto(source: ModelSource) -> onnx.ModelProto:
    assert source.data is not None
    model = onnx.load_model_from_string(source.data)
    onnx.checker.check_model(model)
    return model


# -------------------------------------------------------------------------------- what is in a part


def test_a_part_says_of_itself_what_the_whole_says(second: ModuleType, tmp_path: Path) -> None:
    path = save(
        tmp_path,
        [node("Neg", "x", "a"), node("Tanh", "a", "b"), node("Neg", "b", "y")],
        inputs=[value("x", ["batch", 3])],
        outputs=[value("y", ["batch", 3])],
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
    assert [each.name for each in part.graph.node] == ["make_b"]
    graph = source.graph
    assert [(s.name, s.shape) for s in graph.inputs] == [("a", ("batch", 3))]
    assert [(s.name, s.shape) for s in graph.outputs] == [("b", ("batch", 3))]


def test_initializers_are_in_the_parts_that_read_them(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    first, second = install("first"), install("second")
    constants = {name: np.full(7, i, np.float32) for i, name in enumerate(("p", "q", "both"))}
    path = save(
        tmp_path,
        [
            node("Add", "x p", "a"),
            node("Mul", "a both", "b"),
            node("Sum", "b q both", "c"),
            node("Sub", "c both", "y"),
        ],
        constants=constants,
    )
    refuses = {"first_context": {"unsupported_ops": "Sum"}}
    model = engine.load(path, target=["first", "second"], config=refuses)
    parts = [[each.name for each in s.graph.parameters] for s in (*first.loads[1:], *second.loads)]
    assert sorted(parts) == [["both"], ["p", "both"], ["q", "both"]]
    p, q, both = constants.values()
    np.testing.assert_array_equal(model(x=X)["y"], (X + p) * both + q + both - both)


def test_what_a_branch_reads_from_outside_reaches_it(second: ModuleType, tmp_path: Path) -> None:
    """The branch is the null backend's; `b` comes from the other one, `w` is an initializer."""
    inner = helper.make_graph([node("Mul", "b w", "i")], "deep", [], [value("i")])
    deep = helper.make_node("If", ["flag"], ["d"], then_branch=inner, else_branch=inner)
    one = helper.make_graph([deep], "one", [], [value("d")])
    other = helper.make_graph([node("Add", "b x", "s")], "other", [], [value("s")])
    path = save(
        tmp_path,
        [node("Tanh", "x", "b"), node("If", "flag", "y", then_branch=one, else_branch=other)],
        inputs=[value("x"), value("flag", [], TensorProto.BOOL)],
        constants={"w": np.full(7, 3, np.float32)},
    )
    model = build(path)
    assert [each.backend for each in model.placement] == ["second", "null"]
    np.testing.assert_allclose(model(x=X, flag=np.array(True))["y"], 3 * np.tanh(X), rtol=1e-6)
    np.testing.assert_allclose(model(x=X, flag=np.array(False))["y"], np.tanh(X) + X, rtol=1e-6)


def test_a_branch_may_be_what_falls(second: ModuleType, tmp_path: Path) -> None:
    branch = helper.make_graph([node("Add", "a w", "s")], "branch", [], [value("s")])
    path = save(
        tmp_path,
        [node("Neg", "x", "a"), node("If", "flag", "y", then_branch=branch, else_branch=branch)],
        inputs=[value("x"), value("flag", [], TensorProto.BOOL)],
        constants={"w": np.full(7, 3, np.float32)},
    )
    refuses = {"null_context": {"unsupported_ops": "If"}}
    model = engine.load(path, target=["null", "second"], config=refuses)
    np.testing.assert_array_equal(model(x=X, flag=np.array(True))["y"], 3 - X)
    assert [each.name for each in second.loads[0].graph.inputs] == ["flag", "a"]


def test_functions_go_with_their_calls(second: ModuleType, tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = helper.make_function("own", "Inner", ["i"], ["o"], [node("Neg", "i", "o")], opsets)
    call = helper.make_node("Inner", ["i"], ["o"], domain="own")
    outer = helper.make_function("own", "Outer", ["i"], ["o"], [call], opsets)
    unused = helper.make_function("own", "Unused", ["i"], ["o"], [node("Abs", "i", "o")], opsets)
    path = save(
        tmp_path,
        [node("Tanh", "x", "a"), helper.make_node("Outer", ["a"], ["y"], domain="own")],
        opsets={"": 17, "own": 1},
        functions=[inner, outer, unused],
    )
    model = build(path)
    np.testing.assert_allclose(model(x=X)["y"], -np.tanh(X), rtol=1e-6)
    assert list(proto(second.loads[0]).functions) == []

    refuses = {"null_context": {"unsupported_ops": "Outer"}}
    model = engine.load(path, target=["null", "second"], config=refuses)
    np.testing.assert_allclose(model(x=X)["y"], -np.tanh(X), rtol=1e-6)
    assert [each.name for each in proto(second.loads[1]).functions] == ["Inner", "Outer"]


def test_initializers_that_old_files_list_as_inputs_too_stay_constants(
    second: ModuleType, tmp_path: Path
) -> None:
    path = save(
        tmp_path,
        [node("Tanh", "x", "a"), node("Add", "a w", "y")],
        inputs=[value("x"), value("w", [7])],
        constants={"w": np.arange(7, dtype=np.float32)},
    )
    model = build(path)
    np.testing.assert_allclose(model(x=X)["y"], np.tanh(X) + np.arange(7), rtol=1e-6)


def test_sparse_initializers_go_along(tmp_path: Path) -> None:
    path = save(tmp_path, [node("Neg", "x", "a"), node("Add", "a w", "y")])
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


# ------------------------------------------------------------------------------------ external data


LENET = Path(__file__).parents[1] / "data" / "mindir" / "lenet_bn.mindir"


def test_weights_in_memory_reach_a_backend_that_reads_them_there(install: Install) -> None:
    reads = install("reads")
    engine.load(LENET, target=["reads"])
    [source] = reads.loads
    assert [len(each) for each in source.files.values()] == [784 * 120 * 4]
    assert len(source.data) < 60_000


def test_weights_in_memory_are_in_the_model_for_any_other_backend(install: Install) -> None:
    other = install("other", capabilities=frozenset())
    x = np.load(LENET.with_suffix(".npz"))
    [y] = engine.load(LENET, target=["other"]).predict([x["in_0"]])
    np.testing.assert_allclose(y.get_data_to_numpy(), x["out_0"], rtol=1e-4, atol=1e-5)
    [source] = other.loads
    assert not source.files
    assert not any(
        each.external_data for each in onnx.load_from_string(source.data).graph.initializer
    )


def test_weights_in_memory_go_along_with_the_parts_of_a_model(install: Install) -> None:
    first = install("first")
    second = install("second", capabilities=frozenset())
    x = np.load(LENET.with_suffix(".npz"))
    refuses = {"first_context": {"unsupported_ops": "Relu"}}
    model = engine.load(LENET, target=["first", "second"], config=refuses)
    [y] = model.predict([x["in_0"]])
    np.testing.assert_allclose(y.get_data_to_numpy(), x["out_0"], rtol=1e-4, atol=1e-5)
    assert {each.backend for each in model.placement} == {"first", "second"}
    assert any(source.files for source in first.loads)
    assert not any(source.files for source in second.loads)


def external(folder: Path) -> Path:
    """y = tanh(x + ramp) + ramp; the ramp is in a file."""
    path = save(
        folder,
        [node("Add", "x ramp", "a"), node("Tanh", "a", "b"), node("Add", "b ramp", "y")],
        inputs=[value("x", ["n", 256])],
        outputs=[value("y", ["n", 256])],
        constants={"ramp": np.linspace(-1, 1, 256, dtype=np.float32)},
    )
    onnx.save_model(
        onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    return path


def check_external(path: Path) -> None:
    model = build(path)
    x = np.ones((2, 256), np.float32)
    ramp = np.linspace(-1, 1, 256, dtype=np.float32)
    np.testing.assert_allclose(model(x=x)["y"], np.tanh(x + ramp) + ramp, rtol=1e-6)


def test_external_data_stays_where_it_is(
    second: ModuleType, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    check_external(external(tmp_path))
    refuses = {"null_context": {"unsupported_ops": "Add"}}
    engine.load(tmp_path / "model.onnx", target=["null", "second"], config=refuses)
    for source in second.loads[1:]:
        [parameter] = source.graph.parameters
        assert (parameter.location, source.folder) == ("w.bin", tmp_path)
        assert len(source.data) < 1024


def test_external_data_is_found_through_a_caches_links(second: ModuleType, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    os.rename(external(tmp_path), blobs / "0a1b")
    os.rename(tmp_path / "w.bin", blobs / "2c3d")
    (snapshot / "model.onnx").symlink_to("../blobs/0a1b")
    (snapshot / "w.bin").symlink_to("../blobs/2c3d")
    check_external(snapshot / "model.onnx")


# ---------------------------------------------------------------------------- types of what crosses


def shape_of(kind: onnx.TypeProto) -> tuple[int, list[object] | None]:
    tensor = kind.tensor_type
    dims = [d.dim_param or d.dim_value for d in tensor.shape.dim]
    return tensor.elem_type, dims if tensor.HasField("shape") else None


def test_types_are_taken_from_the_file_or_inferred(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        [node("Shape", "x", "s"), node("Reshape", "w axes", "r"), node("Cast", "x", "c", to=7)],
        inputs=[value("x", ["n", 3])],
        outputs=[value("r", [2, 3]), value("s", [2], TensorProto.INT64)],
        constants={"w": np.zeros((600, 600), np.float32), "axes": np.array([300, -1], np.int64)},
        value_info=[value("c", ["declared", 3], TensorProto.INT64)],
    )
    types = types_of(onnx.load(path), ["r", "s", "c", "x", "w"], guess=False)
    assert shape_of(types["s"]) == (TensorProto.INT64, [2])
    assert shape_of(types["c"]) == (TensorProto.INT64, ["declared", 3])
    assert shape_of(types["x"]) == (TensorProto.FLOAT, ["n", 3])
    assert shape_of(types["w"]) == (TensorProto.FLOAT, [600, 600])


def odd(reads: str, writes: str) -> onnx.NodeProto:
    return node("Odd", reads, writes, domain="own")


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        (node("Add", "t w", "u"), TensorProto.DOUBLE),  # of the type of its other input
        (node("Neg", "t", "u"), TensorProto.DOUBLE),  # ... or of its output
        (node("Reshape", "w t", "u"), TensorProto.INT64),  # the only one that it takes
        (node("Where", "t w w", "u"), TensorProto.BOOL),
        (node("Cast", "t", "u", to=TensorProto.DOUBLE), TensorProto.FLOAT),  # it takes any: as x
        (odd("t", "u"), TensorProto.FLOAT),  # nobody knows: as x
    ],
    ids=lambda each: each.op_type if isinstance(each, onnx.NodeProto) else None,
)
def test_what_an_unknown_operator_makes_is_told_by_its_reader(
    tmp_path: Path, reader: onnx.NodeProto, expected: int
) -> None:
    path = save(
        tmp_path,
        [odd("x", "t"), reader],
        outputs=[value("u", None, TensorProto.DOUBLE)],
        constants={"w": np.zeros(3)},
        opsets={"": 17, "own": 1},
    )
    assert types_of(onnx.load(path), ["t"], guess=False) == {}
    assert shape_of(types_of(onnx.load(path), ["t"], guess=True)["t"]) == (expected, None)


def test_types_behind_a_row_of_unknown_operators_are_found(tmp_path: Path) -> None:
    nodes = [odd("x", "a"), node("Neg", "a", "b"), odd("b", "c"), node("Shape", "c", "d")]
    path = save(tmp_path, [*nodes, odd("d", "y")], opsets={"": 17, "own": 1})
    types = types_of(onnx.load(path), ["b", "c", "d"], guess=True)
    assert shape_of(types["b"])[0] == shape_of(types["c"])[0] == TensorProto.FLOAT
    assert shape_of(types["d"])[0] == TensorProto.INT64


def test_a_type_that_cannot_be_told_is_asked_for_by_name(
    second: ModuleType, null_backend: str, tmp_path: Path
) -> None:
    path = save(
        tmp_path,
        [odd("", "t"), node("Cast", "t", "y", to=TensorProto.FLOAT)],
        opsets={"": 17, "own": 1},
    )
    with pytest.raises(
        ModelError, match=r"the type of 't', .* cannot infer it; add it to .*value_info"
    ):
        build(path)


def test_a_shape_that_only_a_backend_knows_reaches_the_next(
    null_backend: str, install: Install, tmp_path: Path
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
    path = save(
        tmp_path,
        [node("Reshape", "x shape", "a"), node("Neg", "a", "y")],
        inputs=[value("x"), value("shape", ["axes"], TensorProto.INT64)],
        outputs=[value("y", [None, None])],
    )
    refuses = {"first_context": {"unsupported_ops": "Reshape"}}
    engine.load(path, target=["first", "second"], config=refuses)
    assert second.loads[0].graph.outputs[0].shape is None
    assert first.loads[1].graph.inputs[0].shape == ("pairs", 2)
