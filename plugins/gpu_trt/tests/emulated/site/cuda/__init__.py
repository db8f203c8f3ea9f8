"""Emulated cuda: see `cuda.bindings.driver`."""
