"""Emulated pycuda, for tests: see `emulated_gpu`."""

VERSION = (2026, 1)
VERSION_TEXT = "2026.1+emulated"
