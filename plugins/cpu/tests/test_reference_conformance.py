from engine_testing import BackendConformance


class TestReference(BackendConformance):
    backend = "reference"
