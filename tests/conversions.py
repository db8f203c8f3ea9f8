"""Conversions in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine import Converter, FmkType


def converted(
    source: Path | str, output: Path | str, framework: FmkType = FmkType.ONNX, **properties: Any
) -> Any:
    """Convert with these properties set, and return the converter's report."""
    converter = Converter()
    for name, value in properties.items():
        setattr(converter, name, value)
    converter.convert(framework, str(source), str(output))
    assert converter.report is not None
    return converter.report
