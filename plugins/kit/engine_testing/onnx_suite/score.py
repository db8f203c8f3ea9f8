"""The outcomes of a run, one by one and together."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from engine_testing.onnx_suite.cases import LIGHT


class Status(StrEnum):
    """The outcome of a test."""

    PASSED = "passed"
    RANDOM = "random"  # it ran; kinds, types and shapes are right, the values drawn
    REFUSED = "refused"  # an error of the engine says why the model or its data is not taken
    WRONG = "wrong"  # it ran, and something else came out
    FAILED = "failed"  # any other exception
    DIED = "died"  # the process crashed, or was stopped at the time limit


FAULTS = (Status.WRONG, Status.FAILED, Status.DIED)
"""Outcomes that no backend may have; to refuse a model is no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one test.

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

    def only_on(self, backend: str) -> str:
        """Return the other backends that ran the whole model; "" where `backend` ran a node.

        "" too where the model was not built.
        """
        return "" if backend in self.nodes else ", ".join(self.nodes)


class Score:
    """The results of a run of the suite on `backend`, by name."""

    def __init__(self, backend: str, results: Sequence[Result]) -> None:
        self.backend = backend
        self.results = sorted(results, key=lambda result: result.name)

    @property
    def counts(self) -> Mapping[Status, int]:
        """Count the tests with each outcome; 0 where none had it."""
        return Counter(result.status for result in self.results)

    @property
    def operators(self) -> Score:
        """The tests of operators alone: all but the light models."""
        return Score(self.backend, [result for result in self.results if result.kind != LIGHT])

    @property
    def light(self) -> Score:
        """The light models alone."""
        return Score(self.backend, [result for result in self.results if result.kind == LIGHT])

    def of(self, *statuses: Status) -> list[Result]:
        """The tests that ended in one of these ways."""
        return [result for result in self.results if result.status in statuses]

    @property
    def faults(self) -> list[Result]:
        """The tests that show a fault of this backend."""
        return [result for result in self.of(*FAULTS) if not result.only_on(self.backend)]

    @property
    def faults_elsewhere(self) -> list[Result]:
        """The tests that show a fault of other backends, which ran the whole model."""
        return [result for result in self.of(*FAULTS) if result.only_on(self.backend)]

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

        Those of other backends, which ran the whole model, are not among the backend's own.

        Faults come first, then the largest groups.
        """
        groups: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
        for result in self.results:
            if result.status is not Status.PASSED:
                like = re.sub(r"'[^']*'|\[[^\]]*\]|\d+", "*", result.reason)
                groups[result.status, like, result.only_on(self.backend)].append(result)
        return sorted(
            groups.values(), key=lambda group: (group[0].status not in FAULTS, -len(group))
        )

    def values(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "backend": self.backend,
            "operators": self.operators._counts(),
            "light_models": self.light._counts(),
            "elsewhere": {name: len(tests) for name, tests in self.elsewhere().items()},
            "faults": len(self.faults),
            "faults_elsewhere": len(self.faults_elsewhere),
            "tests": [
                asdict(result) | {"only_on": result.only_on(self.backend)}
                for result in self.results
            ],
        }

    def _counts(self) -> dict[str, int]:
        counts = self.counts
        return {**{str(status): counts[status] for status in Status}, "all": len(self.results)}
