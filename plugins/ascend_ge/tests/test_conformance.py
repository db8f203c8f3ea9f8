"""The contract, kept by this backend on an emulated machine. No NPU is involved."""

from __future__ import annotations

from typing import Any

import pytest

from engine.testing import BackendConformance


class TestAscendGe(BackendConformance):
    backend = "ascend_ge"
    vendor_modules = ("acl", "ge")
    option = "soc_version"
    gaps = {"test_text_arrives_as_str": "Ascend devices have no strings"}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _emulated(self, machine: Any) -> None:
        machine.devices = 1
