"""A model's predict inside extensions, and what goes wrong in them; see extensions.py."""

from __future__ import annotations

import inspect
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.backends import BackendState, doors
from engine.backends.doors import EXTENSIONS
from engine.errors import EngineError, ExtensionError, one_line
from engine.host.interrupts import raised_by_handler
from engine.runtime.extensions import VARIABLE, description, unseen
from engine.types import DeviceBuffer, DType, ValueKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from engine.plan import Plan
    from engine.runtime.signature import Signature
    from engine.types import Dim, ExecutionContext, Extension, Predict, TensorSpec, Values


def wrapped(
    plan: Plan, signature: Signature, path: str, chosen: Mapping[str, Mapping[str, str]]
) -> Predict:
    """Return the plan's predict inside the extensions that are on, the first outermost.

    path: the model's file, "" for one in memory. chosen: see `extensions.chosen`. Raises
    ExtensionError for a name that no distribution offers and for an extension that fails.
    """
    extensions = loaded(chosen, observes=False)
    if not extensions:
        return plan.predict  # the backend's own, which also begins predicts
    predict: Predict = plan.wrappable
    model = description(plan, signature, path)
    for name, extension in reversed(extensions.items()):
        packs = plan.takes_strides and not getattr(extension, "takes_strides", False)
        inside = _Inside(predict, packs)
        try:
            options = {"options": chosen[name]} if _takes_options(extension) else {}
            outside = extension(model, inside, **options)
            if not callable(outside):
                raise TypeError(f"it returned {outside!r}, expected a function")
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            if isinstance(error, EngineError) or raised_by_handler(error):
                raise
            raise failed(name, f"wrapping the model raised {one_line(error)}") from error
        is_free = bool(getattr(extension, "changes_results", False))
        predict = _Wrapped(name, outside, inside, signature.outputs if is_free else None)
    return predict


def loaded(chosen: Iterable[str], observes: bool) -> dict[str, Any]:
    """Import what is switched on; return those that make observers, or the others, by name.

    Raises ExtensionError for a name that no distribution offers and for what cannot be imported.
    """
    found = {name: _load(name) for name in chosen}
    return {
        name: thing
        for name, thing in found.items()
        if bool(getattr(thing, "observes", False)) == observes
    }


def _load(name: str) -> Any:
    found, thing = doors.resolve(EXTENSIONS, name)
    if found.state is BackendState.NOT_INSTALLED:
        here = ", ".join(doors.names(EXTENSIONS)) or "none"
        raise ExtensionError(
            f"no extension {name!r} is installed (installed: {here}), and {VARIABLE}, the "
            "configuration or the context switches it on; install what offers it, or leave it out",
            name,
        )
    if found.state is not BackendState.READY:
        raise failed(name, found.reason) from thing
    return thing


def _takes_options(extension: Extension) -> bool:
    try:
        return "options" in inspect.signature(extension).parameters
    except (TypeError, ValueError):  # of a compiled module
        return False


class _Inside:
    """The predict that an extension is given; notes how it ended, by context, for `_Wrapped`.

    A context runs one predict at a time, so that neither threads nor a signal handler that predicts
    in the middle of another get in each other's way.
    packs: the extension knows no buffers with strides.
    """

    def __init__(self, predict: Predict, packs: bool) -> None:
        self.predict = predict
        self.packs = packs
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
            results = self.predict(context, inputs, outputs, deadline_s)
        except BaseException as error:
            self.raised[id(context)] = error
            raise
        if self.packs:
            results = _packed(results)
        self.given[id(context)] = results
        return results


class _Wrapped:
    """An extension's predict: what goes wrong in it is said of the extension, not of a backend.

    free: the model's outputs, for one that may give other results than the model; None for others.
    """

    def __init__(
        self, name: str, predict: Predict, inside: _Inside, free: Sequence[TensorSpec] | None
    ) -> None:
        self._name = name
        self._predict = predict
        self._inside = inside
        self._free = free

    def __call__(
        self,
        context: ExecutionContext,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
    ) -> Values:
        """See engine_predict; ExtensionError where it does not give back what it was given."""
        if unseen.trials:
            return self._inside.predict(context, inputs, outputs, deadline_s)
        if self._inside.packs:
            inputs = _packed(inputs)
        given, raised = self._inside.given, self._inside.raised
        try:
            results = self._predict(context, inputs, outputs, deadline_s)
            wanted = given.get(id(context))
            if results is wanted and wanted is not None:
                return wanted
            if self._free is not None:
                return self._checked(results)
            if wanted is None:
                raise failed(self._name, "it gave results, but the model gave none")
            if not _are_same(results, wanted):
                raise failed(
                    self._name,
                    "it gave back other results than the model gave it, and has no attribute "
                    "changes_results that is true",
                )
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            is_its_own = error is not raised.get(id(context))
            if not is_its_own or isinstance(error, EngineError) or raised_by_handler(error):
                raise
            raise failed(self._name, f"its predict raised {one_line(error)}") from error
        finally:
            given.pop(id(context), None)
            raised.pop(id(context), None)
        return wanted

    def _checked(self, results: Any) -> list[Any]:
        """Return results that an extension made. Raises ExtensionError where they cannot be."""
        assert self._free is not None
        if not isinstance(results, list | tuple) or len(results) != len(self._free):
            raise failed(
                self._name, f"it gave {type(results)}, expected a list of {len(self._free)} results"
            )
        for spec, value in zip(self._free, results, strict=True):
            if spec.kind is not ValueKind.TENSOR or isinstance(value, DeviceBuffer):
                continue
            if not isinstance(value, np.ndarray) or DType.from_numpy(value.dtype) != spec.dtype:
                kind = getattr(value, "dtype", type(value).__name__)
                raise failed(
                    self._name, f"it gave {kind} for output {spec.name!r}, expected {spec}"
                )
            if spec.shape is not None and not _fits(value.shape, spec.shape):
                raise failed(
                    self._name,
                    f"it gave the shape {list(value.shape)} for output {spec.name!r}, expected "
                    f"{spec}",
                )
        return list(results)


def _packed(values: Values) -> Values:
    """Return values with packed copies of buffers that are not; this list where all are packed."""
    if all(value.is_packed for value in values if isinstance(value, DeviceBuffer)):
        return values
    from engine.tensor.memory import packed  # rare

    return list(map(packed, values))


def _fits(shape: tuple[int, ...], declared: tuple[Dim, ...]) -> bool:
    return len(shape) == len(declared) and all(
        not isinstance(dim, int) or dim == size for size, dim in zip(shape, declared)
    )


def _are_same(results: object, wanted: Values) -> bool:
    """Return whether these are the same values in another list."""
    return (
        isinstance(results, list | tuple)
        and len(results) == len(wanted)
        and all(map(is_, results, wanted))
    )


def failed(name: str, why: str) -> ExtensionError:
    """Return the error of an extension or observer that is at fault."""
    return ExtensionError(f"extension {name!r} is at fault: {why}; mend it, or switch it off", name)
