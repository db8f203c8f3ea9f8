"""Slices give the model's numbers where a division of the work would give others."""

from __future__ import annotations

import importlib.util
import os
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import slicing_models as models
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from slicing_models import Builder, assert_ranks_give, floats

from engine.context import Context
from engine.errors import ModelError
from engine.layouts.rules import elementwise, gather
from engine.layouts.states import State
from engine.sharding import NodeStrategy, Strategy, slice_model
from engine.sharding.slicing import check
from engine.sharding.slicing.emulate import run_ranks
from engine.types import DType

Array = np.ndarray[Any, Any]

needs_cpu = pytest.mark.skipif(
    importlib.util.find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)


def same_on_all_ranks(
    g: Builder,
    folder: Path,
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    context: Context,
    dtypes: Mapping[str, int] | None = None,
    **how: Any,
) -> None:
    """Slice a model, and compare every rank's results with onnx's reference for these inputs."""
    shapes = {name: value.shape for name, value in inputs.items()}
    path = g.save(folder / "model.onnx", shapes, outputs, dtypes)
    report = slice_model(path, folder / "out", check=False, **how)
    assert_ranks_give(path, report, inputs, context)


def test_terms_of_a_sum_of_integers_are_not_divided_one_by_one(
    null_context: Context, tmp_path: Path
) -> None:
    g, chance = Builder(), np.random.default_rng(0)
    x = chance.integers(0, 9, (32, 12))
    y = "x"
    for _ in range(2):
        y = g.add("MatMul", y, g.constant(chance.integers(0, 9, (12, 12))))
    y = g.add("ReduceSum", g.add("Div", y, g.ints(7)), g.ints(0), keepdims=0)
    dtypes = dict.fromkeys(("x", y), TensorProto.INT64)
    same_on_all_ranks(g, tmp_path, {"x": x}, [y], null_context, dtypes, tp=2)


def test_indices_of_max_pool_count_through_the_whole_tensor(
    null_context: Context, tmp_path: Path
) -> None:
    g = Builder()
    pooled = g.add("Conv", "x", g.weight(12, 6, 3, 3))
    _, y = g.add("MaxPool", pooled, outputs=2, kernel_shape=[4, 4], strides=[4, 4])
    inputs = {"x": floats(2, 6, 66, 66)}
    same_on_all_ranks(g, tmp_path, inputs, [y], null_context, {y: TensorProto.INT64}, tp=2)


def test_slices_of_blocks_may_say_where_in_32_bits(null_context: Context, tmp_path: Path) -> None:
    g = Builder()
    both = g.add("MatMul", "x", g.weight(12, 24))
    edges = [g.constant([edge], np.int32) for edge in (0, 12, 24, -1)]
    parts = [g.add("Slice", both, *edges[i : i + 2], edges[-1]) for i in range(2)]
    y = g.add("MatMul", g.add("Mul", *parts), g.weight(12, 6))
    same_on_all_ranks(g, tmp_path, {"x": floats(4, 12)}, [y], null_context, tp=2)


@pytest.mark.parametrize("shape", [(4, 5, 5), (1, 5, 5), (2, 4, 5, 5), (5, 5)])
def test_masks_of_heads_are_divided_with_them(
    shape: tuple[int, ...], null_context: Context, tmp_path: Path
) -> None:
    g = Builder(opset=23)
    parts = [g.add("MatMul", "x", g.weight(24, 24)) for _ in range(3)]
    y = g.add("Attention", *parts, g.constant(floats(*shape)), q_num_heads=4, kv_num_heads=4)
    y = g.add("MatMul", y, g.weight(24, 24))
    same_on_all_ranks(g, tmp_path, {"x": floats(2, 5, 24)}, [y], null_context, tp=2)


@pytest.mark.parametrize("kind", ["body", "dropout"])
def test_one_rank_draws_the_numbers_of_bodies_and_of_dropout(
    kind: str, null_context: Context, tmp_path: Path
) -> None:
    g = Builder()
    h = g.add("MatMul", "x", g.weight(12, 12))
    if kind == "body":
        value = helper.make_tensor_value_info("drawn", TensorProto.FLOAT, [4, 12])
        draw = helper.make_node("RandomNormalLike", [h], ["drawn"])
        body = helper.make_graph([draw], "body", [], [value])
        y = g.add("If", g.constant(True), then_branch=body, else_branch=body)
    else:
        y = g.add("Dropout", h, g.constant(0.5, np.float32), g.constant(True))
    y = g.add("MatMul", y, g.weight(12, 12))
    path = g.save(tmp_path / "model.onnx", {"x": [4, 12]}, [y])
    for ranks in ({"tp": 2}, {"pp": 2}):
        report = slice_model(path, tmp_path / "out", context=null_context, **ranks)
        assert report.note.startswith("it draws random numbers")
        assert report.collectives["Broadcast"] >= 1
        files = [Path(file) for file in report.files]
        one, other = run_ranks(files, {"x": floats(4, 12)}, null_context)
        np.testing.assert_array_equal(one[y], other[y])


@pytest.mark.parametrize("kind", ["received", "made again", "in a body"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (1, 3), (2, 2)])
def test_results_may_be_read_by_later_stages(
    kind: str, tp: int, pp: int, null_context: Context, tmp_path: Path
) -> None:
    g = Builder()
    early = g.add("Relu", "x") if kind == "made again" else g.add("MatMul", "x", g.weight(12, 12))
    y = early
    if kind == "in a body":
        bodies = {}
        for branch, op_type in (("then_branch", "Neg"), ("else_branch", "Identity")):
            value = helper.make_tensor_value_info(branch, TensorProto.FLOAT, [4, 12])
            node = helper.make_node(op_type, [early], [branch])
            bodies[branch] = helper.make_graph([node], branch, [], [value])
        y = g.add("If", g.constant(True), **bodies)
    for _ in range(4):
        y = g.add("MatMul", g.add("Relu", y), g.weight(12, 12))
    y = g.add("Add", y, early)
    same_on_all_ranks(g, tmp_path, {"x": floats(4, 12)}, [early, y], null_context, tp=tp, pp=pp)
    for file in (tmp_path / "out").glob("*.onnx"):  # as a rank on its own needs it
        graph = onnx.load(file).graph
        typed = {value.name for value in (*graph.value_info, *graph.output)}
        for node in graph.node:
            if node.op_type == "Broadcast":
                assert typed >= {*node.input, *node.output}


@pytest.mark.parametrize("op_type", ["ArgMax", "Sub"])
def test_integers_that_are_others_are_refused(
    op_type: str, null_context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = Builder()
    if op_type == "ArgMax":
        y = g.add("ArgMax", g.add("MatMul", "x", g.weight(12, 12)), axis=1)
    else:
        y = g.add("Sub", "x", g.constant(np.arange(12)))
    dtypes = {y: TensorProto.INT64, "x": TensorProto.FLOAT if op_type == "ArgMax" else 7}
    path = g.save(tmp_path / "model.onnx", {"x": [8, 12]}, [y], dtypes)
    slice_model(path, tmp_path / "out", tp=2, replicas=True, context=null_context)

    def wrong(*args: Any) -> list[dict[str, Any]]:
        results = run_ranks(*args)
        results[1][y] = results[1][y].copy()
        results[1][y][:3] += 4
        return results

    monkeypatch.setattr(check, "run_ranks", wrong)
    with pytest.raises(ModelError, match=r"differs from the original's in .* elements"):
        slice_model(path, tmp_path / "out", tp=2, replicas=True, context=null_context)


@pytest.mark.parametrize(("other", "is_refused"), [(7, False), (5, True)])
def test_integers_that_rounding_decides_may_be_others_wherever_that_is_so(
    other: int, is_refused: bool, null_context: Context, tmp_path: Path, monkeypatch: Any
) -> None:
    g = Builder()
    weights = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)
    weights[:, 7] = weights[:, 3] = 4  # the largest scores, and equal ones
    y = g.add("ArgMax", g.add("MatMul", g.add("Abs", "x"), g.constant(weights)), axis=1)
    path = g.save(tmp_path / "model.onnx", {"x": [6, 12]}, [y], {y: TensorProto.INT64})

    def rounded(*args: Any) -> list[dict[str, Any]]:
        return [{name: np.full_like(a, other) for name, a in r.items()} for r in run_ranks(*args)]

    monkeypatch.setattr(check, "run_ranks", rounded)
    if is_refused:
        with pytest.raises(ModelError, match=r"in 6 of 6 elements, and not by rounding"):
            slice_model(path, tmp_path / "out", tp=2, context=null_context)
    else:
        report = slice_model(path, tmp_path / "out", tp=2, context=null_context)
        assert [one.is_equal for one in report.differences] == [False]


@pytest.mark.parametrize("shape", [[2, 3], [1, 1]])
def test_every_ranks_rows_of_a_table_are_checked(
    shape: list[int], null_context: Context, tmp_path: Path, monkeypatch: Any
) -> None:
    g = Builder()
    y = g.add("Gather", g.weight(40, 8), g.add("Cast", "ids", to=TensorProto.INT64))
    path = g.save(tmp_path / "model.onnx", {"ids": shape}, [y], {"ids": TensorProto.INT32})
    strategy = Strategy({"Gather_1": NodeStrategy(((2, 1), (1, 1)))})
    slice_model(path, tmp_path / "out", tp=2, strategy=strategy, context=null_context)
    right = gather._own_rows

    def wrong(rows: int, rank: int, state: State) -> Any:  # the last rank looks up others
        def change(local: Any) -> None:
            constant = local.constant
            local.constant = lambda v: constant([0, v[1] - 1] if np.shape(v) and v[0] == 0 else v)
            right(rows, rank, state)(local)

        return change

    monkeypatch.setattr(gather, "_own_rows", wrong)
    with pytest.raises(ModelError, match="differs from the original's"):
        slice_model(path, tmp_path / "out", tp=2, strategy=strategy, context=null_context)


def test_integers_of_arithmetic_are_checked_beyond_0_and_1(
    null_context: Context, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(elementwise, "FLOATS", {*elementwise.FLOATS, DType.INT64})
    g = Builder()  # a quotient of a sum is not the sum of quotients, which 0 and 1 do not show
    y = g.add("MatMul", "x", g.constant(np.ones((12, 12)), np.int64))
    y = g.add("ReduceSum", g.add("Div", y, g.ints(100)), g.ints(0), keepdims=0)
    path = g.save(tmp_path / "model.onnx", {"x": [32, 12]}, [y], {"x": 7, y: 7})
    strategy = Strategy({"MatMul_0": NodeStrategy(((1, 2), (2, 1)))})
    with pytest.raises(ModelError, match="differs from the original's"):
        slice_model(path, tmp_path / "out", tp=2, strategy=strategy, context=null_context)


@pytest.mark.parametrize(
    ("location", "ranks"), [("model.data", {"pp": 2}), ("model0.onnx.data", {"tp": 2})]
)
def test_the_models_own_weights_are_not_overwritten(
    location: str, ranks: Mapping[str, Any], tmp_path: Path
) -> None:
    g = Builder()
    y = g.add("MatMul", g.add("MatMul", "x", g.weight(64, 64)), g.weight(64, 64))
    path = g.save(tmp_path / "model.onnx", {"x": [4, 64]}, [y])
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location=location)
    before = (tmp_path / location).read_bytes()
    with pytest.raises(ModelError, match=f"{location}: is a file of the model itself"):
        slice_model(path, tmp_path, check=False, **ranks)
    assert (tmp_path / location).read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"model.onnx", location}


def test_what_is_killed_between_two_files_leaves_no_model_with_the_weights_of_another(
    null_context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if self.suffix == ".onnx":
            raise KeyboardInterrupt
        return replace(self, target)

    path = models.mlp(tmp_path)
    slice_model(path, tmp_path / "out", tp=2, context=null_context)
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        slice_model(path, tmp_path / "out", tp=2, context=null_context)
    assert not [*(tmp_path / "out").glob("*.onnx")]


def quantized_product(folder: Path, op_type: str, *, inside: int, out: int, bias: bool) -> Path:
    """A product of quantized inputs and weights with a scale for each row that is summed over."""
    g, chance = Builder(opset=21), np.random.default_rng(0)
    scale, zero = g.constant(0.05, np.float32), g.constant(128, np.uint8)
    x = g.add("DequantizeLinear", g.add("QuantizeLinear", "x", scale, zero), scale, zero)
    shape = (out, inside, 1, 1) if op_type == "Conv" else (inside, out)
    weights = [
        g.constant(chance.integers(-127, 127, shape), np.int8),
        g.constant(chance.random(inside) / 20 + 0.01, np.float32),
        g.constant(chance.integers(0, 9, inside), np.int8),
    ]
    inputs = [x, g.add("DequantizeLinear", *weights, axis=1 if op_type == "Conv" else 0)]
    if bias:
        counts = g.constant(chance.integers(-500, 500, out), np.int32)
        inputs.append(g.add("DequantizeLinear", counts, g.constant(0.01, np.float32)))
    y = g.add(op_type, *inputs)
    y = g.add("QuantizeLinear", y, g.constant(1, np.float32), zero)
    y = g.add("DequantizeLinear", y, g.constant(1, np.float32), zero)
    tail = [3, 3] if op_type == "Conv" else []
    return g.save(folder / "model.onnx", {"x": [4, inside, *tail]}, [y])


@needs_cpu
@pytest.mark.parametrize(
    ("op_type", "inside", "out", "split"),
    [
        ("MatMul", 16, 8, ((1, 2), (2, 1))),  # by rows: 8 of them and 8 columns on each rank
        ("MatMul", 8, 16, ((1, 1), (1, 2))),
        ("Gemm", 16, 8, ((1, 2), (2, 1))),
        ("Gemm", 8, 16, ((1, 1), (1, 2))),
        ("Conv", 8, 16, ((1, 1, 1, 1), (2, 1, 1, 1))),
    ],
)
def test_scales_of_rows_are_not_taken_for_those_of_columns(
    op_type: str, inside: int, out: int, split: Any, tmp_path: Path
) -> None:
    path = quantized_product(tmp_path, op_type, inside=inside, out=out, bias=op_type == "Gemm")
    [name] = [node.name for node in onnx.load(path).graph.node if node.op_type == op_type]
    strategy = Strategy({name: NodeStrategy(split)})
    report = slice_model(path, tmp_path / "out", tp=2, strategy=strategy, check=False)
    tail = [3, 3] if op_type == "Conv" else []
    inputs = {"x": floats(4, inside, *tail)}
    [expected] = ReferenceEvaluator(str(path)).run(None, inputs)
    for result in run_ranks([Path(file) for file in report.files], inputs, Context()):
        [got] = result.values()
        # One step of what quantizes it, where terms are rounded in another order.
        np.testing.assert_allclose(got, expected, atol=1)


@pytest.mark.parametrize("bias", ["computed", "given"])
def test_a_bias_that_is_no_weight_is_added_to_one_of_the_terms(
    bias: str, null_context: Context, tmp_path: Path
) -> None:
    g = Builder()
    own = g.add("Exp", g.weight(8)) if bias == "computed" else "b"
    y = g.add("Gemm", "x", g.weight(16, 8), own)
    inputs = {"x": floats(4, 16)} | ({"b": np.float32([np.inf, *range(7)])} if own == "b" else {})
    strategy = Strategy({g.nodes[-1].name: NodeStrategy(((1, 2), (2, 1)))})
    same_on_all_ranks(g, tmp_path, inputs, [y], null_context, tp=2, strategy=strategy)


def test_parallel_branches_are_summed_up_once(null_context: Context, tmp_path: Path) -> None:
    g = Builder()

    def branch() -> str:
        y: str = g.dense(g.add("Relu", g.dense("x", 8, 16)), 16, 8)
        return y

    y = g.add("Add", g.add("Add", "x", branch()), branch())
    path = g.save(tmp_path / "model.onnx", {"x": [4, 8]}, [y])
    report = slice_model(path, tmp_path / "first", tp=2, context=null_context)
    assert report.collectives == {"AllReduce": 1}
    same_on_all_ranks(g, tmp_path, {"x": floats(4, 8)}, [y], null_context, tp=2)


# --------------------------------------------------------------------------------- the folder


def test_slices_of_fewer_ranks_take_away_those_of_more(
    null_context: Context, tmp_path: Path
) -> None:
    path, out = models.mlp(tmp_path, 64, 128), tmp_path / "out"
    out.mkdir()
    other = models.column(tmp_path).rename(out / "mlp7.onnx")  # somebody else's, of such a name
    before = other.read_bytes()
    slice_model(path, out, tp=4, context=null_context)
    slice_model(path, out, tp=2, context=null_context)
    assert {file.name for file in out.glob("mlp*.onnx*")} == {
        "mlp0.onnx", "mlp1.onnx", "mlp0.onnx.data", "mlp1.onnx.data", "mlp7.onnx"
    }  # fmt: skip
    assert other.read_bytes() == before


def test_replicas_of_fewer_ranks_take_away_those_of_more_and_no_other_models(
    null_context: Context, tmp_path: Path
) -> None:
    out, g = tmp_path / "out", models.Builder()
    path = g.save(tmp_path / "net.onnx", {"x": [4, 8]}, [g.add("Relu", "x")])
    other = tmp_path / "net1.onnx"  # whose rank 2 has the name that rank 12 of net would have
    other.write_bytes(path.read_bytes())
    for model, ranks in ((path, 4), (other, 3), (path, 2)):
        slice_model(model, out, tp=ranks, replicas=True, context=null_context)
    assert {file.name for file in out.glob("*.onnx")} == {
        "net0.onnx", "net1.onnx", "net10.onnx", "net11.onnx", "net12.onnx"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (("net1", 2), ("net", 11), r"net10\.onnx: is rank 0 of 'net1' .* by rank 10 of 'net'"),
        (("net", 11), ("net1", 2), r"net10\.onnx: is rank 10 of 'net' .* by rank 0 of 'net1'"),
    ],
    ids=["more ranks", "a name that ends in a digit"],
)
def test_a_slice_of_another_model_is_not_overwritten(
    null_context: Context,
    tmp_path: Path,
    first: tuple[str, int],
    second: tuple[str, int],
    message: str,
) -> None:
    out, g = tmp_path / "out", models.Builder()
    model = g.save(tmp_path / "net.onnx", {"x": [4, 8]}, [g.add("Relu", "x")]).read_bytes()
    (tmp_path / "net1.onnx").write_bytes(model)
    slice_model(
        tmp_path / f"{first[0]}.onnx", out, tp=first[1], replicas=True, context=null_context
    )
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    other = tmp_path / f"{second[0]}.onnx"
    with pytest.raises(ModelError, match=message + r"; choose another folder \(--out\), or rename"):
        slice_model(other, out, tp=second[1], replicas=True, context=null_context)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    slice_model(other, tmp_path / "apart", tp=second[1], replicas=True, context=null_context)


SAFE = r" and would be overwritten; choose another folder \(--out\), or move it away"
FOREIGN = {
    "mlp1.onnx": (models.column, r"mlp1\.onnx: is no slice of 'mlp'"),
    "mlp.strategy.json": (b'{"buy": "low"}', r"mlp\.strategy\.json: is no strategy file"),
    "mlp.annotated.onnx": (models.mlp, "annotated.onnx: is no model that slicing has annotated"),
    "mlp1.onnx.data": (b"mine", r"mlp1\.onnx\.data: is no file of slices of 'mlp' there"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_no_slicing_wrote_is_not_overwritten_and_an_earlier_slicings_is(
    name: str, null_context: Context, tmp_path: Path
) -> None:
    content, says = FOREIGN[name]
    mine = content if isinstance(content, bytes) else content(tmp_path).read_bytes()
    path, out = models.mlp(tmp_path, 64, 128), tmp_path / "out"
    out.mkdir()
    (out / name).write_bytes(mine)
    with pytest.raises(ModelError, match=says + SAFE):
        slice_model(path, out, tp=2, annotate=True, context=null_context)
    assert [(file.name, file.read_bytes()) for file in out.iterdir()] == [(name, mine)]
    (out / name).unlink()
    for tp in (2, 4, 2):
        slice_model(path, out, tp=tp, annotate=True, context=null_context)
    for rank in range(2):  # as somebody who was killed leaves them
        (out / f"mlp{rank}.onnx").unlink()
    slice_model(path, out, tp=2, context=null_context)


@pytest.mark.parametrize("text", ["3", "no JSON"])
def test_json_of_any_kind_is_told_from_a_strategy(
    text: str, null_context: Context, tmp_path: Path
) -> None:
    (tmp_path / "mlp.strategy.json").write_text(text)
    with pytest.raises(ModelError, match=r"mlp\.strategy\.json: is no strategy file"):
        slice_model(models.mlp(tmp_path), tmp_path, tp=2, context=null_context)
    assert (tmp_path / "mlp.strategy.json").read_text() == text


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_all_files_of_a_slicing_have_the_mode_that_the_umask_gives(
    mask: int, null_context: Context, tmp_path: Path
) -> None:
    path, out = models.mlp(tmp_path, 64, 128), tmp_path / "out"
    before = os.umask(mask)
    try:
        slice_model(path, out, tp=2, annotate=True, context=null_context)
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in out.iterdir()}
    assert modes == dict.fromkeys(modes, 0o666 & ~mask)
    assert "mlp.strategy.json" in modes


def test_a_file_is_no_folder_for_slices(tmp_path: Path) -> None:
    path = models.mlp(tmp_path)
    before = path.read_bytes()
    with pytest.raises(ModelError, match=r"mlp\.onnx: is a file; expected a folder .* \(--out\)"):
        slice_model(path, path, tp=2)
    assert path.read_bytes() == before


def test_what_only_an_earlier_slicing_wrote_beside_its_models_is_taken_away(
    null_context: Context, tmp_path: Path
) -> None:
    path, out = models.mlp(tmp_path, 64, 128), tmp_path / "out"
    slice_model(path, out, tp=2, replicas=True, annotate=True, strategy="auto",
                context=null_context)  # fmt: skip
    slice_model(path, out, tp=2, context=null_context)
    assert {file.name for file in out.iterdir()} == {
        "mlp0.onnx", "mlp1.onnx", "mlp0.onnx.data", "mlp1.onnx.data", "mlp.strategy.json"
    }  # fmt: skip


def test_files_of_another_model_in_the_folder_stay(null_context: Context, tmp_path: Path) -> None:
    path, out = models.mlp(tmp_path, 64, 128), tmp_path / "out"
    out.mkdir()
    whole = onnx.load(path)
    onnx.save(whole, out / "mlp.onnx", save_as_external_data=True, location="mlp.data",
              size_threshold=0)  # fmt: skip
    (out / "mlp.annotated.onnx").write_bytes(path.read_bytes())
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    for _ in range(2):
        slice_model(path, out, tp=2, context=null_context)
        assert {name: (out / name).read_bytes() for name in before} == before
    with pytest.raises(ModelError, match=r"mlp\.data: holds weights of 'mlp\.onnx' there"):
        slice_model(path, out, tp=2, replicas=True, strategy="auto", context=null_context)
    assert {name: (out / name).read_bytes() for name in before} == before


def test_two_slicers_of_one_folder_leave_the_files_of_one(
    null_context: Context, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    paths = []
    for folder, hidden in ((first, 128), (second, 256)):
        folder.mkdir()
        paths.append(models.mlp(folder, 64, hidden))
    out = tmp_path / "out"
    x = floats(3, 64)
    expected = [ReferenceEvaluator(str(path)).run(None, {"x": x})[0] for path in paths]
    for _ in range(5):
        with ThreadPoolExecutor(2) as pool:
            again = [
                pool.submit(slice_model, path, out, tp=tp, check=False)
                for path, tp in zip(paths, (4, 2), strict=True)
            ]
        assert [one.result().tp for one in again] == [4, 2]
        files = sorted(out.glob("mlp*.onnx"))
        one = {2: expected[1], 4: expected[0]}[len(files)]
        for result in run_ranks(files, {"x": x}, null_context):
            [got] = result.values()
            np.testing.assert_allclose(got, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", [{"tp": 2}, {"pp": 2}, {"pp": 2, "outputs": "last"}])
def test_results_that_are_inputs_or_weights_keep_their_shapes(
    how: Mapping[str, Any], null_context: Context, tmp_path: Path
) -> None:
    g = Builder()
    y = g.add("MatMul", g.add("Relu", g.add("MatMul", "x", g.weight(8, 8))), g.weight(8, 8))
    table = g.constant(floats(3, 2))
    path = g.save(tmp_path / "model.onnx", {"x": [4, 8]}, [y, "x", table])
    report = slice_model(path, tmp_path / "out", context=null_context, **how)
    [last] = {one.file for one in report.ranks} & {"model1.onnx"}
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in onnx.load(tmp_path / "out" / last).graph.output
    }
    assert shapes["x"] == [4, 8]
    assert shapes[table] == [3, 2]
