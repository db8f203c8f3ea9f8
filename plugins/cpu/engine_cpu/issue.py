"""A kernel that must not be used, and why; known_issues.py lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class KnownIssue(NamedTuple):
    """The reason why a kernel is not used.

    wider: types in which it is right, to be tried in this order. ends_process: the process ends;
    otherwise the result is wrong, or missing.
    """

    reason: str
    wider: tuple[Mapping[int, int], ...] = ()
    ends_process: bool = False
