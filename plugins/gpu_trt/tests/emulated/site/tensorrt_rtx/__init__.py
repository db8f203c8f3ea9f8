"""Emulated TensorRT for RTX: the emulated TensorRT once more, by RTX's own table.

The modules beside this one are those of `tensorrt`, loaded a second time under this name, so that
the two know nothing of each other's objects.
"""

from __future__ import annotations

from pathlib import Path

_SAME = Path(__file__).parents[1] / "tensorrt"
__path__ = [str(_SAME)]
exec(compile((_SAME / "__init__.py").read_text(), str(_SAME / "__init__.py"), "exec"))
del Path
