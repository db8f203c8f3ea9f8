"""The core's conformance kit, on the emulated GPU; `test_profiles.py` has the default ranges."""

from importlib_metadata import entry_points

from engine_gpu_trt.conformance import TestGpuTrt
from engine_testing.declared import GROUP

DEVICES = 2  # NCCL wants one for each rank


def test_the_distribution_ships_this_class() -> None:
    [point] = entry_points(group=GROUP, name="gpu_trt")
    assert point.load() is TestGpuTrt
