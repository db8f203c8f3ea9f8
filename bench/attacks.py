"""Attacks on processes, ranks and the cache, each made many times with real processes.

    python bench/attacks.py                     all, 100 times each (about 20 minutes)
    python bench/attacks.py --times 10          a short try
    python bench/attacks.py build interrupt     some of them

    build       an isolated build with its weights in memory fails: its worker is killed, the
                runtime refuses the model, it is cancelled, no thread can be started. Its process
                collects the error and ends; a crash is another end than a normal one
    cache       another user exchanges the folder of the compile cache, as fast as he can, for one
                with entries of his own, while models are built; wrong is a result by his weights
    strangers   another user connects to the ranks' sockets and says nothing, or fills their
                backlog, while two ranks join; back is the time to join
    store       the ranks' store has no thread to spare for a moment; back is from its end until
                a rank is served
    starts      every worker of a MultiDeviceRunner is killed as it starts, 8 times in a row, while
                clients wait; back is from the last kill until all workers are ready
    interrupt   a worker of a MultiDeviceRunner gets SIGINT under load; back is until all are ready
    handler     a signal handler raises in a thread's predict of an isolated model, which other
                threads use; lost are their requests; back is until the next result

Lost: requests, builds and jobs with an error that is the attack's. Back: median and longest time.
Needs the cpu backend, the onnx package and Linux; `cache` and `strangers` also root and setpriv.
Exits with status 1 where something crashed, was lost or wrong. `--json` for programs.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import attacks_by_users
import attacks_on_workers
from measure import bar, parser_of
from tally import Tally

Attack = Callable[[Path, int, Callable[[int], None]], Tally]
ATTACKS: dict[str, Attack] = {
    "build": attacks_on_workers.fail_builds,
    "cache": attacks_by_users.exchange_the_cache,
    "strangers": attacks_by_users.disturb_ranks,
    "store": attacks_on_workers.take_the_threads_of_a_store,
    "starts": attacks_on_workers.fail_starts,
    "interrupt": attacks_on_workers.interrupt_workers,
    "handler": attacks_on_workers.raise_in_predicts,
}


def progress(name: str, times: int) -> Callable[[int], None]:
    show = bar(name)
    return (lambda done: None) if show is None else partial(_shown, show, times)


def _shown(show: Callable[[int, int], None], times: int, done: int) -> None:
    show(min(done, times), times)


def line(name: str, tally: Tally) -> str:
    counts = f"{tally.runs:6} {tally.crashes:7} {tally.lost:6} {tally.wrong:6}"
    return f"{name:10} {counts} {tally.median_s:9.3f} {tally.longest_s:9.3f}  {tally.note}"


def main() -> int:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    parser.add_argument("--times", type=int, default=100)
    given = parser.parse_args()
    if unknown := set(given.attacks) - set(ATTACKS):
        parser.error(f"no attack is called {', '.join(sorted(unknown))}")
    logging.getLogger("engine").setLevel(logging.ERROR)  # thousands of restarts are none
    os.environ["ENGINE_CACHE"] = "off"  # an attack that wants the cache says so
    found: dict[str, Tally] = {}
    if not given.json:
        print(f"{'attack':10}   runs crashes   lost  wrong  back [s]   longest")
    for name in given.attacks or ATTACKS:
        if name in attacks_by_users.NEED_USERS and (why := attacks_by_users.missing()):
            print(f"{name:10} skipped: {why}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            found[name] = ATTACKS[name](Path(folder), given.times, progress(name, given.times))
        if not given.json:
            print(line(name, found[name]), flush=True)
        for error, count in found[name].errors.items():
            print(f"{name}: {count} x {error}", file=sys.stderr)
    if given.json:
        rows = {name: {**facts(tally), "errors": tally.errors} for name, tally in found.items()}
        print(json.dumps(rows, indent=2))
    return not all(tally.is_clean for tally in found.values())


def facts(tally: Tally) -> dict[str, object]:
    tally.lock = None  # type: ignore[assignment]  # which cannot be copied
    return {name: value for name, value in asdict(tally).items() if name != "lock"}


if __name__ == "__main__":
    sys.exit(main())
