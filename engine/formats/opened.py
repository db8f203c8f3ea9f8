"""A model that was opened and checked, with all that a plan needs of it beside the graph."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

from engine.errors import ModelError
from engine.types import DType, ModelSource

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"


class FileVersion(NamedTuple):
    """The state of a file: two are equal as long as nobody writes to it or replaces it."""

    device: int
    inode: int
    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileVersion:
        """Return the version that a stat() or fstat() result describes."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def is_changed(path: str | os.PathLike[str], version: FileVersion) -> bool:
    """Return whether another file is at a path now, or it was written to; False for none there."""
    try:
        return FileVersion.of(os.stat(path)) != version
    except OSError:
        return False


class Slot(NamedTuple):
    """A tensor of the graph that whoever runs the model passes on, not its user.

    name: of the graph's input. initial: the value to begin with; an array of its own. declared_as:
    the names by which a user declared it variable.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    initial: Array
    declared_as: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSource(ModelSource):
    """A validated model, as `ModelFile` gives it.

    The graph's inputs are the user's, then one for each of `state`, then one for each of
    `variables`; its outputs are the user's, then one for each of `state`.

    state: parameters that the model assigns to. The output goes into the next predict.
    variables: weights that were declared variable: inputs of the graph instead of constants.
    folds_too_much: computing its constants while it loads would take long, or much memory.
    versions: the files that a runtime reads by itself, as they were when they were checked, by the
        paths that it is told: a link may lead elsewhere later.
    read_files: the files beside the model's that were read into memory, as they were then.
    are_mapped: all of `files` are views of what is in `path`, whose version is among `versions`.
    passes: the rewrites that made this model of the file's, each with its version.
    digest: of all that the model consists of, where that is known without reading it once more.
    """

    state: tuple[Slot, ...] = ()
    variables: tuple[Slot, ...] = ()
    folds_too_much: bool = False
    versions: Mapping[Path, FileVersion] = field(default_factory=dict)
    read_files: Mapping[Path, FileVersion] = field(default_factory=dict)
    are_mapped: bool = False
    passes: tuple[str, ...] = ()
    digest: str = ""

    def check_unchanged(self) -> None:
        """Raise ModelError if a file that the runtime read is not the one that was checked.

        To be called when the backend has read the files: after load, and after compile.

        A large model is checked from a mapping of its file, and the runtime then opens the path
        itself, so that no copy of the weights is made. If somebody writes to the file in between,
        the runtime has read what nobody checked, and this finds out only afterwards. Until then it
        may have parsed a half-written protobuf (which its parser refuses), a graph with values that
        nothing held against each other, or the name of an external file outside the model's folder
        (which ONNX Runtime checks itself, other runtimes do not). Its result of that is thrown
        away here; a crash in between is not prevented. Truncating a mapped file is a SIGBUS in
        whoever reads it: while the core does, writers wait (host/lease.py) where the file is its
        own user's, nobody has it open for writing already, and the file system knows leases. The
        rest takes a writer with the right to replace the model, at the moment in which it is
        loaded: it is for replacing files by renaming that this is safe. A writer who also sets the
        file's time back to the nanosecond is not noticed; one who may do that could have written
        another valid model in the first place.
        Small files, and all that was decrypted or made regular, are not read again: the runtime
        gets the very bytes that were checked.
        """
        for path, version in self.versions.items():
            try:
                now = FileVersion.of(os.stat(path))
            except OSError as error:
                raise ModelError(
                    f"{path}: cannot be read any more: {error.strerror}; it was there when it was "
                    "checked, so keep it until the model is built",
                    str(path),
                ) from error
            if now != version:
                raise ModelError(
                    f"{path}: changed while it was loaded: expected the {version.nbytes:,} bytes "
                    f"that were checked, got a file of {now.nbytes:,} bytes written since; load it "
                    "again when it is complete, and replace models by renaming",
                    str(path),
                )


def check_unchanged(source: ModelSource) -> None:
    """Raise ModelError if a file of the model changed: see `OpenedSource.check_unchanged`."""
    if isinstance(source, OpenedSource):
        source.check_unchanged()


@contextmanager
def open_external(source: ModelSource, location: str) -> Iterator[BinaryIO]:
    """Open a file of external data to read it, the very one that was checked.

    A link in the folder may have been changed since: what it leads to now is compared after it was
    opened, so no moment is left. Raises ModelError for another file, or none.
    """
    assert source.folder is not None, "external data lies beside a file"
    path = source.folder / location
    try:
        file = path.open("rb")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read any more: {error.strerror}", str(path)) from error
    with file:
        if isinstance(source, OpenedSource):
            version = FileVersion.of(os.fstat(file.fileno()))
            checked = source.versions
            # A part whose data lies behind links has the paths that these lead to.
            if version not in ([checked[path]] if path in checked else checked.values()):
                raise ModelError(
                    f"{path}: is not the file that was checked; it changed, or a link to it did, "
                    "while the model was loaded: load it again when it is complete",
                    str(path),
                )
        yield file


def state_of(source: ModelSource) -> tuple[Slot, ...]:
    """Return the slots of the parameters that the model assigns to."""
    return source.state if isinstance(source, OpenedSource) else ()


def digest_of(source: ModelSource) -> str:
    """Return the digest of a model, "" where it is not known."""
    return source.digest if isinstance(source, OpenedSource) else ""


def folds_too_much(source: ModelSource) -> bool:
    """Return whether a runtime should leave the folding of constants: see onnx/folding.py."""
    return isinstance(source, OpenedSource) and source.folds_too_much


def variables_of(source: ModelSource) -> tuple[Slot, ...]:
    """Return the slots of the weights that were declared variable."""
    return source.variables if isinstance(source, OpenedSource) else ()
