"""Names: this project's own backends, and what an element of `context.target` stands for."""

from __future__ import annotations

from typing import NamedTuple

EXTRAS = {"cpu": "cpu", "gpu": "gpu-trt", "ascend": "ascend-ge"}
"""The extra that installs the backend of each device type the API names."""
OFFICIAL = {"cpu": "cpu", "gpu": "gpu_trt", "ascend": "ascend_ge"}
"""This project's own backends, by the device type that each serves."""
OWN = frozenset((*OFFICIAL.values(), "reference"))


class Target(NamedTuple):
    """One element of `context.target` resolved: a backend, the device type and its provider."""

    backend: str
    device_type: str
    provider: str = ""
