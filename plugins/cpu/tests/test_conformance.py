from importlib_metadata import entry_points

from engine_cpu.conformance import TestCpu
from engine_testing.declared import GROUP


def test_the_distribution_ships_this_class() -> None:
    [point] = entry_points(group=GROUP, name="cpu")
    assert point.load() is TestCpu
