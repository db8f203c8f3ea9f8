"""Level of the kit: one executable on several devices."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from engine.types import Capability, Device
from engine_testing import models
from engine_testing.level import Level, Trial, row


class SeveralDevices(Level):
    """Capability SEVERAL_DEVICES."""

    @pytest.fixture
    def devices(self, trial: Trial) -> tuple[Device, ...]:
        """Two devices that the backend uses together, the one on trial first."""
        self.require(trial, Capability.SEVERAL_DEVICES)
        flag = Capability.SEVERAL_DEVICES
        found = [
            info.device
            for info in trial.backend.devices().found
            if info.device.type == trial.device.type and flag not in info.lacks
        ]
        others = [device for device in found if device != trial.device]
        if not others:
            pytest.skip(f"there is one device of type {trial.device.type!r}")
        return trial.device, others[0]

    def test_several_devices_give_the_results_of_one(
        self, trial: Trial, devices: tuple[Device, ...]
    ) -> None:
        for chosen in (devices, devices[::-1]):
            for rows in (1, 2, 3, 7):
                x = row(rows, rows)
                running = trial.open(models.affine, x, device=chosen[0], devices=chosen)
                for shift in range(3):
                    given = x + np.float32(shift)
                    [y] = running.predict(given)
                    self.assert_close(y, 2 * given + 1)
        z, a, m = row(1, 2), row(50, 2), np.array([1, 2, 3], np.float32)
        running = trial.open(models.several, z, a, m, devices=devices)
        for result, expected in zip(running.predict(z, a, m), (z - a, a * m, z + m), strict=True):
            self.assert_close(result, expected)

    def test_samples_that_meet_in_a_model_meet_on_several_devices(
        self, trial: Trial, devices: tuple[Device, ...]
    ) -> None:
        """A model that is divided among devices along axis 0 is not the same as one of less."""
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        running = trial.open(models.meeting, x, devices=devices)
        [y] = running.predict(x)
        self.assert_close(y, x - x.sum(axis=0))

    def test_nodes_are_placed_on_the_devices_that_were_given(
        self, trial: Trial, devices: tuple[Device, ...]
    ) -> None:
        x = np.ones(8, np.float32)
        alone = trial.compile(models.polynomial, x)
        assert {node.device for node in alone.placement()} == {str(devices[0])}
        together = trial.compile(models.polynomial, x, devices=devices)
        used = {part for node in together.placement() for part in node.device.split(",")}
        assert used == set(map(str, devices)), f"nodes are placed on {sorted(used)}"

    def test_memory_is_told_for_each_device(
        self, trial: Trial, devices: tuple[Device, ...]
    ) -> None:
        x = np.ones((2, 32), np.float32)
        executable: Any = trial.compile(models.dense, x, devices=devices)
        context = trial.context(executable)
        context.predict(x)
        reports = executable.memory_by_device()
        assert set(reports) == set(devices), f"memory is told for {sorted(map(str, reports))}"
        sums = tuple(map(sum, zip(*map(astuple, reports.values()), strict=True)))
        assert sums == astuple(executable.memory()), "memory() is not the sum over the devices"

    def test_executables_on_other_devices_go_on_beside_each_other(
        self, trial: Trial, devices: tuple[Device, ...]
    ) -> None:
        x = row(0, 2)
        both = trial.open(models.affine, x, devices=devices)
        first = trial.open(models.affine, x)
        for step in range(3):
            given = x + np.float32(step)
            self.assert_close(both.predict(given)[0], 2 * given + 1)
            self.assert_close(first.predict(given)[0], 2 * given + 1)
        first.context.close()
        first.executable.close()
        self.assert_close(both.predict(x)[0], 2 * x + 1)
