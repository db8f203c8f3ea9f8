"""The wings: parts of this distribution that the core offers and does without.

    [project.entry-points."engine.wings.v1"]
    request_queue = "engine.serving.lane:of_model"

The core imports none of them. What its classes offer by one, as `Model.predict_async`, they ask for
by the name under which the wing has registered it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.errors import EngineError
from engine.host.interrupts import undisturbed

_found: dict[str, Any] = {}


def wing(name: str) -> Any:
    """Return the object that a wing has registered; it is looked for, and imported, once.

    Raises EngineError where it is not installed.
    """
    try:
        return _found[name]
    except KeyError:
        # An interrupt must not leave half a module behind.
        thing = _found[name] = undisturbed(partial(_load, name))
        return thing


def _load(name: str) -> Any:
    from engine.backends.doors import WINGS, points  # `import engine` loads no backends

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
    from engine.host.install import pip_install  # rare

    return EngineError(f"{name} is not installed: {why}; run: {pip_install()}")
