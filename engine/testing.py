"""The conformance kit under its old name: `from engine.testing import BackendConformance`.

The kit is a distribution of its own, inference-engine-testing, imported as `engine_testing`.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    try:
        import engine_testing
    except ModuleNotFoundError as error:
        if error.name != "engine_testing":
            raise
        from engine.backends.install import pip_install

        raise ModuleNotFoundError(
            f"the conformance kit is not installed; run: {pip_install('testing')}", name=error.name
        ) from None
    return getattr(engine_testing, name)
