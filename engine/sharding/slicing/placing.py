"""Put the files of a slicing into place, all of them or none that runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from filecmp import cmp
from pathlib import Path

import onnx

from engine.errors import ModelError
from engine.formats.collectives import Part, part_of
from engine.formats.onnx.graphs import tensors
from engine.sharding.slicing.annotations import ANNOTATION


def require_free(folder: Path, stem: str, models: Iterable[str], *, annotate: bool = False) -> None:
    """Raise ModelError where a file there that no earlier slicing wrote would be overwritten.

    Rank 10 of "net" and rank 0 of "net1" are both net10.onnx, as upstream names them; and either
    may be the name of a whole model. annotate: an annotated model is to be written too.
    """
    strategy = folder / f"{stem}.strategy.json"
    if strategy.exists() and not _is_strategy(strategy):
        raise _taken(strategy, "is no strategy file")
    annotated = folder / f"{stem}.annotated.onnx"
    if annotate and annotated.exists() and not _is_annotated(annotated):
        raise _taken(annotated, "is no model that slicing has annotated")
    for name in models:
        if not (folder / name).exists():
            continue
        part = _part(_read(folder / name))
        own = name[len(stem) :].removesuffix(".onnx")
        if part is None:
            raise _taken(folder / name, f"is no slice of {stem!r}")
        if own == str(part.rank):
            continue
        other = name.removesuffix(".onnx").removesuffix(str(part.rank))
        raise ModelError(
            f"{folder / name}: is rank {part.rank} of {other!r} there and would be overwritten by "
            f"rank {own} of {stem!r}; choose another folder (--out), or rename the model",
            str(folder),
        )


def put_into_place(
    aside: Path, folder: Path, stem: str, models: Sequence[str], kept: Collection[Path]
) -> None:
    """Move all files of `aside` into a folder, in place of those of an earlier slicing.

    models: the names of the ranks' models. kept: files of the original, by resolved path. Two
    slicers do not mix there: the later one's are there in the end. Whoever is killed meanwhile
    leaves no model with the weights of another. Files that another model there refers to stay.
    Raises ModelError where these are in the way.
    """
    with _locked(folder):
        written = {file.name for file in aside.iterdir()}
        annotated = f"{stem}.annotated.onnx"
        require_free(folder, stem, models, annotate=annotated in written)
        earlier = dict(_earlier(folder, stem))
        old_data = set().union(*map(_data_files, earlier.values()))
        gone = {path.name for path in earlier} | {*models}
        foreign = _foreign(folder, (written | old_data) - gone, gone)
        if taken := sorted(written & foreign.keys()):
            raise ModelError(
                f"{folder / taken[0]}: holds weights of {foreign[taken[0]]!r} there and would be "
                "overwritten; choose another folder (--out)",
                str(folder),
            )
        for name in sorted(written - old_data):
            if name.endswith(".data") and not _is_free(folder / name, aside / name):
                raise _taken(folder / name, f"is no file of slices of {stem!r} there")
        for name in gone:
            (folder / name).unlink(missing_ok=True)  # first: none is there with another's weights
        if earlier and _is_annotated(folder / annotated):
            old_data.add(annotated)
        for name in old_data - written - foreign.keys():
            if (folder / name).resolve() not in kept:
                (folder / name).unlink(missing_ok=True)
        for file in sorted(aside.iterdir(), key=lambda file: file.suffix == ".onnx"):
            file.replace(folder / file.name)  # models last: what they name is there


def _earlier(folder: Path, stem: str) -> Iterator[tuple[Path, onnx.ModelProto]]:
    """Yield the models that an earlier slicing of a model of that name has left in a folder."""
    rank = re.compile(re.escape(stem) + r"(\d+)\.onnx")
    for path in folder.iterdir():
        if match := rank.fullmatch(path.name):
            model = _read(path)
            if model is None:
                continue
            part = _part(model)
            # net12.onnx is rank 12 of "net", or rank 2 of a "net1" that lies here too.
            if part is not None and match[1] == str(part.rank):
                yield path, model


def _taken(path: Path, what: str) -> ModelError:
    return ModelError(
        f"{path}: {what} and would be overwritten; choose another folder (--out), or move it away",
        str(path.parent),
    )


def _is_free(path: Path, new: Path) -> bool:
    """Return whether nothing is lost at a path: a killed slicing may have left the same there."""
    return not path.exists() or cmp(path, new, shallow=False)


def _is_strategy(path: Path) -> bool:
    """Return whether a file is a strategy as the slicer writes it, be it an empty one."""
    try:
        return "parallel_strategy_item" in json.loads(path.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):  # unreadable; no JSON; a number
        return False


def _part(model: onnx.ModelProto | None) -> Part | None:
    """Return which rank's model it is; None for one that is no slice."""
    if model is None:
        return None
    return part_of({entry.key: entry.value for entry in model.metadata_props})


def _read(path: Path) -> onnx.ModelProto | None:
    try:
        return onnx.load(path, load_external_data=False)
    except Exception:  # onnx's own, of a file that is no model: not ours
        return None


def _data_files(model: onnx.ModelProto) -> set[str]:
    """Return the names of the files that hold a model's weights."""
    return {
        entry.value
        for tensor in tensors(model)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _foreign(folder: Path, names: set[str], models: Collection[str]) -> dict[str, str]:
    """Return the files that hold weights of a model beside `models`, each with that model."""
    there = {name for name in names if (folder / name).exists()}
    found: dict[str, str] = {}
    for path in folder.glob("*.onnx") if there else ():
        if path.name not in models and (model := _read(path)) is not None:
            found |= dict.fromkeys(_data_files(model) & there, path.name)
    return found


def _is_annotated(path: Path) -> bool:
    """Return whether a file is a model that the slicer has annotated."""
    model = _read(path) if path.exists() else None
    return model is not None and any(each.name == ANNOTATION for each in model.configuration)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other slicers out of a folder, where its file system has locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # for as long as it takes to rename some files
        yield
    finally:
        os.close(descriptor)
