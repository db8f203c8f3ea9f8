"""Placement of nodes, as the engine's layer names tell it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from engine.types import DType, GraphInfo, NodeInfo, NodeState, ParameterInfo
from engine_gpu_trt.layers import Layer, read_layers
from engine_gpu_trt.placement import node_states
from engine_testing import models
from engine_testing.level import Trial

Make = Callable[..., Any]
RUNS, FUSED, FOLDED = NodeState.RUNS, NodeState.FUSED, NodeState.FOLDED


def graph(*nodes: tuple[str, list[str], str], constants: tuple[str, ...] = ()) -> GraphInfo:
    return GraphInfo(
        name="test",
        inputs=(),
        outputs=(),
        nodes=tuple(
            NodeInfo(index, name, "Any", "", tuple(reads), (gives,))
            for index, (name, reads, gives) in enumerate(nodes)
        ),
        parameters=tuple(ParameterInfo(name, DType.FLOAT32, (1,), 4) for name in constants),
        opsets={"": 19},
        ir_version=9,
    )


def states_of(graph: GraphInfo, layers: Sequence[object]) -> object:
    """Return the nodes' states, as an inspector's text with these layers tells them."""
    return node_states(graph, read_layers(graph, json.dumps({"Layers": layers})))


CHAIN = graph(("conv", ["x", "w"], "a"), ("", ["a"], "b"), ("pool", ["b"], "y"), constants=("w",))


@pytest.mark.parametrize(
    ("layers", "states"),
    [
        (["conv", "node_of_b", "pool"], {0: (RUNS, None), 1: (RUNS, None), 2: (RUNS, None)}),
        (["conv + node_of_b", "pool"], {0: (RUNS, None), 1: (FUSED, 0), 2: (RUNS, None)}),
        (["conv + node_of_b + pool"], {0: (RUNS, None), 1: (FUSED, 0), 2: (FUSED, 0)}),
        (["conv", "Reformatting CopyNode for Input Tensor 0 to pool"], {0: (RUNS, None)}),
        (["__myl_ConvReluPool_myl0_0"], {}),
        (["conv + somebody"], {}),
        (["{ForeignNode[conv...pool]}"], {}),
        ([], {}),
    ],
    ids=str,
)
def test_layer_names_tell_what_became_of_nodes(layers: list[str], states: Any) -> None:
    assert states_of(CHAIN, layers) == states


def test_a_name_that_two_nodes_have_says_nothing() -> None:
    twins = graph(("same", ["x"], "a"), ("same", ["a"], "b"), ("last", ["b"], "y"))
    assert states_of(twins, ["same", "same", "last"]) == {2: (RUNS, None)}


def test_only_what_computes_from_constants_is_folded_and_only_if_no_layer_is_unknown() -> None:
    constant = graph(
        ("fold", ["w"], "v"), ("again", ["v", "w"], "u"), ("keep", ["x", "u"], "a"),
        ("gone", ["a"], "y"), constants=("w",),
    )  # fmt: skip
    assert states_of(constant, ["keep"]) == {
        0: (FOLDED, None), 1: (FOLDED, None), 2: (RUNS, None),
    }  # fmt: skip
    assert states_of(constant, ["keep", "__myl_0"]) == {2: (RUNS, None)}


def detailed(name: str, *nodes: str, between: str = "\x1f") -> dict[str, object]:
    metadata = between.join(f"[ONNX Layer: {node}]" for node in nodes)
    return {"Name": name, "LayerType": "kgen", "Inputs": [], "Metadata": metadata}


@pytest.mark.parametrize("between", ["\x1f", "\x1e", ""], ids=repr)
def test_metadata_names_the_nodes_of_a_layer_that_tensorrt_names_itself(between: str) -> None:
    layers = [detailed("__myl_ConvRelu_myl0_1", "conv", "node_of_b", between=between),
              detailed("Reformatting CopyNode"), detailed("pool_0", "pool")]  # fmt: skip
    assert read_layers(CHAIN, json.dumps({"Layers": layers})) == [
        Layer("__myl_ConvRelu_myl0_1", "kgen", (0, 1)),
        Layer("Reformatting CopyNode", "kgen"),
        Layer("pool_0", "kgen", (2,)),
    ]


def test_a_name_with_brackets_is_read_whole() -> None:
    odd = graph(("a[0] + b]", ["x"], "y"))
    [layer] = read_layers(odd, json.dumps({"Layers": [detailed("__myl_0", "a[0] + b]")]}))
    assert layer.nodes == (0,)


def test_a_compiled_model_says_what_was_fused_and_folded(trial: Trial, model: Make) -> None:
    maker = model(
        [
            ("Neg", ["w"], ["v"]),
            ("MatMul", ["x", "v"], ["a"], {"name": "product"}),
            ("Relu", ["a"], ["b"]),
            ("Exp", ["b"], ["y"], {"name": "exponential"}),
        ],
        [("x", [2, 2])],
        [("y", [2, 2])],
        {"w": np.eye(2, dtype=np.float32)},
    )
    entries = trial.compile(maker).placement()
    assert [(entry.state, entry.fused_into) for entry in entries] == [
        (FOLDED, None), (RUNS, None), (FUSED, 1), (RUNS, None),
    ]  # fmt: skip
    assert [entry.index for entry in entries] == [0, 1, 2, 3]


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", '{"Layers": 3}', '{"Layers": [{}]}'])
def test_an_inspector_that_says_nothing_leaves_every_node_running(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, text: str, trt: Any
) -> None:
    monkeypatch.setattr(trt.EngineInspector, "get_engine_information", lambda self, format: text)
    assert {entry.state for entry in trial.compile(models.affine).placement()} == {RUNS}
