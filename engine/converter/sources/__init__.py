"""Sources: what reads a framework's models into ONNX. One file each here; packages may add more.

[project.entry-points."engine.sources.v1"]
mine = "my_package.source"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from engine.backends import doors
from engine.backends.doors import SOURCES
from engine.backends.records import BackendState
from engine.converter.job import Framework, Job, Read, name_of
from engine.errors import EngineError, ModelError, one_line
from engine.formats import ModelFile
from engine.host.interrupts import raised_by_handler
from engine.tensor.enums import FmkType

_SAVED_MODEL = "saved_model.pb"


class Source(Protocol):
    """An object, a module for example, that an entry of group `engine.sources.v1` names.

    The entry's name is the framework's: that of a member of FmkType in lower case, or another one.
    Some attributes are optional. kinds: what `engine.formats.recognise` calls its files, a tuple.
    suffixes: endings of the names of its files, for content that says nothing. packages: the names
    of those that `read` imports, for `engine plugins`; extra: of the distribution, that has them.
    It is imported whenever a model is converted; what is heavy is for `read` to import.
    """

    title: str
    """A model of it in messages, as "a PyTorch model"."""

    def read(self, job: Job) -> Read:
        """Return the model as ONNX, all its weights in memory, and notes on how it was read.

        Raises ModelError for what cannot be read, or needs a package that is not installed.
        """


def read(job: Job) -> Read:
    """Return the model as ONNX and notes, as the source of its framework reads it.

    Raises ModelError for what cannot be read, is of another framework than the job says, or needs
    a package that is not installed.
    """
    detected = framework_of(job.file)
    # This converter writes ONNX under MindIR's name, so one is read as the other.
    if detected not in (None, job.framework) and (detected, job.framework) != (
        FmkType.ONNX,
        FmkType.MINDIR,
    ):
        assert detected is not None
        raise job.error(
            f"holds {_source(detected).title}, but fmk_type is {job.framework}; "
            f"pass {detected} (on the command line: --fmk {name_of(detected)})"
        )
    source = _source(job.framework)
    try:
        return source.read(job)
    except Exception as error:
        is_own = isinstance(job.framework, FmkType)
        if is_own or isinstance(error, EngineError | OSError) or raised_by_handler(error):
            raise
        raise job.error(f"source {job.framework!r} failed: {one_line(error)}") from error


def frameworks() -> dict[str, Framework]:
    """Return the frameworks that can be asked for, by the names that a command line has for them.

    Nothing is imported for that.
    """
    found: dict[str, Framework] = {framework.name: framework for framework in FmkType}
    for name in doors.names(SOURCES):
        found.setdefault(name.upper(), name)
    return found


def framework_of(file: ModelFile, by_name: bool = False) -> Framework | None:
    """Return the framework that a file's content tells of; None where it tells of none.

    by_name: the ending of its name tells too, where the content does not.
    Raises ModelError for what cannot be read, and for a folder that is no SavedModel.
    """
    path = file.path
    assert path is not None
    if path.is_dir():
        if (path / _SAVED_MODEL).is_file():
            return FmkType.TF
        raise ModelError(
            f"{path}: is a folder without a {_SAVED_MODEL}; expected a model's file, or the folder "
            "of a TensorFlow SavedModel",
            str(path),
        )
    sources = [*_usable()]
    for framework, source in sources:
        if file.kind in getattr(source, "kinds", ()):
            return framework
    for framework, source in sources if by_name else ():
        if path.suffix.lower() in getattr(source, "suffixes", ()):
            return framework
    return None


def _source(framework: Framework) -> Source:
    """Return the source of a framework. Raises ModelError with what helps where it has none."""
    if framework is FmkType.ONNX:
        return _onnx()
    found, source = doors.resolve(SOURCES, name_of(framework).lower())
    if found.state is not BackendState.READY:
        raise ModelError(str(found)) from source
    usable: Source = source
    return usable


def _usable() -> Iterator[tuple[Framework, Source]]:
    """Yield the sources that can be imported, by framework: those that FmkType names first."""
    yield FmkType.ONNX, _onnx()
    points = doors.points(SOURCES)
    names = {point.name for point in points}
    known: list[Framework] = [kind for kind in FmkType if kind.name.lower() in names]
    known += sorted(names - {kind.name.lower() for kind in FmkType})
    for framework in known:
        found, source = doors.resolve(SOURCES, name_of(framework).lower(), points)
        if found.state is BackendState.READY:
            yield framework, source


def _onnx() -> Source:
    from engine.converter.sources import onnx  # built in

    return onnx
