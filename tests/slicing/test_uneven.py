"""Axes whose size is no multiple of the ranks are divided, as evenly as they can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from slicing_models import Builder, assert_ranks_give, floats

from engine import sharding
from engine.context import Context
from engine.layouts.own_attributes import of_rank, set_for_ranks
from engine.layouts.states import division, joined, lengths, part, shard
from engine.sharding import NodeStrategy, Strategy, slice_model

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(
    ("size", "ranks", "unit", "expected"),
    [
        (10, 4, 1, (3, 3, 2, 2)),
        (13, 4, 1, (4, 3, 3, 3)),
        (50257, 2, 1, (25129, 25128)),
        (25 * 64, 2, 64, (13 * 64, 12 * 64)),
        (12, 4, 0, (3, 3, 3, 3)),
    ],
)
def test_parts_are_as_even_as_they_can_be(
    size: int, ranks: int, unit: int, expected: tuple[int, ...]
) -> None:
    assert lengths(size, ranks, unit) == expected
    assert sum(expected) == size


def test_equal_parts_are_taken_where_there_are_some() -> None:
    assert division(1, (12,), 2) == shard(1)
    assert division(1, (12, 12), 2, 3) == shard(1, (12, 12))
    assert division(1, (12, 12), 2, 4) == shard(1, (12, 12), 4)  # 3 heads of 4 each
    assert division(1, (13,), 2, is_even=True) is None
    assert division(1, (3,), 4) is None  # a rank would have nothing


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    ("state", "size"),
    [(shard(0, unit=1), 13), (shard(1, (5, 7, 9), 1), 21), (shard(1, (12, 8), 2), 20)],
)
def test_uneven_parts_make_up_the_tensor(state: Any, size: int, ranks: int) -> None:
    shape = (size, 3) if state.axis == 0 else (3, size)
    whole = np.arange(size * 3).reshape(shape)
    parts = [part(whole, state, rank, ranks) for rank in range(ranks)]
    assert len({one.shape for one in parts}) > 1 or size % ranks == 0
    np.testing.assert_array_equal(joined(parts, state), whole)


def test_attributes_may_differ_from_rank_to_rank() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=5, pads=[1, 1])
    set_for_ranks(node, "group", [3, 2])
    set_for_ranks(node, "pads", [[1, 1], [0, 1]])
    for rank, (group, pads) in enumerate([(3, [1, 1]), (2, [0, 1])]):
        own = {a.name: helper.get_attribute_value(a) for a in of_rank(node, rank).attribute}
        assert own == {"group": group, "pads": pads}


# ------------------------------------------------------------------------------------ patterns


def vocabulary(g: Builder) -> tuple[str, dict[str, Array]]:
    """An embedding of 251 words that is the last product's weights, too."""
    table = g.weight(251, 12)
    h = g.add("Gather", table, "ids")
    h = g.add("Relu", g.dense(h, 12, 12))
    return g.add("MatMul", h, g.add("Transpose", table, perm=[1, 0])), {
        "ids": np.array([[0, 250, -1, 126, 125]], np.int64)
    }


def heads(g: Builder) -> tuple[str, dict[str, Array]]:
    """Attention of 5 heads, written out, with fused projections."""
    number, width = 5, 4
    qkv = g.dense("x", 20, 60)
    qkv = g.add("Reshape", qkv, g.ints(2, 6, 3, number, width))
    parts = g.add("Split", qkv, g.ints(1, 1, 1), outputs=3, axis=2)
    q, k, v = (
        g.add("Transpose", g.add("Squeeze", one, g.ints(2)), perm=[0, 2, 1, 3]) for one in parts
    )
    scores = g.add("Softmax", g.add("MatMul", q, g.add("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    y = g.add("Transpose", g.add("MatMul", scores, v), perm=[0, 2, 1, 3])
    return g.dense(g.add("Reshape", y, g.ints(2, 6, 20)), 20, 20), {"x": floats(2, 6, 20)}


def attention(g: Builder) -> tuple[str, dict[str, Array]]:
    """The operator, with 10 heads of queries for 5 of keys."""
    q, k, v = g.dense("x", 12, 40), g.dense("x", 12, 20), g.dense("x", 12, 20)
    y = g.add("Attention", q, k, v, q_num_heads=10, kv_num_heads=5)
    return g.dense(y, 40, 12), {"x": floats(2, 6, 12)}


def groups(g: Builder) -> tuple[str, dict[str, Array]]:
    """Convolutions of 7 groups, between dense ones."""
    h = g.add("Conv", "x", g.weight(14, 3, 1, 1), g.weight(14))
    h = g.add("Conv", h, g.weight(21, 2, 3, 3), g.weight(21), group=7)
    h = g.add("GlobalAveragePool", g.add("Relu", h))
    return g.add("Conv", h, g.weight(5, 21, 1, 1)), {"x": floats(2, 3, 6, 6)}


def normalised(g: Builder) -> tuple[str, dict[str, Array]]:
    h = g.add("Conv", "x", g.weight(15, 3, 1, 1))
    h = g.add("GroupNormalization", h, g.weight(15), g.weight(15), num_groups=5)
    return g.add("Conv", h, g.weight(5, 15, 1, 1)), {"x": floats(2, 3, 4, 4)}


def gated(g: Builder) -> tuple[str, dict[str, Array]]:
    """A gate and what it is for in one product, taken apart by Slice."""
    both = g.dense("x", 9, 26)
    if g.opset < 10:
        one, other = (
            g.add("Slice", both, starts=[start], ends=[start + 13], axes=[-1]) for start in (0, 13)
        )
    else:
        one, other = (
            g.add("Slice", both, g.ints(start), g.ints(start + 13), g.ints(-1)) for start in (0, 13)
        )
    return g.dense(g.add("Mul", g.add("Sigmoid", one), other), 13, 7), {"x": floats(4, 9)}


def joined_columns(g: Builder) -> tuple[str, dict[str, Array]]:
    """Columns of products of 5, 7 and 8 beside each other, and their shape."""
    parts = [g.dense("x", 6, width) for width in (5, 7, 8)]
    h = g.add("Concat", *parts, axis=1)
    sizes = g.add("Shape", h)
    y = g.dense(g.add("Relu", h), 20, 11)
    return g.add("Add", y, g.add("Cast", g.add("ReduceSum", sizes), to=TensorProto.FLOAT)), {
        "x": floats(3, 6)
    }


def product(g: Builder) -> tuple[str, dict[str, Array]]:
    h = g.add("Gemm", "x", g.weight(13, 9), g.weight(13), transB=1, alpha=0.5)
    h = g.add("Gemm", g.add("Relu", h), g.weight(13, 11), g.weight(11), beta=2.0)
    return g.add("Einsum", h, g.weight(11, 5), equation="ij,jk->ik"), {"x": floats(3, 9)}


PATTERNS: dict[str, tuple[Callable[[Builder], tuple[str, dict[str, Array]]], int]] = {
    "vocabulary": (vocabulary, 17),
    "heads": (heads, 17),
    "attention": (attention, 23),
    "groups": (groups, 17),
    "normalised": (normalised, 21),
    "gated": (gated, 17),
    "gated in operator set 9": (gated, 9),
    "joined columns": (joined_columns, 17),
    "product": (product, 17),
}


def saved(g: Builder, folder: Path, y: str, inputs: dict[str, Array]) -> Path:
    dtypes = {n: TensorProto.INT64 for n, v in inputs.items() if v.dtype == np.int64}
    return g.save(folder / "model.onnx", {n: v.shape for n, v in inputs.items()}, [y], dtypes)


@pytest.mark.parametrize("tp", [2, pytest.param(3, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_of_odd_sizes_give_the_models_numbers(
    name: str, tp: int, null_context: Context, tmp_path: Path
) -> None:
    pattern, opset = PATTERNS[name]
    g = Builder(opset=opset)
    y, inputs = pattern(g)
    path = saved(g, tmp_path, y, inputs)
    report = slice_model(path, tmp_path / "out", tp=tp, context=null_context)
    assert_ranks_give(path, report, inputs, null_context)
    most = max(matrices(Path(file)) for file in report.files)
    assert most <= {2: 0.65, 3: 0.55, 4: 0.5}[tp] * matrices(path)


def matrices(path: Path) -> int:
    """Count the elements of the float weights of two axes or more that a model holds."""
    held = onnx.load(path).graph.initializer
    return sum(
        int(np.prod(tensor.dims))
        for tensor in held
        if len(tensor.dims) > 1 and tensor.data_type == TensorProto.FLOAT
    )


def random_model(seed: int) -> tuple[Builder, str, dict[str, Array]]:
    """A chain of random layers of odd widths, with branches."""
    chance = np.random.default_rng(seed)
    g = Builder(seed=seed)
    widths = [5, 6, 7, 9, 10, 13, 15]
    width = int(chance.choice(widths))
    inputs = {"x": chance.standard_normal((3, 4, width)).astype(np.float32)}
    h = "x"
    for _ in range(int(chance.integers(3, 8))):
        kind = chance.integers(0, 10)
        out = int(chance.choice(widths))
        if kind <= 2:
            h, width = g.dense(h, width, out), out
        elif kind == 3:
            h = g.add("Add", h, g.dense(g.add("Relu", g.dense(h, width, out)), out, width))
        elif kind == 4:
            h = g.add("LayerNormalization", h, g.weight(width), g.weight(width), axis=-1)
        elif kind == 5:
            other = g.dense(h, width, out)
            h, width = g.add("Concat", h, other, axis=2), width + out
        elif kind == 6 and width > 1:
            first = int(chance.integers(1, max(width, 2)))
            sizes = g.ints(first, width - first)
            one, _ = g.add("Split", g.dense(h, width, width), sizes, outputs=2, axis=-1)
            h, width = one, first
        elif kind == 7:
            h = g.add("Softmax", g.dense(h, width, width), axis=int(chance.integers(0, 3)))
        elif kind == 8:
            h = g.add("Reshape", g.dense(h, width, out * 3), g.ints(0, 0, out, 3))
            h, width = g.add("ReduceMax", h, axes=[3], keepdims=0), out
        else:
            h = g.add("Transpose", g.dense(h, width, 4), perm=[0, 2, 1])
            width = 4
    return g, h, inputs


@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 120))]
)
def test_random_models_of_odd_sizes_give_the_models_numbers(
    seed: int, tp: int, null_context: Context, tmp_path: Path
) -> None:
    g, y, inputs = random_model(seed)
    path = saved(g, tmp_path, y, inputs)
    report = slice_model(
        path, tmp_path / "out", tp=tp, replicas=True, check=False, context=null_context
    )
    assert_ranks_give(path, report, inputs, null_context)


# ------------------------------------------------------------------------------ layouts of sets


@pytest.mark.parametrize("axis", [0, 1])
def test_sets_of_uneven_parts_are_merged_and_sliced_anew(
    axis: int, null_context: Context, tmp_path: Path
) -> None:
    whole = floats(13, 11)
    slicings = {}
    for tp in (2, 3, 4):
        g = Builder()
        name = g.constant(whole)
        path = g.save(tmp_path / "net.onnx", {"x": [4, 13]}, [g.add("MatMul", "x", name)])
        splits = ((1, tp), (tp, 1)) if axis == 0 else ((1, 1), (1, tp))
        strategy = Strategy({"MatMul_0": NodeStrategy(splits)})
        out = tmp_path / f"tp{tp}"
        slice_model(path, out, tp=tp, strategy=strategy, context=null_context)
        slicings[tp] = out / "net.strategy.json"
        for rank in range(tp):
            model = onnx.load(out / f"net{rank}.onnx")
            [own] = [t for t in model.graph.initializer if t.name.startswith(name)]
            array = onnx.numpy_helper.to_array(own)
            expected = np.array_split(whole, tp, axis)[rank]
            np.testing.assert_array_equal(array, expected)
            sharding.save_checkpoint({"w": array}, out / "ckpt" / f"rank_{rank}" / "net.ckpt")
        layout = Strategy.load(slicings[tp]).layouts[name]
        Strategy(layouts={"w": layout}).save(slicings[tp])
    merged = tmp_path / "merged"
    sharding.transform_checkpoints(tmp_path / "tp3" / "ckpt", merged, "net", slicings[3])
    [file] = merged.rglob("*.ckpt")
    np.testing.assert_array_equal(sharding.load_checkpoint(file)["w"].asnumpy(), whole)
    again = tmp_path / "again"
    sharding.transform_checkpoints(
        tmp_path / "tp2" / "ckpt", again, "net", slicings[2], slicings[4]
    )
    for rank, expected in enumerate(np.array_split(whole, 4, axis)):
        [file] = (again / f"rank_{rank}").glob("*.ckpt")
        np.testing.assert_array_equal(sharding.load_checkpoint(file)["w"].asnumpy(), expected)


def test_what_was_done_unevenly_is_a_strategy_that_does_it_again(
    null_context: Context, tmp_path: Path
) -> None:
    g = Builder()
    y, inputs = joined_columns(g)
    path = saved(g, tmp_path, y, inputs)
    first = slice_model(path, tmp_path / "one", tp=4, context=null_context, annotate=True)
    strategy = tmp_path / "one" / first.strategy
    for again in (
        slice_model(path, tmp_path / "two", tp=4, strategy=strategy, context=null_context),
        slice_model(
            tmp_path / "one" / "model.annotated.onnx",
            tmp_path / "three",
            tp=4,
            context=null_context,
        ),
    ):
        assert [r.weight_bytes for r in again.ranks] == [r.weight_bytes for r in first.ranks]
        assert again.collectives == first.collectives


@pytest.mark.parametrize("pp", [2, 3])
def test_stages_exchange_uneven_parts(pp: int, null_context: Context, tmp_path: Path) -> None:
    g = Builder()
    h = "x"
    for _ in range(4):
        h = g.add("Relu", g.dense(h, 13, 13))
    path = g.save(tmp_path / "model.onnx", {"x": [4, 13]}, [h])
    # The batch of 4 is left alone: what goes from stage to stage is divided unevenly.
    splits = {f"Relu_{2 + 3 * n}": NodeStrategy(((1, 2),)) for n in range(4)}
    report = slice_model(
        path, tmp_path / "out", tp=2, pp=pp, strategy=Strategy(splits), context=null_context
    )
    assert_ranks_give(path, report, {"x": floats(4, 13)}, null_context)
    received = {
        tuple(helper.get_attribute_value(attribute))
        for file in report.files
        for node in onnx.load(file).graph.node
        if node.op_type == "Receive"
        for attribute in node.attribute
        if attribute.name == "sizes"
    }
    assert (4, 7) in received
    assert (4, 6) in received or pp == 2  # what is brought to one length may be sent on as well


def test_ranks_hold_next_to_their_part_of_a_vocabulary(
    null_context: Context, tmp_path: Path
) -> None:
    g = Builder()
    y, inputs = vocabulary(g)
    path = saved(g, tmp_path, y, inputs)
    report = slice_model(path, tmp_path / "out", tp=2, check=False)
    assert max(r.weight_bytes for r in report.ranks) <= 0.55 * report.weight_bytes
