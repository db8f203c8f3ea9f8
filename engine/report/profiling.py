"""Time per kernel of a model's predicts, as `Model.profile` gives it and people read it.

The model that serves is not measured, but one that is built beside it for the purpose: to measure
costs a runtime time in every kernel. How long a predict takes is told by the one that serves.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from engine.config.checks import require_count, require_int
from engine.config.text import counted, html_tables, plain
from engine.errors import BackendError
from engine.host.folder import temporary_folder
from engine.model.update import measured_copy
from engine.types import Capability

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.model.state import ModelState
    from engine.plan.reports import KernelTimes
    from engine.types import KernelTime

__all__ = ["Kernel", "OperatorTime", "Profile", "Run"]

_BAR = 24
_SHOWN = 20
_MEMORY = "/dev/shm"
_WITH_BODIES = frozenset(("If", "Loop", "Scan", "SequenceMap"))


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, over all predicts that were measured.

    nodes: the model's nodes that it computes, by index, as in `Model.placement`: several where they
    are fused, for one in a body the node with the body; () for what the backend has added, and
    where it cannot tell. runs: how often it ran in one predict, at the mean. time_s: in one
    predict, the median of all, without the kernels that ran inside it. share: of the time of all.
    """

    name: str
    op_type: str
    nodes: tuple[int, ...]
    backend: str
    device: str
    runs: float
    time_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a kernel in one predict. kernel: its place in `Profile.kernels`.

    start_s: since the first predict that was measured began its first kernel.
    """

    predict: int
    kernel: int
    start_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The time of all kernels of one operator type in one predict. runs: how often they ran."""

    op_type: str
    kernels: int
    runs: float
    time_s: float
    share: float


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """A model's time by kernel. Prints as a table, in a notebook too.

    predict_s: what a predict takes, the median of as many as were measured, without measuring;
    measured_s: with it. kernels: the hottest first. runs: each run of each, in order. predicts: how
    many were measured. unmeasured: backends that run parts of the model and cannot tell.
    """

    predict_s: float
    measured_s: float
    kernels: tuple[Kernel, ...]
    runs: tuple[Run, ...]
    predicts: int
    unmeasured: tuple[str, ...] = ()

    @property
    def kernels_s(self) -> float:
        """The time of all kernels in one predict."""
        return sum(kernel.time_s for kernel in self.kernels)

    @property
    def by_operator(self) -> tuple[OperatorTime, ...]:
        """The time by operator type, the hottest first; fused kernels have types of their own."""
        found: dict[str, list[Kernel]] = {}
        for kernel in self.kernels:
            found.setdefault(kernel.op_type, []).append(kernel)
        sums = [
            OperatorTime(
                op_type,
                len(kernels),
                sum(kernel.runs for kernel in kernels),
                sum(kernel.time_s for kernel in kernels),
                sum(kernel.share for kernel in kernels),
            )
            for op_type, kernels in found.items()
        ]
        return tuple(sorted(sums, key=lambda each: -each.time_s))

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def _headline(self) -> str:
        return (
            f"predict {_ms(self.predict_s)}, while it is measured {_ms(self.measured_s)}, kernels "
            f"{_ms(self.kernels_s)} of that; {self.predicts} predicts"
        )

    def _repr_html_(self) -> str:
        kernels = [(f"{k.share:.1%}", _ms(k.time_s), k.op_type, k.name) for k in self.kernels]
        sums = [
            (f"{each.share:.1%}", _ms(each.time_s), each.op_type, counted(each.kernels, "kernel"))
            for each in self.by_operator
        ]
        if more := kernels[_SHOWN:]:
            kernels[_SHOWN:] = [("", "", "", counted(len(more), "further kernel"))]
        unmeasured = [(f"not measured: {name} cannot tell",) for name in self.unmeasured]
        tables: list[tuple[str, list[Any]]] = [("", unmeasured), ("kernels", kernels)]
        if len(sums) < len(self.kernels):
            tables.append(("by operator type", sums))
        return html_tables(self._headline(), tables)

    def __str__(self) -> str:
        lines = [self._headline()]
        lines += [f"not measured: {name} cannot tell" for name in self.unmeasured]
        lines += _bars(self.kernels, lambda each: f"{each.op_type} {each.name}".strip())
        if more := self.kernels[_SHOWN:]:
            share = sum(kernel.share for kernel in more)
            lines.append(f"{share:6.1%} {'':<{_BAR}} in {len(more)} further kernels")
        sums = self.by_operator
        if len(sums) < len(self.kernels):
            lines += ["", "by operator type"]
            lines += _bars(sums, lambda each: f"{each.op_type}, {counted(each.kernels, 'kernel')}")
        return "\n".join(lines)

    def trace(self) -> dict[str, Any]:
        """Return it as trace events, which Perfetto and Chrome (about:tracing) open as JSON.

        A row for each device. Format: Chrome's "Trace Event Format", times in microseconds.
        """
        places = list(dict.fromkeys((each.backend, each.device) for each in self.kernels))
        rows = {place: row for row, place in enumerate(places, 1)}
        events: list[dict[str, Any]] = [
            {
                "ph": "M",
                "pid": 1,
                "tid": row,
                "name": "thread_name",
                "args": {"name": f"{device} ({backend})"},
            }
            for (backend, device), row in rows.items()
        ]
        for run in self.runs:
            kernel = self.kernels[run.kernel]
            events.append(
                {
                    "ph": "X",
                    "pid": 1,
                    "tid": rows[kernel.backend, kernel.device],
                    "name": kernel.name or kernel.op_type,
                    "cat": kernel.op_type,
                    "ts": run.start_s * 1e6,
                    "dur": run.duration_s * 1e6,
                    "args": {"predict": run.predict, "nodes": list(kernel.nodes)},
                }
            )
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write `trace()` into a file. Raises OSError."""
        Path(path).write_text(json.dumps(self.trace()), encoding="utf-8")


def profile(
    state: ModelState,
    predict: Callable[[Any], object],
    model_of: Callable[[ModelState], Any],
    inputs: Any,
    predicts: int,
    warmup: int,
) -> Profile:
    """Measure; see `Model.profile`.

    predict: of the model of this state. model_of: makes a Model of another one.
    """
    if require_int("predicts", predicts) < 1:
        raise ValueError(f"predicts must be 1 or more, but got {predicts}")
    require_count("warmup", warmup)
    plan = state.require_built().plan
    lacking = (part.name for part, device in plan.parts if part.lacks(Capability.PROFILE, device))
    unmeasured = tuple(dict.fromkeys(lacking))
    if len(unmeasured) == len({part.name for part, _ in plan.parts}):
        from engine.backends.isolation.backend import is_isolated  # rare

        why = f"backend {unmeasured[0]!r} cannot tell the time of its kernels"
        if any(is_isolated(part) for part, _ in plan.parts):
            why = (
                "the model runs in a process of its own, which does not tell the time of its "
                "kernels; leave out common_context.isolate"
            )
        raise BackendError(f"profile failed! Error is {why}", unmeasured[0])
    predict_s = _predict_s(predict, inputs, predicts, warmup)
    with _folder(plan.source.is_secret) as folder:
        copy = measured_copy(state, folder)
        with model_of(copy) as measured:
            measured_s = _predict_s(measured.predict, inputs, predicts, warmup)
            times = copy.require_built().plan.profile()
    return _summed(times, predict_s, measured_s, predicts, warmup, unmeasured)


def _predict_s(predict: Callable[[Any], object], inputs: Any, predicts: int, warmup: int) -> float:
    for _ in range(warmup):
        predict(inputs)
    took = []
    for _ in range(predicts):
        begin = time.perf_counter()
        predict(inputs)
        took.append(time.perf_counter() - begin)
    return median(took)


@contextmanager
def _folder(is_secret: bool) -> Iterator[Path]:
    """Give a folder for the runtime's files: of a secret model in memory, and gone however we end.

    Raises BackendError where there is no memory with a name.
    """
    if not is_secret:
        with tempfile.TemporaryDirectory(prefix="engine-profile-") as path:
            yield Path(path)
        return
    if not os.path.isdir(_MEMORY):
        raise BackendError(
            "profile failed! Error is the model is secret, and here is no /dev/shm for the names "
            "of its nodes, which runtimes write while they measure"
        )
    with temporary_folder("engine-profile-", Path(_MEMORY)) as folder:
        yield folder


def _summed(
    times: KernelTimes,
    predict_s: float,
    measured_s: float,
    predicts: int,
    warmup: int,
    unmeasured: tuple[str, ...],
) -> Profile:
    kept = [each for each in times if each[2].predict >= warmup]
    kept.sort(key=lambda each: (each[2].start_s, -each[2].duration_s))
    around = _around([each for _, _, each in kept])
    own = [each.duration_s for _, _, each in kept]
    for (_, _, each), outer in zip(kept, around, strict=True):
        if outer is not None:
            own[outer] = max(own[outer] - each.duration_s, 0.0)
    totals: dict[tuple[str, str, tuple[int, ...], str, str], list[float]] = {}
    counts: Counter[Any] = Counter()
    keys: list[tuple[str, str, tuple[int, ...], str, str]] = []
    for (backend, device, each), outer, own_s in zip(kept, around, own, strict=True):
        nodes = each.nodes or (() if outer is None else keys[outer][2])
        key = (each.name, each.op_type, nodes, backend, str(device))
        took = totals.setdefault(key, [0.0] * predicts)
        took[each.predict - warmup] += own_s
        counts[key] += 1
        keys.append(key)
    medians = {key: median(took) for key, took in totals.items()}
    total_s = sum(medians.values()) or 1.0
    ordered = sorted(medians.items(), key=lambda item: -item[1])
    kernels = tuple(
        Kernel(*key, counts[key] / predicts, time_s, time_s / total_s) for key, time_s in ordered
    )
    places: Mapping[Any, int] = {key: place for place, (key, _) in enumerate(ordered)}
    zero_s = kept[0][2].start_s if kept else 0.0
    runs = [
        Run(each.predict - warmup, places[key], each.start_s - zero_s, each.duration_s)
        for key, (_, _, each) in zip(keys, kept, strict=True)
    ]
    return Profile(predict_s, measured_s, kernels, tuple(runs), predicts, unmeasured)


def _around(runs: Sequence[KernelTime]) -> list[int | None]:
    """Return for each run of a kernel, in the order of their starts, the one that it ran inside.

    One with a node of its own ran beside it, in another thread.
    """
    found: list[int | None] = []
    opened: list[int] = []
    for place, run in enumerate(runs):
        while opened and runs[opened[-1]].start_s + runs[opened[-1]].duration_s <= run.start_s:
            opened.pop()
        is_inner = bool(opened) and run.nodes in ((), runs[opened[-1]].nodes)
        found.append(opened[-1] if is_inner else None)
        if run.op_type in _WITH_BODIES:
            opened.append(place)
    return found


Timed = TypeVar("Timed", Kernel, OperatorTime)


def _bars(rows: Sequence[Timed], named: Callable[[Timed], str]) -> Iterator[str]:
    """Yield a line with a bar for each of the first rows, of which the longest is the first."""
    for row in rows[:_SHOWN]:
        # Where all are shorter than the runtime's clock can tell, no share is above 0.
        bar = "█" * round(_BAR * row.share / (rows[0].share or 1))
        yield f"{row.share:6.1%} {bar:<{_BAR}} {_ms(row.time_s):>10}  {plain(named(row))}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
