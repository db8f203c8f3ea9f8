"""Declarations of variable weights: in which settings, files and arguments their names are.

MindSpore Lite's file has a name a line, or two with a comma between: one of the user's own, by
which he calls the weight, and the model's. Its list is names with commas between.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from engine.config.reader import bare, text_of
from engine.config.text import did_you_mean
from engine.config.wording import prefixed
from engine.errors import ModelError
from engine.host.interrupts import pass_interrupt


class UpdateMode(StrEnum):
    """The way in which new weights reach a model."""

    AUTO = "auto"  # the backend exchanges them in place where it can; else swap
    SWAP = "swap"  # they are inputs of the graph, whose values the core holds
    REBUILD = "rebuild"  # they are constants; an update builds the model anew, and exchanges it


class UpdateKind(StrEnum):
    """The meaning of the values in an update."""

    REPLACE = "replace"
    ADD = "add"  # to the weights as they were loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The weights that a user has declared variable.

    names: of weights, or of nodes that have one; each once, in the order of their declaration.
    own_names: the user's other names for some of them, each with the name in `names`.
    """

    names: tuple[str, ...] = ()
    own_names: Mapping[str, str] = field(default_factory=dict)
    mode: UpdateMode = UpdateMode.AUTO
    kind: UpdateKind = UpdateKind.REPLACE


FILE = "variable_weights_file"
LIST = "variable_weights_list"
MODE = "variable_weights_mode"
KIND = "variable_weights_update"


def declaration_of(
    config: Mapping[str, Mapping[str, str]], names: Iterable[str] = ()
) -> Declaration:
    """Return what a configuration declares, and a caller by `names`.

    Names come from any section of a target ([ascend_context], ...) and from [common_context].
    Raises ModelError for a file that cannot be read, ValueError for a mode that is none.
    """
    declared = dict.fromkeys(names)
    own_names: dict[str, str] = {}
    for section, keys in config.items():
        if not section.endswith("_context"):
            continue
        if path := bare(keys.get(FILE, "")):
            for own, name in _in_file(path, section):
                declared[name] = None
                if own:
                    own_names[own] = name
        listed = bare(keys.get(LIST, "")).replace("\n", ",").split(",")
        declared.update(dict.fromkeys(filter(None, map(bare, listed))))
    common = config.get("common_context", {})
    return Declaration(
        names=tuple(declared),
        own_names=own_names,
        mode=_choice(common, MODE, UpdateMode, UpdateMode.AUTO),
        kind=_choice(common, KIND, UpdateKind, UpdateKind.REPLACE),
    )


def require_names(names: object) -> tuple[str, ...]:
    """Return the names that a caller declares. Raises TypeError for anything but a list of str."""
    if names is None:
        return ()
    if not isinstance(names, Sequence) or isinstance(names, str | bytes):
        raise TypeError(f"variable_weights must be list or tuple of str, but got {type(names)}.")
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(
                f"variable_weights element must be str, but got {type(name)} at index {index}."
            )
    return tuple(names)


def _in_file(path: str, section: str) -> list[tuple[str, str]]:
    """Return the names in a file, each after the user's own for it, "" where there is none."""
    try:
        text = text_of(Path(path))
    except (OSError, ValueError) as error:
        pass_interrupt(error)
        is_there = os.path.exists(path)
        what = str(error) if is_there else "variable weight name list is not exists."  # their words
        raise _wrong(path, section, what) from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line:
            continue
        inside = bare(line)  # both names may be in one pair of quotes, or each in its own
        names = [bare(name) for name in (line if line[0] in inside else inside).split(",")]
        if not all(names) or len(names) > 2:
            text = "expected the name of a weight or node, or a name of your own and that with a "
            text += f"comma between, got {line!r}"
            raise _wrong(path, section, f"line {number}: {text}")
        found.append((names[0] if len(names) > 1 else "", names[-1]))
    if not found:
        raise _wrong(path, section, "has no name in it; write one a line")
    return found


def _wrong(path: str, section: str, what: str) -> ModelError:
    error = ModelError(f"[{section}] {FILE}: {path}: {what}", path)
    return prefixed(error, "load configuration failed! Error is ")


Choice = TypeVar("Choice", UpdateMode, UpdateKind)


def _choice(keys: Mapping[str, str], key: str, kind: type[Choice], default: Choice) -> Choice:
    text = keys.get(key) or default
    try:
        return kind(text.lower())
    except ValueError as error:
        hint = did_you_mean(text, kind, "; ")
        raise ValueError(
            f"[common_context] {key} must be one of {', '.join(kind)}, but got {text!r}{hint}"
        ) from error
