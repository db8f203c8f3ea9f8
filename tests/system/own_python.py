"""Processes that tests start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def python(
    *arguments: object, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run this Python and return what it printed. env: variables beside those that are set."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, **(env or {})},
        **{"capture_output": True, "text": True, "timeout": 120, **options},
    )
