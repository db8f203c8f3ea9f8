"""Latency and throughput of a model: many timed calls, by one client or several at once."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from engine.config.text import aligned, counted, duration, html_tables, rate
from engine.host.cpus import usable_cpus
from engine.host.threads import threads_per_worker
from engine.model.model import Model, model_state
from engine.plan.options import at_most
from engine.report.clients import Clients, Measured
from engine.report.files import require_model
from engine.report.filled import Fill, run_filled
from engine.report.speed.deviation import deviations
from engine.types import Placement, TensorSpec

if TYPE_CHECKING:
    from engine.typing import Inputs

__all__ = ["BenchResult", "DeviceShare", "bench"]

Array = np.ndarray[Any, np.dtype[np.float64]]

PERCENTILES = (50, 90, 95, 99, 99.9)
METHOD: Final = "linear"
"""numpy's name for where a percentile lies that falls between two runs: on the line between."""

DURATION_S = 5.0

RANKS_RUNS: Final = 100
RANKS_WARMUP_RUNS: Final = 10
"""How often each rank of a sliced model predicts: a clock of its own would say another number."""


class DeviceShare(NamedTuple):
    """A device that nodes of a model run on, and how many."""

    backend: str
    device: str
    provider: str
    nodes: int


@dataclass(frozen=True)
class BenchResult:
    """A measurement. Prints as text; all times are in seconds.

    model: its file, "" for one from memory. devices: where its nodes ran. threads: of the host,
    inside an operator. build_s: None for a model that was built before. latencies_s: of each run
    that ended, float64[runs]. seconds: from the first one's start to the last one's end.
    is_interrupted: it ended before its time. batch: samples in a run, the size of the
    inputs' first axis; None where that is not one size. first_s: the first run, in which much is
    set up; it is among the latencies where there was no warm-up. server: the name and address of
    the one that ran the model; "" for a model of this process. With one, backend is "", threads 0,
    and the CPUs are those of the clients.
    """

    model: str
    backend: str
    devices: tuple[DeviceShare, ...]
    threads: int
    build_s: float | None
    warmup_s: float
    clients: int
    seconds: float
    latencies_s: Array = field(repr=False, compare=False)
    is_interrupted: bool = False
    cpus: int = field(default_factory=lambda: os.cpu_count() or 1)
    usable_cpus: int = field(default_factory=usable_cpus)
    batch: int | None = None
    first_s: float | None = None
    server: str = ""

    @property
    def runs(self) -> int:
        """The number of runs that were timed."""
        return len(self.latencies_s)

    @property
    def throughput_per_s(self) -> float:
        """Runs in a second, of all clients together."""
        return self.runs / self.seconds

    @property
    def samples_per_s(self) -> float | None:
        """Samples in a second, of all clients together; None where a batch is not one size."""
        return None if self.batch is None else self.throughput_per_s * self.batch

    @property
    def latency_s(self) -> dict[str, float]:
        """Percentiles and more by name: p50, p90, p95, p99, p99.9, min, max, mean, std.

        std: the standard deviation.
        """
        return latency_summary(self.latencies_s)

    @cached_property
    def deviation_s(self) -> dict[str, float]:
        """How far each percentile is off from run to run: a standard deviation, by name.

        By a bootstrap of stretches of the runs, which follow each other in time.
        """
        found = deviations(self.latencies_s, PERCENTILES)
        return {f"p{rank:g}": value for rank, value in zip(PERCENTILES, found, strict=True)}

    def latency_texts(self) -> dict[str, str]:
        """Return the latencies as text by name, percentiles with their deviation."""
        return {
            f"latency {name}": duration(seconds)
            + (f" +- {duration(self.deviation_s[name])}" if name in self.deviation_s else "")
            for name, seconds in self.latency_s.items()
        }

    def facts(self) -> dict[str, str]:
        """Return how it was measured, and the throughput, as text by name."""
        at_once = counted(self.clients, "client") + (" at once" if self.clients > 1 else "")
        warmup = f"after {duration(self.warmup_s)} of warm-up"
        throughput = f"{rate(self.throughput_per_s)} runs/s"
        if self.samples_per_s is not None and self.batch != 1:
            throughput += f", {rate(self.samples_per_s)} samples/s in batches of {self.batch}"
        cpus = f"{self.usable_cpus} usable of {self.cpus}"
        return {
            "model": self.model,
            "ran on": self.server or devices_text(self.devices) or self.backend,
            "CPUs": f"{cpus}, host threads: {self.threads}" if not self.server else "",
            "clients' CPUs": cpus if self.server else "",
            "built in": "" if self.build_s is None else duration(self.build_s),
            "measured": f"{counted(self.runs, 'run')} in {duration(self.seconds)}, {at_once}, "
            f"{warmup if self.warmup_s else 'without warm-up'}",
            "first run": "" if self.first_s is None else duration(self.first_s),
            "throughput": throughput,
        }

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def __str__(self) -> str:
        found = self.facts() | self.latency_texts()
        shown = {name: text for name, text in found.items() if text}
        return "\n".join(aligned(shown.items()))

    def _repr_html_(self) -> str:
        facts = [(name, text) for name, text in self.facts().items() if text and name != "model"]
        latencies = [(name, duration(s)) for name, s in self.latency_s.items()]
        title = self.model or "model from memory"
        return html_tables(title, [("", facts), ("latency", latencies)])


def bench(
    model: Model | str | os.PathLike[str],
    inputs: Inputs | None = None,
    *,
    target: str | Sequence[str] = "cpu",
    threads: int = 0,
    duration_s: float | None = None,
    runs: int | None = None,
    warmup_s: float = 1.0,
    clients: int = 1,
) -> BenchResult:
    """Run a model over and over, and return its latencies and throughput.

    model: one that is built, or a file to build for `target` with `threads`. inputs: as
    Model.predict takes them; None for ones in the declared shapes, with sizes of open axes that fit
    together.
    duration_s: how long to measure, 5 s unless `runs` says how many, of all clients together.
    warmup_s: how long to run unmeasured before, at least once; 0 for not at all. clients: how many
    threads run the one model at once, each again as soon as its last run has ended.
    A rank's part of a sliced model is measured by `runs` alone, 100 by default, after 10 unmeasured
    ones unless warmup_s is 0, by one client: the ranks predict as often as each other.
    Raises ValueError for settings that cannot be, and what engine.load and Model.predict raise.
    """
    if duration_s is not None and runs is not None:
        raise ValueError("expected one of duration_s and runs, but both were given")
    if duration_s is not None:
        _require(0 < duration_s < math.inf, "duration_s must be above 0", duration_s)
    if runs is not None:
        _require(isinstance(runs, int) and runs > 0, "runs must be 1 or more", runs)
    _require(0 <= warmup_s < math.inf, "warmup_s must be 0 or more", warmup_s)
    _require(isinstance(clients, int) and clients > 0, "clients must be 1 or more", clients)
    build_s = None
    built = model
    if not isinstance(built, Model):
        from engine.formats.given import given as given_model
        from engine.model.shortcut import load

        found = given_model(built)
        if isinstance(found, str):
            require_model(found, "engine.bench")
        begin = perf_counter()
        built = load(found, target, threads=threads)
        build_s = perf_counter() - begin
    try:
        given = generated(built) if inputs is None else inputs
        warmup_runs = None
        if size := ranks_of(built):
            for name, is_given in ("duration_s", duration_s is not None), ("clients", clients > 1):
                if is_given:
                    raise ValueError(f"{name}: {by_runs(size)}; give runs instead")
            runs, warmup_runs = runs or RANKS_RUNS, RANKS_WARMUP_RUNS if warmup_s else 0
        if runs is None and duration_s is None:
            duration_s = DURATION_S
        run = partial(built.predict, given)
        working = Clients(run, clients, warmup_s, duration_s, runs, warmup_calls=warmup_runs)
        try:
            working.start()
            while not working.wait(0.5):
                pass
        except BaseException:
            working.stop()
            raise
        recipe = model_state(built).recipe
        used = recipe.context.cpu.thread_num if recipe is not None else threads
        if warmup_runs:
            warmup_s = working.warmup_took_s
        measured = working.measured()
        origin = origin_of(built, used, build_s)
        return result_of(origin, measured, warmup_s, clients, batch=batch_of(given))
    finally:
        if built is not model:
            built.close()


def are_open(specs: Sequence[TensorSpec]) -> bool:
    """Return whether a size of an input, or the number of its axes, is open."""
    return any(
        spec.shape is None or any(not isinstance(dim, int) for dim in spec.shape) for spec in specs
    )


def generated(model: Model) -> list[Any]:
    """Return inputs on which a model runs: ones, in sizes that fit together."""
    if not are_open(model.inputs) or ranks_of(model):  # ranks would be out of step
        return run_filled(model.inputs, Fill.ONES, list, most=1)[0]
    return run_filled(model.inputs, Fill.ONES, model.predict)[0]


def ranks_of(model: Model) -> int:
    """Return the number of ranks that each predict of a built model meets; 0 for none."""
    plan = model_state(model).require_built().plan
    return plan.world_size if plan.refuse is not None and plan.world_size > 1 else 0


def by_runs(ranks: int) -> str:
    """Say why a part of a sliced model is measured by runs, not by time or by several clients."""
    return f"the model is one of {ranks} ranks' parts, which predict as often as each other"


class Origin(NamedTuple):
    """Origin of a measurement: the model and what runs it. The fields are those of BenchResult."""

    model: str
    backend: str = ""
    devices: tuple[DeviceShare, ...] = ()
    threads: int = 0
    build_s: float | None = None
    server: str = ""


def origin_of(model: Model, threads: int, build_s: float | None) -> Origin:
    """Return the origin of what a built model gives. threads: 0 for as many as fit the machine."""
    plan = model_state(model).require_built().plan
    threads = at_most(threads) or threads_per_worker()
    return Origin(model.model_path_, plan.backend.name, shares(plan.placement()), threads, build_s)


def result_of(
    origin: Origin,
    measured: Measured,
    warmup_s: float,
    clients: int,
    is_interrupted: bool = False,
    batch: int | None = None,
) -> BenchResult:
    """Return a measurement."""
    return BenchResult(
        **origin._asdict(),
        warmup_s=warmup_s,
        clients=clients,
        seconds=measured.seconds,
        latencies_s=measured.latencies_s,
        is_interrupted=is_interrupted,
        batch=batch,
        first_s=measured.first_s,
    )


def batch_of(inputs: Any) -> int | None:
    """Return the size of the first axis of all inputs that have one; None where that is not one."""
    items = [*inputs.values()] if isinstance(inputs, Mapping) else inputs
    if not isinstance(items, list | tuple):
        items = [items]
    shapes = [getattr(item, "shape", None) or _listed_shape(item) for item in items]
    sizes = {int(shape[0]) for shape in shapes if len(shape)}
    return sizes.pop() if len(sizes) == 1 else None


def _listed_shape(item: Any) -> tuple[int, ...]:
    try:
        return np.shape(item)
    except ValueError:  # lists of different lengths, as a sequence is
        return ()


def shares(placement: Sequence[Placement]) -> tuple[DeviceShare, ...]:
    """Return the devices that nodes run on, each with its number of nodes."""
    counts = Counter((node.backend, node.device, node.provider) for node in placement)
    return tuple(DeviceShare(*where, nodes) for where, nodes in counts.items())


def devices_text(devices: Sequence[DeviceShare]) -> str:
    """Return devices for people: "cpu:0 (CPUExecutionProvider)".

    Where several backends serve one device each is named.
    """
    serving: dict[str, set[str]] = {}
    for share in devices:
        serving.setdefault(share.device, set()).add(share.backend)
    texts = []
    for share in devices:
        runner = share.provider or share.backend
        if len(serving[share.device]) > 1 and runner != share.backend:
            runner = f"{share.backend}, {runner}"
        texts.append(f"{share.device} ({runner})")
    return ", ".join(texts)


def latency_summary(latencies_s: Array) -> dict[str, float]:
    """Return percentiles and more of one latency or several, by name, in seconds."""
    values = np.percentile(latencies_s, list(PERCENTILES), method=METHOD)
    return {
        **{f"p{rank:g}": float(value) for rank, value in zip(PERCENTILES, values, strict=True)},
        "min": float(latencies_s.min()),
        "max": float(latencies_s.max()),
        "mean": float(latencies_s.mean()),
        "std": float(latencies_s.std()),
    }


def _require(holds: bool, what: str, got: object) -> None:
    if not holds:
        raise ValueError(f"{what}, but got {got!r}")
