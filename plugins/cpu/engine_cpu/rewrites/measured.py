"""A choice by measurement: is a rewritten model faster on this processor?

Both forms are made with one thread and run in turns, timed by the CPU time of this thread, which
neighbours on a busy machine change least. The rewritten one is used where the middle of the ratios
of neighbouring turns and the ratio of the fastest are both below MARGIN, in two series one after
the other. A form that cannot be measured is not used: see `_Unmeasured`.

The verdict is kept as long as the process lives, and in the compile cache's folder: a model, a
machine and the versions that it was measured with have one. It is a file of this user's alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine.host.interrupts import pass_interrupt
from engine.types import CompileOptions, ModelSource, Threads
from engine_cpu import thread_pool
from engine_cpu.options import RUN_OPTIONS, session_options
from engine_cpu.prepared import NOTHING, Prepared
from engine_cpu.rewrites.sample import samples
from engine_cpu.runtime import ort
from engine_cpu.session import give_files, graph_of, session_of
from engine_cpu.tensors import Array

METHOD = "1"
"""A number for all that is below: another one for what would give other verdicts."""

MARGIN = 0.97
SERIES = 2
SERIES_S, SERIES_WALL_S = 0.35, 1.5  # unless the fewest turns take longer; of CPU time and in all
LEAST_TURNS, MOST_TURNS = 3, 40
_TURN_S = 0.002  # of a timing, at least
_SHORTEST_S, _LONGEST_S = 20e-6, 0.25  # of a run that is measured
_MOST_BYTES = 512 << 20  # of weights, which both forms have in memory
_CLOSE = 1e-3  # of the largest result: what a wrong rewrite is far beyond
_MOST_KEPT = 1000

Timer = Callable[[Callable[[], object], int], float]


@dataclass(frozen=True)
class Verdict:
    """Outcome of a measurement. ratio: of the times, where there is one. text: for people."""

    is_used: bool
    text: str
    ratio: float | None = None


class _Unmeasured(Exception):
    """A reason why a model is not measured."""


_known: dict[str, Verdict] = {}


class Trial:
    """A model as it is, to measure its other forms beside. base: its session, once it is needed."""

    base: ort.InferenceSession | None = None

    def __init__(self, source: ModelSource, options: CompileOptions) -> None:
        self.source = source
        left_out = ("thread_pool", "workspace", "spin_us")
        own = {key: text for key, text in options.options.items() if key not in left_out}
        self.options = replace(
            options, options=own, threads=Threads(), plan="", save_to=None, profile_to=None
        )

    def session(self, form: Prepared) -> ort.InferenceSession:
        """Make the session of a form, with one thread."""
        settings = session_options(self.options)
        return session_of(give_files(self.source, settings), form, settings, self.options.cancel)


def verdict_of(trial: Trial, prepared: Prepared, key: Mapping[str, str]) -> Verdict:
    """Return whether a rewritten model is to be used. key: see `verdict_key`."""
    if thread_pool.is_shared:  # whose threads' time nobody can tell apart
        return Verdict(False, "not measured: all sessions of the process share one thread pool")
    text = json.dumps(key, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest in _known:
        return _known[digest]
    path, folder = None, trial.options.cache_folder
    if folder is not None and not trial.source.is_secret:
        path = folder / "verdicts" / f"{digest}.txt"
    found = None if path is None else _read(path, text)
    if found is None:
        found = _measured(trial, prepared)
        if path is not None:
            _write(path, text, found)
    if len(_known) >= _MOST_KEPT:
        _known.clear()
    _known[digest] = found
    return found


def verdict_key(
    model: bytes, options: CompileOptions, versions: Mapping[str, str]
) -> dict[str, str]:
    """Return what a verdict depends on. model: without large weights, whose values change no time.

    versions: of the processor and of all that computes.
    """
    settings = {k: text for k, text in options.options.items() if k not in RUN_OPTIONS}
    return {
        **versions,
        "model": hashlib.sha256(model).hexdigest(),
        "shapes": repr(sorted(options.shapes.items())),
        "options": json.dumps(settings, sort_keys=True),
    }


def _measured(trial: Trial, prepared: Prepared) -> Verdict:
    try:
        turns = _times(trial, prepared)
    except _Unmeasured as error:
        return Verdict(False, f"not measured: {error}")
    ratio = _ratio(turns)
    return Verdict(ratio < MARGIN, f"{ratio:.2f} of the time, measured on this machine", ratio)


def _ratio(series: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the time of the second of two forms over the first's, the worst of what says so.

    series: for each the times of both forms, turn by turn.
    """
    found = []
    for turns in series:
        found.append(statistics.median(own / base for base, own in turns))
        found.append(min(own for _, own in turns) / min(base for base, _ in turns))
    return max(found)


def _times(trial: Trial, prepared: Prepared) -> list[list[tuple[float, float]]]:
    weights_bytes = sum(parameter.nbytes for parameter in graph_of(trial.source).parameters)
    if weights_bytes > _MOST_BYTES:
        raise _Unmeasured(f"its weights are above {_MOST_BYTES >> 20} MiB")
    cancel = trial.options.cancel
    trial.base = trial.base or trial.session(NOTHING)
    sessions = (trial.base, trial.session(prepared))
    feeds = _feeds(trial.source, trial.options, sessions)
    runs = [lambda own=session: own.run(None, feeds) for session in sessions]
    check = (lambda: None) if cancel is None else cancel.check
    return measured_times(runs, _calls(runs[0]), check)


def measured_times(
    runs: Sequence[Callable[[], object]],
    calls: int,
    check: Callable[[], None],
    timed: Timer | None = None,
) -> list[list[tuple[float, float]]]:
    """Return the times of two functions in turns, in series, until one series shows no gain.

    calls: of a function in a turn. check: may raise. timed: the time of so many calls.
    """
    timed = timed or _timed
    series: list[list[tuple[float, float]]] = []
    for _ in range(SERIES):
        turns: list[tuple[float, float]] = []
        end, left_s = time.monotonic() + SERIES_WALL_S, SERIES_S
        while len(turns) < LEAST_TURNS or (
            left_s > 0 and time.monotonic() < end and len(turns) < MOST_TURNS
        ):
            check()
            order = (0, 1) if len(turns) % 2 else (1, 0)
            times = {index: timed(runs[index], calls) for index in order}
            turns.append((times[0], times[1]))
            left_s -= sum(times.values())
        series.append(turns)
        if _ratio(series) >= MARGIN:
            break
    return series


def _timed(run: Callable[[], object], calls: int) -> float:
    begin = time.thread_time()
    for _ in range(calls):
        run()
    return time.thread_time() - begin


def _feeds(
    source: ModelSource, options: CompileOptions, sessions: Sequence[ort.InferenceSession]
) -> Mapping[str, Array]:
    """Return inputs on which both forms run and agree."""
    error: Exception = ValueError("its inputs are of types that have no sample")
    for feeds in samples(graph_of(source).inputs, options):
        try:
            expected = sessions[0].run(None, feeds)
        except Exception as why:  # ONNX Runtime's exceptions have no common base
            pass_interrupt(why)
            error = why
            continue
        results = sessions[1].run(None, feeds)
        for own, other in zip(results, expected, strict=True):
            if not agree(np.asarray(own), np.asarray(other)):
                raise _Unmeasured("its results differ")
        return feeds
    raise _Unmeasured(f"it runs on no inputs of a usual size: {' '.join(str(error).split())[:200]}")


def agree(own: Array, other: Array) -> bool:
    """Return True for results that a rewrite may give; whole numbers are not compared."""
    if own.dtype != other.dtype or own.ndim != other.ndim:
        return False
    if own.dtype.kind != "f":
        return True
    if own.shape != other.shape:
        return False
    own, other = own.astype(np.float64), other.astype(np.float64)
    is_finite = np.isfinite(other)
    if not np.array_equal(own[~is_finite], other[~is_finite], equal_nan=True):
        return False
    own, other = own[is_finite], other[is_finite]
    largest = np.abs(other).max(initial=1)
    return bool((np.abs(own - other) <= _CLOSE * largest).all())


def _calls(run: Callable[[], object]) -> int:
    """Return how many runs make a turn."""
    once = min(_timed(run, 1) for _ in range(2))
    if once > _LONGEST_S:
        raise _Unmeasured(f"a run takes {once:.1f} s")
    if once < _SHORTEST_S:
        raise _Unmeasured(f"a run takes {once * 1e6:.0f} us, too little to see a difference")
    return max(1, round(_TURN_S / once))


def _read(path: Path, key: str) -> Verdict | None:
    """Return a verdict that this user has kept for this key; None for what is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8") as file:
            if os.fstat(descriptor).st_uid != os.geteuid():
                return None
            kept = json.loads(file.read(1 << 16))
        if kept["key"] != json.loads(key):
            return None
        ratio = None if kept["ratio"] is None else float(kept["ratio"])
        return Verdict(kept["is_used"] is True, str(kept["text"]), ratio)
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        pass_interrupt(error)
        return None


def _write(path: Path, key: str, verdict: Verdict) -> None:
    """Keep a verdict; a disk that takes none is no error, for the process remembers it."""
    kept = {
        "key": json.loads(key),
        "is_used": verdict.is_used,
        "ratio": verdict.ratio,
        "text": verdict.text,
    }
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(os.listdir(path.parent)) > _MOST_KEPT:
            for old in path.parent.iterdir():
                old.unlink()
        new.write_text(json.dumps(kept), encoding="utf-8")
        new.replace(path)
