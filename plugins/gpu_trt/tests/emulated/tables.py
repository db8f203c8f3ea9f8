"""Write the tables of this folder: differences between versions have lines of their own."""

from __future__ import annotations

import json
from typing import Any


def write(value: Any, depth: int = 2, margin: str = "") -> str:
    """Return JSON in which dictionaries down to a depth have an entry a line."""
    if not isinstance(value, dict) or not depth:
        return json.dumps(value)
    inner = margin + " "
    lines = [f"{inner}{json.dumps(k)}: {write(v, depth - 1, inner)}" for k, v in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{margin}}}"
