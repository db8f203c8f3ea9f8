"""Contexts: how many, beside one another, cancelled. Emulated."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import Cancelled, DeadlineExceeded
from engine.types import Capability
from engine_ascend_ge import engine_devices
from engine_testing import models

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_how_many_predicts_at_once_is_an_option(affine: Any) -> None:
    assert affine().concurrency == 4
    assert affine(set={"concurrency": "0"}).concurrency == 0


def test_contexts_beside_one_another_share_stream_and_scratch(
    machine: Any, affine: Any, is_affine: Any
) -> None:
    one, other = affine(), affine()
    first = one.open_context()
    second, third = other.open_context(beside=first), one.open_context(beside=first)
    assert machine.live()["Stream"] == 1
    assert machine.live()["Model"] == 3
    assert [block.data.nbytes for block in machine.memory.live()].count(4096) == 1
    for context in (first, second, third, first):
        is_affine(context, X)
    third.close()
    first.close()
    is_affine(second, X)
    second.close()
    assert "Stream" not in machine.live()


def test_a_larger_model_gets_more_scratch(
    affine: Any, build: Any, make_om: Any, predict: Any, is_affine: Any, tmp_path: Path
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
    is_affine(third, X)
    stages = 4096 + 4096  # of the largest model, for all
    assert first.workspace.nbytes == 4096 + 8192 + stages


def test_a_run_that_was_given_up_ends_before_the_next_one_beside_it(
    machine: Any, affine: Any, predict: Any, is_affine: Any
) -> None:
    first = affine().open_context()
    second = affine().open_context(beside=first)
    machine.slow(0.3)
    with pytest.raises(DeadlineExceeded):
        predict(first, X, deadline_s=time.monotonic() + 0.05)
    machine.slow(0)
    is_affine(second, X)
    is_affine(first, X + 1)


@contextmanager
def cancelled(context: Any, after_s: float = 0.1) -> Iterator[None]:
    """Cancel the predict that runs inside."""
    timer = threading.Timer(after_s, context.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        yield
    timer.join()


@pytest.mark.parametrize("limit_s", [None, 50])
def test_a_running_predict_is_cancelled_soon_and_its_context_can_be_closed(
    machine: Any, affine: Any, predict: Any, is_affine: Any, limit_s: float | None
) -> None:
    executable = affine()
    context, other = executable.open_context(), executable.open_context()
    machine.slow(100)
    start = time.monotonic()
    with cancelled(context):
        predict(context, X, deadline_s=limit_s and start + limit_s)
    context.close()
    assert time.monotonic() - start < 60
    machine.slow(0)
    is_affine(other, X)


def test_a_cancel_just_before_the_start_holds_for_that_predict(
    machine: Any, affine: Any, predict: Any
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


def test_a_device_that_refuses_to_stop_ends_by_itself(
    machine: Any, affine: Any, predict: Any
) -> None:
    context = affine().open_context()
    machine.slow(0.3)
    machine.fail("rt.stream_abort", 207000)
    with cancelled(context, after_s=0.05):
        predict(context, X)


def test_cancelling_leaves_the_other_threads_context_as_it_was(affine: Any) -> None:
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
    affine: Any, is_affine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import acl

    monkeypatch.delattr(acl.rt, "stream_abort")
    [info, _] = engine_devices().found
    assert "CANN is too old" in info.lacks[Capability.CANCEL_PREDICT]
    is_affine(affine().open_context(), X)
