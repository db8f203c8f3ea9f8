import pytest

from engine_testing import BackendConformance


@pytest.mark.slow  # test_reference.py has what it does otherwise than the null backend
class TestReference(BackendConformance):
    backend = "reference"
