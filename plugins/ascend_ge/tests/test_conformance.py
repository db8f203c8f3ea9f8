"""The contract, kept by this backend on an emulated machine. No NPU is involved."""

from __future__ import annotations

from typing import Any

import pytest
from importlib_metadata import entry_points

from engine_ascend_ge import conformance
from engine_testing.declared import GROUP


class TestAscendGe(conformance.TestAscendGe):
    @pytest.fixture(autouse=True)
    def _emulated(self, machine: Any) -> None:
        machine.devices = 1


def test_the_distribution_ships_this_class() -> None:
    [point] = entry_points(group=GROUP, name="ascend_ge")
    assert point.load() is conformance.TestAscendGe
