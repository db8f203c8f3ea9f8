"""A measured run in a file, for a later one to be held against.

A run that is saved cannot take turns with one of today, and machines are not as fast every day. So
each block of a run also times a reference, a fixed computation of numpy's, in turn with the model,
and what is compared is the model's time over the reference's. The spread from block to block, each
of a new build, says how far that can be trusted within a run; DRIFT is added for what changes
between runs. Where the saved model is still there, running it in turn with today's tells far more.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import InputError
from engine.formats.opened import OpenedSource
from engine.report.speed.interval import Change, between
from engine.types import ModelSource

FORMAT = 1

DRIFT = 0.08
"""Standard deviation, from run to run, of a model's time over the reference's."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run. model: its file's absolute path. files: SHA-256 of all its files, by absolute path.

    machine, versions, settings: as text by name. inputs: name, type, and shape of each. created:
    seconds since the epoch. seconds, reference_s: typical times of a call in each block.
    """

    model: str
    files: Mapping[str, str]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    inputs: Sequence[str]
    created: float
    seconds: Sequence[float]
    reference_s: Sequence[float]

    @property
    def logs(self) -> list[float]:
        """The logarithm of the model's time over the reference's, by block."""
        pairs = zip(self.seconds, self.reference_s, strict=True)
        return [math.log(own / reference) for own, reference in pairs]

    def change_since(self, before: SavedRun) -> Change:
        """Return the change of the model's speed since another run."""
        return between(self.logs, before.logs, DRIFT)

    @property
    def is_there(self) -> bool:
        """True where all of the model's files are there, and as they were."""
        try:
            return digests_of(map(Path, self.files)) == self.files
        except OSError:
            return False

    def is_same_model(self, other: SavedRun) -> bool:
        """Return whether another run was of the same model, wherever its files are."""
        return sorted(self.files.values()) == sorted(other.files.values())

    def other_machine(self, machine: Mapping[str, str]) -> str:
        """Return why this says nothing of a run on a machine; "" where it does."""
        for name, now in machine.items():
            if now != (then := self.machine.get(name)):
                return f"{name}: {then} then, {now} now"
        return ""

    def other_inputs(self, inputs: Sequence[str]) -> str:
        """Return why this says nothing of a run with such inputs; "" where it does."""
        if [*inputs] == [*self.inputs]:
            return ""
        return f"inputs: {', '.join(self.inputs)} then, {', '.join(inputs)} now"

    def differences(self, before: SavedRun) -> list[str]:
        """Return all that may be the reason of a change, for people."""
        found = []
        if not self.is_same_model(before):
            found.append("the model's file is another one")
        for own, other in ((self.versions, before.versions), (self.settings, before.settings)):
            for name in sorted({*own, *other}):
                then, now = other.get(name, "none"), own.get(name, "none")
                if then != now:
                    found.append(f"{name}: {then} then, {now} now")
        return found

    def to_json(self) -> str:
        """Return it as the text of a file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)


def read(path: Path) -> SavedRun:
    """Return the run in a file. Raises InputError for a file that holds none, and OSError."""
    wanted = "expected a run that engine bench --save has written"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["format"] != FORMAT:
            raise ValueError(f"format {said['format']!r} instead of {FORMAT}")
        run = SavedRun(
            str(said["model"]), _texts(said["files"]), _texts(said["machine"]),
            _texts(said["versions"]), _texts(said["settings"]), [*map(str, said["inputs"])],
            float(said["created"]), _seconds(said["seconds"]), _seconds(said["reference_s"]),
        )  # fmt: skip
        if len(run.seconds) != len(run.reference_s) or len(run.seconds) < 2:
            raise ValueError("its times do not belong together")
        if not 0 < run.created < 1e11:
            raise ValueError("a date that is none")
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path}: {wanted}, got another file: {why}") from error
    return run


def files_of(model: Path, source: ModelSource) -> list[Path]:
    """Return all files that a model was read from."""
    found = {model.absolute()}
    if isinstance(source, OpenedSource):
        found.update(path.absolute() for path in source.versions)
    if source.folder is not None:
        found.update((source.folder / location).absolute() for location in source.files)
    return sorted(path for path in found if path.is_file())


def digests_of(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by absolute path. Raises OSError."""
    found = {}
    for path in paths:
        with path.open("rb") as file:
            found[str(path.absolute())] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _texts(said: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in said.items()}


def _seconds(said: Any) -> list[float]:
    found = [*map(float, said)]
    if not all(1e-9 < seconds < 1e6 for seconds in found):
        raise ValueError("a time that is none")
    return found
