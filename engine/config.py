"""Configuration files and dicts: sections of string keys and values.

The format is MindSpore Lite's: `[section]` lines, `key=value` split at the first "=", lines that
begin with "#" are comments, and lines of one or two characters nothing. Read leniently: spaces
around names and quotes around values do not count, and a section that comes twice is joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Config = dict[str, dict[str, str]]

_MAX_CHARACTERS = 16 * 1024 * 1024


def read_config(path: str) -> Config:
    """The sections of a configuration file.

    Raises RuntimeError naming the file and line for one that is not such a file.
    """
    try:
        if not Path(path).is_file():
            raise ValueError("it is not a regular file")
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(_MAX_CHARACTERS + 1)
        if len(text) > _MAX_CHARACTERS:
            raise ValueError(f"it is longer than {_MAX_CHARACTERS} characters")
    except (OSError, ValueError) as error:
        raise RuntimeError(f"load configuration failed! Error is {path}: {error}") from error
    config: Config = {}
    section: dict[str, str] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if len(line) <= 2 or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = config.setdefault(line[1:-1].strip(), {})
            continue
        key, equals, value = line.partition("=")
        if section is None or not equals or not key.strip():
            raise RuntimeError(
                f"load configuration failed! Error is {path}, line {number}: expected "
                f"'[section]' or 'key=value' below one, got {raw!r}"
            )
        section[key.strip()] = _unquoted(value.strip())
    return config


def merged(under: Config, over: Mapping[str, Mapping[str, str]]) -> Config:
    """The sections of both; where both have a key, `over` wins."""
    names = {**under, **over}
    return {name: {**under.get(name, {}), **over.get(name, {})} for name in names}


def check_config(config: object) -> None:
    """Raise TypeError unless `config` is a dict of str to dict of str to str."""
    if not isinstance(config, dict):
        raise TypeError(f"config_dict must be dict, but got {type(config)}.")
    for section, keys in config.items():
        if not isinstance(section, str):
            raise TypeError(f"config_dict_key must be str, but got {type(section)}.")
        if not isinstance(keys, dict):
            raise TypeError(
                f"config_dict_value must be dict, but got {type(keys)} for section {section!r}."
            )
        for key, value in keys.items():
            if not isinstance(key, str):
                raise TypeError(f"config_dict_value_key must be str, but got {type(key)}.")
            if not isinstance(value, str):
                raise TypeError(
                    f"config_dict_value_value must be str, but got {type(value)} "
                    f"for key {key!r} of section {section!r}."
                )


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value
