"""Collectives on a device's stream: queued by the core, and waited for once. Ranks are threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from rank_models import node, save, together
from threads import outcomes, predict, rank_plan, values

from engine.backends import Backend
from engine.distributed.job import Job
from engine.distributed.ranks import Ranks
from engine.distributed.store import StoreServer
from engine.errors import CommunicatorError
from engine.hookspecs import hookimpl
from engine.plan import Plan
from engine.types import BackendInfo, Capability, DType
from engine_testing import null_device as null

pytestmark = pytest.mark.usefixtures("null_backend")


class Noted:
    """The null backend's hooks of collectives and streams, which note how they are called.

    streams: that of each all-reduce. waits: the streams that the calling thread has waited for.
    queues: whether it announces that it can queue. is_stuck: its device takes part in nothing.
    """

    def __init__(self, queues: bool = True) -> None:
        self.queues = queues
        self.is_stuck = False
        self.streams: list[int | None] = []
        self.waits: list[int] = []
        for name in dir(null):
            if name.startswith("engine_") and not hasattr(type(self), name):
                setattr(self, name, getattr(null, name))

    @hookimpl
    def engine_backend(self) -> BackendInfo:
        info = null.engine_backend()
        lacks = set() if self.queues else {Capability.QUEUED_COLLECTIVES}
        return replace(info, capabilities=info.capabilities - lacks)

    @hookimpl
    def engine_order(self, device: Any, earlier: int, later: int | None) -> bool:
        if later is None:
            self.waits.append(earlier)
        return null.engine_order(device, earlier, later)

    @hookimpl
    def engine_allreduce(
        self, comm: Any, send: Any, receive: Any, op: Any, stream: int | None, deadline_s: Any
    ) -> bool:
        self.streams.append(stream)
        if self.is_stuck:
            return True
        return null.engine_allreduce(comm, send, receive, op, stream, deadline_s)


def on_both(
    path: Path | list[Path], main: Callable[[int, Plan, Noted, Ranks], Any], queues: bool = True
) -> list[Any]:
    """Build a model, or each its own, for two ranks and call `main` for each; gives results."""
    paths = path if isinstance(path, list) else [path, path]

    def rank_main(rank: int) -> Any:
        noted = Noted(queues)
        job = Job(rank, 2, server.address, server.key, 60.0)
        plan, ranks = rank_plan(paths[rank], job, Backend("null", noted, []))
        try:
            return main(rank, plan, noted, ranks)
        finally:
            plan.pool.close()

    with StoreServer() as server:
        return values(outcomes(2, rank_main))


def chain(tmp_path: Path) -> Path:
    """y = -max over ranks of -(the sum over ranks of -x): three segments, two groups of ranks."""
    nodes = [
        node("Neg", "x", "a"), together("AllReduce", "a", "b"), node("Neg", "b", "c"),
        together("AllReduce", "c", "d", reduction="max", group="pair", group_ranks=[0, 1]),
        node("Neg", "d", "y"),
    ]  # fmt: skip
    return save(tmp_path / "chain.onnx", nodes, {"x": [2, 3]}, {"y": [2, 3]})


def x_of(rank: int) -> Any:
    return np.full((2, 3), rank + 1, np.float32)


def test_three_segments_and_two_collectives_are_waited_for_once(tmp_path: Path) -> None:
    def main(rank: int, plan: Plan, noted: Noted, ranks: Ranks) -> None:
        for _ in range(4):
            noted.streams, noted.waits = [], []
            [y] = predict(plan, x_of(rank))
            np.testing.assert_array_equal(y, np.full((2, 3), -3))
            [stream] = set(noted.streams)
            assert len(noted.streams) == 2
            assert stream is not None
            assert noted.waits == [stream]

    on_both(chain(tmp_path), main)


def test_a_backend_that_does_not_queue_is_called_without_a_stream(tmp_path: Path) -> None:
    def main(rank: int, plan: Plan, noted: Noted, ranks: Ranks) -> None:
        for _ in range(3):
            [y] = predict(plan, x_of(rank))
            np.testing.assert_array_equal(y, np.full((2, 3), -3))
        assert noted.streams == [None] * 6
        assert noted.waits == []

    on_both(chain(tmp_path), main, queues=False)


def test_results_on_the_device_are_complete_when_predict_returns(tmp_path: Path) -> None:
    """A collective writes into a buffer of the caller's, and into new memory."""
    nodes = [node("Neg", "x", "a"), together("AllReduce", "a", "y")]
    path = save(tmp_path / "last.onnx", nodes, {"x": [2, 3]}, {"y": [2, 3]})
    device = null.fake_device()

    def main(rank: int, plan: Plan, noted: Noted, ranks: Ranks) -> None:
        for _ in range(3):
            given = device.allocate(DType.FLOAT32, (2, 3))
            outputs = [given]
            assert predict(plan, x_of(rank), outputs=outputs) is outputs
            assert outputs == [given]
            [fresh] = predict(plan, x_of(rank), outputs=[null.DEVICE])
            assert fresh.stream is None
            for buffer in (given, fresh):
                np.testing.assert_array_equal(device.read(buffer), np.full((2, 3), -3))

    on_both(path, main)


def test_a_device_that_takes_no_part_is_named_at_the_deadline_and_nothing_stays(
    tmp_path: Path,
) -> None:
    gc.collect()
    held_bytes = null.fake_device().held_bytes
    over = threading.Event()

    def main(rank: int, plan: Plan, noted: Noted, ranks: Ranks) -> None:
        predict(plan, x_of(rank))
        if rank == 1:
            noted.is_stuck = True
            predict(plan, x_of(rank))  # of its own it knows nothing bad
            over.wait(60)
        else:
            ranks.timeout_s = 1.0
            with pytest.raises(CommunicatorError, match="rank 1 of 2 did not arrive") as caught:
                predict(plan, x_of(rank))
            assert caught.value.ranks == (1,)
            over.set()
        with pytest.raises(CommunicatorError):
            predict(plan, x_of(rank))

    on_both(chain(tmp_path), main)
    gc.collect()
    assert null.fake_device().held_bytes == held_bytes


def test_a_rank_may_leave_while_another_still_waits_for_its_own_device(tmp_path: Path) -> None:
    """Rank 0 is looked after, as in a predict, until long after rank 1 has left in good order."""
    left = threading.Event()

    def main(rank: int, plan: Plan, noted: Noted, ranks: Ranks) -> None:
        if rank == 1:
            predict(plan, x_of(rank))
            ranks.close()
            left.set()
            return
        plain = null.engine_order

        def order(device: Any, earlier: int, later: int | None) -> bool:
            done = plain(device, earlier, later)
            assert left.wait(60)
            for _ in range(10):  # what the watching thread does now and then
                ranks.world_check()
            return done

        assert ranks.on_device is not None
        ranks.on_device._order = order
        [y] = predict(plan, x_of(rank))
        np.testing.assert_array_equal(y, np.full((2, 3), -3))

    on_both(chain(tmp_path), main)


def test_a_rank_may_leave_when_another_has_only_its_own_segment_left(tmp_path: Path) -> None:
    """With Send and Receive, where nobody knows who still waits for whom, nothing is queued."""
    receive = together("Receive", "", "r", rank=1, to=TensorProto.FLOAT, sizes=[2, 3])
    ends = {"x": [2, 3]}, {"y": [2, 3]}
    paths = [
        save(tmp_path / "0.onnx", [receive, node("Neg", "r", "y")], *ends),
        save(
            tmp_path / "1.onnx",
            [node("Neg", "x", "u"), together("Send", "u", "s", rank=0), node("Add", "s u", "y")],
            *ends,
        ),
    ]
    left = threading.Event()

    def main(rank: int, plan: Plan, noted: Noted, ranks: Ranks) -> list[int]:
        if rank == 0:
            [y] = predict(plan, x_of(1))
            np.testing.assert_array_equal(y, x_of(1))
            ranks.close()
            left.set()
            return []
        finish = ranks._predicted

        def predicted(run: Any, *arguments: Any) -> Any:
            def run_and_wait(*given: Any) -> Any:
                results = run(*given)
                assert left.wait(60)
                with suppress(CommunicatorError):
                    ranks.world_check()  # what the watching thread does, which aborts then
                    pytest.fail("it has left")
                ranks.on_device.abort()  # type: ignore[union-attr]
                return results

            return finish(run_and_wait, *arguments)

        ranks._predicted = predicted  # type: ignore[method-assign]
        [y] = predict(plan, x_of(rank))
        np.testing.assert_array_equal(y, -2 * x_of(rank))
        return noted.waits

    assert on_both(paths, main)[1] == []
