"""A built model as its file has it, for what is asked later: the model at other input shapes.

A plan lets go of the file's bytes. Here is remembered where they can be had again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError
from engine.formats import ModelFile
from engine.formats.opened import FileVersion, OpenedSource, is_changed
from engine.host.paths import absolute
from engine.wings import wing

if TYPE_CHECKING:
    from engine.types import Dim

Shapes = Mapping[str, Sequence[int]]

KEPT_BYTES = 4 << 20
"""A model that cannot be read from its file again is kept in memory up to this size."""


class SourceModel:
    """A model's origin: the file, or the bytes that are kept. Any thread may ask.

    file: opened by now, with what it gave. folder: where a split MindIR has its data files.
    variable_weights: that it was opened with; they are inputs of what is given here.
    """

    def __init__(
        self,
        file: ModelFile,
        source: OpenedSource,
        folder: Path | None = None,
        variable_weights: tuple[str, ...] = (),
    ) -> None:
        # Absolute: the working folder may be another when they are opened again.
        self._path = None if file.path is None or file.encryption else absolute(file.path)
        self._version = file.version
        self._folder = None if folder is None else absolute(folder)
        self._data_files = data_files(file, source)
        self._takes_shapes = file.takes_shapes
        self._variable_weights = variable_weights
        kept_bytes = len(source.data or b"") + sum(map(len, source.files.values()))
        kept_bytes += sum(slot.initial.nbytes for slot in source.variables)
        is_small = source.data is not None and kept_bytes <= KEPT_BYTES
        self._kept = source if self._path is None and is_small else None
        self._ranges: Any = None  # PartRanges
        self._last: tuple[object, dict[str, tuple[Dim, ...]]] = (None, {})

    def output_shapes(self, inputs: Shapes, outputs: Sequence[str]) -> dict[str, tuple[Dim, ...]]:
        """Infer the outputs' shapes at these shapes of all inputs; None is a size left open.

        Empty where the model cannot be had any more. Raises ModelError for a file that changed.
        """
        shapes = {name: tuple(shape) for name, shape in inputs.items()}
        asked = shapes, tuple(outputs)
        last = self._last  # read once: another thread may ask for other shapes
        if last[0] != asked:
            last = self._last = asked, self._inferred(shapes, outputs)
        return last[1]

    def _inferred(self, inputs: Shapes, outputs: Sequence[str]) -> dict[str, tuple[Dim, ...]]:
        if self._ranges is None:
            source = self._source()
            if source is None:
                return {}
            self._ranges = wing("ranges_of")(source)
        shapes: dict[str, tuple[int, ...]] = self._ranges.shapes_at(inputs, outputs)
        is_known = all(-1 not in shapes.get(name, (-1,)) for name in outputs)
        if not is_known and self._takes_shapes and (fixed := self._source(inputs)) is not None:
            # Lowering knows more of shapes that are computed from shapes than inference does.
            shapes = wing("ranges_of")(fixed).shapes_at(inputs, outputs)
        return {
            name: tuple(size if size >= 0 else None for size in shape)
            for name, shape in shapes.items()
        }

    @property
    def can_be_had(self) -> bool:
        """True unless the model is kept nowhere: it was in memory, or is encrypted."""
        return self._path is not None or self._kept is not None

    def reshaped(self, inputs: Shapes) -> OpenedSource:
        """Return the model with these shapes of all inputs, also where its file fixes others.

        Raises ModelError where that cannot be.
        """
        if self._takes_shapes:
            # Lowered anew: what MindSpore inferred in the file is for the shapes it had.
            source = self._source(inputs)
        else:
            source = self._source()
            if source is not None:
                source = wing("reshape")(source, inputs)
        if source is None:
            raise ModelError(
                "the model was in memory or is encrypted, and is not kept; build it from a file"
            )
        return source

    def declared(self) -> OpenedSource:
        """Return the model with the shapes that its file has. Raises ModelError."""
        source = self._source()
        if source is None:
            raise ModelError("the model was in memory or is encrypted, and is not kept")
        return source

    def _source(self, shapes: Shapes | None = None) -> OpenedSource | None:
        """Open the model again; None where it cannot be had. Raises ModelError if it changed."""
        if self._path is None:
            return replace(self._kept) if self._kept is not None and shapes is None else None
        changed = [name for name, version in self._data_files.items() if is_changed(name, version)]
        if self._version is not None and is_changed(self._path, self._version):
            changed.insert(0, str(self._path))
        if changed:
            raise _changed(changed[0])
        file = ModelFile(
            self._path,
            folder=self._folder,
            variable_weights=self._variable_weights,
            input_shapes=shapes,
        )
        source = file()
        if file.version != self._version:
            raise _changed(file.name)
        for name, version in data_files(file, source).items():
            if self._data_files.get(name) != version:
                raise _changed(name)
        return source


def data_files(file: ModelFile, source: OpenedSource) -> dict[str, FileVersion]:
    """Return the versions of the files beside a model's that it was read from.

    By absolute paths that the model names them by, on which there may be links.
    """
    return {
        str(absolute(path)): version
        for path, version in (*source.versions.items(), *source.read_files.items())
        if path != file.path
    }


def _changed(name: str) -> ModelError:
    return ModelError(f"{name}: changed since the model was built; build it again", name)
