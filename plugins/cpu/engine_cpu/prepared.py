"""Answer of prepare/; apart from it, since that needs onnx."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_NONE: Mapping[int, str] = MappingProxyType({})
DISABLED = "optimization.disable_specified_optimizers"
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class Prepared(NamedTuple):
    """Outcome of preparing a model.

    data: the model for ONNX Runtime; b"" where some node cannot run, or where it takes the model
        as it is. folder: where its external data lies. unsupported: the nodes that cannot run,
        by index, and why. rewritten: those that are computed otherwise than by a kernel of their
        own, and how. settings: further ones of its session, by key (quantized.py).
    """

    data: bytes = b""
    folder: Path | None = None
    unsupported: Mapping[int, str] = _NONE
    rewritten: Mapping[int, str] = _NONE
    settings: Mapping[str, str] = _NO_SETTINGS

    def guarded(self, guard: Prepared) -> Prepared:
        """Return this one with another's settings, and its reasons where it has none itself."""
        rewritten = {**guard.rewritten, **self.rewritten}
        return self._replace(settings=guard.settings, rewritten=rewritten)
