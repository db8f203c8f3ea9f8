"""Emulated cuda.bindings: see `driver`."""
