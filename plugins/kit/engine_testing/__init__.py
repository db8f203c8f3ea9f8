"""Tools for a backend's author: the conformance kit, models, a null backend, fake plugins.

A backend's whole conformance test:

    from engine_testing import BackendConformance

    class TestMine(BackendConformance):
        backend = "mine"

Nothing of it is imported before it is asked for, so that `engine_testing.null` can be a backend as
light as any other.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_testing import models, null, plugins
    from engine_testing.conformance import BackendConformance
    from engine_testing.gaps import sometimes

__version__ = "0.1.0"

__all__ = ["BackendConformance", "models", "null", "plugins", "sometimes"]

_KIT = (
    "compiled",
    "conformance",
    "contexts",
    "device_values",
    "errors",
    "groups",
    "level",
    "lifecycle",
    "manifest",
    "meanings",
    "numerics",
    "ownership",
    "predict_options",
    "process",
    "profile",
    "ranks",
    "semantics",
    "settings",
    "several_devices",
    "sharing",
    "speed",
    "strided_values",
    "threads",
    "weights",
)


def __getattr__(name: str) -> Any:
    if name == "BackendConformance":
        import pytest

        # Before they are imported: then a failed assert of the kit shows its values.
        pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _KIT))
        return importlib.import_module(f"{__name__}.conformance").BackendConformance
    if name == "sometimes":
        return importlib.import_module(f"{__name__}.gaps").sometimes
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
