"""Weights that the core holds: an update is one for a whole predict, whatever runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_models import predicting, refusing, save

import engine
from engine.errors import InputError, ModelError, ModelStateError
from engine.formats import open_source
from engine.formats.opened import Slot
from engine.plan import BuildOptions, Targets, build_plan
from engine.plan.plan import Plan
from engine.types import Device, DType

needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)

Install = Callable[..., ModuleType]


def build(path: Path, target: list[str], config: Any = None, **weights: np.ndarray) -> Plan:
    """Compile a model of which some inputs are declared weights."""
    slots = tuple(
        Slot(name, DType.from_numpy(array.dtype), array.shape, array)
        for name, array in weights.items()
    )
    context = engine.Context()
    context.target = target
    source = replace(open_source(path), variables=slots)
    targets = Targets(BuildOptions(context, config or {}))
    plan = build_plan(source, targets, variable_weights=[*weights])
    assert plan.weights is not None
    return plan


@pytest.fixture
def two_segments(null_backend: str, tmp_path: Path) -> Path:
    """y = (x + v) * 1000003 + w: v is read by the first backend, w by the second, exactly."""
    nodes = "a = Add(x, v); b = Mul(a, k); c = Neg(b); d = Neg(c); y = Add(d, w)"
    values = "(int64[n] x, int64[1] v, int64[1] w) => (int64[n] y)"
    return save(tmp_path, nodes, values, {"k": np.array(1000003)})


def of(number: int) -> dict[str, np.ndarray]:
    return {"v": np.array([number]), "w": np.array([7 * number])}


@needs_cpu
def test_no_predict_sees_old_and_new_weights_in_two_segments(two_segments: Path) -> None:
    plan = build(two_segments, ["null", "cpu"], refusing(null="Mul"), **of(0))
    assert len(plan.executable.inner.segments) == 3  # type: ignore[attr-defined]
    assert [spec.name for spec in plan.executable.inputs] == ["x"]
    done = threading.Event()
    wrong: list[Any] = []
    counts: list[int] = []

    def run() -> None:
        predict, x = predicting(plan), np.array([5, 6])
        count, newest = 0, 0
        while not done.is_set() or not count:
            [y] = predict(x)
            # y = (x + n) * 1000003 + 7 n: n follows from each element, and must be one.
            numbers = (y - x * 1000003) / (1000003 + 7)
            if numbers[0] != numbers[1] or numbers[0] != int(numbers[0]) or numbers[0] < newest:
                wrong.append(y)
            newest, count = numbers[0], count + 1
        counts.append(count)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 3001):
        plan.weights.update(of(number))
    done.set()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len(counts) == 2
    [y] = predicting(plan)(np.array([0]))
    assert y.tolist() == [3000 * (1000003 + 7)]


@pytest.mark.parametrize("target", [["null"], pytest.param(["cpu"], marks=needs_cpu)])
def test_one_segment_gives_what_it_gave_with_its_first_weights(
    two_segments: Path, target: list[str]
) -> None:
    plan = build(two_segments, target, **of(2))
    predict, x = predicting(plan), np.array([1])
    buffer = [np.zeros(1, np.int64)]
    [y] = predict(x)
    assert y.tolist() == [3 * 1000003 + 14]
    mine = of(5)
    plan.weights.update(mine)
    mine["w"][...] = 99  # a copy was taken
    for _ in range(3):
        assert predict(x, outputs=buffer) is buffer
        assert buffer[0].tolist() == [6 * 1000003 + 35]
    plan.weights.update({"w": np.array([1])})
    [y] = predict(x)
    assert y.tolist() == [6 * 1000003 + 1]
    assert plan.executable.memory().weights_bytes >= 16
    held = [report.weights_bytes for backend, _, report in plan.memory() if not backend]
    assert sum(held) == sum(array.nbytes for array in of(2).values()), "the core's"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"v": np.array([1]), "ww": np.array([1])}, "'ww' was not declared.*did you mean 'w'"),
        ({"v": np.array([1]), "w": np.array([1, 2])}, r"'w': expected int64\[1\], got int64\[2\]"),
        ({"v": np.array([1]), "w": np.array([1.0])}, r"expected int64\[1\], got float64\[1\]"),
        ({"v": np.array([1]), "w": [1]}, r"expected int64\[1\], got list"),
        ({"v": np.ma.masked_array(np.array([5]), mask=[True])},
         r"weight 'v': expected .*, got a masked array; fill"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_change_nothing(
    two_segments: Path, weights: dict[str, Any], message: str
) -> None:
    plan = build(two_segments, ["null"], **of(2))
    with pytest.raises(InputError, match=message):
        plan.weights.update(weights)
    [y] = predicting(plan)(np.array([1]))
    assert y.tolist() == [3 * 1000003 + 14]


def test_a_declared_weight_that_reaches_no_output_is_an_error(
    null_backend: str, tmp_path: Path
) -> None:
    values = "(float[n] x, float[1] v) => (float[n] y)"
    path = save(tmp_path, "y = Neg(x); unread = Add(x, v)", values)
    with pytest.raises(ModelError, match="weight 'v' was declared variable, but no output"):
        build(path, ["null"], v=np.ones(1, np.float32))


def test_a_weight_that_only_a_body_reads_is_reached(null_backend: str, tmp_path: Path) -> None:
    nodes = """y = If (on) <then_branch = one () => (float[n] s) { s = Add(x, v) },
                            else_branch = two () => (float[n] t) { t = Add(x, v) }>"""
    values = "(float[n] x, float[1] v) => (float[n] y)"
    path = save(tmp_path, nodes, values, {"on": np.array(True)})
    [y] = predicting(build(path, ["null"], v=np.ones(1, np.float32)))(np.zeros(2, np.float32))
    assert y.tolist() == [1, 1]


def test_a_declaration_without_weights_is_an_error(null_backend: str, tmp_path: Path) -> None:
    source, context = open_source(save(tmp_path, "y = Neg(x)")), engine.Context()
    context.target = ["null"]
    with pytest.raises(InputError, match="has no weights that can be exchanged"):
        build_plan(source, Targets(BuildOptions(context, {})), variable_weights=["v"])


def test_weights_that_a_device_reads_lie_there_before_they_are_exchanged(
    install_device: Install, second: ModuleType, two_segments: Path
) -> None:
    device = install_device()
    plan = build(two_segments, ["device", "second"], refusing(device="Mul"), **of(3))
    homes = [getattr(weight, "device", None) for weight in plan.weights.values]
    assert homes == [Device("null", 0), Device("null", 0)]
    predict = predicting(plan)
    for number in (3, 4, 4, 4):
        plan.weights.update(of(number))
        device.copies.clear()
        [y] = predict(np.array([1]))
        assert y.tolist() == [(1 + number) * 1000003 + 7 * number]
        assert device.copies == []


def test_a_weight_that_the_host_reads_too_stays_on_the_host(
    install_device: Install, second: ModuleType, tmp_path: Path
) -> None:
    install_device()
    values = "(int64[n] x, int64[1] v) => (int64[n] y)"
    path = save(tmp_path, "a = Add(x, v); b = Mul(a, v); y = Neg(b)", values)
    plan = build(path, ["device", "second"], refusing(device="Mul"), v=np.array([3]))
    assert isinstance(plan.weights.values[0], np.ndarray)
    predict = predicting(plan)
    for _ in range(3):
        [y] = predict(np.array([1]))
        assert y.tolist() == [-12]


def test_weights_of_a_closed_model_are_not_exchanged(two_segments: Path) -> None:
    plan = build(two_segments, ["null"], **of(1))
    plan.pool.close()
    with pytest.raises(ModelStateError, match="the model is closed; build a new one"):
        plan.weights.update(of(3))
