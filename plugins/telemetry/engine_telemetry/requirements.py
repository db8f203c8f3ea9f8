"""The packages of others that observers need, which are imported when one is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from engine.errors import ExtensionError


def require(name: str, module: str, package: str) -> Any:
    """Import a module of another package; ExtensionError that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ExtensionError(
            f"extension {name!r} needs the package {package}: {error}; "
            f'run: pip install "inference-engine-telemetry[{name}]"',
            name,
        ) from error
