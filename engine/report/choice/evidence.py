"""The evidence of a choice: the setups that were tried, their figures, and the chosen one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 3
OF_THREADS = frozenset({"spin_us"})
"""Options that say how threads wait."""
_REST = 1000
"""As many times the time of a contest whose outcome is open passes before another one."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Targets and settings with which a model may be built.

    targets: the backend, then the default's, which runs nodes that the first cannot. threads: for
    context.cpu.thread_num; 0 leaves it. sections: of options, beside those of the user.
    Of a tuning alone: form: how the model is quantized, "" for not at all. workers: for
    context.parallel.workers_num; 0 leaves it. max_batch: samples that share a run; 0 leaves it.
    """

    targets: tuple[str, ...]
    threads: int = 0
    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    form: str = ""
    workers: int = 0
    max_batch: int = 0

    @property
    def is_of_threads(self) -> bool:
        """True where it has settings of threads, which change no result."""
        keys = {key for keys in self.sections.values() for key in keys}
        are_counted = self.threads or self.workers or self.max_batch
        return bool(are_counted) or not keys.isdisjoint(OF_THREADS)

    def __hash__(self) -> int:
        return hash(str(self))  # sections have none

    def __str__(self) -> str:
        options = [
            f"{key}={value}" for keys in self.sections.values() for key, value in keys.items()
        ]
        numbers = {"workers": self.workers, "threads": self.threads, "max_batch": self.max_batch}
        counts = [f"{name}={number}" for name, number in numbers.items() if number]
        form = [self.form] if self.form else []
        return " ".join([",".join(self.targets), *form, *counts, *options])


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a setup under the load that a tuning is for.

    ratio, low, high: of its time per request to the default's, and the ends of the confidence
    interval of 95 % or, of the last comparison, more. rounds: in which both took turns. p50_s,
    p99_s: of a request, with its wait; p99_low_s, p99_high_s: bounds of the second, None where
    requests are too few for it. throughput_per_s: requests of all clients. memory_bytes: of the
    compiled model, as far as its backend can tell.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    requests: int
    p50_s: float
    p99_s: float
    p99_low_s: float
    p99_high_s: float | None
    throughput_per_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A setup that was tried, and its figures.

    default_s, seconds: median seconds of a predict of the default and of the setup, which took
    turns; ratio: of the second to the first, see `duel`. nodes: number of the model's nodes by
    backend. error: of its results, see `errors.error_of`; None where no error was measured.
    why_not: why the setup could not be chosen; "" where it could. is_open: another time it might:
    its process was lost, there was no time for it, or two comparisons disagree. figures: of a
    tuning alone.
    """

    setup: Setup
    default_s: float | None = None
    seconds: float | None = None
    ratio: float | None = None
    rounds: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)
    error: float | None = None
    why_not: str = ""
    is_open: bool = False
    figures: Figures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a choice rests on.

    chosen: the model is built with it. default: the others were compared with it. inputs: their
    shapes by name. key: what else it depends on beside the model, as text by name: machine,
    versions, settings. created: seconds since the epoch. took_s: the time that it took. devices: of
    the chosen targets that are no CPU, as the key.
    """

    chosen: Setup
    default: Setup
    trials: tuple[Trial, ...]
    reason: str
    inputs: Mapping[str, Sequence[int]]
    key: Mapping[str, str]
    created: float
    took_s: float
    devices: Mapping[str, str] = field(default_factory=dict)

    @property
    def valid_s(self) -> float:
        """Seconds for which it counts: less than for ever where the default is chosen for now."""
        is_open = self.chosen == self.default and any(trial.is_open for trial in self.trials)
        return _REST * self.took_s if is_open else math.inf

    def counts_at(self, now: float) -> bool:
        """Return whether it counts at a time, in seconds since the epoch."""
        return self.valid_s == math.inf or 0 <= now - self.created < self.valid_s

    def to_json(self) -> dict[str, Any]:
        """Return it as what json can write."""
        return {"format": FORMAT, **asdict(self)}


def read(text: str | bytes) -> Evidence:
    """Return the evidence that a text holds. Raises ValueError for anything else."""
    try:
        said = json.loads(text)
        if said["format"] != FORMAT:
            raise ValueError(f"format {said['format']!r}")
        return Evidence(
            chosen=_setup(said["chosen"]),
            default=_setup(said["default"]),
            trials=tuple(map(_trial, said["trials"])),
            reason=str(said["reason"]),
            inputs={str(name): [*map(int, shape)] for name, shape in said["inputs"].items()},
            key={str(name): str(value) for name, value in said["key"].items()},
            created=float(said["created"]),
            took_s=float(said["took_s"]),
            devices={str(name): str(kind) for name, kind in said.get("devices", {}).items()},
        )
    except (LookupError, OverflowError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no evidence of a choice: {error!r}") from error


def _setup(said: Any) -> Setup:
    targets = tuple(map(str, said["targets"]))
    threads = int(said["threads"])
    if not targets or threads < 0:
        raise ValueError(f"{said!r} is no setup")
    sections = {
        str(name): {str(key): str(value) for key, value in keys.items()}
        for name, keys in said["sections"].items()
    }
    return Setup(targets, threads, sections)


def _trial(said: Any) -> Trial:
    return Trial(
        setup=_setup(said["setup"]),
        default_s=_number(said["default_s"]),
        seconds=_number(said["seconds"]),
        ratio=_number(said["ratio"]),
        rounds=int(said["rounds"]),
        nodes={str(name): int(count) for name, count in said["nodes"].items()},
        error=_number(said["error"]),
        why_not=str(said["why_not"]),
        is_open=bool(said["is_open"]),
    )


def _number(said: Any) -> float | None:
    if said is None:
        return None
    value = float(said)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"expected a number of 0 or more, got {said!r}")
    return value
