"""Contexts: how many, beside one another, cancelled. Emulated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import Cancelled, DeadlineExceeded
from engine.types import Capability
from engine_ascend_ge import engine_devices
from engine_testing import models

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def affine(build: Any, make_om: Any, tmp_path: Path) -> Callable[..., Any]:
    """affine(**fields) -> an executable for y = 2x + 1, x float32[2, 3]."""
    path = make_om(models.affine(tmp_path), input_shape="x:2,3")
    return lambda **fields: build(path, **fields)


def test_how_many_predicts_at_once_is_an_option(affine: Any) -> None:
    assert affine().concurrency == 4
    assert affine(set={"concurrency": "0"}).concurrency == 0


# -------------------------------------------------------------------------------------- beside


def test_contexts_beside_one_another_share_stream_and_scratch(
    machine: Any, affine: Any, predict: Any
) -> None:
    one, other = affine(), affine()
    first = one.open_context()
    second, third = other.open_context(beside=first), one.open_context(beside=first)
    assert machine.live()["Stream"] == 1
    assert machine.live()["Model"] == 3
    assert [block.data.nbytes for block in machine.memory.live()].count(4096) == 1
    for context in (first, second, third, first):
        np.testing.assert_array_equal(predict(context, X)[0], 2 * X + 1)
    third.close()
    second.close()
    np.testing.assert_array_equal(predict(first, X)[0], 2 * X + 1)
    first.close()
    assert "Stream" not in machine.live()


def test_a_larger_model_gets_more_scratch(
    machine: Any, affine: Any, build: Any, make_om: Any, predict: Any, tmp_path: Path
) -> None:
    path = make_om(models.heavy(tmp_path), input_shape="x:1,1024")
    path.write_bytes(path.read_bytes().replace(b'"work_size": 4096', b'"work_size": 8192'))
    first = affine().open_context()
    second = build(path).open_context(beside=first)
    third = affine().open_context(beside=second)
    assert first.workspace is third.workspace
    stages = 64 + 64  # an input and an output of 24 bytes
    assert first.workspace.nbytes == 4096 + 8192 + stages, "a loaded model holds its address"
    x = np.arange(1024, dtype=np.float32)[None]
    np.testing.assert_array_equal(predict(second, x)[0], x)
    np.testing.assert_array_equal(predict(third, X)[0], 2 * X + 1)
    stages = 4096 + 4096  # of the largest model, for all
    assert first.workspace.nbytes == 4096 + 8192 + stages


def test_a_run_that_was_given_up_ends_before_the_next_one_beside_it(
    machine: Any, affine: Any, predict: Any
) -> None:
    first = affine().open_context()
    second = affine().open_context(beside=first)
    machine.slow(0.3)
    with pytest.raises(DeadlineExceeded):
        predict(first, X, deadline_s=time.monotonic() + 0.05)
    machine.slow(0)
    np.testing.assert_array_equal(predict(second, X)[0], 2 * X + 1)
    np.testing.assert_array_equal(predict(first, X + 1)[0], 2 * X + 3)


def test_work_spaces_end_with_their_last_user_in_whatever_order(
    machine: Any, affine: Any, predict: Any
) -> None:
    first = affine().open_context()
    second = affine().open_context(beside=first)
    first.close()
    np.testing.assert_array_equal(predict(second, X)[0], 2 * X + 1)
    second.close()
    assert "Stream" not in machine.live()


# -------------------------------------------------------------------------------------- cancel


def cancel_soon(context: Any, after_s: float = 0.1) -> threading.Timer:
    timer = threading.Timer(after_s, context.cancel)
    timer.start()
    return timer


def test_a_running_predict_is_cancelled_soon_and_its_context_can_be_closed(
    machine: Any, affine: Any, predict: Any
) -> None:
    executable = affine()
    context, other = executable.open_context(), executable.open_context()
    machine.slow(100)
    start = time.monotonic()
    timer = cancel_soon(context)
    with pytest.raises(Cancelled):
        predict(context, X)
    timer.join()
    context.close()
    assert time.monotonic() - start < 60
    machine.slow(0)
    np.testing.assert_array_equal(predict(other, X)[0], 2 * X + 1)


def test_a_cancel_just_before_the_start_holds_for_that_predict(
    machine: Any, affine: Any, predict: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = affine().open_context()
    context.cancel()
    with pytest.raises(Cancelled):
        predict(context, X)
    assert machine.calls["mdl.execute_async"] == 0


@pytest.mark.parametrize("moment", ["mdl.execute_async", "rt.memcpy"])
def test_a_cancel_at_any_moment_is_seen(
    machine: Any, affine: Any, predict: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    import acl

    context = affine().open_context()
    group, _, name = moment.partition(".")
    module = getattr(acl, group)
    original = getattr(module, name)

    def interrupted(*arguments: Any) -> Any:
        thread = threading.Thread(target=context.cancel)
        thread.start()
        thread.join()
        return original(*arguments)

    monkeypatch.setattr(module, name, interrupted)
    machine.slow(100)
    start = time.monotonic()
    with pytest.raises(Cancelled):
        predict(context, X)
    context.close()
    assert time.monotonic() - start < 60


def test_a_predict_with_a_deadline_is_cancelled_too(
    machine: Any, affine: Any, predict: Any
) -> None:
    context = affine().open_context()
    machine.slow(100)
    timer = cancel_soon(context)
    with pytest.raises(Cancelled):
        predict(context, X, deadline_s=time.monotonic() + 5)
    timer.join()


def test_a_device_that_refuses_to_stop_ends_by_itself(
    machine: Any, affine: Any, predict: Any
) -> None:
    context = affine().open_context()
    machine.slow(0.3)
    machine.fail("rt.stream_abort", 207000)
    timer = cancel_soon(context, 0.05)
    with pytest.raises(Cancelled):
        predict(context, X)
    timer.join()


def test_cancelling_leaves_the_other_threads_context_as_it_was(
    machine: Any, affine: Any, predict: Any
) -> None:
    import acl

    context = affine().open_context()
    own, _ = acl.rt.create_context(1)
    context.cancel()
    assert acl.rt.get_context() == (own, 0)
    assert acl.rt.destroy_context(own) == 0


@pytest.mark.parametrize(
    ("soc", "is_there"),
    [("Ascend910B3", True), ("Ascend910_9392", True), ("Ascend310P3", False),
     ("Ascend310B4", False), ("Ascend910A", False), ("Ascend910", False)],
)  # fmt: skip
def test_devices_that_cannot_stop_a_run_say_so(machine: Any, soc: str, is_there: bool) -> None:
    machine.soc = soc
    lacks = engine_devices().found[0].lacks
    assert (Capability.CANCEL_PREDICT not in lacks) is is_there
    assert is_there or soc in lacks[Capability.CANCEL_PREDICT]


def test_an_older_pyacl_cannot_stop_a_run(
    machine: Any, affine: Any, predict: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import acl

    monkeypatch.delattr(acl.rt, "stream_abort")
    [info, _] = engine_devices().found
    assert "CANN is too old" in info.lacks[Capability.CANCEL_PREDICT]
    np.testing.assert_array_equal(predict(affine().open_context(), X)[0], 2 * X + 1)
