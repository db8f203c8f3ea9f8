"""The evidence of a choice: the setups that were tried, their figures, and the chosen one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 2
OF_THREADS = frozenset({"spin_us"})
"""Options that say how threads wait."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Targets and settings with which a model may be built.

    targets: the backend, then the default's, which runs nodes that the first cannot. threads: for
    context.cpu.thread_num; 0 leaves it. sections: of options, beside those of the user.
    """

    targets: tuple[str, ...]
    threads: int = 0
    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def is_of_threads(self) -> bool:
        """True where it has settings of threads, which change no result."""
        keys = {key for keys in self.sections.values() for key in keys}
        return bool(self.threads) or not keys.isdisjoint(OF_THREADS)

    def __str__(self) -> str:
        options = [
            f"{key}={value}" for keys in self.sections.values() for key, value in keys.items()
        ]
        threads = [f"threads={self.threads}"] if self.threads else []
        return " ".join([",".join(self.targets), *threads, *options])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A setup that was tried, and its figures.

    default_s, seconds: median seconds of a predict of the default and of the setup, which took
    turns; ratio: of the second to the first, see `duel`. nodes: number of the model's nodes by
    backend. error: of its results, see `errors.error_of`; None where no error was measured.
    why_not: why the setup could not be chosen; "" where it could.
    """

    setup: Setup
    default_s: float | None = None
    seconds: float | None = None
    ratio: float | None = None
    rounds: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)
    error: float | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a choice rests on.

    chosen: the model is built with it. default: the others were compared with it. inputs: their
    shapes by name. key: what else it depends on beside the model, as text by name: machine,
    versions, settings. created: seconds since the epoch. took_s: the time that it took.
    """

    chosen: Setup
    default: Setup
    trials: tuple[Trial, ...]
    reason: str
    inputs: Mapping[str, Sequence[int]]
    key: Mapping[str, str]
    created: float
    took_s: float

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
    )


def _number(said: Any) -> float | None:
    if said is None:
        return None
    value = float(said)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"expected a number of 0 or more, got {said!r}")
    return value
