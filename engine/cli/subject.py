"""What `engine bench` measures: a model that it has built, or one on a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from engine.cli.build import Built, fit_to, inputs_of, reader_of, timed
from engine.cli.inputs import Inputs, collect
from engine.cli.open_sizes import first_fitting
from engine.report.measurement import Origin, origin_of, ranks_of

if TYPE_CHECKING:
    from engine.cli.options import InputOptions
    from engine.report.profiling import Profile
    from engine.report.served import ServedModel
    from engine.types import TensorSpec

Shapes = Mapping[str, tuple[int, ...]]


class Subject(Protocol):
    """A model that is measured. ranks: that each predict meets; 0 for none.

    takes_shapes: the axes of its file may all be fixed and can be others.
    """

    inputs: tuple[TensorSpec, ...]
    takes_shapes: bool
    ranks: int

    def predict(self, values: Sequence[Any]) -> object:
        """Run it once, from arrays to arrays."""

    def fit(self, values: Sequence[Any]) -> None:
        """Prepare it for inputs of these sizes."""

    def made(self, given: InputOptions, shapes: Shapes) -> Inputs:
        """Return the inputs that the options give."""

    def first_run(self, inputs: Inputs) -> tuple[Inputs, float]:
        """Run it on inputs, or on others where they do not fit; return these, and the seconds."""

    def origin(self) -> Origin:
        """Return where its figures come from."""


class BuiltSubject:
    """A model of this process. threads: as its user has said; 0 for as many as fit."""

    def __init__(self, built: Built, threads: int) -> None:
        self._built, self._threads = built, threads
        self.inputs, self.takes_shapes = built.inputs, built.takes_shapes
        self.ranks = ranks_of(built.model)
        self.predict = built.model.predict

    def fit(self, values: Sequence[Any]) -> None:
        """Resize a MindIR, whose file fixes all sizes."""
        fit_to(self._built, values)

    def made(self, given: InputOptions, shapes: Shapes) -> Inputs:
        """Return the inputs that the options give."""
        return inputs_of(self._built, given, shapes)

    def first_run(self, inputs: Inputs) -> tuple[Inputs, float]:
        """Run it on inputs, or on others where they do not fit; return these, and the seconds."""
        return _first_run(self._built, inputs, self.predict)

    def profile(self, values: Sequence[Any]) -> Profile:
        """Return the time of its kernels."""
        return cast("Profile", self._built.model.profile(values))

    def origin(self) -> Origin:
        """Return where its figures come from."""
        return origin_of(self._built.model, self._threads, self._built.seconds)


class ServedSubject:
    """A model on a server."""

    takes_shapes = False
    ranks = 0

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self.inputs, self.predict = served.inputs, served.predict

    def fit(self, values: Sequence[Any]) -> None:
        """Do nothing: a server takes the sizes that it declares."""

    def made(self, given: InputOptions, shapes: Shapes) -> Inputs:
        """Return the inputs that the options give."""
        return collect(self.inputs, given.files, shapes, given.fill, given.seed, reader_of(given))

    def first_run(self, inputs: Inputs) -> tuple[Inputs, float]:
        """Run it on inputs, or on others where they do not fit; return these, and the seconds."""
        return _first_run(None, inputs, self.predict)

    def origin(self) -> Origin:
        """Return where its figures come from."""
        served = self._served
        name = f"{served.name} version {served.version}" if served.version else served.name
        return Origin(name, server=f"{served.server or 'a server'} at {served.url}")


def _first_run(
    built: Built | None, inputs: Inputs, predict: Callable[[Sequence[Any]], object]
) -> tuple[Inputs, float]:
    inputs, (_, seconds) = first_fitting(
        built, inputs, lambda tried: timed("running", lambda: predict(tried.values()))
    )
    return inputs, seconds
