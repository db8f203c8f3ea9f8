"""The conformance kit on this backend."""

from engine_mine.conformance import TestMine

__all__ = ["TestMine"]
