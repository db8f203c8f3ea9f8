"""Compare the outputs of a replayed request with the recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.report.differences import OutputComparison, compare_outputs
from engine_telemetry.record import Array, Record, flat

EQUAL, WITHIN, DIFFERS = "equal", "within tolerance", "differs"


@dataclass(frozen=True, slots=True)
class Difference:
    """An output that is not as recorded, or not within the tolerances.

    reason: how it differs, or how much of it. at: the place of the largest error, or of the first
    difference where no error is a number; None where there is no such place.
    """

    output: str
    reason: str
    rtol: float = 0.0
    atol: float = 0.0
    error: float | None = None
    at: tuple[int, ...] | None = None
    recorded: Any = None
    now: Any = None

    def __str__(self) -> str:
        text = f"output {self.output!r}: {self.reason}"
        if self.error is not None:
            text += f"; largest absolute error {self.error:.3g}"
        if self.at is not None:
            text += f" at {list(self.at)}" if self.error is not None else f"; at {list(self.at)}"
            text += f" (recorded {self.recorded}, now {self.now})"
        return text


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one request. error: what predict raised, "" if nothing."""

    request: int
    file: str
    verdict: str
    differences: tuple[Difference, ...] = ()
    error: str = ""

    def __str__(self) -> str:
        return self.error or "; ".join(map(str, self.differences))


def verdict_of(
    record: Record, outputs: Mapping[str, Any], rtol: float | None, atol: float | None
) -> Verdict:
    """Compare the outputs of now with those of a record, by their names, which are the same."""
    found: list[Difference] = []
    is_equal = True
    for name, recorded_value in (record.outputs or {}).items():
        recorded, now = flat(name, recorded_value), flat(name, outputs[name])
        if recorded.keys() != now.keys():
            reason = f"{len(recorded)} arrays were recorded, now there are {len(now)}"
            found.append(Difference(name, reason))
            continue
        for output in compare_outputs(now, recorded, rtol, atol).outputs:
            dtypes = output.dtypes
            is_equal &= output.is_equal and dtypes[0] == dtypes[1]
            if dtypes[0] != dtypes[1] or not output.is_within:
                found.append(_difference(output, now[output.name], recorded[output.name]))
    kind = DIFFERS if found else EQUAL if is_equal else WITHIN
    return Verdict(record.number, record.path.name, kind, tuple(found))


def _difference(output: OutputComparison, now: Array, recorded: Array) -> Difference:
    if output.dtypes[0] != output.dtypes[1]:
        return Difference(output.name, f"{output.dtypes[1]} was recorded, now {output.dtypes[0]}")
    if now.shape != recorded.shape:
        shapes = list(recorded.shape), list(now.shape)
        return Difference(output.name, f"shape {shapes[0]} was recorded, now {shapes[1]}")
    reason = f"{output.differing:,} of {now.size:,} values differ"
    if now.dtype.kind not in "OUT":
        reason += f" beyond rtol {output.rtol:g}, atol {output.atol:g}"
    limits = output.name, reason, output.rtol, output.atol
    largest = output.absolute
    if largest is not None and largest.error:
        return Difference(*limits, largest.error, largest.at, _plain(largest.b), _plain(largest.a))
    at = _first(now, recorded)
    return Difference(*limits, None, at, _plain(recorded[at]), _plain(now[at]))


def _first(now: Array, recorded: Array) -> tuple[int, ...]:
    """Return where two arrays differ first, NaN being equal to NaN."""
    differs = (now != recorded) & ~((now != now) & (recorded != recorded))
    return tuple(map(int, np.unravel_index(int(np.argmax(differs)), now.shape)))


def _plain(value: Any) -> Any:
    """Return an element as JSON has it: NaN and infinity as text, which JSON does not have."""
    found = value.item() if isinstance(value, np.generic) else value
    if isinstance(found, float) and np.isfinite(found):
        return found
    return found if isinstance(found, bool | int | str) else str(found)
