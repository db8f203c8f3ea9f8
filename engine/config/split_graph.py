"""Read [SplitGraph] split_node_name: executors of parts of a model, by the names at their ends.

    [SplitGraph]
    split_node_name = [[x],[encoder/out]],[[encoder/out],[y]]

One block for each executor: first the names that it takes, then those that it gives. A name is of
an input of the model, or of a node, which stands for what that computes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from engine.errors import InputError

SECTION, KEY = "SplitGraph", "split_node_name"

_BLOCK = re.compile(r"\[\s*\[([^][]*)\]\s*,\s*\[([^][]*)\]\s*\]")
_MOST_NAMES = 10_000


class Block(NamedTuple):
    """One executor, by names."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def blocks_of(config: Mapping[str, Mapping[str, str]]) -> tuple[Block, ...]:
    """Return the executors that a configuration declares. Raises InputError."""
    text = config.get(SECTION, {}).get(KEY, "").strip()
    if not text:
        return ()
    found = tuple(Block(*map(_names, match.groups())) for match in _BLOCK.finditer(text))
    if not found or _BLOCK.sub("", text).strip(" \t\r\n,;"):
        raise InputError(
            f"configuration key [{SECTION}] {KEY}: expected [[inputs],[outputs]] for each "
            f"executor, such as [[x],[node]],[[node],[y]], got {text!r}",
            KEY,
        )
    if sum(len(block.inputs) + len(block.outputs) for block in found) > _MOST_NAMES:
        raise InputError(
            f"configuration key [{SECTION}] {KEY}: expected {_MOST_NAMES:,} names at most", KEY
        )
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (name.strip(" \t\"'") for name in text.split(",")))))
