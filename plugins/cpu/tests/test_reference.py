"""Nodes that the reference backend refuses, beside the conformance kit."""

from __future__ import annotations

import gc
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
    begin, cpu_begin = time.monotonic(), time.process_time()
    [y] = backend.predict(context, [X], None, None)
    needed_s, whole_s = time.monotonic() - begin, time.process_time() - cpu_begin
    np.testing.assert_array_equal(y, X)
    timer = threading.Timer(needed_s / 10, context.cancel)
    begin = time.process_time()  # the clock runs on beside other programs
    timer.start()
    for _ in range(2):
        with pytest.raises(engine.Cancelled, match="cancelled while the model ran"):
            backend.predict(context, [X], None, None)
    assert time.process_time() - begin < whole_s * 0.8
    timer.join()
    np.testing.assert_array_equal(backend.predict(executable.open_context(), [X], None, None)[0], X)


def save_typed(folder: Path, nodes: list[NodeProto], given: object, gives: object) -> Path:
    """Save a model of x and y of these types, in files of opset 20 and ai.onnx.ml 3."""
    graph = helper.make_graph(
        nodes,
        "typed",
        [helper.make_value_info("x", given)],
        [helper.make_value_info("y", gives)],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=imports), folder / "typed.onnx")
    return folder / "typed.onnx"


def floats(*dims: object) -> object:
    return helper.make_tensor_type_proto(TensorProto.FLOAT, list(dims))


def tree(links: list[int]) -> NodeProto:
    """A tree of as many nodes as links, the last a leaf of weight 1; both branches follow them."""
    count = len(links)
    return helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", name="trees",
        nodes_treeids=[0] * count, nodes_nodeids=list(range(count)),
        nodes_featureids=[0] * count, nodes_values=[0.5] * count,
        nodes_modes=["BRANCH_LEQ"] * (count - 1) + ["LEAF"],
        nodes_truenodeids=links, nodes_falsenodeids=links,
        target_treeids=[0], target_nodeids=[count - 1], target_ids=[0], target_weights=[1.0],
        n_targets=1,
    )  # fmt: skip


CYCLE = [1, 0, 0]


def test_a_tree_that_runs_in_circles_is_damaged_and_goes_to_no_other_backend(
    tmp_path: Path,
) -> None:
    path = save_typed(tmp_path, [tree(CYCLE)], floats("n", 1), floats("n", 1))
    named = r"node 'trees' \(TreeEnsembleRegressor\): its nodes"
    with pytest.raises(ModelError, match=named) as caught:
        engine.load(path)
    assert "onnxruntime::" not in str(caught.value)  # no C++ function


def stop_at_once(model: engine.Model, feeds: list[np.ndarray], way: str) -> float:
    """Predict what lasts for ever, and be stopped after 0.2 s; returns how long it took."""
    begin = time.monotonic()
    if way == "deadline":
        with pytest.raises(engine.DeadlineExceeded):
            model.predict(feeds, timeout_s=0.2)
    else:
        token = engine.CancelToken()
        timer = threading.Timer(0.2, token.cancel)
        timer.start()
        with pytest.raises(engine.Cancelled):
            model.predict(feeds, cancel=token)
        timer.join()
    return time.monotonic() - begin


@pytest.mark.parametrize("way", ["deadline", "cancel"])
def test_a_node_that_lasts_for_ever_is_stopped(way: str, tmp_path: Path) -> None:
    path = save_typed(tmp_path, [tree(CYCLE)], floats("n", 1), floats("n", 1))
    model = engine.load(path, target="reference")
    for _ in range(3):
        assert stop_at_once(model, [np.zeros((1, 1), np.float32)], way) < 60


@pytest.mark.parametrize("way", ["deadline", "cancel"])
def test_a_node_that_loops_over_its_elements_is_stopped(way: str, tmp_path: Path) -> None:
    grid = np.zeros((1, 300, 300, 2), np.float32)
    nodes = [
        helper.make_node("Constant", [], ["g"], value=onnx.numpy_helper.from_array(grid)),
        helper.make_node("GridSample", ["x", "g"], ["y"]),
    ]
    path = save_typed(tmp_path, nodes, floats(1, 1, "h", "w"), floats(1, 1, 300, 300))
    model = engine.load(path, target="reference")
    assert stop_at_once(model, [np.ones((1, 1, 8, 8), np.float32)], way) < 60


def test_what_is_stopped_late_leaves_the_thread_alone(tmp_path: Path) -> None:
    path = save(tmp_path, [helper.make_node("Neg", ["x"], ["y"])])
    model = engine.load(path, target="reference")
    gc.collect()  # what comes in the finalizer of another test's model would be lost there
    stopped = 0
    for step in range(300):
        try:
            np.testing.assert_array_equal(model.predict([X], timeout_s=2e-6 * step + 1e-9)[0], -X)
        except engine.DeadlineExceeded:
            stopped += 1
    for _ in range(1000):
        pass  # what came too late would be raised here
    assert stopped > 0
    np.testing.assert_array_equal(model.predict([X], timeout_s=100)[0], -X)


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("is_sequence", [False, True])
def test_what_an_optional_holds_is_of_its_own_kind(
    is_sequence: bool, target: str, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Optional", ["x"], ["held"]),
        helper.make_node("OptionalGetElement", ["held"], ["y"]),
    ]
    kind = helper.make_sequence_type_proto(floats("n")) if is_sequence else floats("n")
    model = engine.load(save_typed(tmp_path, nodes, kind, kind), target=target)
    given = [X[0], X[1]] if is_sequence else X[0]
    [found] = model.predict([given])
    if is_sequence:
        assert [tensor.get_data_to_numpy().tolist() for tensor in found] == X.tolist()
    else:
        assert found.get_data_to_numpy().tolist() == X[0].tolist()


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("shape", [[2, 6, 3], [1, 5, 2, 2], [4, 1, 3, 3]])
def test_neighbouring_channels_are_summed_whatever_the_batch(
    tmp_path: Path, shape: list[int], size: int
) -> None:
    """onnx's own LRN counts samples for channels."""
    lrn = helper.make_node("LRN", ["x"], ["y"], size=size, alpha=0.5, beta=0.6, bias=1.5)
    inputs, outputs = ([helper.make_tensor_value_info(name, 1, shape)] for name in "xy")
    graph = helper.make_graph([lrn], "g", inputs, outputs)
    path = tmp_path / "lrn.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = engine.load(path, target="reference")(x=x)["y"]
    for channel in range(shape[1]):
        first = max(0, channel - (size - 1) // 2)
        total = (x[:, first : channel + size // 2 + 1].astype(np.float64) ** 2).sum(axis=1)
        expected = x[:, channel] / (1.5 + 0.5 / size * total) ** 0.6
        np.testing.assert_allclose(y[:, channel], expected, rtol=1e-5)
