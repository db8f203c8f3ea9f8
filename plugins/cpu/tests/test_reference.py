"""What the reference backend says it cannot run, beside the conformance kit."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, NodeProto, TensorProto, helper

import engine
from engine.backends import open_backend
from engine.errors import ModelError
from engine.formats import open_source
from engine.types import CompileOptions, Device

OPSETS = {"": 17, "own": 1, "ai.onnx.ml": 3}
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def save(
    folder: Path, nodes: list[NodeProto], functions: Sequence[FunctionProto] = (), **opsets: int
) -> Path:
    graph = helper.make_graph(
        nodes,
        "reference",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
    )
    imports = [helper.make_opsetid(*each) for each in (opsets or OPSETS).items()]
    path = folder / "model.onnx"
    model = helper.make_model(graph, ir_version=8, opset_imports=imports, functions=functions)
    onnx.save(model, path)
    return path


def unsupported(path: Path) -> dict[int, str]:
    options = CompileOptions(device=Device("cpu"))
    loaded = open_backend("reference").load(open_source(path), options)
    try:
        return dict(loaded.unsupported)
    finally:
        loaded.close()


def test_operators_without_an_implementation_are_reported_in_a_line_each(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Odd", ["a"], ["b"], domain="own"),
        helper.make_node("NoSuchOperator", ["b"], ["c"]),
        helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[1]),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    found = unsupported(save(tmp_path, nodes))
    assert list(found) == [1, 2, 3]
    for reason, name in zip(found.values(), ("Odd", "NoSuchOperator", "ZipMap"), strict=True):
        assert reason.startswith("onnx's reference evaluator does not know it: No")
        assert name in reason
        assert len(reason) < 200


def test_what_is_inside_a_branch_counts_for_its_node(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    odd = helper.make_node("Odd", ["x"], ["b"], domain="own")
    fine = helper.make_node("Neg", ["x"], ["b"])
    one, other = (helper.make_graph([node], "branch", [], [value]) for node in (fine, odd))
    flag = helper.make_node("Constant", [], ["flag"], value=helper.make_tensor("", 9, [], [True]))
    nodes = [flag, helper.make_node("If", ["flag"], ["y"], then_branch=one, else_branch=other)]
    assert list(unsupported(save(tmp_path, nodes))) == [1]


def test_a_function_that_cannot_run_takes_no_other_along(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    odd = helper.make_node("Odd", ["i"], ["o"], domain="own")
    bad = helper.make_function("own", "Bad", ["i"], ["o"], [odd], opsets)
    neg = helper.make_node("Neg", ["i"], ["o"])
    good = helper.make_function("own", "Good", ["i"], ["o"], [neg], opsets)
    nodes = [
        helper.make_node("Good", ["x"], ["y"], domain="own"),
        helper.make_node("Bad", ["x"], ["unread"], domain="own"),
    ]
    path = save(tmp_path, nodes, [bad, good])
    assert list(unsupported(path)) == [1]
    # Without the call the model runs, although the function is still in it.
    path = save(tmp_path, nodes[:1], [bad, good])
    assert unsupported(path) == {}
    with engine.load(path, target="reference") as model:
        np.testing.assert_array_equal(model(x=X)["y"], -X)


def test_the_long_name_of_onnxs_own_domain_is_known(tmp_path: Path) -> None:
    path = save(
        tmp_path, [helper.make_node("Neg", ["x"], ["y"], domain="ai.onnx")], **{"ai.onnx": 17}
    )
    with engine.load(path, target="reference") as model:
        np.testing.assert_array_equal(model(x=X)["y"], -X)


def test_a_result_of_another_rank_than_declared_is_refused(tmp_path: Path) -> None:
    """The evaluator is not always right: DictVectorizer makes a row, it gives a vector."""
    kind = onnx.TypeProto()
    kind.map_type.key_type = TensorProto.STRING
    kind.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    words = {"string_vocabulary": ["a", "b", "c"]}
    path = save(
        tmp_path, [helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", **words)]
    )
    model = onnx.load(path)
    model.graph.input[0].type.CopyFrom(kind)
    onnx.save(model, path)
    with (
        engine.load(path, target="reference") as model,
        pytest.raises(ModelError, match=r"'y' is declared float32\[n, 3\], but .* shape \[3\]"),
    ):
        model(x={"a": 1.0})


def test_options_and_other_providers_are_refused_by_name(tmp_path: Path) -> None:
    source = open_source(save(tmp_path, [helper.make_node("Neg", ["x"], ["y"])]))
    load = open_backend("reference").load
    with pytest.raises(ValueError, match="unknown option 'quick'; known: none"):
        load(source, CompileOptions(device=Device("cpu"), options={"quick": "1"}))
    with pytest.raises(ValueError, match="provider must be 'reference' or '', but got 'fast'"):
        load(source, CompileOptions(device=Device("cpu"), provider="fast"))


def test_a_predict_is_cancelled_between_nodes_for_good(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", [f"t{i}" if i else "x"], [f"t{i + 1}"]) for i in range(20_000)]
    nodes.append(helper.make_node("Identity", ["t20000"], ["y"]))
    backend = open_backend("reference")
    options = CompileOptions(device=Device("cpu"))
    executable = backend.compile(backend.load(open_source(save(tmp_path, nodes)), options), options)
    context = executable.open_context()
    begin = time.monotonic()
    [y] = backend.predict(context, [X], None, None)
    needed_s = time.monotonic() - begin
    np.testing.assert_array_equal(y, X)
    timer = threading.Timer(needed_s / 10, context.cancel)
    timer.start()
    begin = time.monotonic()
    for _ in range(2):
        with pytest.raises(engine.Cancelled, match="cancelled while the model ran"):
            backend.predict(context, [X], None, None)
    assert time.monotonic() - begin < needed_s * 0.8
    timer.join()
    np.testing.assert_array_equal(backend.predict(executable.open_context(), [X], None, None)[0], X)
