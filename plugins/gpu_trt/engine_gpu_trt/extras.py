"""Features that a user may ask for beside plain execution: CUDA graphs, times of layers."""

from __future__ import annotations

from typing import Any

from engine_gpu_trt import vendor
from engine_gpu_trt.options import Settings
from engine_gpu_trt.profile import KernelTimes, LayerFile, Measurement


class Extras:
    """The extras of one executable.

    driver: cuda.bindings' module where it records graphs, which cannot be measured. measured: what
    takes the times of layers, where they are asked for; kernel_times: that, where the core asked.
    """

    def __init__(self, settings: Settings, trt: Any, measures: bool = False) -> None:
        self.kernel_times = KernelTimes(trt) if measures else None
        self.measured: Measurement | None = self.kernel_times
        if settings.layer_profile and not measures:  # else the file would be of the model beside
            self.measured = LayerFile(trt, settings.layer_profile)
        records = settings.cuda_graphs and not measures
        self.driver = vendor.cuda_bindings() if records else None

    def close(self) -> None:
        """Write the times of layers where a file was asked for; twice does nothing."""
        measured, self.measured = self.measured, None
        if measured is not None:
            measured.close()
