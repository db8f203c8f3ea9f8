"""The form of a lowered file; the numbers are tests/system/mindir's to compare."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from engine.errors import ModelError
from engine.formats import ModelFile, open_source, source_from_bytes
from engine.formats.onnx.inline import inlined
from engine.types import DType
from engine_mindir.lower import local

DATA = Path(__file__).parents[3] / "tests" / "data" / "mindir"
FILES = json.loads((DATA / "manifest.json").read_text())["files"]


def _key(entry: dict[str, Any]) -> dict[str, Any]:
    if "dec_key" not in entry:
        return {}
    return {"dec_key": bytes.fromhex(entry["dec_key"]), "dec_mode": entry["dec_mode"]}


@pytest.mark.parametrize("entry", FILES, ids=lambda entry: entry["name"])
def test_a_lowered_file_is_valid_onnx_with_the_files_names(entry: dict[str, Any]) -> None:
    source = open_source(DATA / entry["file"], **_key(entry))
    assert source.graph is not None
    onnx.checker.check_model(onnx.load_from_string(inlined(source).data or b""))
    for spec, told in zip(source.graph.inputs, entry.get("inputs", ()), strict=False):
        assert spec.name == told["name"].partition(":")[2]
        assert spec.dtype == told["dtype"]
        assert spec.shape == tuple(told["shape"])
    if "outputs" in entry:
        assert len(source.graph.outputs) == len(entry["outputs"])
        first = local(entry["outputs"][0]["name"])
        assert len(source.graph.outputs) > 1 or source.graph.outputs[0].name == first


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
    nodes = [
        mindir.constant("perm", (1, 0), w),
        mindir.constant("axes", (1,), w),
        mindir.node("MatMul", ["G:x", "G:w"], "G:mm:1", w("transpose_b", True)),
        mindir.node("Transpose", ["G:mm:1", "perm"], "G:t:2", mindir.typed(4, 2)),
        mindir.node("ReduceMean", ["G:t:2", "axes"], "G:r:3", w("keep_dims", True)),
    ]
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    [result] = mindir.run(
        mindir.net(nodes, {"G:x": (2, 3)}, {"G:r:3": (4, 1)}, parameters={"G:w": weight}),
        x,
    )
    np.testing.assert_allclose(result, (x @ weight.T).T.mean(1, keepdims=True))


def test_the_oldest_names_of_operators_mean_the_same(mindir: SimpleNamespace) -> None:
    old = mindir.old
    nodes = [
        mindir.constant("axis", 0, old),
        mindir.constant("ids", np.array([2, 0], np.int32), old),
        mindir.node("GatherV2", ["G:x", "ids", "axis"], "G:g:1", mindir.typed(2, 2)),
        mindir.node("TensorAdd", ["G:g:1", "G:g:1"], "G:a:2", mindir.typed(2, 2)),
        mindir.node("S-Prim-MakeTuple", ["G:a:2", "G:g:1"], "G:t:3"),
        mindir.node("Concat", ["G:t:3"], "G:c:4", old("axis", 1), mindir.typed(2, 4)),
        mindir.node("Return", ["G:c:4"], "G:r:5"),
    ]
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    [result] = mindir.run(mindir.net(nodes, {"G:x": (3, 2)}, {"G:r:5": (2, 4)}), x)
    np.testing.assert_array_equal(result, np.concatenate([2 * x[[2, 0]], x[[2, 0]]], 1))


def test_nested_tuples_of_the_old_form_keep_their_structure(mindir: SimpleNamespace) -> None:
    pad = mindir.node("Pad", ["G:x"], "G:p:1", mindir.old("paddings", ((1, 2), (0, 3))))
    x = np.ones((1, 1), np.float32)
    [result] = mindir.run(mindir.net([pad], {"G:x": (1, 1)}, {"G:p:1": (4, 4)}), x)
    np.testing.assert_array_equal(result, np.pad(x, ((1, 2), (0, 3))))


def test_monads_loads_and_tuples_leave_no_nodes(tmp_path: Path) -> None:
    assert _ops(DATA / "mlp.mindir") == ["Gemm", "Relu", "Gemm", "Relu", "Gemm", "Softmax"]


def test_a_bias_joins_its_convolution() -> None:
    ops = _ops(DATA / "lenet_bn.mindir")
    assert "Add" not in ops
    assert ops.count("Conv") == 2


def test_a_while_becomes_a_loop_and_an_if_an_if() -> None:
    assert "Loop" in _ops(DATA / "nets" / "whilebreak.mindir")
    assert "If" in _ops(DATA / "nets" / "if1.mindir")


def test_open_axes_half_floats_and_shared_parameters_stay_what_they_are() -> None:
    def graph(name: str) -> Any:
        return open_source(DATA / "nets" / f"{name}.mindir").graph

    assert graph("dyn_conv").inputs[0].shape == ("x_0", 3, "x_2", "x_3")
    assert {each.dtype for each in graph("mlp_w16").parameters} == {DType.FLOAT16}
    assert len(graph("shared").parameters) == 2


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
    slots = source.state
    assert {slot.name for slot in slots} == {"count", "acc"}
    names = [spec.name for spec in source.graph.inputs]
    assert names[-2:] == [slot.name for slot in slots]
    outputs = [spec.name for spec in source.graph.outputs]
    assert outputs[-2:] == [f"{slot.name}.next" for slot in slots]
    initial = {slot.name: slot.initial for slot in slots}
    np.testing.assert_array_equal(initial["acc"], np.ones((2, 3), np.float32))


def test_a_description_lists_primitives_and_what_is_unsupported(
    mindir: SimpleNamespace, tmp_path: Path
) -> None:
    found = ModelFile(DATA / "lenet_bn.mindir").description()
    assert found.primitives["Conv2D"] == 2
    assert found.unsupported == ()
    assert {each.name for each in found.parameters} >= {"conv1.weight", "fc3.bias"}
    odd = tmp_path / "odd.mindir"
    odd.write_bytes(mindir.net([mindir.node("Odd", ["G:x"], "G:y")]))
    described = ModelFile(odd).description()
    assert described is not None
    assert described.unsupported == ("Odd",)


def test_a_check_that_raises_leaves_only_what_happens_otherwise() -> None:
    assert "If" not in _ops(DATA / "more" / "size_check.mindir")


def test_ranks_that_the_file_gives_up_are_found_again() -> None:
    ops = _ops(DATA / "more" / "rank_lost.mindir")
    assert "Conv" in ops
    assert "If" not in ops  # the layers ask for the rank and choose by it


def test_a_tensor_changed_in_place_has_changed_for_all_its_names(mindir: SimpleNamespace) -> None:
    nodes = [
        mindir.constant("two", 2.0), mindir.constant("three", 3.0),
        mindir.node("Muls", ["G:x", "two"], "G:y:1", mindir.typed(2)),
        mindir.node("InplaceMuls", ["G:y:1", "three"], "G:z:2", mindir.typed(2)),
        mindir.node("Add", ["G:y:1", "G:x"], "G:w:3", mindir.typed(2)),
    ]  # fmt: skip
    [found] = mindir.run(
        mindir.net(nodes, {"G:x": (2,)}, {"G:w:3": (2,)}), np.array([1, -2], np.float32)
    )
    np.testing.assert_array_equal(found, [7, -14])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Frobnicate", ""),
        ("ReluGrad", "a gradient, which is a step of training; export"),
        ("Custom", "compiled for one device"),
        ("Real", "complex numbers.*keep real and imaginary parts apart"),
        ("ApplyMomentum", "a step of training; export the network without its optimizer"),
    ],
)
def test_what_no_runtime_computes_is_refused_with_its_node_and_a_way_out(
    mindir: SimpleNamespace, kind: str, said: str
) -> None:
    more = [mindir.scalar("type", "ACL")] if kind == "Custom" else []
    node = mindir.node(
        f"REF::{kind}:3", ["G:x", "G:x"], "G:y:1", mindir.typed(2), *more, domain="Default/odd/op0"
    )
    x = mindir.value("G:x", 2, data_type=14 if kind == "Real" else 1)
    data = mindir.net(
        [node], [x], {"G:y:1": (2,)}, primitives=[mindir.primitive(f"{kind}:3", kind)]
    )
    with pytest.raises(ModelError, match=rf"{kind!r} at node 'y:1' \(scope 'Default/odd.*{said}"):
        source_from_bytes(data)


def _net(mindir: SimpleNamespace, nodes: list[bytes], parameters: Any = ()) -> bytes:
    """z of x and y, float32[2]; nodes name primitives as "REF::Add"."""
    kinds = ("Add", "Depend", "InplaceAddExt", "Mul", "Zeros")
    ends = {"x": (2,), "y": (2,)}, {"z": (2,)}
    return bytes(mindir.net(nodes, *ends, parameters=parameters, primitives=kinds))


_A, _B = np.array([1, 2], np.float32), np.array([10, 20], np.float32)


def test_one_of_two_equal_constants_is_changed_in_place_without_the_other(
    mindir: SimpleNamespace,
) -> None:
    node, two = mindir.node, (2,)
    nodes = [
        mindir.constant("shape", two), mindir.constant("float", 43),
        node("REF::Zeros", ["shape", "float"], "a", mindir.typed(*two)),
        node("REF::Zeros", ["shape", "float"], "b", mindir.typed(*two)),
        node("REF::InplaceAddExt", ["a", "x"], "c", mindir.typed(*two)),
        node("REF::Add", ["b", "y"], "sum", mindir.typed(*two)),
        node("REF::Depend", ["sum", "c"], "z"),
    ]  # fmt: skip
    [z] = mindir.run(_net(mindir, nodes), _A, _B)
    np.testing.assert_array_equal(z, _B)


def test_what_a_branch_changes_in_place_is_refused_after_it_and_not_taken_as_it_was(
    mindir: SimpleNamespace,
) -> None:
    node = mindir.node
    changes = [
        node("REF::InplaceAddExt", ["h", "h"], "f:a", mindir.typed(2)),
        node("REF::Return", ["f:a"], "f:out"),
    ]
    functions = [
        mindir.graph("f", changes, [], [mindir.value("f:out", 2)]),
        mindir.graph("g", [node("REF::Return", ["h"], "g:out")], [], [mindir.value("g:out", 2)]),
    ]
    nodes = [
        node("REF::Mul", ["x", "y"], "h", mindir.typed(2)),
        node("REF::Switch", ["when", "f", "g"], "s"),
        node("REF::s", [], "r"),
        node("REF::Add", ["h", "r"], "z", mindir.typed(2)),
    ]
    values = [mindir.value("x", 2), mindir.value("y", 2), mindir.value("when", data_type=9)]
    kinds = ("Mul", "Switch", "Add", "InplaceAddExt", "Return")
    data = mindir.net(nodes, values, {"z": (2,)}, functions=functions, primitives=kinds)
    with pytest.raises(ModelError, match="a branch or a loop has changed in place is used after"):
        source_from_bytes(data)


def test_a_product_of_one_column_and_a_longer_vector_are_added_as_they_are(
    mindir: SimpleNamespace,
) -> None:
    b = np.arange(5, dtype=np.float32)
    nodes = [
        mindir.node("MatMul", ["x", "w"], "h", mindir.typed(2, 1)),
        mindir.node("Add", ["h", "b"], "z", mindir.typed(2, 5)),
    ]
    weights = {"w": np.ones((3, 1), np.float32), "b": b}
    data = mindir.net(nodes, {"x": (2, 3)}, {"z": (2, 5)}, parameters=weights)
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    [z] = mindir.run(data, x)
    np.testing.assert_array_equal(z, x.sum(1, keepdims=True) + b)


@pytest.mark.parametrize("name", ["%1", "%2", "w%"])
def test_names_like_those_that_are_made_here_are_the_files(
    name: str, mindir: SimpleNamespace
) -> None:
    nodes = [
        mindir.node("REF::Mul", ["x", "y"], "a", mindir.typed(2)),
        mindir.node("REF::Mul", ["a", name], "b", mindir.typed(2)),
        mindir.node("REF::Add", ["b", "a"], "z", mindir.typed(2)),
    ]
    [z] = mindir.run(_net(mindir, nodes, {name: _B}), _A, _B)
    np.testing.assert_array_equal(z, _A * _B * _B + _A * _B)


_FIRST_LOADS = """
import sys, threading
from engine.formats import open_source

def load():
    together.wait()
    found.append(len(open_source(sys.argv[1]).graph.nodes))

found, together = [], threading.Barrier(4)
threads = [threading.Thread(target=load) for _ in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
print(found)
"""


def test_the_first_loads_of_a_process_may_come_at_once() -> None:
    path = DATA / "mlp.mindir"
    expected = [len(_ops(path))] * 4
    command = [sys.executable, "-c", _FIRST_LOADS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[0] == str(expected), done.stderr
