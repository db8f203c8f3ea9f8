"""Level of the kit: collectives of two ranks, each in a process of its own, against numpy."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import pytest

from engine.distributed.store import StoreServer
from engine.host.child import command, ending, environment, last_words
from engine.types import Capability
from engine_testing.level import Level, Trial

LIMIT_S = 180
GRACE_S = 2  # for what the others have to say when one rank has failed
WORLD_SIZE = 2

Results: TypeAlias = dict[str, list[Any]]
"""By scenario: what it gave on each rank."""


OPERATIONS = ("sum", "prod", "min", "max", "mean", "in_place", "allgather", "send")
COMPOSABLE = ("broadcast", "reduce_scatter", "alltoall")
PLAIN = (*OPERATIONS, *COMPOSABLE, "groups", "bits", "stream")
"""Scenarios that leave the ranks in step, so that one pair of processes can run them all."""


class Ranks(Level):
    """Capability COLLECTIVES. The ranks find each other by the store alone."""

    _together: ClassVar[dict[str, Results]] = {}

    @pytest.mark.parametrize("op", OPERATIONS)
    def test_collectives_match_numpy(self, trial: Trial, op: str) -> None:
        self._run(trial, op)

    @pytest.mark.parametrize("op", COMPOSABLE)
    def test_composed_or_own_collectives_match_numpy(self, trial: Trial, op: str) -> None:
        self._run(trial, op)

    def test_two_groups_do_not_mix(self, trial: Trial) -> None:
        self._run(trial, "groups")

    def test_every_rank_gets_the_same_bits(self, trial: Trial) -> None:
        digests = self._run(trial, "bits")
        assert len(set(digests)) == 1, "an all-reduce gave the ranks different bits"

    def test_a_queued_collective_comes_in_its_streams_order(self, trial: Trial) -> None:
        if "skip" in self._run(trial, "stream"):
            pytest.skip("results on the device are complete on return: there is no stream")

    def test_segments_and_queued_collectives_need_one_wait(self, trial: Trial) -> None:
        self.require(trial, Capability.QUEUED_COLLECTIVES)
        if "skip" in self._run(trial, "chain"):
            pytest.skip("results on the device are complete on return: there is no stream")

    @pytest.mark.parametrize("scenario", ["queued_late", "queued_abort"])
    def test_a_queued_collective_that_cannot_end_lets_go_of_its_stream(
        self, trial: Trial, scenario: str
    ) -> None:
        self.require(trial, Capability.QUEUED_COLLECTIVES)
        if "skip" in self._run(trial, scenario):
            pytest.skip("results on the device are complete on return: there is no stream")

    def test_an_abort_ends_a_collective_that_waits(self, trial: Trial) -> None:
        self._run(trial, "abort")

    def test_a_rank_that_does_not_come_to_a_collective_is_named(self, trial: Trial) -> None:
        self._run(trial, "late")

    def test_a_rank_that_does_not_join_is_named(self, trial: Trial) -> None:
        self._run(trial, "absent", world=range(1))

    def _run(self, trial: Trial, scenario: str, world: range = range(WORLD_SIZE)) -> list[Any]:
        """Return what a scenario gives on each rank; AssertionError where it fails on one.

        Plain ones run together once, in one pair of processes. One that did not end well there
        runs again alone, so that it is told from those that came after it.
        """
        self.require(trial, Capability.COLLECTIVES)
        self.require(trial, Capability.DEVICE_BUFFERS)  # what collectives work on
        devices = len(trial.backend.devices().found)
        if not self.shares_devices and devices < WORLD_SIZE:
            pytest.skip(f"two ranks need two devices; found: {devices}")
        name = trial.backend.name
        if scenario in PLAIN and name not in self._together:
            self._together[name] = _run_ranks(name, PLAIN, world)[0]
        results = self._together.get(name, {}).get(scenario, [])
        if len(results) < len(world):
            done, failures = _run_ranks(name, (scenario,), world)
            if failures:
                raise AssertionError("\n".join(failures))
            results = done[scenario]
        return results


def _run_ranks(backend: str, scenarios: Sequence[str], world: range) -> tuple[Results, list[str]]:
    """Run scenarios of `engine_testing.rank`, one after another, on each rank at once.

    Returns the results by scenario, and why ranks ended early.
    """
    results: Results = {}
    failures: list[str] = []
    with StoreServer() as server:
        children = [
            subprocess.Popen(
                command("-m", "engine_testing.rank", backend, str(rank), str(WORLD_SIZE),
                        server.address, *scenarios),
                env=environment(KIT_STORE_KEY=server.key.hex()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in world
        ]  # fmt: skip
        _wait(children)
        for rank, child in zip(world, children, strict=True):
            out, errors = child.communicate()
            if child.returncode:
                last = last_words(errors)
                failures.append(
                    f"rank {rank} {ending(child.returncode)}: {last}\n{errors.rstrip()}"
                )
            for line in out.splitlines():
                scenario, result = json.loads(line)
                results.setdefault(scenario, []).append(result)
    return results, failures


def _wait(children: Sequence[subprocess.Popen[str]]) -> None:
    """Wait for all; when one has failed, or none gets on, those that are left are ended."""
    end_s = time.monotonic() + LIMIT_S
    while any(child.poll() is None for child in children):
        if any(child.returncode for child in children):
            end_s = min(end_s, time.monotonic() + GRACE_S)
        if time.monotonic() > end_s:
            for child in children:
                child.kill()
        time.sleep(0.02)
