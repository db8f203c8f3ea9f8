"""How the tests of a run ended, one by one and together."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from engine.testing.onnx_suite.cases import LIGHT


class Status(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    RANDOM = "random"  # it ran; kinds, types and shapes are right, the values drawn
    REFUSED = "refused"  # an error of the engine says why the model or its data is not taken
    WRONG = "wrong"  # it ran, and something else came out
    FAILED = "failed"  # any other exception
    DIED = "died"  # the process crashed, or was stopped at the time limit


FAULTS = (Status.WRONG, Status.FAILED, Status.DIED)
"""What no backend may do; to refuse a model is no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one test.

    reason: why it did not pass, in one line; "" if it did. error: the largest error of a value as
    a part of what the tolerance allows. nodes: by backend, the operators of the main graph's
    nodes that it was to run; empty where the model was not built.
    """

    name: str
    kind: str
    status: Status
    reason: str = ""
    error: float = 0.0
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Score:
    """What a run of the suite on `backend` came to. results: by name."""

    def __init__(self, backend: str, results: Sequence[Result]) -> None:
        self.backend = backend
        self.results = sorted(results, key=lambda result: result.name)

    @property
    def counts(self) -> Mapping[Status, int]:
        """How many tests ended in each way; 0 for a way that none ended in."""
        return Counter(result.status for result in self.results)

    @property
    def operators(self) -> Score:
        """The tests of operators alone: all but the light models."""
        return Score(self.backend, [each for each in self.results if each.kind != LIGHT])

    @property
    def light(self) -> Score:
        """The light models alone."""
        return Score(self.backend, [each for each in self.results if each.kind == LIGHT])

    def of(self, *statuses: Status) -> list[Result]:
        """The tests that ended in one of these ways."""
        return [result for result in self.results if result.status in statuses]

    def elsewhere(self) -> dict[str, list[Result]]:
        """The tests that have a node on another backend, by that backend."""
        found: dict[str, list[Result]] = defaultdict(list)
        for result in self.results:
            for name in result.nodes:
                if name != self.backend:
                    found[name].append(result)
        return dict(found)

    def by_reason(self) -> list[list[Result]]:
        """The tests that did not pass, those of one status and like reason together.

        Faults come first, then the largest groups.
        """
        groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for result in self.results:
            if result.status is not Status.PASSED:
                like = re.sub(r"'[^']*'|\[[^\]]*\]|\d+", "*", result.reason)
                groups[result.status, like].append(result)
        return sorted(groups.values(), key=lambda each: (each[0].status not in FAULTS, -len(each)))

    def values(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "backend": self.backend,
            "operators": self.operators._counts(),
            "light_models": self.light._counts(),
            "elsewhere": {name: len(tests) for name, tests in self.elsewhere().items()},
            "tests": [asdict(result) for result in self.results],
        }

    def _counts(self) -> dict[str, int]:
        counts = self.counts
        return {**{str(each): counts[each] for each in Status}, "all": len(self.results)}
