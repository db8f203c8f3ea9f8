"""`engine plugins check --suite onnx`: onnx's own backend suite, run on an installed backend."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from engine.cli.output import line, plain, table
from engine.cli.progress import progress

if TYPE_CHECKING:
    from engine_testing.onnx_suite import Result, Score

_FEW = 6  # tests that are named beside the reason why they did not pass


def run_onnx(name: str, pattern: str, limit_s: float, beside: Sequence[str] = ()) -> Score:
    """Run the suite on backend `name`.

    pattern: a regular expression for the tests' names. limit_s: for one test. beside: targets that
    run what the backend does not. Raises BackendUnavailable for a backend that cannot be had.
    """
    from engine_testing.onnx_suite import Score, load_cases, run

    results = []
    with progress() as show:
        show("loading the tests", 0, None)
        try:
            cases = load_cases(pattern)
        except re.error as error:
            raise click.BadParameter(f"{pattern!r}: {error}", param_hint="-k") from error
        if not cases:
            raise click.BadParameter(f"no test has a name with {pattern!r}", param_hint="-k")
        show("loading the tests", len(cases), len(cases))
        show(f"testing {name}", 0, len(cases))
        for result in run(name, cases, limit_s=limit_s, beside=beside):
            results.append(result)
            show(f"testing {name}", len(results), len(cases))
    return Score(name, results)


def is_faultless(score: Score) -> bool:
    """Return whether no test shows a fault of the backend; to refuse a model is none."""
    return not score.faults


def onnx_values(score: Score) -> dict[str, Any]:
    """Return a score as plain values, for JSON."""
    return {"suite": "onnx", "ok": is_faultless(score), **score.values()}


def print_onnx(score: Score) -> None:
    """Print a score for people."""
    from engine_testing.onnx_suite import Status

    parts = [("operators", score.operators), ("light models", score.light)]
    parts = [(what, part) for what, part in parts if part.results]
    table(
        "",
        ("tests", *(f">{status}" for status in Status), ">all"),
        [
            (what, *(part.counts[status] for status in Status), len(part.results))
            for what, part in parts
        ],
    )
    for backend, tests in score.elsewhere().items():
        operators = Counter(operator for test in tests for operator in set(test.nodes[backend]))
        line()
        line(f"{len(tests)} tests have a node on {plain(backend)}:")
        line(f"  {', '.join(f'{plain(name)} {count}' for name, count in operators.most_common())}")
    for group in score.by_reason():
        line()
        other = group[0].only_on(score.backend)
        on = f" on {plain(other)}, which ran the whole model" if other else ""
        line(f"{group[0].status}{on}: {_named(group)}")
        line(f"  {plain(group[0].reason)}")
    line()
    faults = score.faults_elsewhere
    counts = [f"{part.counts[Status.PASSED]} of {len(part.results)} {what}" for what, part in parts]
    line(f"{plain(score.backend)}: {', '.join(counts)} passed")
    for other, number in Counter(each.only_on(score.backend) for each in faults).items():
        what = "fault is" if number == 1 else "faults are"
        line(f"{number} {what} of {plain(other)}, which ran the whole model")


def _named(group: list[Result]) -> str:
    names = [plain(result.name) for result in group[:_FEW]]
    more = f" and {len(group) - _FEW} more" if len(group) > _FEW else ""
    return f"{', '.join(names)}{more}"
