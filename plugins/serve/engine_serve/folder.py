"""Where models lie: files, and folders in Triton's layout (NAME/VERSION/model.onnx)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
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
        text = found.read_text(encoding="utf-8") if found.exists() else ""
        return config_file.parse(text, str(found))

    def versions(self, config: Any) -> dict[str, Path]:
        """Return the files of the versions that the configuration's policy serves.

        Raises ModelNotFound, SettingError.
        """
        if self.path.is_file():
            return {"1": self.path}
        folders = {
            int(folder.name): folder
            for folder in self.path.iterdir()
            if folder.is_dir() and folder.name.isascii() and folder.name.isdigit()
        }
        chosen = _chosen(sorted(folders), config.version_policy, self.name)
        if not chosen:
            raise ModelNotFound(
                f"{self.path}: has no version; expected folders 1, 2, ... with a model in each",
                str(self.path),
            )
        return {str(number): _file(folders[number], config) for number in chosen}


def _chosen(numbers: Sequence[int], policy: Any, name: str) -> list[int]:
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return [*numbers]
    if kind == "specific":
        missing = [number for number in policy.specific.versions if number not in numbers]
        if missing:
            raise SettingError(
                f"model {name!r}: version_policy names version {missing[0]}, but there are "
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


def sources(words: Iterable[str]) -> dict[str, Source]:
    """Return the models that a command line names: files, NAME=FILE, and folders of models.

    Raises ModelNotFound, and SettingError for two of one name and for one with a slash.
    """
    found: dict[str, Source] = {}
    for word in words:
        name, _, path = word.rpartition("=")
        if name and Path(word).exists():
            name, path = "", word
        for source in _of(name, Path(path)):
            if "/" in source.name:
                raise SettingError(
                    f"a model cannot be named {source.name!r}: a slash ends a name in an address; "
                    f"give it another: NAME={source.path}"
                )
            if source.name in found:
                raise SettingError(
                    f"two models are named {source.name!r}: {found[source.name].path} and "
                    f"{source.path}; give one another name: NAME={source.path}"
                )
            found[source.name] = source
    return found


def _of(name: str, path: Path) -> list[Source]:
    if path.is_file():
        return [Source(name or path.stem, path)]
    if not path.is_dir():
        raise ModelNotFound(f"{path}: no such model or folder", str(path))
    if name or _has_versions(path):
        return [Source(name or path.resolve().name, path)]
    found = [
        Source(inner.name if inner.is_dir() else inner.stem, inner)
        for inner in sorted(path.iterdir())
        if (inner.is_dir() and _has_versions(inner)) or inner.suffix in _SUFFIXES
    ]
    if not found:
        raise ModelNotFound(
            f"{path}: has no models; expected files as net.onnx, or folders as NAME/1/model.onnx",
            str(path),
        )
    return found


def _has_versions(folder: Path) -> bool:
    return any(
        inner.name.isascii() and inner.name.isdigit() and inner.is_dir()
        for inner in folder.iterdir()
    )
