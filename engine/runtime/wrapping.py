"""A model's predict inside extensions, and what goes wrong in them; see extensions.py."""

from __future__ import annotations

from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends import BackendState, doors
from engine.backends.doors import EXTENSIONS
from engine.errors import EngineError, ExtensionError, one_line
from engine.host.interrupts import raised_by_handler

if TYPE_CHECKING:
    from engine.plan import Plan
    from engine.runtime.signature import Signature
    from engine.types import ExecutionContext, Extension, ModelDescription, Predict, Values


def wrapped(plan: Plan, signature: Signature, path: str, names: tuple[str, ...]) -> Predict:
    """Return the plan's predict inside the extensions of these names; see `extensions.wrap`."""
    predict: Predict = plan.predict
    model = _describe(plan, signature, path)
    for name in reversed(names):
        extension = _load(name)
        inside = _Inside(predict)
        try:
            wrapped = extension(model, inside)
            if not callable(wrapped):
                raise TypeError(f"it returned {wrapped!r}, expected a function")
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            if isinstance(error, EngineError) or raised_by_handler(error):
                raise
            raise _failed(name, f"wrapping the model raised {one_line(error)}") from error
        predict = _Wrapped(name, wrapped, inside)
    return predict


class _Inside:
    """The predict that an extension is given; notes how it ended, by context, for `_Wrapped`.

    A context runs one predict at a time, so that neither threads nor a signal handler that predicts
    in the middle of another get in each other's way.
    """

    def __init__(self, predict: Predict) -> None:
        self._predict = predict
        self.given: dict[int, Values] = {}
        self.raised: dict[int, BaseException] = {}

    def __call__(
        self,
        context: ExecutionContext,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
    ) -> Values:
        """See engine_predict."""
        try:
            results = self._predict(context, inputs, outputs, deadline_s)
        except BaseException as error:
            self.raised[id(context)] = error
            raise
        self.given[id(context)] = results
        return results


class _Wrapped:
    """An extension's predict: what goes wrong in it is said of the extension, not of a backend."""

    def __init__(self, name: str, predict: Predict, inside: _Inside) -> None:
        self._name = name
        self._predict = predict
        self._inside = inside

    def __call__(
        self,
        context: ExecutionContext,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
    ) -> Values:
        """See engine_predict; ExtensionError where it does not give back what it was given."""
        given, raised = self._inside.given, self._inside.raised
        try:
            results = self._predict(context, inputs, outputs, deadline_s)
            wanted = given.get(id(context))
            if wanted is None:
                raise _failed(self._name, "it gave results, but the model gave none")
            if results is not wanted and not _are_same(results, wanted):
                raise _failed(self._name, "it gave back other results than the model gave it")
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            is_its_own = error is not raised.get(id(context))
            if not is_its_own or isinstance(error, EngineError) or raised_by_handler(error):
                raise
            raise _failed(self._name, f"its predict raised {one_line(error)}") from error
        finally:
            given.pop(id(context), None)
            raised.pop(id(context), None)
        return wanted


def _are_same(results: object, wanted: Values) -> bool:
    """Return whether these are the same values in another list."""
    return (
        isinstance(results, list | tuple)
        and len(results) == len(wanted)
        and all(map(is_, results, wanted))
    )


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
    points = doors.points(EXTENSIONS)
    found, extension = doors.resolve(EXTENSIONS, name, points)
    if found.state is BackendState.NOT_INSTALLED:
        here = sorted({point.name for point in points})
        raise ExtensionError(
            f"ENGINE_EXTENSIONS names {name!r}, but no such extension is installed (installed: "
            f"{', '.join(here) or 'none'}); install what offers it, or "
            "leave it out of ENGINE_EXTENSIONS",
            name,
        )
    if found.state is not BackendState.READY:
        raise _failed(name, found.reason) from extension
    loaded: Extension = extension
    return loaded


def _failed(name: str, why: str) -> ExtensionError:
    return ExtensionError(
        f"extension {name!r} is at fault: {why}; mend it, or leave it out of ENGINE_EXTENSIONS",
        name,
    )
