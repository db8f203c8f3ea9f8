"""Sums whose bits are those of a sample alone, whatever the batch; and runners that use them.

A sample's bits are expected from the same model without the option, which runs it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest

import engine
from engine import Context, Model, ModelError, ModelParallelRunner
from engine.types import CompileOptions, Device
from engine_cpu.compiled import compiled_key
from engine_testing.making import graph

Array = np.ndarray[Any, Any]
ON = {"cpu_context": {"batch_invariant": "on"}}
NUMPY: dict[str, Callable[..., Array]] = {"ReduceMean": np.mean, "ReduceSum": np.sum}


def write(
    folder: Path,
    operator: str,
    axes: Sequence[int],
    dims: Sequence[int | str],
    *,
    keepdims: int = 1,
    opset: int = 18,
    batch: int | str = "b",
) -> Path:
    """A reduction of twice x over axes, as the operator set writes them."""
    is_input = opset >= (13 if operator == "ReduceSum" else 18)
    given = "(d, axes)" if is_input else "(d)"
    more = "" if is_input else f", axes = {[*axes]}"
    rank = len(dims) + 1 - (0 if keepdims else len(axes))
    kinds = [", ".join(map(str, shape)) for shape in ([batch, *dims], [batch, *"?" * (rank - 1)])]
    text = f"""(float[{kinds[0]}] x) => (float[{kinds[1]}] y) {{
        d = Add (x, x)
        [reduced] y = {operator} <keepdims = {keepdims}{more}> {given}
    }}"""
    constants = {"axes": np.array(axes, np.int64)} if is_input else {}
    return graph(folder, "net", text, constants, opset=opset, valid=False)


def samples(dims: Sequence[int], count: int = 8) -> Array:
    return np.random.default_rng(1).standard_normal((count, *dims)).astype(np.float32)


def run(model: Model, x: Array) -> Array:
    [y] = model.predict([x])
    return y.get_data_to_numpy()


def is_rewritten(model: Model) -> bool:
    return any("one order" in place.reason for place in model.placement)


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize(("keepdims", "opset"), [(0, 18), (1, 18), (0, 12), (1, 12)])
@pytest.mark.parametrize(
    ("dims", "axes"),
    [
        ((16, 128), (1,)),
        ((16, 128), (2,)),
        ((16, 128), (1, 2)),
        ((7, 5), (-2,)),
        ((33, 1), (1,)),
        ((1, 9), (1,)),
        ((5, 4, 32), (1,)),
        ((5, 4, 32), (2,)),
        ((5, 4, 32), (2, 1)),
        ((5, 4, 32), (1, 3)),
        ((7, 7, 64), (1, 2)),
    ],
)
def test_a_sample_has_the_same_bits_in_every_batch(
    tmp_path: Path,
    operator: str,
    keepdims: int,
    opset: int,
    dims: tuple[int, ...],
    axes: tuple[int, ...],
) -> None:
    open_dims = [f"d{axis}" for axis in range(len(dims))]
    path = write(tmp_path, operator, axes, open_dims, keepdims=keepdims, opset=opset)
    x = samples(dims)
    with engine.load(path) as plain, engine.load(path, config=ON) as invariant:
        alone = [run(plain, x[i : i + 1]) for i in range(len(x))]
        for size in (1, 2, 3, 5, 8):
            together = run(invariant, x[:size])
            for i in range(size):
                assert together[i : i + 1].tobytes() == alone[i].tobytes(), (size, i)
        reduced = NUMPY[operator](2 * x.astype(float), axis=axes, keepdims=bool(keepdims))
        np.testing.assert_allclose(run(invariant, x), reduced, atol=1e-4)
        assert not is_rewritten(plain)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_batches_and_axes_of_no_size_stay_as_they_are(tmp_path: Path, keepdims: int) -> None:
    path = write(tmp_path, "ReduceSum", [1], ["s", "w"], keepdims=keepdims)
    with engine.load(path) as plain, engine.load(path, config=ON) as invariant:
        assert is_rewritten(invariant)
        for shape in ((0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)):
            x = np.zeros(shape, np.float32)
            expected, found = run(plain, x), run(invariant, x)
            assert found.shape == expected.shape
            assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("axes", "batch"),
    [((2,), "b"), ((1, 2), "b"), ((0,), "b"), ((1,), 4)],
)
def test_sums_of_one_order_already_are_left_alone(
    tmp_path: Path, axes: Sequence[int], batch: int | str
) -> None:
    path = write(tmp_path, "ReduceSum", axes, ["s", 6], batch=batch)
    with engine.load(path, config=ON) as model:
        assert not is_rewritten(model)


def test_a_compiled_form_is_of_one_setting() -> None:
    keys = [
        compiled_key(CompileOptions(device=Device("cpu"), options=options), "1")
        for options in ({}, {"batch_invariant": "on"})
    ]
    assert keys[0] != keys[1]


def test_a_warm_model_has_the_bits_of_its_own_setting(tmp_path: Path) -> None:
    path = write(tmp_path, "ReduceSum", [1], ["s", 64])
    kept = {"common_context": {"compile_cache": "on", "model_cache_dir": str(tmp_path / "cache")}}
    x = samples((16, 64))
    found = []
    for config in (kept, {**kept, **ON}, {**kept, **ON}, kept):  # cold twice, then warm
        with engine.load(path, config=config) as model:
            found.append((is_rewritten(model), run(model, x).tobytes()))
    assert [is_invariant for is_invariant, _ in found] == [False, True, True, False]
    assert found[1] == found[2]
    assert found[0] == found[3]


def test_a_wrong_value_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "ReduceSum", [1], ["s", 6])
    with pytest.raises(ValueError, match="'batch_invariant': expected true or false, got 'very'"):
        engine.load(path, config={"cpu_context": {"batch_invariant": "very"}})


# ------------------------------------------------------------------------------------- in a runner


def serve(path: Path, most: int, **settings: str) -> ModelParallelRunner:
    context = Context()
    context.parallel.workers_num = 1
    if settings:
        context.parallel.config_info = {"cpu_context": settings}
    runner = ModelParallelRunner()
    runner.build_from_file(str(path), context, max_batch_size=most, max_delay_us=50_000)
    return runner


def test_a_runner_shares_runs_of_a_model_that_only_rounds_by_the_batchs_size(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "ReduceMean", [1], ["s", 128], keepdims=0)
    x = samples((16, 128))
    with engine.load(path) as model:
        alone = [run(model, x[i : i + 1]).tobytes() for i in range(len(x))]
    found: dict[int, bytes] = {}
    start = Barrier(len(x))

    def client(number: int) -> None:
        start.wait(60)
        [y] = runner.predict([x[number : number + 1]])
        found[number] = y.get_data_to_numpy().tobytes()

    with serve(path, 8) as runner:
        threads = [Thread(target=client, args=(number,)) for number in range(len(x))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statistics = runner.statistics()
    assert [found[number] for number in range(len(x))] == alone
    assert "built with batch_invariant = on in [cpu_context]" in statistics.batching
    assert max(statistics.batch_sizes) > 1


def test_a_user_who_has_set_the_option_has_decided(tmp_path: Path) -> None:
    path = write(tmp_path, "ReduceMean", [1], ["s", 128], keepdims=0)
    with pytest.raises(ModelError, match="give other bits than one by one"):
        serve(path, 8, batch_invariant="off")
    with serve(path, 8, batch_invariant="on") as runner:
        assert "up to 8: as asked for" in runner.statistics().batching
        assert "built with" not in runner.statistics().batching
