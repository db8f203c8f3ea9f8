"""A model is looked at closely unless nothing in it can matter."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, defs, helper

from engine.errors import ModelError
from engine.formats import open_source
from engine.types import GraphInfo, ModelSource
from engine_cpu import known_issues, node_rules, prescreen, risk, trees
from engine_cpu.load import risk_of
from engine_cpu.risk import Risk, is_plain

node = helper.make_node


def source_of(folder: Path, *nodes: onnx.NodeProto, domain: str = "") -> ModelSource:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xz"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    imports = [helper.make_opsetid(name, 17) for name in {"", domain}]
    path = folder / "model.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()
    )
    return open_source(path)


def graph_of(folder: Path, *nodes: onnx.NodeProto, domain: str = "") -> GraphInfo:
    graph = source_of(folder, *nodes, domain=domain).graph
    assert graph is not None
    return graph


def test_no_operator_that_is_looked_at_closely_is_plain() -> None:
    closely = known_issues.OPERATORS | trees.OPERATORS | risk.NESTS | {*node_rules.SCALARS}
    assert closely <= risk.OPERATORS, f"add {sorted(closely - risk.OPERATORS)} to risk.OPERATORS"
    # Else prescreen.py stops at operators that node_rules.py has a rule of.
    assert prescreen._SPECIAL - risk.OPERATORS <= node_rules.OPERATORS
    assert node_rules.OPERATORS == risk.RULED


def test_what_holds_other_nodes_is_not_plain() -> None:
    nesting = {
        schema.name
        for schema in defs.get_all_schemas()
        if schema.domain in risk._DOMAINS
        and any(a.type == defs.OpSchema.AttrType.GRAPH for a in schema.attributes.values())
    }
    assert nesting <= risk.OPERATORS


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Relu", ["x"], ["z"])],
        [node("Conv", ["x", "x"], ["y"], group=2), node("Clip", ["y"], ["z"])],
        [node("Concat", ["x", "x"], ["z"], axis=0)],
    ],
)
def test_plain_models_are_not_looked_at(
    tmp_path: Path, nodes: list[onnx.NodeProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prescreen, "prescreen", None)  # calling it would raise TypeError
    assert risk_of(source_of(tmp_path, *nodes)) is Risk.NONE


@pytest.mark.parametrize(
    "odd",
    [
        node("Div", ["x", "x"], ["z"]),
        node("Conv", ["x", "x"], ["z"], group=0),
        node("Conv", ["x", "x"], ["z"], group=[1] * 5000),  # larger than the core reads
        node("Clip", ["x", "", "x"], ["z"]),
        node("Dropout", ["x"], ["", "z"]),
        node("RandomUniformLike", ["x"], ["z"], low=2.0, high=1.0),
        node("TopK", ["x", "x"], ["z", "i"]),
    ],
)
def test_one_node_that_may_matter_is_enough(tmp_path: Path, odd: onnx.NodeProto) -> None:
    assert not is_plain(graph_of(tmp_path, node("Relu", ["x"], ["y"]), odd))


def test_a_domain_of_somebody_s_own_may_be_a_function_s(tmp_path: Path) -> None:
    odd = node("Relu", ["x"], ["z"], domain="own")
    assert not is_plain(graph_of(tmp_path, odd, domain="own"))
    own = node("FusedConv", ["x", "x"], ["z"], domain="com.microsoft")
    assert is_plain(graph_of(tmp_path, own, domain="com.microsoft"))


def test_a_breach_is_refused_as_the_look_says_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"attribute 'group' is 0, expected 1\.\."):
        risk_of(source_of(tmp_path, node("Conv", ["x", "x"], ["z"], group=0)))
