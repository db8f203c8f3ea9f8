"""Find the settings that serve a model best on this machine, and write them down."""

from __future__ import annotations

import json
import math
import operator
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from engine.backends import find_target
from engine.config.checks import require_watchers
from engine.config.text import aligned, duration, html_tables, plain, rate
from engine.config.text import size as bytes_text
from engine.context import Context
from engine.errors import InputError, ModelError
from engine.formats import ModelFile
from engine.formats.files import SUFFIXES
from engine.formats.given import found
from engine.model.build import configuration_of
from engine.plan import BuildOptions
from engine.plan.targets import default_target
from engine.report.choice import apart
from engine.report.choice.apart import Order
from engine.report.choice.choosing import why_unmeasured
from engine.report.choice.contest import Outcome
from engine.report.choice.evidence import Evidence, Setup, Trial
from engine.report.choice.limits import Limits
from engine.report.choice.setups import applied
from engine.report.files import require_config, require_model
from engine.report.tuning import config_file
from engine.report.tuning.forms import Forms
from engine.report.tuning.goal import Goal
from engine.report.tuning.taking import fingerprint
from engine.report.tuning.tournament import Tournament, ratio_of
from engine.weights.compile_cache import can_start_processes

if TYPE_CHECKING:
    from engine.types import CancelToken, Progress, TensorSpec

__all__ = ["Tuning", "tune"]

BUDGET_S = 60.0
_WHY_CHARS = 80  # of a line for people; the evidence has all


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The result of a tuning. Prints as a table of what was tried, the best first.

    path: of the configuration that was written. model: the path of the model that it is for, which
    is another than the one given where a quantized one was chosen. goal: in words. evidence: the
    setups with their figures, and the choice.
    """

    path: str
    model: str
    goal: str
    evidence: Evidence

    @property
    def gain(self) -> float:
        """Return the default's time per request over that of the choice: 1.0 for the default."""
        [chosen] = filter(self.is_chosen, self.evidence.trials)
        return 1.0 if chosen.ratio is None else 1 / chosen.ratio

    @property
    def frontier(self) -> list[Trial]:
        """Return the setups that no other beats: in p99, throughput, error and memory together."""
        measured = [trial for trial in self.evidence.trials if not trial.why_not and trial.figures]
        costs = [_costs(trial) for trial in measured]
        return [
            trial
            for trial, own in zip(measured, costs, strict=True)
            if not any(other != own and all(map(operator.le, other, own)) for other in costs)
        ]

    def rows(self) -> list[Trial]:
        """Return what was measured, the fastest first, then what could not be chosen."""
        return sorted(self.evidence.trials, key=lambda each: (bool(each.why_not), ratio_of(each)))

    def is_chosen(self, trial: Trial) -> bool:
        """Return whether a trial is of the chosen setup."""
        return trial.setup == self.evidence.chosen

    def cells(self, trial: Trial) -> list[str]:
        """Return a trial as the cells of a row; see `COLUMNS`. The chosen setup is marked."""
        first, *rest = cells(trial)
        return [f"{first} {CHOSEN}" if self.is_chosen(trial) else first, *rest]

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def _repr_html_(self) -> str:
        rows = [COLUMNS, *map(self.cells, self.rows())]
        return html_tables(f"{self.goal}: {self.evidence.reason}", [(self.path, rows)])

    def __str__(self) -> str:
        rows = [self.cells(trial) for trial in self.rows()]
        short = [[*row[:-1], shorten(row[-1], _WHY_CHARS, placeholder=" ...")] for row in rows]
        return "\n".join([f"{self.goal}: {self.evidence.reason}", *aligned([COLUMNS, *short])])


def cells(trial: Trial) -> list[str]:
    """Return a trial as the cells of a row; see `COLUMNS`."""
    found = trial.figures
    numbers = [""] * 5
    if found is not None:
        numbers = [
            f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})",
            duration(found.p50_s),
            duration(found.p99_s),
            rate(found.throughput_per_s),
            bytes_text(found.memory_bytes),
        ]
    elif trial.ratio is not None:
        numbers[0] = f"{trial.ratio:.3f}"
    error = "" if trial.error is None else f"{trial.error:.1e}"
    return [str(trial.setup), *numbers, error, trial.why_not]


CHOSEN = "(chosen)"
COLUMNS = ("setup", "ratio", "p50", "p99", "requests/s", "memory", "error", "why not")


def _costs(trial: Trial) -> tuple[float, ...]:
    found = trial.figures
    assert found is not None, "it was measured"
    return found.p99_s, -found.throughput_per_s, trial.error or 0.0, found.memory_bytes


def tune(
    model: str | os.PathLike[str],
    *,
    targets: str | Sequence[str] = (),
    clients: int = 1,
    p99_ms: float | None = None,
    max_error: float | None = None,
    budget_s: float = BUDGET_S,
    out: str | os.PathLike[str] = "",
    config: str | os.PathLike[str] | Mapping[str, Mapping[str, Any]] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
) -> Tuning:
    """Try settings for a model on this machine, and write the best as a configuration file.

    model: the path of its file. targets: the only ones to try, with what the first is compared; by
    default all that are installed, with cpu.
    clients: 1 tunes for the latency of one; more for the requests a second of so many, which a
    ModelParallelRunner or a server gets. p99_ms: the most that 99 of 100 requests may take.
    max_error: allows less precise arithmetic and quantized models up to this error of any output,
    see `[common_context] max_error`. Without it results agree within the tolerances of
    `engine.compare`.
    budget_s: seconds for measuring, from when the default has run.
    out: the file to write, in MindSpore Lite's format or, by its suffix, TOML, JSON or YAML;
    MODEL.tuned.ini in the current folder by default. A quantized model that is chosen is written
    beside it. config: of all that is tried, as for `engine.load`; it is in the written one too.
    shapes: of the generated inputs, by name, as {"ids": [1, 128]}.
    The default is chosen unless another is proven to be faster, by a comparison anew in the end.
    Raises ValueError for settings that cannot be, InputError for shapes on which the model does not
    run, ModelError for a model that cannot be measured, and what Model.build_from_file raises.
    """
    path = _path_of(model)
    limits = _limits(clients, p99_ms, max_error, budget_s)
    require_watchers(progress, cancel)
    place = Path(out) if out else Path(f"{Path(path).stem}.tuned.ini")
    _require_place(place, path)
    given = _config(config)
    config_file.require_writable(given, place)
    names = [targets] if isinstance(targets, str) else [*targets]
    for name in names:
        Context().target = [name, "cpu"]  # which raises for what is no target, and for auto
    names = [find_target(name).backend for name in names]
    context = Context()
    context.target = [names[0] if names else default_target()]
    options = BuildOptions(context, given, progress, cancel)
    file = ModelFile(path)
    if file.encryption:  # a digest of it, and figures, would be in a file that anybody reads
        raise ModelError(f"{path}: cannot be tuned: it is encrypted with {file.encryption}", path)
    source = file()
    if why_not := why_unmeasured(source, options):
        raise ModelError(f"{path}: cannot be tuned: {why_not}", path)
    wanted = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    assert source.graph is not None, "it can be measured"
    _require_fitting(wanted, source.graph.inputs)
    default = Setup(tuple(context.target))
    with tempfile.TemporaryDirectory(prefix="engine-tune-") as folder:
        goal = Goal(
            path, folder, tuple(names), clients, None if p99_ms is None else p99_ms / 1e3, wanted
        )
        order = Order(source, options, default, limits, begin=partial(Tournament, goal=goal))
        begin = time.monotonic()
        if can_start_processes():
            outcome = apart.hold(order, options.check_cancelled)
        else:
            outcome = order.contest().hold()
        options.check_cancelled()
        _require_measured(path, outcome, wanted)
        took_s, chosen = time.monotonic() - begin, path
        if form := outcome.chosen.form:
            made = Path(Forms(path, folder).path(form))
            copy = place.with_name(f"{place.stem}.{form}{made.suffix}")
            _written_whole(copy, lambda beside: shutil.copyfile(made, beside))
            chosen = str(copy)
    evidence = Evidence(
        **outcome._asdict(),
        default=default,
        key=fingerprint(ModelFile(chosen)(), applied(outcome.chosen, options)),
        created=time.time(),
        took_s=took_s,
    )
    tuning = Tuning(path=str(place), model=chosen, goal=str(goal), evidence=evidence)
    _write(tuning, options, place)
    return tuning


def _write(tuning: Tuning, options: BuildOptions, place: Path) -> None:
    """Write the configuration, whole or not at all."""
    evidence, name = tuning.evidence, plain(Path(tuning.model).name)
    sections = {
        **applied(evidence.chosen, options).config,
        config_file.SECTION: {
            **config_file.settings_of(evidence.chosen, evidence.default, name),
            **evidence.key,
            "goal": tuning.goal,
            "evidence": json.dumps(evidence.to_json()),
        },
    }
    comment = f"Written by engine tune, for {plain(tuning.model)} on this machine.\n{tuning}"
    text = config_file.text_of(sections, comment, place.suffix.lower())
    _written_whole(place, lambda beside: beside.write_text(text, encoding="utf-8"))


def _written_whole(place: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, then move it there."""
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        write(beside)
        beside.replace(place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _require_fitting(shapes: Mapping[str, tuple[int, ...]], specs: Sequence[TensorSpec]) -> None:
    """Raise InputError for a shape that no input of that name can have."""
    known = {spec.name: spec for spec in specs}
    for name, shape in shapes.items():
        if name not in known:
            has = ", ".join(known)
            raise InputError(f"shapes: the model has no input {name!r}; it has {has}", name)
        dims = known[name].shape
        if dims is not None and not (
            len(dims) == len(shape)
            and all(not isinstance(dim, int) or dim == size for dim, size in zip(dims, shape))
        ):
            raise InputError(f"shapes: input {name!r} is {known[name]}, got {[*shape]}", name)


def _require_measured(path: str, outcome: Outcome, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise where nothing could be compared, or not on the shapes that the user wants."""
    if not any(trial.seconds is not None for trial in outcome.trials):
        raise ModelError(f"{path}: cannot be tuned: {outcome.reason}", path)
    for name, shape in shapes.items():
        if tuple(outcome.inputs.get(name, ())) != shape:
            raise InputError(
                f"shapes: the model does not run with input {name!r} of shape {[*shape]}", name
            )


def _path_of(model: str | os.PathLike[str]) -> str:
    if not isinstance(model, str | os.PathLike):
        raise TypeError(f"model must be the path of a file, but got {type(model)}.")
    path = os.fspath(found(os.fspath(model)))
    require_model(path, "engine.tune")
    return path


def _limits(clients: int, p99_ms: float | None, max_error: float | None, budget_s: float) -> Limits:
    """Return the limits of the contest. Raises ValueError for what cannot be."""
    for name, got in (("p99_ms", p99_ms), ("max_error", max_error), ("budget_s", budget_s)):
        if not (isinstance(got, int | float) or (got is None and name != "budget_s")):
            raise TypeError(f"{name} must be a number, but got {type(got)}.")
    checks = (
        ("clients", clients, isinstance(clients, int) and 1 <= clients <= 1000, "1 to 1000"),
        ("p99_ms", p99_ms, p99_ms is None or 0 < p99_ms < math.inf, "a number above 0, or None"),
        ("max_error", max_error, max_error is None or 0 <= max_error <= 1, "from 0 to 1, or None"),
        ("budget_s", budget_s, 0 < budget_s < math.inf, "a number of seconds above 0"),
    )
    for name, got, holds, wanted in checks:
        if not holds:
            raise ValueError(f"{name} must be {wanted}, but got {got!r}")
    return Limits(float(budget_s), max_error)


def _config(config: str | os.PathLike[str] | Mapping[str, Mapping[str, Any]] | None) -> Any:
    """Return the user's configuration. Raises ValueError for that of an earlier tuning."""
    sections = {}
    path = ""
    if isinstance(config, str | os.PathLike):
        path = os.fspath(config)
        require_config(path, "engine.tune")
    elif config is not None:
        from engine.config.sections import sections_of

        sections = sections_of("config", config)
    merged = configuration_of(path, sections, "engine.tune")
    if config_file.SECTION in merged:
        raise ValueError(
            f"config: has section [{config_file.SECTION}], which an earlier tuning wrote: its "
            "settings would be taken for the default; give the configuration from before, or none"
        )
    return merged


def _require_place(place: Path, model: str) -> None:
    """Raise ValueError for a file that cannot be written, or that is a model's."""
    what = ""
    if place.is_dir():
        what = "is a folder"
    elif place.suffix.lower() in SUFFIXES or (place.exists() and place.samefile(model)):
        what = "is a model"
    elif not os.access(place.parent, os.W_OK):
        what = "is in no folder that can be written to"
    if what:
        raise ValueError(f"out: {str(place)!r} {what}; name a configuration file of yours")
