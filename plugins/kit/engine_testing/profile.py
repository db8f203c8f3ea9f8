"""Level of the kit: times of kernels, for backends that announce them."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from engine.types import Capability, KernelTime, NodeState, Placement
from engine_testing import models
from engine_testing.level import Level, Running, Trial

_PREDICTS = 3
_X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


class Profiles(Level):
    """`Executable.profile()` of a model that was compiled with `CompileOptions.profile_to`."""

    def test_each_predict_has_the_times_of_its_kernels(self, trial: Trial, tmp_path: Path) -> None:
        running, begin_s, end_s = self._measured(trial, tmp_path)
        times = running.executable.profile()  # type: ignore[attr-defined]
        assert {each.predict for each in times} == set(range(_PREDICTS)), (
            f"{_PREDICTS} predicts were run, numbered from 0, and each has kernels"
        )
        for each in times:
            assert each.duration_s >= 0, f"{each} took less than no time"
            assert begin_s <= each.start_s, f"{each} began before the first predict: {begin_s}"
            assert each.start_s + each.duration_s <= end_s, f"{each} ended after all: {end_s}"
            assert each.op_type or each.name, f"{each} has neither a name nor an operator"
        first = [min(e.start_s for e in times if e.predict == n) for n in range(_PREDICTS)]
        assert all(a < b for a, b in pairwise(first)), "they are counted in running order"

    def test_kernels_name_the_nodes_that_they_compute(self, trial: Trial, tmp_path: Path) -> None:
        running, _, _ = self._measured(trial, tmp_path)
        times: list[KernelTime] = list(running.executable.profile())  # type: ignore[attr-defined]
        placed = {each.index: each for each in running.executable.placement()}
        named = {index for each in times for index in each.nodes}
        assert named, "no kernel names a node, so that nobody can tell what is slow"
        assert named <= placed.keys(), f"the model's nodes are {sorted(placed)}, not {named}"
        constant = {index for index in named if not _takes_part(placed[index])}
        assert not constant, f"nodes {constant} are constants or unused, and have no time"

    def test_measuring_changes_no_result(self, trial: Trial, tmp_path: Path) -> None:
        running = self._open(trial, tmp_path)
        plain = trial.open(models.affine, _X)
        np.testing.assert_array_equal(running.predict(_X)[0], plain.predict(_X)[0])

    def test_files_of_a_measurement_are_where_they_were_asked_for(
        self,
        trial: Trial,
        tmp_path: Path,
        tmp_path_factory: pytest.TempPathFactory,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        here = tmp_path_factory.mktemp("here")
        monkeypatch.chdir(here)
        own = {*os.listdir(tmp_path), "measured"}
        running, _, _ = self._measured(trial, tmp_path)
        running.executable.profile()  # type: ignore[attr-defined]
        assert os.listdir(here) == [], "the working folder is the user's"
        assert set(os.listdir(tmp_path)) <= own | {"affine.onnx"}, "the model's folder too"

    def _open(self, trial: Trial, folder: Path) -> Running:
        self.require(trial, Capability.PROFILE)
        folder = folder / "measured"
        folder.mkdir()
        return trial.open(models.affine, _X, profile_to=folder)

    def _measured(self, trial: Trial, folder: Path) -> tuple[Running, float, float]:
        """Return a model that has run some predicts, and when these began and ended."""
        running = self._open(trial, folder)
        begin_s = time.monotonic()
        for _ in range(_PREDICTS):
            running.predict(_X)
        slack_s = 0.01  # clocks are translated into each other
        return running, begin_s - slack_s, time.monotonic() + slack_s


def _takes_part(placement: Placement) -> bool:
    return placement.state in (NodeState.RUNS, NodeState.FUSED)
