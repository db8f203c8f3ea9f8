"""Weights that the core holds: an update is one for a whole predict, whatever runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_device
import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from plan_models import node, save, value

import engine
from engine.errors import InputError, ModelError, ModelStateError
from engine.formats import open_source
from engine.formats.opened import OpenedSource, Slot
from engine.plan import BuildOptions, Targets, build_plan
from engine.plan.plan import Plan
from engine.types import Device, DType

needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)

Install = Callable[..., ModuleType]


def source_of(path: Path, **weights: np.ndarray) -> OpenedSource:
    slots = tuple(
        Slot(name, DType.from_numpy(array.dtype), array.shape, array)
        for name, array in weights.items()
    )
    return replace(open_source(path), variables=slots)


def build(
    path: Path, target: list[str], config: Any = None, *names: str, **weights: np.ndarray
) -> Plan:
    context = engine.Context()
    context.target = target
    targets = Targets(BuildOptions(context, config or {}))
    return build_plan(source_of(path, **weights), targets, variable_weights=names or [*weights])


INT64 = TensorProto.INT64


def two_segments(folder: Path) -> Path:
    """y = (x + v) * 1000003 + w: v is read by the first backend, w by the second, exactly."""
    nodes: list[NodeProto] = [
        node("Add", "x v", "a"),
        node("Mul", "a k", "b"),
        node("Neg", "b", "c"),
        node("Neg", "c", "d"),
        node("Add", "d w", "y"),
    ]
    return save(
        folder,
        nodes,
        inputs=[value("x", ["n"], INT64), value("v", [1], INT64), value("w", [1], INT64)],
        outputs=[value("y", ["n"], INT64)],
        constants={"k": np.array(1000003, np.int64)},
    )


def of(number: int) -> dict[str, np.ndarray]:
    return {"v": np.array([number]), "w": np.array([7 * number])}


@needs_cpu
def test_no_predict_sees_old_and_new_weights_in_two_segments(
    null_backend: str, tmp_path: Path
) -> None:
    config = {"null_context": {"unsupported_ops": "Mul"}}
    plan = build(two_segments(tmp_path), ["null", "cpu"], config, **of(0))
    assert len(plan.executable._inner.segments) == 3  # type: ignore[attr-defined]
    assert [spec.name for spec in plan.executable.inputs] == ["x"]
    assert plan.weights is not None
    done = threading.Event()
    wrong: list[Any] = []
    counts: list[int] = []

    def predict() -> None:
        lease = plan.pool.borrow()
        context = lease.context
        x = np.array([5, 6])
        count, newest = 0, 0
        while not done.is_set() or not count:
            [y] = plan.predict(context, [x], None, None)
            # y = (x + n) * 1000003 + 7 n: n follows from each element, and must be one.
            numbers = (y - x * 1000003) / (1000003 + 7)
            if numbers[0] != numbers[1] or numbers[0] != int(numbers[0]) or numbers[0] < newest:
                wrong.append(y)
            newest, count = numbers[0], count + 1
        counts.append(count)
        plan.pool.give_back(lease)

    threads = [threading.Thread(target=predict) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 10_001):
        plan.weights.update(of(number))
    done.set()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len(counts) == 2
    lease = plan.pool.borrow()
    context = lease.context
    [y] = plan.predict(context, [np.array([0])], None, None)
    assert y.tolist() == [10_000 * (1000003 + 7)]
    plan.pool.give_back(lease)
    plan.pool.close()


@pytest.mark.parametrize("target", [["null"], pytest.param(["cpu"], marks=needs_cpu)])
def test_one_segment_gives_what_it_gave_with_its_first_weights(
    null_backend: str, tmp_path: Path, target: list[str]
) -> None:
    plan = build(two_segments(tmp_path), target, **of(2))
    assert plan.weights is not None
    lease = plan.pool.borrow()
    context = lease.context
    buffer = [np.zeros(1, np.int64)]
    [y] = plan.predict(context, [np.array([1])], None, None)
    assert y.tolist() == [3 * 1000003 + 14]
    mine = of(5)
    plan.weights.update(mine)
    mine["w"][...] = 99  # a copy was taken
    for _ in range(3):
        assert plan.predict(context, [np.array([1])], buffer, None) is buffer
        assert buffer[0].tolist() == [6 * 1000003 + 35]
    plan.weights.update({"w": np.array([1])})
    [y] = plan.predict(context, [np.array([1])], None, None)
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
    ],
)
def test_weights_that_do_not_fit_change_nothing(
    null_backend: str, tmp_path: Path, weights: dict[str, Any], message: str
) -> None:
    plan = build(two_segments(tmp_path), ["null"], **of(2))
    assert plan.weights is not None
    with pytest.raises(InputError, match=message):
        plan.weights.update(weights)
    lease = plan.pool.borrow()
    context = lease.context
    [y] = plan.predict(context, [np.array([1])], None, None)
    assert y.tolist() == [3 * 1000003 + 14]


def test_a_declared_weight_that_reaches_no_output_is_an_error(
    null_backend: str, tmp_path: Path
) -> None:
    path = save(
        tmp_path,
        [node("Neg", "x", "y"), node("Add", "x v", "unread")],
        inputs=[value("x"), value("v", [1])],
    )
    with pytest.raises(ModelError, match="weight 'v' was declared variable, but no output"):
        build(path, ["null"], v=np.ones(1, np.float32))


def test_a_weight_that_only_a_body_reads_is_reached(null_backend: str, tmp_path: Path) -> None:
    def body(name: str) -> Any:
        inner = [helper.make_node("Add", ["x", "v"], [name])]
        return helper.make_graph(inner, name, [], [value(name, ["n"])])

    path = save(
        tmp_path,
        [node("If", "on", "y", then_branch=body("then"), else_branch=body("else"))],
        inputs=[value("x"), value("v", [1])],
        constants={"on": np.array(True)},
    )
    plan = build(path, ["null"], v=np.ones(1, np.float32))
    lease = plan.pool.borrow()
    context = lease.context
    [y] = plan.predict(context, [np.zeros(2, np.float32)], None, None)
    assert y.tolist() == [1, 1]


def test_a_declaration_without_weights_is_an_error(null_backend: str, tmp_path: Path) -> None:
    path = save(tmp_path, [node("Neg", "x", "y")])
    context = engine.Context()
    context.target = ["null"]
    with pytest.raises(InputError, match="has no weights that can be exchanged"):
        build_plan(open_source(path), Targets(BuildOptions(context, {})), variable_weights=["v"])


def test_weights_that_a_device_reads_lie_there_before_they_are_exchanged(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    source = fake_device.SOURCE.replace("{name!r}", "'device'")
    device = install("device", extra=source, capabilities=fake_device.CAPABILITIES)
    install("host")
    config = {"device_context": {"unsupported_ops": "Mul"}}
    plan = build(two_segments(tmp_path), ["device", "host"], config, **of(3))
    assert plan.weights is not None
    homes = [getattr(weight, "device", None) for weight in plan.weights.values]
    assert homes == [Device("null", 0), Device("null", 0)]
    lease = plan.pool.borrow()
    context = lease.context
    for number in (3, 4, 4, 4):
        plan.weights.update(of(number))
        device.copies.clear()
        [y] = plan.predict(context, [np.array([1])], None, None)
        assert y.tolist() == [(1 + number) * 1000003 + 7 * number]
        assert device.copies == []


def test_a_weight_that_the_host_reads_too_stays_on_the_host(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    source = fake_device.SOURCE.replace("{name!r}", "'device'")
    install("device", extra=source, capabilities=fake_device.CAPABILITIES)
    install("host")
    nodes = [node("Add", "x v", "a"), node("Mul", "a v", "b"), node("Neg", "b", "y")]
    path = save(
        tmp_path,
        nodes,
        inputs=[value("x", ["n"], INT64), value("v", [1], INT64)],
        outputs=[value("y", ["n"], INT64)],
    )
    config = {"device_context": {"unsupported_ops": "Mul"}}
    plan = build(path, ["device", "host"], config, v=np.array([3]))
    assert plan.weights is not None
    assert isinstance(plan.weights.values[0], np.ndarray)
    lease = plan.pool.borrow()
    context = lease.context
    for _ in range(3):
        [y] = plan.predict(context, [np.array([1])], None, None)
        assert y.tolist() == [-12]


def test_weights_of_a_closed_model_are_not_exchanged(null_backend: str, tmp_path: Path) -> None:
    plan = build(two_segments(tmp_path), ["null"], **of(1))
    assert plan.weights is not None
    plan.weights.update(of(2))
    plan.pool.close()
    with pytest.raises(ModelStateError, match="the model is closed; build a new one"):
        plan.weights.update(of(3))


def test_a_masked_array_is_no_weight(null_backend: str, tmp_path: Path) -> None:
    plan = build(two_segments(tmp_path), ["null"], **of(1))
    assert plan.weights is not None
    masked = np.ma.masked_array(np.array([5]), mask=[True])
    with pytest.raises(InputError, match=r"weight 'v': expected .*, got a masked array; fill"):
        plan.weights.update({"v": masked})
    lease = plan.pool.borrow()
    [y] = plan.predict(lease.context, [np.array([0])], None, None)
    assert y.tolist() == [1000003 + 7]
    plan.pool.discard(lease)
