"""A model in slices gives what the model gives, whatever its operators are."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import slicing_models as models
from onnx import TensorProto, numpy_helper
from processes import facts_of, started
from slicing_models import floats

import engine
from engine.config.wording import own_text, prefixed
from engine.context import Context
from engine.errors import ModelError
from engine.formats.collectives import Part, part_of
from engine.sharding import Layout, NodeStrategy, Strategy, slice_model
from engine.sharding.slicing.emulate import run_ranks
from engine.sharding.slicing.report import Report
from engine.sharding.slicing.undivided import NothingDivided

needs_cpu = pytest.mark.skipif(
    importlib.util.find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)

# Exchanges of one rank in a predict, for 2 ranks and for 4.
EXCHANGES = {
    "mlp": ({"AllReduce": 1},) * 2,
    "gemms": ({"AllReduce": 1},) * 2,
    "column": ({"AllGather": 1},) * 2,
    "attention": ({"AllReduce": 1},) * 2,
    "attention_split": ({"AllReduce": 1},) * 2,
    "attention_slice": ({"AllReduce": 1},) * 2,
    "attention_gather": ({"AllReduce": 1},) * 2,
    "lstm": ({"AllGather": 2},) * 2,
    "node_multi_head": ({"AllReduce": 1},) * 2,
    "node_fused": ({"AllReduce": 1},) * 2,
}
BIT_EQUAL = {"column", "channels", "lstm", "unknown"}
"""No sum goes over ranks there."""
ROUNDED = {"quantized": 2e-2}
"""Tolerances where a runtime's kernels for the whole model round in their own way."""

NEEDS_1_24 = {
    "node_attention": "computes Attention otherwise than onnx's reference: nothing is alike",
    "node_grouped_query": "has no GroupQueryAttention without past keys and values",
}


@needs_cpu
@pytest.mark.parametrize("tp", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_slices_give_what_the_model_gives(name: str, tp: int, tmp_path: Path) -> None:
    if name in NEEDS_1_24 and version("onnxruntime") < "1.24":
        pytest.skip(f"onnxruntime 1.23 {NEEDS_1_24[name]}")
    report = slice_model(models.MODELS[name](tmp_path), tmp_path / "out", tp=tp)
    assert report.differences
    for one in report.differences:
        assert one.difference <= ROUNDED.get(name, 1e-5) * one.largest
        assert one.is_equal or name not in BIT_EQUAL
    if name in EXCHANGES:
        assert report.collectives == EXCHANGES[name][tp // 4]
    assert all(rank.weight_bytes < report.weight_bytes for rank in report.ranks)


@needs_cpu
@pytest.mark.parametrize("tp", [2, 4])
def test_keys_and_values_that_fused_attention_gives_are_divided_by_heads(
    tp: int, tmp_path: Path
) -> None:
    path = models.attention_node(tmp_path, "Fused")
    model = onnx.load(path)
    [node] = [node for node in model.graph.node if node.op_type == "Attention"]
    node.output.append("present")  # keys and values, samples, heads, positions, a head's width
    shape = [2, 2, 4, 6, 8]
    given = onnx.helper.make_tensor_value_info("present", TensorProto.FLOAT, shape)
    model.graph.output.append(given)
    onnx.save(model, path)
    report = slice_model(path, tmp_path / "out", tp=tp)
    assert report.collectives == {"AllGather": 1, "AllReduce": 1}
    assert all(one.difference <= 1e-5 * one.largest for one in report.differences)


@needs_cpu
@pytest.mark.parametrize("tp", [2, 4])
def test_a_rank_holds_its_part_of_what_can_be_divided(tp: int, tmp_path: Path) -> None:
    report = slice_model(models.decoder(tmp_path), tmp_path / "out", tp=tp, check=False)
    matrices = sum(
        int(np.prod(tensor.dims)) * 4
        for tensor in onnx.load(tmp_path / "decoder.onnx").graph.initializer
        if len(tensor.dims) == 2 and [*tensor.dims] != [64, 8]  # not the tables of sines
    )
    for rank in report.ranks:
        own = onnx.load(tmp_path / "out" / rank.file)
        held = sum(
            numpy_helper.to_array(t).nbytes for t in own.graph.initializer if len(t.dims) == 2
        )
        tables = 2 * 64 * 8 * 4
        assert held - tables <= 1.05 * matrices / tp


def parts(report: Report) -> list[Part | None]:
    """Whose part each rank's file says that it is."""
    return [
        part_of({entry.key: entry.value for entry in onnx.load(file).metadata_props})
        for file in report.files
    ]


def test_the_ranks_files_say_whose_they_are_and_of_which_slicing(tmp_path: Path) -> None:
    """The same model divided in the same way is the same slicing, wherever it is done."""
    path = models.mlp(tmp_path)
    of_two = parts(slice_model(path, tmp_path / "out", tp=2, check=False))
    one = of_two[0]
    assert one is not None
    assert of_two == [Part(rank, 2, one.slicing) for rank in range(2)]
    again = path.rename(tmp_path / "other.onnx")
    assert parts(slice_model(again, tmp_path / "again", tp=2, check=False)) == of_two
    of_four = parts(slice_model(again, tmp_path / "out", tp=4, check=False))
    model = onnx.load(again)
    weight = model.graph.initializer[0]
    array = numpy_helper.to_array(weight).copy()
    array.flat[0] += 1
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(model, again)
    trained = parts(slice_model(again, tmp_path / "out", tp=2, check=False))
    assert len({part.slicing for part in (one, of_four[0], trained[0]) if part}) == 3


@pytest.fixture
def null(null_context: Context) -> Context:
    return null_context


def test_slices_are_checked_on_any_target(null: Context, tmp_path: Path) -> None:
    report = slice_model(models.mlp(tmp_path), tmp_path / "out", tp=2, context=null)
    assert [one.output for one in report.differences] == ["add_4"]
    assert [rank.weight_bytes for rank in report.ranks] == [(8 * 16 * 2 + 16) // 2 * 4 + 8 * 4] * 2


# ---------------------------------------------------------------------------------- pipelines


@needs_cpu
@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (1, 3), (2, 2)])
def test_stages_give_what_the_model_gives(tp: int, pp: int, tmp_path: Path) -> None:
    path = models.decoder(tmp_path)
    report = slice_model(path, tmp_path / "out", tp=tp, pp=pp, input_shapes={"ids": [2, 5]})
    [one] = report.differences
    assert one.difference <= 1e-5 * one.largest
    assert [rank.stage for rank in report.ranks] == [r // tp for r in range(tp * pp)]
    assert sum(rank.weight_bytes for rank in report.ranks) < 1.3 * report.weight_bytes


@needs_cpu
def test_results_may_stay_on_the_last_stage(tmp_path: Path) -> None:
    path = models.attention(tmp_path)
    shapes = {"x": [1, 6, 32]}
    slice_model(path, tmp_path / "out", pp=2, outputs="last", input_shapes=shapes)
    x = floats(1, 6, 32)
    [result] = engine.load(path)(x=x).values()
    paths = [tmp_path / "out" / f"{path.stem}{rank}.onnx" for rank in range(2)]
    first, last = run_ranks(paths, {"x": x}, Context())
    assert not any(value.shape == result.shape and name in last for name, value in first.items())
    np.testing.assert_allclose(next(iter(last.values())), result, rtol=0, atol=1e-5)


MICRO_BATCHES = """
import json, sys
import numpy as np
import engine
from engine.distributed import rank_segments
from engine.distributed.job import this_job

exchanged = []
run = rank_segments.ExchangeContext.run

def noted(self, *arguments):
    exchanged.extend(node.info.op_type for node in self._exchange.nodes)
    return run(self, *arguments)

rank_segments.ExchangeContext.run = noted
rank = this_job().rank
model = engine.load(f"{sys.argv[1]}{rank}.onnx")
for number, ids in enumerate(np.load(f"{sys.argv[1]}.npz").values()):
    exchanged.clear()
    np.savez(f"{sys.argv[1]}{rank}_{number}.npz", **model(ids=ids))
    print(json.dumps({"exchanged": exchanged}))
"""


def input_sizes(path: Path) -> list[str | int]:
    [given] = onnx.load(path).graph.input
    return [dim.dim_param or dim.dim_value for dim in given.type.tensor_type.shape.dim]


@needs_cpu
def test_stages_run_any_batch_in_parts_and_exchange_the_results_once(tmp_path: Path) -> None:
    """The rows of a part are fixed, and the shape goes before each tensor for the rest of it."""
    path, stem = models.decoder(tmp_path), tmp_path / "out" / "decoder"
    slice_model(path, tmp_path / "out", pp=2, input_shapes={"ids": [2, 5]}, micro_batches=True)
    assert input_sizes(Path(f"{stem}0.onnx")) == ["batch", "s"]
    random = np.random.default_rng(0)
    shapes = [(2, 5), (9, 5), (9, 5), (9, 5), (1, 5), (4, 5), (5, 9), (5, 9), (1, 3)]
    given = [random.integers(0, 40, shape) for shape in shapes]
    np.savez(f"{stem}.npz", *given)
    with started(MICRO_BATCHES, 2, str(stem)) as processes:
        told = [facts_of(process) for process in processes]
    whole = engine.load(path)
    for rank, (work, moves) in enumerate(zip(told, ("Send", "Receive"), strict=True)):
        for number, (ids, one) in enumerate(zip(given, work, strict=True)):
            [(name, expected)] = whole(ids=ids).items()
            got = np.load(f"{stem}{rank}_{number}.npz")[name]
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
            *parts, last = one["exchanged"]
            # Nobody waits for a result before the last part is on its way.
            assert last == "Broadcast", rank
            assert {*parts} == {moves}
            assert len(parts) % -(-len(ids) // 2) == 0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"pp": 1, "tp": 2}, r"is not cut into stages; ask for two or more \(--pp\)"),
        ({"input_shapes": None}, "give --input-shape as well, for example --input-shape x=4,8$"),
        ({"rows": "mixed"}, "not proven .*: ReduceMean 'ReduceMean_2': it reduces the batch"),
        ({"rows": "gated"}, "not proven .*: ReduceMax 'ReduceMax_7': it reduces the batch"),
        ({"rows": "summed"}, "is of shape .*; expected the batch of 4 rows along axis 0"),
        ({"rows": "fixed"}, "got none with an open axis 0"),
    ],
)
def test_what_cannot_run_in_parts_of_a_batch_is_refused(
    how: dict[str, Any], message: str, null: Context, tmp_path: Path
) -> None:
    g, rows = models.Builder(), how.pop("rows", "")
    y = g.add("Relu", g.add("MatMul", "x", g.weight(8, 8)))
    if rows in ("mixed", "summed"):
        mean = g.add("ReduceMean", y, axes=[0], keepdims=1)
        y = mean if rows == "summed" else g.add("Sub", y, mean)
    if rows == "gated":  # open for values that no trial draws
        large = g.add("Cast", g.add("Greater", y, g.constant(np.float32(50))), to=1)
        small = g.add("Cast", g.add("Less", y, g.constant(np.float32(60))), to=1)
        most = g.add("ReduceMax", g.add("Mul", large, small), axes=[0], keepdims=1)
        y = g.add("Add", y, most)
    y = g.add("MatMul", y, g.weight(8, 8))
    path = g.save(tmp_path / "m.onnx", {"x": [4 if rows == "fixed" else "n", 8]}, [y])
    given = {"pp": 2, "input_shapes": {"x": [4, 8]}, "context": null} | how
    with pytest.raises(ModelError, match=message):
        slice_model(path, tmp_path / "out", micro_batches=True, **given)


OPEN_SIZES = """
import sys
from glob import glob
import numpy as np
import engine
from engine.distributed.job import this_job

rank = this_job().rank
for stem in sys.argv[1:]:
    model = engine.load(f"{stem}{rank}.onnx")
    for file in sorted(glob(f"{stem}_*.npz")) * 2:  # once more with buffers that are prepared
        np.savez(file.replace(f"{stem}_", f"{stem}{rank}_"), **model(**np.load(file)))
"""


def compressed(folder: Path) -> Path:
    """Between stages goes a tensor whose sizes change while the inputs keep theirs."""
    g = models.Builder()
    x = g.add("Compress", g.dense("x", 8, 8), "wanted", axis=0)
    y = g.dense(g.add("Relu", g.dense(x, 8, 8)), 8, 8)
    inputs = {"x": ["n", 8], "wanted": ["n"]}
    return g.save(folder / "compressed.onnx", inputs, [y], {"wanted": TensorProto.BOOL})


PICTURES = [(1, 3, 32, 32), (2, 3, 64, 32), (1, 3, 32, 96)]
ANY_SIZES: list[tuple[Callable[[Path], Path], list[dict[str, Any]]]] = [
    (models.cached, [models.cached_inputs(*sizes) for sizes in ((1, 1, 1), (2, 3, 5), (1, 4, 0))]),
    (models.detector, [{"x": floats(*shape)} for shape in PICTURES]),
    (
        compressed,
        [{"x": floats(6, 8), "wanted": np.arange(6) < count} for count in (6, 2, 3, 0)],
    ),
]


@needs_cpu
@pytest.mark.parametrize(
    ("tp", "cases"), [(1, ANY_SIZES), pytest.param(2, ANY_SIZES[:1], marks=pytest.mark.slow)]
)
def test_tensors_of_any_size_go_from_stage_to_stage(tp: int, cases: Any, tmp_path: Path) -> None:
    """Shapes go before the tensors: nobody says a size, and none is fixed in the slices."""
    paths = [build(tmp_path) for build, _ in cases]
    stems = [tmp_path / "out" / path.stem for path in paths]
    for path, stem, (_, given) in zip(paths, stems, cases, strict=True):
        assert slice_model(path, tmp_path / "out", tp=tp, pp=2).differences
        for number, inputs in enumerate(given):
            np.savez(f"{stem}_{number}.npz", **inputs)
    with started(OPEN_SIZES, 2 * tp, *map(str, stems)) as processes:
        assert [facts_of(process) for process in processes] == [[]] * 2 * tp
    for path, stem, (_, given) in zip(paths, stems, cases, strict=True):
        whole = engine.load(path)
        for number, inputs in enumerate(given):
            for name, expected in whole(**inputs).items():
                for rank in range(2 * tp):
                    got = np.load(f"{stem}{rank}_{number}.npz")[name]
                    limit = 1e-5 * np.abs(expected).max(initial=0)
                    np.testing.assert_allclose(got, expected, rtol=0, atol=limit, err_msg=name)


def test_sizes_of_the_check_are_not_fixed_unless_that_is_asked_for(
    null: Context, tmp_path: Path
) -> None:
    path, out = models.mlp(tmp_path), tmp_path / "out"
    for fix_shapes, sizes in ((False, ["n", 8]), (True, [3, 8])):
        slice_model(
            path, out, pp=2, input_shapes={"x": [3, 8]}, fix_shapes=fix_shapes, context=null
        )
        assert [input_sizes(out / f"mlp{rank}.onnx") for rank in range(2)] == [sizes] * 2
    with pytest.raises(ModelError, match=r"expected 8 along axis 1, which the file fixes, got 7"):
        slice_model(path, out, pp=2, input_shapes={"x": [3, 7]}, context=null)


@needs_cpu
def test_a_number_goes_from_stage_to_stage(tmp_path: Path) -> None:
    g = models.Builder()
    total = g.add("ReduceSum", g.dense("x", 8, 8), keepdims=0)
    y = g.add("Mul", g.dense(g.dense("x", 8, 8), 8, 8), total)
    path = g.save(tmp_path / "m.onnx", {"x": [4, 8]}, [y, total])
    [one, other] = slice_model(path, tmp_path / "out", pp=2).differences
    assert one.difference <= 1e-5 * one.largest
    assert other.difference <= 1e-5 * other.largest


# --------------------------------------------------------------------------------- strategies


@needs_cpu
def test_a_strategy_divides_the_batch_and_every_bit_is_the_models(tmp_path: Path) -> None:
    path = models.mlp(tmp_path)
    nodes = {f"MatMul_{n}": NodeStrategy(((2, 1), (1, 1))) for n in (0, 3)}
    report = slice_model(
        path,
        tmp_path / "out",
        tp=2,
        strategy=Strategy(nodes),
        input_shapes={"x": [6, 8]},
        fix_shapes=True,
    )
    assert report.collectives == {"AllGather": 1}
    assert [one.is_equal for one in report.differences] == [True]


@needs_cpu
def test_what_was_done_is_a_strategy_that_does_it_again(tmp_path: Path) -> None:
    path = models.attention(tmp_path)
    first = slice_model(path, tmp_path / "first", tp=2)
    again = slice_model(
        path, tmp_path / "again", tp=2, strategy=tmp_path / "first" / first.strategy
    )
    assert again.collectives == first.collectives
    for rank in range(2):
        file = f"{path.stem}{rank}.onnx"
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


@pytest.mark.parametrize("name", ["mlp", "attention_split"])
def test_a_models_annotations_are_obeyed(name: str, null: Context, tmp_path: Path) -> None:
    path, first, again = models.MODELS[name](tmp_path), tmp_path / "first", tmp_path / "again"
    whole = {"MatMul_0": NodeStrategy(((1, 1), (1, 1)))}  # other than what would be chosen
    given = Strategy(whole) if name == "mlp" else None
    before = slice_model(path, first, tp=2, strategy=given, annotate=True, context=null)
    annotated = first / f"{path.stem}.annotated.onnx"
    model = onnx.load(annotated)
    assert [(one.name, one.num_devices) for one in model.configuration] == [("tensor_parallel", 2)]
    after = slice_model(annotated, again, tp=2, context=null)
    assert after.collectives == before.collectives
    with pytest.raises(ModelError, match="is annotated for 2 devices, and --tp is 4"):
        slice_model(annotated, again, tp=4)


def test_a_weights_layout_is_obeyed(null: Context, tmp_path: Path) -> None:
    layouts = {"w0": Layout(dev_matrix=(2,), tensor_map=(0, -1))}  # rows of the first product
    report = slice_model(
        models.mlp(tmp_path), tmp_path / "out", tp=2, strategy=Strategy({}, layouts), context=null
    )
    assert report.collectives["AllReduce"] >= 1
    own = onnx.load(tmp_path / "out" / "mlp0.onnx")
    assert [4, 16] in [list(tensor.dims) for tensor in own.graph.initializer]


def test_auto_leaves_what_is_not_worth_it(null: Context, tmp_path: Path) -> None:
    path, out = models.mlp(tmp_path), tmp_path / "out"
    with pytest.raises(ModelError, match=r"nothing .* 'MatMul_0': dividing it costs more than it"):
        slice_model(path, out, tp=2, strategy="auto", context=null)
    assert not out.exists()
    report = slice_model(path, out, tp=2, strategy="auto", replicas=True, context=null)
    assert report.collectives == {}
    assert [one.is_equal for one in report.differences] == [True]


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Strategy({"no": NodeStrategy(((1, 2), (2, 1)))}), "node 'no' is not in .*; its nodes are"),
        (Strategy({"MatMul_0": NodeStrategy(((1, 3), (3, 1)))}), "3 ways; expected 1 or the 2"),
        (Strategy({"MatMul_0": NodeStrategy(((2, 1), (2, 1)))}), "cannot run splits .*; it can: "),
        (Strategy({}, {"no": Layout()}), "parameter 'no' is not among the weights"),
        (Strategy({}, {"w0": Layout((4,), (0, -1))}), "expected 1 or 2 ways"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused(
    strategy: Strategy, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        slice_model(models.mlp(tmp_path), tmp_path / "out", tp=2, strategy=strategy)


# ------------------------------------------------------------------------------------ refusals


def test_a_slice_is_not_sliced_again(null: Context, tmp_path: Path) -> None:
    slice_model(models.mlp(tmp_path), tmp_path / "out", tp=2, context=null)
    with pytest.raises(ModelError, match=r"is a slice already: AllReduce .* slice the whole model"):
        slice_model(tmp_path / "out" / "mlp0.onnx", tmp_path / "more", tp=2)


def test_an_encrypted_model_is_not_sliced_and_no_key_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "secret.mindir"
    path.write_bytes(b"\xd8\x5e\x3a\x7f" + bytes(64))  # how a file of MindSpore's GCM begins
    with pytest.raises(ModelError, match="encrypted models are not sliced, because") as raised:
        slice_model(path, tmp_path / "out", tp=2)
    assert "key" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_what_differs_from_the_model_is_not_written(
    null: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.layouts.rules import elementwise

    # A wrong rule: tanh of a sum is not the sum of tanhs.
    monkeypatch.setattr(elementwise, "LINEAR", {*elementwise.LINEAR, "Tanh"})
    g = models.Builder()
    y = g.add("MatMul", g.add("Tanh", g.add("MatMul", "x", g.weight(8, 3))), g.weight(3, 3))
    path = g.save(tmp_path / "m.onnx", {"x": [4, 8]}, [y])
    with pytest.raises(ModelError, match=r"output 'matmul_2' differs from .*; nothing was written"):
        slice_model(path, tmp_path / "out", tp=4, context=null)
    assert not (tmp_path / "out").exists()


def test_a_slicing_that_fails_takes_back_only_the_folders_that_it_has_made(tmp_path: Path) -> None:
    path = models.mlp(tmp_path)
    (tmp_path / "mine").mkdir()
    for out in ("mine", "mine/new/deeper"):
        with pytest.raises(ModelError, match="not enough for 9 pipeline stages"):
            slice_model(path, tmp_path / out, pp=9)
    assert not [*(tmp_path / "mine").iterdir()]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tp": 0}, "expected 1 or more"),
        ({"outputs": "none"}, "expected 'all' or 'last'"),
        ({"input_shapes": {"z": [1]}}, "has no input 'z'; it has 'x'"),
        ({"input_shapes": {"x": [1]}}, "input 'x' has 2 dims, but its shape is given as"),
        ({"tp": 1, "pp": 9, "input_shapes": {"x": [2, 8]}}, "not enough for 9 pipeline stages"),
    ],
)
def test_what_cannot_be_sliced_so_is_said(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        slice_model(models.mlp(tmp_path), tmp_path / "out", **{"tp": 2, **wrong})


def test_random_numbers_are_the_same_on_every_rank(null: Context, tmp_path: Path) -> None:
    g = models.Builder()
    noise = g.add("RandomNormal", shape=[4, 8])
    y = g.dense(g.add("Add", "x", noise), 8, 8)
    path = g.save(tmp_path / "m.onnx", {"x": [4, 8]}, [y])
    report = slice_model(path, tmp_path / "out", tp=2, context=null)
    assert "random" in report.note
    paths = [tmp_path / "out" / f"m{rank}.onnx" for rank in range(2)]
    one, other = run_ranks(paths, {"x": np.zeros((4, 8), np.float32)}, null)
    np.testing.assert_array_equal(one[y], other[y])
    assert np.ptp(one[y]) > 0


@needs_cpu
def test_a_mindir_is_sliced(tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "data" / "mindir" / "mlp.mindir"
    report = slice_model(path, tmp_path / "out", tp=2)
    assert report.collectives
    assert all(one.difference <= 1e-5 * one.largest for one in report.differences)
    assert Path(report.files[1]).name == "mlp1.onnx"


def test_parts_of_a_tensor_make_it_up_and_are_written_piece_by_piece() -> None:
    from engine.layouts.states import PARTIAL, WHOLE, joined, part, shard
    from engine.sharding.slicing.rank_files import stream

    whole = np.arange(2 * 12 * 6, dtype=np.float32).reshape(2, 12, 6)
    for state in (
        WHOLE,
        PARTIAL,
        shard(0),
        shard(1),
        shard(2),
        shard(1, (4, 8)),
        shard(1, (6,) * 2),
    ):
        parts = [part(whole, state, rank, 2) for rank in range(2)]
        np.testing.assert_array_equal(joined(parts, state), whole)
        for rank in range(2):
            pieces = [np.ascontiguousarray(p).tobytes() for p in stream(whole, state, rank, 2)]
            assert b"".join(pieces) == np.ascontiguousarray(parts[rank]).tobytes()


def test_that_nothing_is_divided_crosses_processes_whole() -> None:
    error = prefixed(NothingDivided("m.onnx", 2, {"a": "no rule"}), "build failed! ")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (NothingDivided, str(error))
    assert (again.path, again.model, again.ranks) == ("m.onnx", "m.onnx", 2)
    assert again.nodes == {"a": "no rule"}
    assert own_text(again) == own_text(error)
