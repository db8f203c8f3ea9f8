"""What a lowered file looks like; the numbers are tests/system/mindir's to compare."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from engine.errors import ModelError
from engine.formats import open_source, source_from_bytes
from engine.formats.mindir import describe
from engine.formats.mindir.lower import local
from engine.types import DType

DATA = Path(__file__).parents[2] / "data" / "mindir"
FILES = json.loads((DATA / "manifest.json").read_text())["files"]


def _key(entry: dict[str, Any]) -> dict[str, Any]:
    if "dec_key" not in entry:
        return {}
    return {"dec_key": bytes.fromhex(entry["dec_key"]), "dec_mode": entry["dec_mode"]}


@pytest.mark.parametrize("entry", FILES, ids=lambda entry: entry["name"])
def test_a_lowered_file_is_valid_onnx_with_the_files_names(entry: dict[str, Any]) -> None:
    source = open_source(DATA / entry["file"], **_key(entry))
    assert source.data is not None
    assert source.graph is not None
    onnx.checker.check_model(onnx.load_from_string(source.data))
    for spec, told in zip(source.graph.inputs, entry.get("inputs", ()), strict=False):
        assert spec.name == told["name"].partition(":")[2]
        assert spec.dtype == told["dtype"]
        assert spec.shape == tuple(told["shape"])
    if "outputs" in entry:
        assert len(source.graph.outputs) == len(entry["outputs"])
        first = local(entry["outputs"][0]["name"])
        assert len(source.graph.outputs) > 1 or source.graph.outputs[0].name == first


def _run(data: bytes, *inputs: Any) -> list[Any]:
    source = source_from_bytes(data)
    assert source.graph is not None
    session = ReferenceEvaluator(onnx.load_from_string(source.data or b""))
    names = [spec.name for spec in source.graph.inputs]
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


def _ops(data: bytes | Path) -> list[str]:
    source = source_from_bytes(data) if isinstance(data, bytes) else open_source(data)
    assert source.graph is not None
    return [node.op_type for node in source.graph.nodes]


@pytest.mark.parametrize("dialect", ["scalar", "old"])
def test_attributes_on_bare_nodes_are_read_in_both_forms(
    mindir: SimpleNamespace, dialect: str
) -> None:
    w = getattr(mindir, dialect)
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    main = mindir.graph(
        "G",
        [
            mindir.constant("perm", (1, 0), w),
            mindir.constant("axes", (1,), w),
            mindir.node("MatMul", ["G:x", "G:w"], "G:mm:1", w("transpose_b", True)),
            mindir.node("Transpose", ["G:mm:1", "perm"], "G:t:2", mindir.typed(4, 2)),
            mindir.node("ReduceMean", ["G:t:2", "axes"], "G:r:3", w("keep_dims", True)),
        ],
        [mindir.value("G:x", 2, 3)],
        [mindir.value("G:r:3", 4, 1)],
        [mindir.tensor("G:w", weight)],
    )
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    [result] = _run(mindir.model(main), x)
    np.testing.assert_allclose(result, (x @ weight.T).T.mean(1, keepdims=True))


def test_the_oldest_names_of_operators_mean_the_same(mindir: SimpleNamespace) -> None:
    old = mindir.old
    main = mindir.graph(
        "G",
        [
            mindir.constant("axis", 0, old),
            mindir.constant("ids", np.array([2, 0], np.int32), old),
            mindir.node("GatherV2", ["G:x", "ids", "axis"], "G:g:1", mindir.typed(2, 2)),
            mindir.node("TensorAdd", ["G:g:1", "G:g:1"], "G:a:2", mindir.typed(2, 2)),
            mindir.node("S-Prim-MakeTuple", ["G:a:2", "G:g:1"], "G:t:3"),
            mindir.node("Concat", ["G:t:3"], "G:c:4", old("axis", 1), mindir.typed(2, 4)),
            mindir.node("Return", ["G:c:4"], "G:r:5"),
        ],
        [mindir.value("G:x", 3, 2)],
        [mindir.value("G:r:5", 2, 4)],
    )
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    [result] = _run(mindir.model(main), x)
    np.testing.assert_array_equal(result, np.concatenate([2 * x[[2, 0]], x[[2, 0]]], 1))


def test_nested_tuples_of_the_old_form_keep_their_structure(mindir: SimpleNamespace) -> None:
    main = mindir.graph(
        "G",
        [mindir.node("Pad", ["G:x"], "G:p:1", mindir.old("paddings", ((1, 2), (0, 3))))],
        [mindir.value("G:x", 1, 1)],
        [mindir.value("G:p:1", 4, 4)],
    )
    [result] = _run(mindir.model(main), np.ones((1, 1), np.float32))
    np.testing.assert_array_equal(result, np.pad(np.ones((1, 1)), ((1, 2), (0, 3))))


def test_monads_loads_and_tuples_leave_no_nodes(tmp_path: Path) -> None:
    assert _ops(DATA / "mlp.mindir") == ["Gemm", "Relu", "Gemm", "Relu", "Gemm", "Softmax"]


def test_a_bias_joins_its_convolution() -> None:
    ops = _ops(DATA / "lenet_bn.mindir")
    assert "Add" not in ops
    assert ops.count("Conv") == 2


def test_a_while_becomes_a_loop_and_an_if_an_if() -> None:
    assert "Loop" in _ops(DATA / "nets" / "whilebreak.mindir")
    assert "If" in _ops(DATA / "nets" / "if1.mindir")


def test_open_axes_have_names() -> None:
    graph = open_source(DATA / "nets" / "dyn_conv.mindir").graph
    assert graph is not None
    assert graph.inputs[0].shape == ("x_0", 3, "x_2", "x_3")


def test_half_floats_stay_half_floats() -> None:
    graph = open_source(DATA / "nets" / "mlp_w16.mindir").graph
    assert graph is not None
    assert {each.dtype for each in graph.parameters} == {DType.FLOAT16}


def test_a_shared_parameter_is_there_once() -> None:
    graph = open_source(DATA / "nets" / "shared.mindir").graph
    assert graph is not None
    assert len(graph.parameters) == 2


def test_collectives_become_nodes_with_their_group() -> None:
    source = open_source(DATA / "sliced" / "rank1.mindir")
    model = onnx.load_from_string(source.data or b"")
    found = [node for node in model.graph.node if node.op_type == "AllReduce"]
    assert found
    assert all(node.domain == "com.microsoft" for node in found)
    assert {attribute.name for attribute in found[0].attribute} >= {"group", "reduction"}


def test_state_is_an_input_and_an_output_of_the_onnx_model() -> None:
    source = open_source(DATA / "nets" / "state_counter.mindir")
    assert source.graph is not None
    slots = source.state  # type: ignore[attr-defined]
    assert {slot.input for slot in slots} == {"count", "acc"}
    names = [spec.name for spec in source.graph.inputs]
    assert names[-2:] == [slot.input for slot in slots]
    assert [spec.name for spec in source.graph.outputs][-2:] == [slot.output for slot in slots]
    initial = {slot.input: slot.initial.array() for slot in slots}
    np.testing.assert_array_equal(initial["acc"], np.ones((2, 3), np.float32))


def test_an_unknown_primitive_is_named_with_its_node_and_scope(mindir: SimpleNamespace) -> None:
    main = mindir.graph(
        "G",
        [mindir.node("REF::Frobnicate:3", ["G:x"], "G:y:1", domain="Default/layer-Odd/op0")],
        [mindir.value("G:x", 2)],
        [mindir.value("G:y:1", 2)],
    )
    data = mindir.model(main, primitives=[mindir.primitive("Frobnicate:3", "Frobnicate")])
    with pytest.raises(ModelError, match=r"'Frobnicate' at node 'y:1' \(scope 'Default/layer-Odd"):
        source_from_bytes(data)


def test_another_vendors_code_says_so(mindir: SimpleNamespace) -> None:
    main = mindir.graph(
        "G",
        [mindir.node("Custom", ["G:x"], "G:y:1", mindir.scalar("type", "ACL"))],
        [mindir.value("G:x", 2)],
        [mindir.value("G:y:1", 2)],
    )
    with pytest.raises(ModelError, match="compiled for one device"):
        source_from_bytes(mindir.model(main))


def test_a_description_lists_primitives_and_what_is_unsupported(
    mindir: SimpleNamespace, tmp_path: Path
) -> None:
    found = describe(DATA / "lenet_bn.mindir")
    assert found.primitives["Conv2D"] == 2
    assert found.unsupported == ()
    assert {each.name for each in found.parameters} >= {"conv1.weight", "fc3.bias"}
    odd = tmp_path / "odd.mindir"
    main = mindir.graph(
        "G",
        [mindir.node("Odd", ["G:x"], "G:y")],
        [mindir.value("G:x", 2)],
        [mindir.value("G:y", 2)],
    )
    odd.write_bytes(mindir.model(main))
    assert describe(odd).unsupported == ("Odd",)
