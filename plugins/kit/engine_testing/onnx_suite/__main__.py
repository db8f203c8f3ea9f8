"""Run onnx's backend suite on a backend, print what did not pass, and keep its ledger."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from engine.errors import BackendError
from engine_testing.onnx_suite import FAULTS, Score, load_cases, run
from engine_testing.onnx_suite.ledger import mistakes, read, write


def main() -> int:
    """The command; returns 1 where the backend gives wrong results, or the ledger is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m engine_testing.onnx_suite", description=__doc__
    )
    parser.add_argument("backend", help="the name of an installed backend")
    parser.add_argument("-k", metavar="REGEX", default="", help="only tests whose name matches")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    ledger = parser.add_mutually_exclusive_group()
    ledger.add_argument("--ledger", type=Path, help="compare with this ledger")
    ledger.add_argument("--write-ledger", type=Path, help="write it; known reasons are kept")
    arguments = parser.parse_args()
    if arguments.k and (arguments.ledger or arguments.write_ledger):
        parser.error("a ledger is of the whole suite: leave -k out")
    cases = load_cases(arguments.k)
    try:
        score = Score(arguments.backend, list(run(arguments.backend, cases)))
    except BackendError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(score.values(), indent=1))
    else:
        _print(score)
    if arguments.write_ledger:
        write(arguments.write_ledger, score)
    wrong = mistakes(read(arguments.ledger), score) if arguments.ledger else []
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong or score.of(*FAULTS) else 0


def _print(score: Score) -> None:
    for group in score.by_reason():
        print(f"{len(group):5} {group[0].status}: {group[0].reason}")
        print("     ", " ".join(result.name for result in group))
    for name, tests in score.elsewhere().items():
        print(f"{len(tests):5} with nodes on {name!r}")
        print("     ", " ".join(result.name for result in tests))
    for what, part in (("tests of operators", score.operators), ("light models", score.light)):
        counts = ", ".join(f"{count} {status}" for status, count in part.counts.items())
        print(f"{len(part.results)} {what}: {counts or 'none'}")


if __name__ == "__main__":
    sys.exit(main())
