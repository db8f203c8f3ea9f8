"""The wings: parts of this distribution that the core offers and does without.

    [project.entry-points."engine.wings.v1"]
    request_queue = "engine.serving.built_model:queue_of"

The core imports none of them. A feature of one, as `Model.predict_async`, it asks for by the
name under which the wing has registered it. docs/architecture.md lists the names.
"""

from __future__ import annotations

from functools import partial
from typing import Any

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
    from engine.backends.wings import load  # `import engine` loads no backends

    return load(name)
