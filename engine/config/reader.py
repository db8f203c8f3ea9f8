"""Configuration files and dicts: sections of string keys and values.

The format is MindSpore Lite's: `[section]` lines, `key=value` split at the first "=", comments
that begin with "#", and lines of one or two characters that mean nothing. Read leniently: spaces
and quotes around names and values do not count, ";" begins a comment too, a section that comes
twice is joined, and of a key that comes twice the first value is taken, as there, and that is
logged. Files named .toml, .json, .yaml or .yml are read as that: see structured.py. The meaning
of sections and keys is not known here: see schema.py.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

from engine.config.sections import require_sections
from engine.config.wording import prefixed
from engine.errors import ModelError, ModelNotFound

Config = dict[str, dict[str, str]]

_STRUCTURED = (".toml", ".json", ".yaml", ".yml")
_MAX_BYTES = 16 * 1024 * 1024


def configuration(path: str, over: object, caller: str) -> Config:
    """Read the file at `path` ("" for none), overridden by the sections of the dict `over`.

    over: what a user passed as config_dict; nothing is read of one that is empty or None.
    caller: the method to name where there is no such file.
    Raises RuntimeError (ModelError) for the file, TypeError and RuntimeError for the dict.
    """
    if path and not os.path.exists(path):
        raise ModelNotFound(f"{caller} failed, config_path does not exist! got {path!r}", path)
    config = read_config(path) if path else {}
    if "tuned" in config:  # for messages: a build gets sections alone
        config["tuned"].setdefault("read_from", ReadFrom(path))
    if not over:
        return config
    over = _sectioned(over)
    for section, keys in require_sections("config_dict", over).items():
        if not all(map(str.strip, (section, *keys))):
            error = ModelError(
                f"a section and a key need a name, but got section {section!r} with keys "
                f"{list(keys)}"
            )
            raise prefixed(error, "update configuration failed! Error is ")
        if section == "tuned" and config.get(section, keys) not in (
            keys,
            {**keys, "read_from": path},
        ):
            error = ModelError(f"{path} and the dict each have a section [tuned]; leave one out")
            raise prefixed(error, "update configuration failed! Error is ")
        config[section] = {**config.get(section, {}), **keys}
    return config


class ReadFrom(str):
    """The path of the file that [tuned] was read from; a text that a user gives is none."""


_FLAT = {"pids": "shareable_weight_pid_list", "shared_mem_handle": "shareable_weight_mem_handle"}
"""Keys that MindSpore Lite's text on shared weights writes without a section."""


def _sectioned(over: object) -> object:
    """Return a dict of sections with the keys of _FLAT in [common_context]."""
    if not isinstance(over, dict):
        return over
    flat = {_FLAT[key]: str(over[key]) for key in _FLAT if isinstance(over.get(key), str | int)}
    if not flat:
        return over
    sections = {key: keys for key, keys in over.items() if _FLAT.get(key) not in flat}
    common = sections.get("common_context", {})
    if not isinstance(common, dict):
        return over
    return {**sections, "common_context": {**common, **flat}}


def read_config(path: str) -> Config:
    """Parse a configuration file's sections. Raises ModelError naming the file and the line."""
    try:
        text = text_of(Path(path))
        if (suffix := Path(path).suffix.lower()) in _STRUCTURED:
            from engine.config.structured import parse  # rare

            return parse(text, suffix)
    except (OSError, ValueError, ImportError) as error:
        raise _unreadable(f"{path}: {error}", path) from error
    config: Config = {}
    section: dict[str, str] | None = None
    name = ""
    for number, raw in enumerate(io.StringIO(text, newline=None), 1):
        line = raw.strip()
        if len(line) <= 2 or line[0] in "#;":
            continue
        if (section_name := _section(line)) is not None:
            name, section = section_name, config.setdefault(section_name, {})
            continue
        key, equals, value = (bare(part) for part in line.partition("="))
        if section is None or not equals or not key:
            raise _unreadable(
                f"{path}, line {number}: expected '[section]' or 'key=value' below one, "
                f"got {line!r}",
                path,
            )
        if section.setdefault(key, value) != value:
            import logging  # rare

            logging.getLogger("engine").warning(
                "%s, line %d: [%s] %s comes a second time; its first value %r is used, not %r",
                path, number, name, key, section[key], value,
            )  # fmt: skip
    return config


def _unreadable(text: str, path: str) -> ModelError:
    return prefixed(ModelError(text, path), "load configuration failed! Error is ")


def text_of(path: Path) -> str:
    """Return a text file. Raises OSError, and ValueError for what is none."""
    if not path.is_file():
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it is longer than {_MAX_BYTES} bytes")
    if b"\0" in data or data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it is not text in UTF-8; save it as that")
    # Comments in another encoding do no harm, and a path is whatever bytes the file system has.
    return data.decode("utf-8-sig", "surrogateescape")


def _section(line: str) -> str | None:
    """Return the name in a "[name]" line, which a comment may follow; None for any other line."""
    name, bracket, rest = line[1:].partition("]")
    if line[0] != "[" or not bracket or rest.strip()[:1] not in ("", "#", ";"):
        return None
    return bare(name) or None


def bare(text: str) -> str:
    """Return a text without the spaces and quotes around it."""
    text = text.strip()
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def number_devices(
    targets: Sequence[str], sections: dict[str, dict[str, str]], device_id: int
) -> None:
    """Say a device's number to the backends that Context has no settings for."""
    names = {target.lower().partition(":")[0] for target in targets}
    # The host that stands behind another device for a fallback is not numbered with it.
    has_own = {"gpu", "ascend"} if names == {"cpu"} else {"gpu", "ascend", "cpu"}
    for name in names - has_own - {"auto"}:
        sections.setdefault(f"{name}_context", {}).setdefault("device_id", str(device_id))
