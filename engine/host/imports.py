"""Imports in the middle of a predict, which no signal handler cuts off.

    ready("engine.runtime.casting")
    from engine.runtime.casting import widened

An exception out of a handler may leave CPython's import lock held: every other thread's next import
then waits for good. It may leave half a module behind, too. A module that is needed so late is
therefore imported by a thread where no handler runs; the statement that follows finds it.
"""

from __future__ import annotations

import sys
from importlib import import_module

from engine.host.interrupts import undisturbed

_there: set[str] = set()
"""Modules that have been imported to their end."""


def ready(*names: str) -> None:
    """Import modules that nobody has imported yet. Raises what an import raises."""
    for name in names:  # nearly always there, and some calls are on the way of each predict
        if name not in _there or name not in sys.modules:
            break
    else:
        return
    missing = [name for name in names if not _is_there(name)]
    if missing:
        undisturbed(lambda: [*map(import_module, missing)])
    _there.update(names)


def _is_there(name: str) -> bool:
    """Return whether a module has been imported to its end."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)
