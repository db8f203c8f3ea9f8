"""The settings of [common_context] that say how far a choice may go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from engine.options import BOOLEANS

BUDGET_S = 5.0
_SECTION = "common_context"
BUDGET, BACKGROUND, ERROR = "auto_budget_s", "auto_background", "max_error"


class Limits(NamedTuple):
    """Limits of one choice.

    budget_s: seconds for measuring, 0 for none. max_error: the largest error that is allowed, see
    `errors.error_of`; None: results agree by the tolerances of `compare_outputs`. is_behind: a
    build does not wait for the measurement.
    """

    budget_s: float = BUDGET_S
    max_error: float | None = None
    is_behind: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Mapping[str, str]]) -> Limits:
        """Return the limits that a configuration sets. Raises ValueError for a wrong value."""
        given = config.get(_SECTION, {})
        budget_s = _number(given, BUDGET, "a number of seconds, 0 for no measuring")
        error = _number(given, ERROR, "a number from 0 to 1, as 0.01", highest=1.0)
        text = given.get(BACKGROUND, "").lower() or "off"
        if text not in BOOLEANS:
            raise ValueError(
                f"[{_SECTION}] {BACKGROUND}: expected on or off, but got {given[BACKGROUND]!r}"
            )
        return cls(BUDGET_S if budget_s is None else budget_s, error, BOOLEANS[text])


def _number(
    given: Mapping[str, str], key: str, wanted: str, highest: float = math.inf
) -> float | None:
    text = given.get(key, "")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and 0 <= number <= highest):
        raise ValueError(f"[{_SECTION}] {key} must be {wanted}, but got {text!r}")
    return number
