from pathlib import Path

import pytest

from engine_testing import BackendConformance
from engine_testing.plugins import install
from engine_testing.several_devices import SeveralDevices


@pytest.mark.usefixtures("null_backend")
class TestNull(BackendConformance):
    backend = "null"
    option = "delay_s"


class TestMesh(SeveralDevices):
    """Checks that null, which has one device, cannot pass."""

    backend = "null_mesh"

    @pytest.fixture(autouse=True)
    def _installed(self, plugin_folder: Path) -> None:
        install(plugin_folder, "null_mesh", "engine_testing.null_mesh")


@pytest.mark.slow  # test_null_backend.py has what it shows to readers; all of the kit is CI's
class TestFirst(BackendConformance):
    """The short one, which strangers read first."""

    backend = "null"
    option = "delay_s"

    @pytest.fixture(autouse=True)
    def _installed(self, plugin_folder: Path) -> None:
        install(plugin_folder, "null", "engine_testing.null")
