"""Load what a wing of the core has registered: `engine.wings` keeps it for all that is above this.

[project.entry-points."engine.wings.v1"]
request_queue = "engine.serving.built_model:queue_of"
"""

from __future__ import annotations

from typing import Any

from engine.backends.doors import WINGS, points
from engine.errors import EngineError


def load(name: str) -> Any:
    """Import and return the object of that name. Raises EngineError where it is not installed."""
    point = next((point for point in points(WINGS) if point.name == name), None)
    if point is None:
        raise _missing(name, f"no distribution has it in the entry-point group {WINGS.group!r}")
    try:
        return point.load()
    except ModuleNotFoundError as error:
        if not point.value.startswith(error.name or "-"):  # a package that the wing needs
            raise
        raise _missing(name, f"there is no module {error.name!r}") from error


def _missing(name: str, why: str) -> EngineError:
    from engine.backends.install import pip_install  # rare

    return EngineError(f"{name} is not installed: {why}; run: {pip_install()}")
