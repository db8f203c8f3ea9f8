"""What became of each node of a model, as placement says it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from forms import OPTIONS, compiled

from engine.formats import open_source
from engine.types import DType, Executable, GraphInfo, NodeInfo, NodeState, TensorSpec
from engine_cpu import node_states as node_states_module
from engine_cpu import session
from engine_cpu.executable import Observed
from engine_cpu.node_states import Kernel, OptimisedGraph, node_states
from engine_testing import models
from engine_testing.shared_memory import left_since, names

RUNS = (NodeState.RUNS, None)


def states(executable: Executable) -> dict[str, tuple[NodeState, int | None]]:
    return {placed.node: (placed.state, placed.fused_into) for placed in executable.placement()}


def test_a_secret_graph_is_not_written_where_there_is_no_memory_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_states_module, "MEMORY_FOLDER", str(tmp_path / "absent"))
    made = []
    monkeypatch.setattr(node_states_module, "temporary_folder", lambda *_: made.append(1))
    source = replace(open_source(path), data=path.read_bytes(), is_secret=True)
    assert set(states(compiled(source)).values()) == {RUNS}
    assert made == []


@pytest.mark.parametrize("is_file", [True, False])
def test_placement_says_what_became_of_each_node(path: Path, is_file: bool) -> None:
    source = replace(open_source(path), data=None if is_file else path.read_bytes())
    found = states(compiled(source))
    assert found["y"] == found["positive"] == (NodeState.RUNS, None)
    assert found["three"] == (NodeState.FOLDED, None)
    assert found["unused"] == (NodeState.UNUSED, None)
    assert found["unread"] == (NodeState.RUNS, None)  # onnxruntime does not leave it out
    # MatMul and Add are one Gemm or FusedMatMul, whichever of both gives it its name.
    assert Counter(found[name][0] for name in ("product", "sum")) == {
        NodeState.RUNS: 1,
        NodeState.FUSED: 1,
    }
    assert {found[name][1] for name in ("product", "sum")} <= {None, 0, 1}


def test_a_model_too_large_to_be_kept_is_read_again_from_its_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Observed, "KEPT_BYTES", 1000)
    source = open_source(path)
    assert source.data is not None
    assert len(source.data) > 1000
    assert states(compiled(source))["three"] == (NodeState.FOLDED, None)
    runs = states(compiled(replace(source, is_secret=True)))  # of which no file may be read
    assert {state for state, _ in runs.values()} == {NodeState.RUNS}
    other = compiled(source)
    path.write_bytes(path.read_bytes() + b" ")  # another model by now
    assert {state for state, _ in states(other).values()} == {NodeState.RUNS}
    assert {state for state, _ in states(compiled(source)).values()} == {NodeState.RUNS}


def test_unoptimised_nodes_run_as_they_are(path: Path) -> None:
    options = replace(OPTIONS, options={"graph_optimization": "none"})
    found = states(compiled(open_source(path), options))
    needed = {name: state for name, (state, _) in found.items() if name != "unused"}
    assert set(needed.values()) == {NodeState.RUNS}


def test_a_load_asks_nothing_of_placement(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = session.ort.InferenceSession
    monkeypatch.setattr(
        session.ort, "InferenceSession", lambda *a, **k: made.append(a[0]) or make(*a, **k)
    )
    executable = compiled(open_source(path))
    assert len(made) == 1
    executable.placement()
    executable.placement()
    assert len(made) == 2


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_file_that_has_changed_is_not_asked(path: Path, tmp_path: Path, is_gone: bool) -> None:
    executable = compiled(replace(open_source(path), data=None))
    path.unlink()
    if not is_gone:
        other = tmp_path / "other"
        other.mkdir()
        models.affine(other).rename(path)
    assert set(states(executable).values()) == {(NodeState.RUNS, None)}


def test_what_placement_looks_at_is_gone_afterwards(path: Path) -> None:
    before = names()
    compiled(open_source(path)).placement()
    assert not left_since(before)


def graph_of(*nodes: tuple[str, str, list[str]]) -> GraphInfo:
    """A graph of (operator, name, inputs); a node's output is named as the node is."""
    return GraphInfo(
        name="g",
        inputs=(),
        outputs=(TensorSpec(nodes[-1][1], DType.FLOAT32, (1,)),),
        nodes=tuple(
            NodeInfo(index, name, op_type, "", tuple(inputs), (name,))
            for index, (op_type, name, inputs) in enumerate(nodes)
        ),
        parameters=(),
        opsets={"": 17},
        ir_version=8,
    )


def fused(index: int | None) -> tuple[NodeState, int | None]:
    return NodeState.FUSED, index


def test_kernels_that_rename_everything_are_known_by_their_names() -> None:
    # As NCHWc writes two convolutions with activation, the second with a sum fused in.
    graph = graph_of(
        ("Conv", "c1", ["x"]), ("Clip", "a1", ["c1"]), ("Conv", "c2", ["a1"]),
        ("Add", "s2", ["c2", "a1"]), ("Conv", "c3", ["s2"]), ("Relu", "a3", ["c3"]),
    )  # fmt: skip
    kernels = (
        Kernel("Conv", "a1_nchwc", ("t0",)),
        Kernel("Conv", "c2_nchwc", ("t1",)),
        Kernel("Conv", "a3_nchwc", ("t2",)),
        Kernel("ReorderOutput", "ReorderOutput", ("a3",)),
    )
    found = node_states(graph, OptimisedGraph(kernels, frozenset()))
    assert found == [fused(1), RUNS, RUNS, fused(2), fused(5), RUNS]


def test_a_chain_in_one_kernel_belongs_to_its_last_node() -> None:
    graph = graph_of(
        ("MatMul", "m", ["x"]), ("Div", "d", ["m"]), ("Erf", "e", ["d"]), ("Mul", "g", ["e", "m"]),
    )  # fmt: skip
    kernels = (Kernel("MatMul", "m", ("m",)), Kernel("Gelu", "", ("g",)))
    found = node_states(graph, OptimisedGraph(kernels, frozenset()))
    assert found == [RUNS, fused(3), fused(3), RUNS]


def test_an_identity_that_is_left_out_leaves_its_result_to_the_node_before_it() -> None:
    graph = graph_of(("Softmax", "s", ["x"]), ("Identity", "i", ["s"]))
    kernels = (Kernel("Softmax", "s", ("i",)),)
    assert node_states(graph, OptimisedGraph(kernels, frozenset())) == [RUNS, fused(0)]


def test_a_quantization_that_is_moved_leaves_its_result_to_the_node_behind_it() -> None:
    graph = graph_of(("Transpose", "t", ["x"]), ("QuantizeLinear", "q", ["t"]))
    kernels = (Kernel("QuantizeLinear", "x_q", ("x_q",)), Kernel("Transpose", "t", ("q",)))
    assert node_states(graph, OptimisedGraph(kernels, frozenset())) == [RUNS, fused(0)]


def test_nodes_of_one_name_or_none_are_known_by_their_results_alone() -> None:
    graph = graph_of(("Relu", "a", ["x"]), ("Neg", "b", ["a"]), ("Abs", "c", ["b"]))
    nodes = tuple(replace(node, name="") for node in graph.nodes)
    kernels = (Kernel("Relu", "", ("a",)), Kernel("Abs", "other", ("c",)))
    found = node_states(replace(graph, nodes=nodes), OptimisedGraph(kernels, frozenset({"b"})))
    assert found == [RUNS, (NodeState.FOLDED, None), RUNS]


def test_nodes_are_not_called_unused_where_a_subgraph_may_read_them() -> None:
    graph = graph_of(("Neg", "a", ["x"]), ("If", "b", ["c"]))
    found = node_states(graph, OptimisedGraph((Kernel("If", "b", ("b",)),), frozenset()))
    assert found == [fused(None), RUNS]
