"""Nodes that the reference backend refuses, beside the conformance kit."""

from __future__ import annotations

import gc
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

import engine
from engine.backends import open_backend
from engine.errors import ModelError
from engine.formats import open_source
from engine.types import CompileOptions, Device
from engine_testing.making import graph

DOMAINS = {"own": 1, "ai.onnx.ml": 3}
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def save(folder: Path, nodes: str, functions: str = "") -> Path:
    """Write a model of nodes from x to y, float[n, 3], in ONNX's textual form."""
    text = f"""<ir_version: 8, opset_import: ["": 17, "own": 1, "ai.onnx.ml": 3]>
        reference (float[n, 3] x) => (float[n, 3] y) {{ {nodes} }} {functions}"""
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def unsupported(path: Path) -> dict[int, str]:
    options = CompileOptions(device=Device("cpu"))
    loaded = open_backend("reference").load(open_source(path), options)
    try:
        return dict(loaded.unsupported)
    finally:
        loaded.close()


def test_operators_without_an_implementation_are_reported_in_a_line_each(tmp_path: Path) -> None:
    nodes = """
        a = Neg (x)
        b = own.Odd (a)
        c = NoSuchOperator (b)
        z = ai.onnx.ml.ZipMap <classlabels_int64s = [1]> (x)
        y = Neg (c)
        """
    found = unsupported(save(tmp_path, nodes))
    assert list(found) == [1, 2, 3]
    for reason, name in zip(found.values(), ("Odd", "NoSuchOperator", "ZipMap"), strict=True):
        assert reason.startswith("onnx's reference evaluator does not know it: No")
        assert name in reason
        assert len(reason) < 200


def test_what_is_inside_a_branch_counts_for_its_node(tmp_path: Path) -> None:
    nodes = """
        flag = Constant <value = bool {1}> ()
        y = If (flag) <
            then_branch = one () => (float[] b) { b = Neg (x) },
            else_branch = other () => (float[] b) { b = own.Odd (x) }
        >
        """
    assert list(unsupported(save(tmp_path, nodes))) == [1]


def test_a_function_that_cannot_run_takes_no_other_along(tmp_path: Path) -> None:
    functions = """
        <domain: "own", opset_import: ["": 17, "own": 1]> Bad (i) => (o) { o = own.Odd (i) }
        <domain: "own", opset_import: ["": 17, "own": 1]> Good (i) => (o) { o = Neg (i) }
        """
    path = save(tmp_path, "y = own.Good (x)  unread = own.Bad (x)", functions)
    assert list(unsupported(path)) == [1]
    # Without the call the model runs, although the function is still in it.
    path = save(tmp_path, "y = own.Good (x)", functions)
    assert unsupported(path) == {}
    with engine.load(path, target="reference") as model:
        np.testing.assert_array_equal(model(x=X)["y"], -X)


def test_the_long_name_of_onnxs_own_domain_is_known(tmp_path: Path) -> None:
    path = save(tmp_path, "y = ai.onnx.Neg (x)")
    model = onnx.load(path)
    model.opset_import[0].domain = "ai.onnx"
    onnx.save(model, path)
    with engine.load(path, target="reference") as model:
        np.testing.assert_array_equal(model(x=X)["y"], -X)


def test_a_result_of_another_rank_than_declared_is_refused(tmp_path: Path) -> None:
    """The evaluator is not always right: DictVectorizer makes a row, it gives a vector."""
    text = """(map(string, float) x) => (float[n, 3] y) {
        y = ai.onnx.ml.DictVectorizer <string_vocabulary = ["a", "b", "c"]> (x)
    }"""
    path = graph(tmp_path, "model", text, domains=DOMAINS)
    with (
        engine.load(path, target="reference") as model,
        pytest.raises(ModelError, match=r"'y' is declared float32\[n, 3\], but .* shape \[3\]"),
    ):
        model(x={"a": 1.0})


def test_options_and_other_providers_are_refused_by_name(tmp_path: Path) -> None:
    source = open_source(save(tmp_path, "y = Neg (x)"))
    load = open_backend("reference").load
    with pytest.raises(ValueError, match="unknown option 'quick'; known: none"):
        load(source, CompileOptions(device=Device("cpu"), options={"quick": "1"}))
    with pytest.raises(ValueError, match="provider must be 'reference' or '', but got 'fast'"):
        load(source, CompileOptions(device=Device("cpu"), provider="fast"))


def test_a_predict_is_cancelled_between_nodes_for_good(tmp_path: Path) -> None:
    names = ["x", *(f"t{i}" for i in range(1, 20_000)), "y"]
    nodes = "\n".join(f"{after} = Neg ({before})" for before, after in pairwise(names))
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


def trees(folder: Path, links: list[int]) -> Path:
    """A tree of as many nodes as links, the last a leaf of weight 1; both branches follow them."""
    count = len(links)
    nothing = [0] * count
    modes = '"BRANCH_LEQ", ' * (count - 1) + '"LEAF"'
    text = f"""(float[n, 1] x) => (float[n, 1] y) {{
        [trees] y = ai.onnx.ml.TreeEnsembleRegressor <
            nodes_treeids = {nothing}, nodes_nodeids = {[*range(count)]}, nodes_modes = [{modes}],
            nodes_featureids = {nothing}, nodes_values = {[0.5] * count},
            nodes_truenodeids = {links}, nodes_falsenodeids = {links}, n_targets = 1,
            target_treeids = [0], target_nodeids = [{count - 1}], target_ids = [0],
            target_weights = [1.0]
        > (x)
    }}"""
    return graph(folder, "typed", text, domains={"ai.onnx.ml": 3}, opset=20)


CYCLE = [1, 0, 0]


def test_a_tree_that_runs_in_circles_is_damaged_and_goes_to_no_other_backend(
    tmp_path: Path,
) -> None:
    path = trees(tmp_path, CYCLE)
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
    path = trees(tmp_path, CYCLE)
    model = engine.load(path, target="reference")
    for _ in range(3):
        assert stop_at_once(model, [np.zeros((1, 1), np.float32)], way) < 60


@pytest.mark.parametrize("way", ["deadline", "cancel"])
def test_a_node_that_loops_over_its_elements_is_stopped(way: str, tmp_path: Path) -> None:
    grid = np.zeros((1, 300, 300, 2), np.float32)
    text = "(float[1, 1, h, w] x) => (float[1, 1, 300, 300] y) { y = GridSample (x, g) }"
    path = graph(tmp_path, "typed", text, {"g": grid}, opset=20)
    model = engine.load(path, target="reference")
    assert stop_at_once(model, [np.ones((1, 1, 8, 8), np.float32)], way) < 60


def test_what_is_stopped_late_leaves_the_thread_alone(tmp_path: Path) -> None:
    path = save(tmp_path, "y = Neg (x)")
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
    kind = "seq(float[n])" if is_sequence else "float[n]"
    text = f"({kind} x) => ({kind} y) {{ held = Optional (x)  y = OptionalGetElement (held) }}"
    model = engine.load(graph(tmp_path, "typed", text, opset=20), target=target)
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
    text = f"""(float{shape} x) => (float{shape} y) {{
        y = LRN <size = {size}, alpha = 0.5, beta = 0.6, bias = 1.5> (x)
    }}"""
    path = graph(tmp_path, "lrn", text, opset=13)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = engine.load(path, target="reference")(x=x)["y"]
    for channel in range(shape[1]):
        first = max(0, channel - (size - 1) // 2)
        total = (x[:, first : channel + size // 2 + 1].astype(np.float64) ** 2).sum(axis=1)
        expected = x[:, channel] / (1.5 + 0.5 / size * total) ** 0.6
        np.testing.assert_allclose(y[:, channel], expected, rtol=1e-5)
