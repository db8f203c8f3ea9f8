"""Extensions: what a user switches on to see or record a model's predicts.

`ENGINE_EXTENSIONS=trace,metrics` names entry points of group `engine.extensions.v1`, each an
`engine.types.Extension`. They wrap a model's predict when it is built, and are called once a
request, however many segments the model has. Nothing is imported or wrapped for one that is off.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.plan import Plan
    from engine.runtime.signature import Signature
    from engine.types import Predict

VARIABLE = "ENGINE_EXTENSIONS"


def enabled() -> tuple[str, ...]:
    """Return the names of the extensions that are switched on, the outermost first."""
    names = (name.strip() for name in os.environ.get(VARIABLE, "").split(","))
    return tuple(dict.fromkeys(filter(None, names)))


def wrap(plan: Plan, signature: Signature, path: str, names: tuple[str, ...]) -> Predict:
    """Return the plan's predict inside the extensions of these names, the first outermost.

    path: the model's file, "" for one in memory. Without names it is `plan.predict` itself.
    Raises ExtensionError for a name that no distribution offers and for one that fails.
    """
    if not names:
        return plan.predict
    from engine.runtime.wrapping import wrapped

    return wrapped(plan, signature, path, names)
