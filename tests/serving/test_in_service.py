"""Requests share runs if more are served in a second in that way than alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steps import build, result, save
from waiting import in_threads, wait_until

from engine.serving.in_service import SharingInService

Rates = dict[bool, float]


class Load:
    """Clients whose requests end at a rate that depends on whether they share runs."""

    def __init__(self, rates: Rates, shares: bool = True) -> None:
        self.sharing = SharingInService()
        self.rates, self.shares = rates, shares
        self.now_s = self.completed = 100.0

    def serve(self, seconds: float) -> set[bool]:
        """Serve for so long, with a look every 20 ms; return which ways were taken."""
        ways = set()
        for _ in range(round(seconds / 0.02)):
            ways.add(self.sharing.is_on)
            self.sharing.has_shared |= self.sharing.is_on and self.shares
            self.now_s += 0.02
            self.completed += 0.02 * self.rates[self.sharing.is_on]
            self.sharing.look(int(self.completed), self.now_s)
        return ways


@pytest.mark.parametrize("shared", [6_000.0, 30_000.0])
def test_the_way_that_serves_more_requests_is_kept(shared: float) -> None:
    load = Load({True: shared, False: 14_000.0})
    assert load.serve(0.5) == {True, False}
    better = shared > 14_000
    assert load.serve(0.5) == {better}
    served = load.completed
    load.serve(60)
    assert load.completed - served > 0.98 * 60 * max(shared, 14_000)
    said = "shared" if better else "one by one"
    assert str(load.sharing).endswith(f"{shared:.4g} requests a second in shared runs and 1.4e+04 "
                                      f"one by one: {said}")  # fmt: skip


def test_a_load_that_changes_is_compared_again() -> None:
    load = Load({True: 6_000.0, False: 14_000.0})
    load.serve(60)
    assert not load.sharing.is_on
    load.rates = {True: 6_000.0, False: 3_000.0}
    load.serve(60)
    assert load.serve(0.5) == {True}


def test_nothing_is_compared_while_no_requests_meet() -> None:
    load = Load({True: 6_000.0, False: 14_000.0}, shares=False)
    assert load.serve(60) == {True}
    assert str(load.sharing) == ""


def test_requests_that_no_longer_meet_may_share_runs_again() -> None:
    load = Load({True: 6_000.0, False: 14_000.0})
    load.serve(30)
    assert not load.sharing.is_on
    load.shares = False
    load.serve(30)
    assert load.serve(30) == {True}


def test_a_pause_between_requests_says_nothing_of_either_way() -> None:
    load = Load({True: 6_000.0, False: 14_000.0})
    load.serve(0.1)
    for _ in range(20):  # in the middle of each comparison nobody asks for a second
        load.now_s += 1.0
        load.serve(0.1)
    assert str(load.sharing) == ""
    load.serve(0.5)
    assert not load.sharing.is_on


def test_a_slow_model_is_compared_by_as_many_requests_as_tell() -> None:
    load = Load({True: 100.0, False: 50.0})
    load.serve(1)
    assert str(load.sharing) == ""  # 32 requests in each of four stretches
    load.serve(2)
    assert "100 requests a second in shared runs and 50 one by one: shared" in str(load.sharing)


SLOW = {"null_context": {"delay_s": "0.002"}}  # however many samples are in a run
Y = "(float[b, 4] x) => (float[b, 4] y) {y = Add(x, x)}"


def test_results_and_counts_are_the_same_whichever_way_is_chosen(
    null_backend: str, tmp_path: Path
) -> None:
    with build(save(tmp_path, Y), null_backend, 1, SLOW, max_batch_size=None) as runner:
        sharing = runner._queues[0].runnable.batcher.sharing
        assert sharing is runner._recorder.sharing

        def client(number: int) -> None:
            for turn in range(30):
                if number == 0:
                    sharing.is_on = turn % 3 > 0
                x = np.full((1, 4), 100 * number + turn, np.float32)
                assert result(runner.predict([x])) == (2 * x).tolist()

        in_threads(6, client)
        statistics = runner.statistics()
    assert statistics.completed == 180
    assert sum(size * count for size, count in statistics.batch_sizes.items()) == 180
    assert max(statistics.batch_sizes) > 1


def test_shared_runs_that_fail_are_compared_too(null_backend: str, tmp_path: Path) -> None:
    """Each request of theirs runs once more, alone: that they share runs costs twice the time."""
    table = "t = Constant<value = float[2] {3.0, 4.0}>()"
    graph = f"(int64[b, 1] x) => (float[b, 1] y) {{{table} y = Gather(t, x)}}"
    with build(save(tmp_path, graph), null_backend, 1, SLOW, max_batch_size=None) as runner:
        sharing = runner._queues[0].runnable.batcher.sharing
        runner._recorder.sharing = None  # it compares later
        good, bad = np.ones((1, 1), np.int64), np.full((1, 1), 9, np.int64)
        futures = [runner.submit([x]) for x in (good, *6 * (bad, good))]
        failed = [future.exception(60) for future in futures]
        assert [error is None for error in failed] == [True, *6 * (False, True)]
        assert runner.statistics().batch_sizes == {1: 7}
        assert sharing.has_shared


def test_requests_run_alone_while_that_serves_more(null_backend: str, tmp_path: Path) -> None:
    with build(save(tmp_path, Y), null_backend, 1, SLOW, max_batch_size=None) as runner:
        runner._recorder.sharing = None  # it compares no more
        runner._queues[0].runnable.batcher.sharing.is_on = False
        futures = [runner.submit([np.ones((1, 4), np.float32)]) for _ in range(6)]
        in_threads(6, lambda _: runner.predict({"x": np.ones((1, 4), np.float32)}))
        assert [result(future.result(60)) for future in futures] == 6 * [[[2.0] * 4]]
        assert runner.statistics().batch_sizes == {1: 12}


@pytest.mark.parametrize(
    "wish", [{"max_batch_size": 8}, {"max_delay_us": 0}, {"batching": "force"}]
)
def test_who_says_how_requests_share_runs_has_it_so(
    null_backend: str, tmp_path: Path, wish: dict[str, Any]
) -> None:
    with build(save(tmp_path, Y), null_backend, 1, SLOW, **wish) as runner:
        assert runner._recorder.sharing is None
        assert runner._queues[0].runnable.batcher.sharing.is_on


def test_a_request_that_meets_nobody_runs_in_its_thread_without_a_place_in_the_queue(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with build(save(tmp_path, Y), null_backend, 2, SLOW, max_batch_size=None) as runner:
        [queue] = runner._queues
        monkeypatch.setattr(queue, "predict", None)  # nobody comes to the queue

        def client(_: int) -> None:
            for _ in range(5):
                x = np.ones((1, 4), np.float32)
                assert result(runner.predict({"x": x})) == (2 * x).tolist()

        in_threads(2, client)
        assert runner.statistics().batch_sizes == {1: 10}


def test_a_request_that_must_wait_shares_the_run_of_a_client(
    null_backend: str, tmp_path: Path
) -> None:
    """No thread of the runner is started for it."""
    slow = {"null_context": {"delay_s": "0.05"}}
    with build(save(tmp_path, Y), null_backend, 1, slow, max_batch_size=None) as runner:
        before = threading.active_count()
        most = []

        def client(number: int) -> None:
            x = np.full((1, 4), number, np.float32)
            assert result(runner.predict([x])) == (2 * x).tolist()

        threads = [threading.Thread(target=client, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        wait_until(lambda: most.append(threading.active_count()) or runner.statistics().completed)
        for thread in threads:
            thread.join(60)
        assert max(most) <= before + 5
        sizes = runner.statistics().batch_sizes
        assert sum(size * count for size, count in sizes.items()) == 5
