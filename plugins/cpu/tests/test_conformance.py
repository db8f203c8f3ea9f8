from importlib_metadata import entry_points

from engine.testing.declared import GROUP
from engine_cpu.conformance import TestCpu


def test_the_distribution_ships_this_class() -> None:
    [point] = entry_points(group=GROUP, name="cpu")
    assert point.load() is TestCpu
