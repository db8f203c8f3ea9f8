"""Extensions: what a user switches on to see or record a model's predicts.

`ENGINE_EXTENSIONS=trace,metrics` names entry points of group `engine.extensions.v1`, each an
`engine.types.Extension`. They wrap a model's predict when it is built, and are called once a
request, however many segments the model has. Nothing is imported or wrapped for one that is off.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import EngineError, ExtensionError, one_line

if TYPE_CHECKING:
    from engine.plan import Plan
    from engine.runtime.signature import Signature
    from engine.types import Extension, ModelDescription, Predict

GROUP = "engine.extensions.v1"
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
    predict: Predict = plan.predict
    if not names:
        return predict
    model = _describe(plan, signature, path)
    for name in reversed(names):
        extension = _load(name)
        try:
            wrapped = extension(model, predict)
            if not callable(wrapped):
                raise TypeError(f"it returned {wrapped!r}, expected a function")
        except (EngineError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            raise _failed(name, f"wrapping the model raised {one_line(error)}") from error
        predict = wrapped
    return predict


def _describe(plan: Plan, signature: Signature, path: str) -> ModelDescription:
    from engine.types import ModelDescription

    graph = plan.source.graph
    return ModelDescription(
        name=Path(path).stem if path else (graph.name if graph else ""),
        path=path,
        backends=(plan.backend.name, *(backend.name for backend, _ in plan.others)),
        inputs=signature.inputs,
        outputs=signature.outputs,
    )


def _load(name: str) -> Extension:
    """Import the extension of a name."""
    from importlib_metadata import entry_points  # rare

    points = entry_points(group=GROUP)
    named = [point for point in points if point.name == name]
    if not named:
        here = sorted({point.name for point in points})
        raise ExtensionError(
            f"{VARIABLE} names {name!r}, but no such extension is installed (installed: "
            f"{', '.join(here) or 'none'}); install what offers it, or leave it out of {VARIABLE}",
            name,
        )
    if len(named) > 1:
        owners = sorted(point.dist.name if point.dist else "?" for point in named)
        raise _failed(name, f"several distributions offer it: {', '.join(owners)}")
    try:
        extension: Extension = named[0].load()
        if not callable(extension):
            raise TypeError(f"it is {extension!r}, expected a function")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, or a panic of a compiled extension
        raise _failed(name, f"importing {named[0].value!r} raised {one_line(error)}") from error
    return extension


def _failed(name: str, why: str) -> ExtensionError:
    return ExtensionError(
        f"extension {name!r} is at fault: {why}; mend it, or leave it out of {VARIABLE}", name
    )
