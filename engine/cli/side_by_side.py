"""`engine bench a.onnx b.onnx`: models or settings, compared in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from engine.cli.build import (
    Built,
    Decryption,
    build,
    build_again,
    decryption_of,
    fit_to,
    inputs_of,
    parse_targets,
    timed,
)
from engine.cli.hints import misuse
from engine.cli.input_files import file_name
from engine.cli.interrupt import interruptible
from engine.cli.open_sizes import first_fitting
from engine.cli.output import aside, duration, fields, line, note, notes, plain, table
from engine.cli.progress import progress
from engine.config.text import rate
from engine.errors import Cancelled
from engine.host.cpus import usable_cpus
from engine.model.model import model_state
from engine.report.comparison import common_inputs, values_for
from engine.report.inspection import of_file
from engine.report.measurement import batch_of, by_runs, devices_text, ranks_of, shares
from engine.report.speed.contest import CONTROL, Contender, Contest
from engine.report.speed.interval import LEVEL, Change, Verdict
from engine.report.speed.saved import files_of
from engine.types import CancelToken

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from engine.cli.inputs import Inputs
    from engine.cli.options import InputOptions
    from engine.cli.setups import Setup
    from engine.types import TensorSpec

BUDGET_S = 30.0
"""How long contenders are compared at most, unless --duration says otherwise."""

BUILT_ONCE = (
    "note: building takes long, so each is built once, and what sets two builds of one model apart "
    "is taken for a change; with a longer --duration all are built anew"
)


@dataclass(frozen=True, slots=True)
class Ready:
    """A setup that has been built and has run once.

    values: the inputs, in its own order. files: that the model was read from. where: it ran.
    """

    setup: Setup
    built: Built
    values: list[Any]
    files: list[Path]
    where: str

    @contextmanager
    def opened(self, cancel: CancelToken) -> Iterator[Callable[[], object]]:
        """Build it once more, and yield a call that runs it."""
        built = build_again(self.built, self.setup.how, cancel)
        with built.model as model:
            fit_to(built, self.values)
            yield partial(model.predict, self.values)


def prepared(
    setups: Sequence[Setup], given: InputOptions, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[Ready], Inputs]:
    """Build each and run it once on the same inputs: mistakes show before the wait."""
    files = {  # each once: standard input, and a pipe with a key, can be read once
        setup.model: decryption_of(setup.model, setup.how.dec_key, setup.how.dec_mode)
        for setup in {setup.model: setup for setup in setups}.values()
    }
    first = setups[0].model
    others = [_inputs_of(other, files[other.model]) for other in setups if other.model != first]
    inputs: Inputs | None = None
    ready: list[Ready] = []
    for setup in setups:
        built = build(setup.model, setup.how, files[setup.model])
        with built.model as model:
            if size := ranks_of(model):
                raise misuse("MODEL", f"{by_runs(size)}; it cannot be built again and again")
            if inputs is None:
                made = interruptible(partial(_inputs, built, given, shapes, others, setup))
                inputs, _ = first_fitting(built, made, partial(_run_on, model.predict))
                values = inputs.values()
            else:
                values = values_for(model, [one.spec for one in inputs.given], inputs.values())
                fit_to(built, values)
                _run(model.predict, values)
            read = files_of(setup.model, model_state(model).require_built().plan.source)
            where = devices_text(shares(model.placement)) or built.backend
        ready.append(Ready(setup, built, values, read, where))
    assert inputs is not None  # there is a first
    return ready, inputs


def _run_on(predict: Callable[[Any], object], inputs: Inputs) -> tuple[object, float]:
    return _run(predict, inputs.values())


def _run(predict: Callable[[Any], object], values: Sequence[Any]) -> tuple[object, float]:
    return timed("running", partial(predict, values))


def _inputs_of(setup: Setup, decryption: Decryption) -> tuple[str, Sequence[TensorSpec]]:
    decryption.require_key(setup.model)
    found = of_file(str(setup.model), decryption.file, parse_targets(setup.how.target))
    return str(setup.model), found.inputs or ()


def _inputs(
    built: Built,
    given: InputOptions,
    shapes: Mapping[str, tuple[int, ...]],
    others: Sequence[tuple[str, Sequence[TensorSpec]]],
    setup: Setup,
) -> Inputs:
    specs: Sequence[TensorSpec] | None = None
    for name, inputs in others if not built.takes_shapes else ():
        specs = common_inputs(specs or built.inputs, inputs, (file_name(setup.model), name))
    return inputs_of(built, given, shapes, specs)


def held(contest: Contest, cancel: CancelToken, phase: str, budget_s: float) -> bool:
    """Let a contest run, and return whether it came to its end, uninterrupted."""
    with progress(2.0) as show:

        def run() -> None:
            for passed_s in contest.run():
                show(
                    phase, min(round(passed_s * 1e3), round(budget_s * 1e3)), round(budget_s * 1e3)
                )

        try:
            interruptible(run, cancel)
        except (KeyboardInterrupt, Cancelled):
            return False
    return True


def compare(
    setups: Sequence[Setup],
    given: InputOptions,
    shapes: Mapping[str, tuple[int, ...]],
    budget_s: float,
    limit: float,
) -> tuple[SideBySide, bool]:
    """Return the comparison, and whether it came to its end."""
    ready, inputs = prepared(setups, given, shapes)
    notes(inputs.notes)
    cancel = CancelToken()
    first = ready[0]
    again = Contender(f"{first.setup.name}, again", partial(first.opened, cancel))
    contenders = [Contender(one.setup.name, partial(one.opened, cancel)) for one in ready]
    contest = Contest([contenders[0], again, *contenders[1:]], limit, budget_s, cancel.check)
    completed = held(contest, cancel, "comparing", budget_s)
    if not contest.seconds[0]:  # interrupted before there is anything to tell
        raise KeyboardInterrupt
    return SideBySide([first, *ready], inputs, contest), completed


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A comparison that is over. ready: of each contender; the second is the first once more."""

    ready: Sequence[Ready]
    inputs: Inputs
    contest: Contest

    @property
    def is_too_slow(self) -> bool:
        """True where a contender is slower than the first by more than the limit."""
        places = range(CONTROL + 1, len(self.ready))
        return any(
            self.contest.verdict(place) is Verdict.SLOWER
            and self.contest.change(place).ratio > 1 + self.contest.limit
            for place in places
        )

    def show(self) -> None:
        """Print a row for each contender."""
        for given in self.inputs.given:
            aside(plain(str(given)))
        contest, blocks = self.contest, len(self.contest.seconds[0])
        fields({
            "CPUs": f"{usable_cpus()} usable",
            "compared": f"{blocks} times built anew, and run in turn"
            if contest.is_rebuilt
            else f"built once, and run in turn in {blocks} blocks",
        })  # fmt: skip
        line()
        rows = []
        for place, ready in enumerate(self.ready):
            per_s = self._samples_per_s(place)
            rows.append((
                plain(contest.contenders[place].name),
                plain(ready.where),
                duration(median(contest.build_s[place])),
                duration(median(contest.first_s[place])),
                duration(self._run_s(place)),
                "" if per_s is None else rate(per_s),
                *self._ratio(place),
            ))  # fmt: skip
        columns = (
            "", "ran on", ">built in", ">first run", ">a run", ">samples/s", ">ratio",
            f"{100 * LEVEL:g}% interval", "verdict",
        )  # fmt: skip
        table("", columns, rows)
        if not contest.is_rebuilt:
            note(BUILT_ONCE)
        if not contest.is_reliable:
            note(
                "note: the first model differs from itself: the machine is too noisy for this; try "
                "again when less else runs, or for longer (--duration)"
            )
        elif any(row[-1] == str(Verdict.UNKNOWN) for row in rows):
            note(
                "note: for a verdict measure longer (--duration), or look for a larger change "
                "(--fail-above)"
            )

    def _run_s(self, place: int) -> float:
        return median(self.contest.seconds[place])

    def _samples_per_s(self, place: int) -> float | None:
        batch = batch_of(self.ready[place].values)
        return None if batch is None else batch / self._run_s(place)

    def _ratio(self, place: int) -> tuple[str, str, str]:
        if place == 0:
            return "1", "", ""
        change = self.contest.change(place)
        verdict = self.contest.verdict(place)
        text = str(verdict) if verdict is Verdict.UNKNOWN else change.text(self.contest.limit)
        return f"{change.ratio:.3f}", change.interval, text

    def facts(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        contest = self.contest
        rows = [
            {
                "name": contest.contenders[place].name,
                "model": str(ready.setup.model),
                "ran_on": ready.where,
                "build_s": median(contest.build_s[place]),
                "first_run_s": median(contest.first_s[place]),
                "run_s": self._run_s(place),
                "samples_per_s": self._samples_per_s(place),
                "blocks_s": contest.seconds[place],
                "is_control": place == CONTROL,
                **(
                    change_facts(contest.change(place), self.contest.verdict(place))
                    if place
                    else {}
                ),
            }
            for place, ready in enumerate(self.ready)
        ]
        return {
            "inputs": self.inputs.facts(),
            "level": LEVEL,
            "limit": contest.limit,
            "is_rebuilt": contest.is_rebuilt,
            "is_too_slow": self.is_too_slow,
            "contenders": rows,
        }

    def draw(self, figure: Figure) -> None:
        """Draw the ratios with their intervals into `figure`, the control among them."""
        axes, contest = figure.subplots(), self.contest
        names = [contender.name.replace("$", r"\$") for contender in contest.contenders]
        for place in range(1, len(names)):
            change = contest.change(place)
            pairs = zip(contest.seconds[place], contest.seconds[0], strict=True)
            ratios = [own / first for own, first in pairs]
            axes.plot(ratios, [place] * len(ratios), "|", color="tab:gray", alpha=0.6)
            if change.low:
                axes.plot([change.low, change.high], [place, place], lw=3)
            axes.plot(change.ratio, place, "o", color="black")
        axes.axvline(1, color="black", lw=0.8)
        axes.set_yticks(range(1, len(names)), names[1:])
        axes.set_xlabel("time over the first one's; a line for each build, a bar for the interval")
        axes.set_title(f"compared with {names[0]}", wrap=True, fontsize="medium")


def change_facts(change: Change, verdict: Verdict) -> dict[str, Any]:
    """Return a change as plain values, for JSON: without ends where nothing is known of them."""
    is_known = change.low > 0
    return {
        "ratio": change.ratio,
        "low": change.low if is_known else None,
        "high": change.high if is_known else None,
        "verdict": str(verdict),
    }
