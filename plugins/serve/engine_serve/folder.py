"""Where models lie: files, and folders in Triton's layout (NAME/VERSION/model.onnx)."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelNotFound, SettingError
from engine_serve import config_file

_SUFFIXES = (".onnx", ".mindir", ".ms")
_log = logging.getLogger("engine_serve")


@dataclass(frozen=True)
class Source:
    """A model by name: a file, which is version 1, or a folder with a folder for each version."""

    name: str
    path: Path

    def config(self) -> Any:
        """Return the ModelConfig of config.pbtxt; an empty one without such a file.

        Names of unknown fields are a warning. Raises SettingError.
        """
        if self.path.is_file():
            return config_file.parse("", str(self.path))
        found = self.path / "config.pbtxt"
        try:
            text = found.read_text(encoding="utf-8") if found.exists() else ""
        except UnicodeDecodeError as error:
            raise SettingError(f"{found}: expected text in UTF-8: {error}") from error
        return config_file.parse(text, str(found))

    def versions(self, config: Any) -> dict[str, Path]:
        """Return the files of the versions that the configuration's policy serves.

        Raises ModelNotFound, SettingError.
        """
        if self.path.is_file():
            return {"1": self.path}
        folders = {
            int(folder.name): folder for folder in self.path.iterdir() if _is_version(folder)
        }
        chosen = _chosen(sorted(folders), config.version_policy, self.name)
        if not chosen:
            raise ModelNotFound(
                f"{self.path}: has no version; expected folders 1, 2, ... with a model in each",
                str(self.path),
            )
        return {str(number): _file(folders[number], config) for number in chosen}

    def mark(self) -> frozenset[tuple[str, int, int, int, int]]:
        """Return what changes with the files: their paths, inodes, sizes and times.

        ctime too: who writes the same number of bytes may set mtime back.
        """
        found = set()
        for path in self._files():
            with suppress(OSError):  # it has gone meanwhile
                status = path.stat()
                times = status.st_mtime_ns, status.st_ctime_ns
                found.add((str(path), status.st_ino, status.st_size, *times))
        return frozenset(found)

    def _files(self) -> Iterator[Path]:
        try:
            if self.path.is_dir():
                for inner in self.path.iterdir():
                    yield from inner.rglob("*") if _is_version(inner) else (inner,)
            else:  # with its external data
                own = f"{self.path.stem}."
                yield from (it for it in self.path.parent.iterdir() if it.name.startswith(own))
        except OSError:
            return


def _chosen(numbers: Sequence[int], policy: Any, name: str) -> list[int]:
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return [*numbers]
    if kind == "specific":
        missing = [number for number in policy.specific.versions if number not in numbers]
        if missing:
            raise SettingError(
                f"model {name!r}: version_policy names version {missing[0]}; "
                "versions in the folder: "
                f"{', '.join(map(str, numbers)) or 'none'}"
            )
        return sorted(policy.specific.versions)
    return [*numbers[-(policy.latest.num_versions or 1) :]]


def _file(folder: Path, config: Any) -> Path:
    if name := config.default_model_filename:
        if Path(name).name != name:
            raise SettingError(f"default_model_filename must be a file's name, got {name!r}")
        return folder / str(name)
    found = [path for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES]
    named = [path for path in found if path.stem == "model"] or found
    if len(named) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise ModelNotFound(
            f"{folder}: expected one model, as model.onnx, got {listed}; "
            "default_model_filename in config.pbtxt names one",
            str(folder),
        )
    return named[0]


class Sources:
    """The models that a command line names: files, NAME=FILE, and folders of models."""

    def __init__(self, words: Iterable[str]) -> None:
        """Read the folders.

        Raises ModelNotFound, and SettingError for two models of one name and for one with a slash.
        """
        self._named: list[Source] = []
        self._folders: list[Path] = []
        self._found: dict[str, Source] = {}
        self._warnings: set[str] = set()
        given: dict[str, str] = {}  # the words by the names of their models
        for word in words:
            for source in self._take(word):
                if "/" in source.name:
                    raise SettingError(
                        f"a model cannot be named {source.name!r}: a slash ends a name in an "
                        f"address; give it another: NAME={source.path}"
                    )
                if source.name in self._found:
                    first = self._found[source.name].path
                    if first.resolve() == source.path.resolve():
                        raise SettingError(_twice(source.name, given[source.name], word))
                    raise SettingError(
                        f"two models are named {source.name!r}: {first} "
                        f"and {source.path}; give one another name: NAME={source.path}"
                    )
                self._found[source.name], given[source.name] = source, word

    def _take(self, word: str) -> list[Source]:
        name, _, rest = word.rpartition("=")
        if name and Path(word).exists():
            name, rest = "", word
        if not rest:
            raise SettingError(f"{word!r} names no file; expected FILE or NAME=FILE")
        path = Path(rest)
        if not path.is_file() and not path.is_dir():
            raise ModelNotFound(f"{path}: no such model or folder", str(path))
        if path.is_file() or name or _has_versions(path):
            own = path.stem if path.is_file() else path.resolve().name
            self._named.append(Source(name or own, path))
            return self._named[-1:]
        self._folders.append(path)
        if found := _in_folder(path):
            return found
        raise ModelNotFound(
            f"{path}: has no models; expected files as net.onnx, or folders as NAME/1/model.onnx",
            str(path),
        )

    def now(self) -> dict[str, Source]:
        """Return the models that are there now, by name. For one thread at a time.

        Of two that have one name now, the one counts that had it before; a warning names the other.
        A name of the command line stays its file's, also while that is away.
        """
        named = {source.name: source for source in self._named}
        found = {name: it for name, it in named.items() if os.path.exists(it.path)}
        for source in itertools.chain(*map(self._inside, self._folders)):
            if own := named.get(source.name):
                self._warn(f"{source.path} is not served: model {own.name!r} is {own.path}")
                continue
            first = found.setdefault(source.name, source)
            if first is source:
                continue
            had_it = self._found.get(source.name) == source
            found[source.name], other = (source, first) if had_it else (first, source)
            self._warn(
                f"{other.path} is not served: model {other.name!r} is {found[other.name].path}"
            )
        self._found = found
        return found

    def _inside(self, folder: Path) -> list[Source]:
        try:
            if (folder / "config.pbtxt").exists():
                self._warn(
                    f"{folder}/config.pbtxt is not read: the folder has no version, as "
                    f"{folder}/1/model.onnx"
                )
            for inner in _without_version(folder):
                self._warn(f"{inner} is not served: it has no version, as {inner}/1/model.onnx")
            return _in_folder(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._warn(f"{folder}: cannot be read: {error.strerror}")
            return [source for source in self._found.values() if source.path.parent == folder]

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            _log.warning("%s", text)


def _twice(name: str, first: str, second: str) -> str:
    if first == second:
        return f"{first} is given twice; leave one out"
    return f"model {name!r} is given twice, by {first} and by {second}; leave one out"


def _in_folder(path: Path) -> list[Source]:
    return [
        Source(inner.name if inner.is_dir() else inner.stem, inner)
        for inner in sorted(path.iterdir())
        if (inner.is_dir() and _has_versions(inner)) or inner.suffix in _SUFFIXES
    ]


def _without_version(path: Path) -> list[Path]:
    """Return the folders that look like a model's, but have no version of it."""
    found = []
    for inner in sorted(path.iterdir()):
        if inner.is_dir() and not _has_versions(inner):
            with suppress(OSError):  # as lost+found
                if any(_is_of_model(it) for it in inner.iterdir()):
                    found.append(inner)
    return found


def _is_of_model(path: Path) -> bool:
    return path.name == "config.pbtxt" or path.suffix in _SUFFIXES


def _has_versions(folder: Path) -> bool:
    try:
        return any(_is_version(inner) for inner in folder.iterdir())
    except OSError:  # as lost+found, which only root reads
        return False


def _is_version(folder: Path) -> bool:
    return folder.name.isascii() and folder.name.isdigit() and folder.is_dir()
