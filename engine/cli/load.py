"""Measurements of `engine bench`: how long, with how many clients, over which batches or rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from engine.cli.hints import misuse
from engine.cli.output import counted, note
from engine.report.measurement import DURATION_S, RANKS_RUNS, RANKS_WARMUP_RUNS, by_runs

SWEEP_S = 2.0  # the length of each measurement of a sweep


@dataclass(frozen=True, slots=True)
class Sweep:
    """The batches or the loads to measure, as on the command line; both "" for no sweep."""

    batches: str = ""
    rates: str = ""

    def __bool__(self) -> bool:
        return bool(self.batches or self.rates)

    def checked(self) -> tuple[list[int], list[float]]:
        """Return the numbers of both. Raises a usage error."""
        if self.batches and self.rates:
            raise misuse("--batches, --rates", "expected one of the two")
        batches = _numbers(self.batches, "--batches", "sizes of 1 or more, as 1,2,4,8", 1)
        whole = [int(number) for number in batches]
        if batches != whole:
            raise misuse("--batches", f"expected whole numbers, got {self.batches!r}")
        return whole, _numbers(self.rates, "--rates", "requests a second, as 10,20,50", 1e-3)


@dataclass(frozen=True, slots=True)
class Load:
    """Length of a measurement, and the clients at once; one of duration_s and runs is None.

    warmup_runs: how many unmeasured, instead of warmup_s.
    """

    duration_s: float | None
    runs: int | None
    warmup_s: float
    clients: int
    warmup_runs: int | None = None
    label: str = "measuring"  # what the progress shows

    def checked(self) -> Load:
        """Return this; or raise a usage error."""
        if self.duration_s is not None and self.runs is not None:
            raise misuse("--duration, --runs", "expected one of the two")
        if self.duration_s is not None:
            _check_seconds(self.duration_s, 0.001, "--duration")
        _check_seconds(self.warmup_s, 0, "--warmup")
        return self

    def completed(self, ranks: int, sweep: Sweep) -> Load:
        """Return this with the default length where none is asked for; or a usage error.

        ranks: how many run the model, each a part of it; 0 for a whole one.
        """
        if not ranks:
            is_open = self.duration_s is None and self.runs is None
            default = SWEEP_S if sweep else DURATION_S
            return replace(self, duration_s=default) if is_open else self
        for option, is_given in (
            ("--duration", self.duration_s is not None),
            ("--clients", self.clients > 1),
            ("--batches", bool(sweep.batches)),
            ("--rates", bool(sweep.rates)),
        ):
            if is_given:
                raise misuse(option, f"{by_runs(ranks)}; use --runs N instead")
        warmup_runs = RANKS_WARMUP_RUNS if self.warmup_s else 0
        note(
            f"note: {by_runs(ranks)}: {counted(warmup_runs, 'run')} to warm up and "
            f"{self.runs or RANKS_RUNS:,} measured{'' if self.runs else ' (--runs)'}"
        )
        return replace(self, runs=self.runs or RANKS_RUNS, warmup_runs=warmup_runs)


def _check_seconds(value: float, least: float, option: str) -> None:
    if not least <= value < math.inf:
        raise misuse(option, f"expected a number of seconds, {least:g} or more, got {value:g}")


def _numbers(text: str, option: str, wanted: str, least: float) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        numbers = [math.nan]
    if not all(least <= number < math.inf for number in numbers):
        raise misuse(option, f"expected {wanted}, got {text!r}")
    return numbers
