import pytest

from engine_testing import BackendConformance


@pytest.mark.usefixtures("null_backend")
class TestNull(BackendConformance):
    backend = "null"
    option = "delay_s"
