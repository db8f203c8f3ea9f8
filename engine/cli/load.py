"""Measurements of `engine bench`: how long, with how many clients, over which batches or rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli.commands import Integer
from engine.cli.hints import misuse
from engine.cli.output import counted, note
from engine.report.measurement import DURATION_S, RANKS_RUNS, RANKS_WARMUP_RUNS, by_runs

if TYPE_CHECKING:
    _OfFloat = click.ParamType[float]
else:
    _OfFloat = click.ParamType  # the lowest click has no types of values

LIMIT = 0.03  # a change of a model's time that matters
SWEEP_S = 2.0  # the length of each measurement of a sweep


class Integers(Integer):
    """Integers with commas between; one is a list too."""

    name = "integers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return them as a tuple; a usage error for one that is none or out of range."""
        if isinstance(value, tuple):
            return value
        return tuple(
            super(Integers, self).convert(part, param, ctx) for part in str(value).split(",")
        )


class Percent(_OfFloat):
    """A number of per cent above 0, as "3%" or "3"; it is returned as a part, 0.03."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the part; a usage error for what is none."""
        try:
            found = float(str(value).strip().removesuffix("%")) / 100
        except ValueError:
            found = math.nan
        if not 0 < found < 10:
            self.fail(f"expected per cent above 0, as 3%, got {value!r}", param, ctx)
        return found


@dataclass(frozen=True, slots=True)
class Sweep:
    """The batches or the loads to measure, as on the command line; both "" for none.

    at_once: numbers of clients, each measured. host_threads: numbers, each built.
    """

    batches: str = ""
    rates: str = ""
    at_once: tuple[int, ...] = (1,)
    host_threads: tuple[int, ...] = (0,)

    def __bool__(self) -> bool:
        is_list = len(self.at_once) > 1 or len(self.host_threads) > 1
        return bool(self.batches or self.rates) or is_list

    def checked(self) -> tuple[list[int], list[float]]:
        """Return the numbers of both. Raises a usage error."""
        if self.batches and self.rates:
            raise misuse("--batches, --rates", "expected one of the two")
        batches = _numbers(self.batches, "--batches", "sizes of 1 or more, as 1,2,4,8", 1)
        whole = [int(number) for number in batches]
        if batches != whole:
            raise misuse("--batches", f"expected whole numbers, got {self.batches!r}")
        return whole, _numbers(
            self.rates, "--rates", "requests a second, 0.001 or more, as 10,20,50", 1e-3
        )


@dataclass(frozen=True, slots=True)
class Against:
    """Files of runs that are compared, and the change from which on the command fails."""

    save: Path | None = None
    against: Path | None = None
    fail_above: float | None = None

    def __bool__(self) -> bool:
        return self.save is not None or self.against is not None

    @property
    def limit(self) -> float:
        """The change that is looked for."""
        return LIMIT if self.fail_above is None else self.fail_above


@dataclass(frozen=True, slots=True)
class Load:
    """Length of a measurement, and the clients at once; one of duration_s and runs is None.

    warmup_runs: how many unmeasured, instead of warmup_s.
    """

    duration_s: float | None
    runs: int | None
    warmup_s: float
    clients: int = 1
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
            ("--clients", max(sweep.at_once) > 1),
            ("--threads", len(sweep.host_threads) > 1),
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
