"""Settings of a conversion that hold for the model later, as the result's metadata keeps them.

MindSpore Lite's converter builds such settings into what it writes: the names of weights that may
be updated, the sizes that a model is compiled for, and the executors that it is split into.
`Model` and `MultiModelRunner` find them there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.config.split_graph import Block
from engine.config.variable_weights import Declaration, declaration_of

KEY = "declared_at_conversion"
"""Key of the metadata."""

_WEIGHTS = "variable_weights"
_SIZES = {
    "ascend_context": ("input_shape", "dynamic_dims"),
    "acl_build_options": ("input_shape", "ge.dynamicDims"),
}
_EXECUTORS, _NAMES = "executors", "names"
_MOST_CHARS = 1 << 20

Sections = Mapping[str, Mapping[str, str]]


class Executors(NamedTuple):
    """Executors that a conversion has declared.

    blocks: the values that each takes and gives. names: the users' own names for some of them.
    """

    blocks: tuple[Block, ...]
    names: Mapping[str, str]


def written(
    config: Sections, weights: Sequence[tuple[str, str]], executors: Executors | None = None
) -> str:
    """Return what is kept of a conversion's configuration, as text; "" for nothing.

    weights: the user's name of each variable weight, and the model's.
    """
    kept: dict[str, object] = {
        section: found
        for section, keys in _SIZES.items()
        if (found := {key: config[section][key] for key in keys if key in config.get(section, {})})
    }
    if weights:
        kept[_WEIGHTS] = [list(pair) for pair in weights]
    if executors is not None:
        kept[_EXECUTORS] = executors.blocks
        kept[_NAMES] = dict(executors.names)
    return json.dumps(kept) if kept else ""


def sections(metadata: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the sections that a model's metadata keeps; what is no such text counts as none."""
    found = _read(metadata)
    return {
        section: {str(key): str(value) for key, value in keys.items()}
        for section, keys in found.items()
        if section in _SIZES and isinstance(keys, dict)
    }


def declaration(metadata: Mapping[str, str], config: Sections) -> Declaration | None:
    """Return the declaration of variable weights that a model's metadata keeps, or None.

    config: of the build, which may say how they are updated.
    """
    found = _read(metadata).get(_WEIGHTS)
    if not isinstance(found, list):
        return None
    pairs = [
        (str(pair[0]), str(pair[1])) for pair in found if isinstance(pair, list) and len(pair) == 2
    ]
    if not pairs:
        return None
    asked = declaration_of(config)
    return Declaration(
        names=tuple(dict.fromkeys(name for _, name in pairs)),
        own_names={own: name for own, name in pairs if own != name},
        mode=asked.mode,
        kind=asked.kind,
    )


def executors(metadata: Mapping[str, str]) -> Executors | None:
    """Return the executors that a model's metadata declares; None for none."""
    found = _read(metadata)
    blocks, names = found.get(_EXECUTORS), found.get(_NAMES)
    if not isinstance(blocks, list) or not blocks or not isinstance(names, dict):
        return None
    read = []
    for block in blocks:
        if not (isinstance(block, list) and len(block) == 2 and all(map(_are_texts, block))):
            return None
        read.append(Block(tuple(block[0]), tuple(block[1])))
    return Executors(tuple(read), {str(name): str(own) for name, own in names.items()})


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(item, str) for item in found)


def _read(metadata: Mapping[str, str]) -> dict[str, object]:
    text = metadata.get(KEY, "")
    try:
        found = json.loads(text) if 0 < len(text) <= _MOST_CHARS else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
