from engine.testing import BackendConformance


class TestReference(BackendConformance):
    backend = "reference"
