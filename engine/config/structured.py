"""Configuration files in TOML, JSON and YAML: tables of options, with numbers and bools as such."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any

from engine.config.sections import sections_of


def parse(text: str, suffix: str) -> dict[str, dict[str, str]]:
    """Return the sections of a text in the format of files with that suffix, options as texts.

    Raises ValueError that names the place in the text or the option, and ImportError where YAML
    has no parser here.
    """
    try:
        # Errors of tomllib and json are ValueErrors that say line and column.
        parsed = _yaml(text) if suffix in (".yaml", ".yml") else _LOADS[suffix](text)
    except RecursionError:
        raise ValueError("it is nested too deep; expected sections with options") from None
    if parsed is None:  # an empty YAML
        return {}
    try:
        return sections_of("the file", parsed)
    except TypeError as error:
        raise ValueError(str(error)) from None


_LOADS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            'a configuration in YAML needs PyYAML: pip install "inference-engine[yaml]"'
        ) from error
    # Options are "on" and "off" as often as true and false, as in TOML and JSON: these stay texts.
    resolvers = {
        first: [
            (tag, form) for tag, form in found if first not in "oO" or not tag.endswith(":bool")
        ]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    loader = type("_Loader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": resolvers})
    try:
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
