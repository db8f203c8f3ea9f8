"""`engine bench --save` and `--against`: a run in a file, and today's held against it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from engine.cli.files import require_place, written_whole
from engine.cli.input_files import STANDARD_INPUT
from engine.cli.options import BuildOptions
from engine.cli.output import aside, duration, fields, line, note, notes, plain, table
from engine.cli.setups import Setup
from engine.cli.side_by_side import BUILT_ONCE, Ready, change_facts, held, prepared
from engine.errors import EngineError, InputError
from engine.report.parts import described
from engine.report.speed.contest import CONTROL, Contender, Contest
from engine.report.speed.interval import LEVEL, Change, Verdict
from engine.report.speed.machine import this_machine, versions
from engine.report.speed.reference import reference
from engine.report.speed.saved import SavedRun, digests_of, read
from engine.types import CancelToken

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from engine.cli.inputs import Inputs
    from engine.cli.load import Against
    from engine.cli.options import InputOptions

BUDGET_S = 20.0
"""How long a run to save is measured; one against it at most, unless --duration says otherwise."""

_BEFORE, _NOW = "then", "now"


@dataclass(frozen=True, slots=True)
class Held:
    """A run of today, and one that was saved, if any.

    direct: the change from the saved model to today's, in turn today; None where it could not be
    run. since: the change of speed against the reference.
    """

    run: SavedRun
    before: SavedRun | None
    inputs: Inputs
    limit: float
    blocks: int
    build_s: float
    direct: Change | None = None
    control: Change | None = None

    @property
    def since(self) -> Change | None:
        """The change of speed since the saved run, by the reference."""
        return None if self.before is None else self.run.change_since(self.before)

    @property
    def is_too_slow(self) -> bool:
        """True where it is slower by more than the limit; where it can be run, the saved model."""
        change = self.direct or self.since
        if change is None or self.verdict(change) is not Verdict.SLOWER:
            return False
        return change.ratio > 1 + self.limit

    def verdict(self, change: Change) -> Verdict:
        """Return the verdict on a change; none where the saved model differs from itself."""
        changed = (Verdict.SLOWER, Verdict.FASTER)
        is_noisy = self.control is not None and self.control.verdict(self.limit) in changed
        return Verdict.UNKNOWN if is_noisy and change is self.direct else change.verdict(self.limit)

    def show(self) -> None:
        """Print them."""
        for given in self.inputs.given:
            aside(plain(str(given)))
        run, reference_s = median(self.run.seconds), median(self.run.reference_s)
        fields({
            "model": self.run.model,
            "measured": f"{self.blocks} blocks, with a reference in turn",
            "built in": duration(self.build_s),
            "a run": duration(run),
            "reference": f"a fixed computation of numpy, {duration(reference_s)}; "
            f"a run takes {run / reference_s:.4g} times as long",
        })  # fmt: skip
        if self.before is None:
            return
        then = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.before.created))
        fields({f"a run on {then}": duration(median(self.before.seconds))})
        for difference in self.run.differences(self.before):
            line(plain(f"differs: {difference}"))
        line()
        rows = [
            (name, f"{change.ratio:.3f}", change.interval, self._text(change))
            for name, change in self._changes()
        ]
        table("", ("now over then", ">ratio", f"{100 * LEVEL:g}% interval", ""), rows)

    def draw(self, figure: Figure) -> None:
        """Draw the times of each build over the reference's, then and now, into `figure`."""
        axes = figure.subplots()
        runs = {_NOW: self.run} if self.before is None else {_BEFORE: self.before, _NOW: self.run}
        for row, run in enumerate(runs.values()):
            ratios = [math.exp(log) for log in run.logs]
            axes.plot(ratios, [row] * len(ratios), "|", color="tab:gray")
            axes.plot(median(ratios), row, "o", color="black")
        axes.set_yticks(range(len(runs)), [*runs])
        axes.set_xlabel("time over the reference's; a line for each build, a dot for the median")
        axes.set_title(Path(self.run.model).name.replace("$", r"\$"), fontsize="medium")

    def _changes(self) -> list[tuple[str, Change]]:
        named = [
            ("both models in turn, today", self.direct),
            ("the saved model with itself (control)", self.control),
            ("each over its day's reference", self.since),
        ]
        return [(name, change) for name, change in named if change is not None]

    def _text(self, change: Change) -> str:
        verdict = self.verdict(change)
        return str(verdict) if verdict is Verdict.UNKNOWN else change.text(self.limit)

    def facts(self) -> dict[str, Any]:
        """Return them as plain values, for JSON."""
        named = {"direct": self.direct, "control": self.control, "by_reference": self.since}
        return {
            "run": json.loads(self.run.to_json()),
            "run_s": median(self.run.seconds),
            "inputs": self.inputs.facts(),
            "level": LEVEL,
            "limit": self.limit,
            "against": None if self.before is None else json.loads(self.before.to_json()),
            "differences": [] if self.before is None else self.run.differences(self.before),
            "changes": {
                name: None if change is None else change_facts(change, self.verdict(change))
                for name, change in named.items()
            },
            "is_too_slow": self.is_too_slow,
        }


def compare(
    setup: Setup,
    given: InputOptions,
    shapes: Mapping[str, tuple[int, ...]],
    budget_s: float,
    files: Against,
) -> tuple[Held, bool]:
    """Measure a model beside the reference, and return the run and whether it came to its end.

    Raises InputError for a saved run of another machine or with other inputs.
    """
    save, against, limit = files.save, files.against, files.limit
    if save is not None:
        require_place(save)
    before = None if against is None else read(against)
    if before is not None:
        _require(against, before.other_machine(this_machine()))
    [ready], inputs = prepared([setup], given, shapes)
    notes(inputs.notes)
    cancel = CancelToken()
    run = _run_of(ready, inputs)
    rivals: list[Ready] = []
    if before is not None:
        _require(against, before.other_inputs(run.inputs))
        rivals = _rivals(run, before, setup.how, given, shapes)
    contenders = [
        *(Contender(_BEFORE, partial(one.opened, cancel)) for one in rivals),
        Contender(_NOW, partial(ready.opened, cancel)),
        Contender("reference", reference),
    ]
    now = len(rivals)

    def found(contest: Contest) -> Held:
        timed = replace(
            run, created=time.time(), seconds=contest.seconds[now], reference_s=contest.seconds[-1]
        )
        return Held(
            timed, before, inputs, limit, len(contest.seconds[0]), median(contest.build_s[now]),
            contest.change(now) if rivals else None,
            contest.change(CONTROL) if rivals else None,
        )  # fmt: skip

    def is_decided(contest: Contest) -> bool:
        """Go on to the end for a run that is saved, and for a first one."""
        until_now = found(contest)
        change = until_now.direct or until_now.since
        if save is not None or change is None:
            return False
        return until_now.verdict(change) is not Verdict.UNKNOWN

    contest = Contest(contenders, limit, budget_s, cancel.check, is_decided)
    completed = held(contest, cancel, "measuring", budget_s)
    if not contest.seconds[0]:
        raise KeyboardInterrupt
    if not contest.is_rebuilt:
        note(BUILT_ONCE)
    outcome = found(contest)
    if save is not None and completed:
        with written_whole(save) as file:
            file.write(outcome.run.to_json().encode())
        note(f"run saved to {plain(str(save))}")
    return outcome, completed


def _require(path: Path | None, refusal: str) -> None:
    if refusal:
        raise InputError(
            f"{path}: cannot compare with the saved run: {refusal}; save another one with --save"
        )


def _run_of(ready: Ready, inputs: Inputs) -> SavedRun:
    """Return the run before it is measured. Raises InputError for a model that is in no file."""
    setup, how = ready.setup, ready.setup.how
    if str(setup.model) == STANDARD_INPUT:
        raise InputError("standard input: a run is saved with the model's file; give it as a file")
    config = {} if how.config is None else digests_of([how.config])
    settings = {
        "target": how.target,
        "device": how.device_id,
        "threads": how.threads,
        "set": [*how.settings],
        "config": config,
    }
    return SavedRun(
        model=str(setup.model.absolute()),
        files=digests_of(ready.files),
        machine=this_machine(),
        versions=versions(),
        settings={name: json.dumps(value) for name, value in settings.items()},
        inputs=[f"{given.spec.name}: {described(given.value)}" for given in inputs.given],
        created=0.0,
        seconds=(),
        reference_s=(),
    )


def _rivals(
    run: SavedRun,
    before: SavedRun,
    now: BuildOptions,
    given: InputOptions,
    shapes: Mapping[str, tuple[int, ...]],
) -> list[Ready]:
    """Return the saved model twice, once as a control, if it can be run and is another one."""
    if run.is_same_model(before) and run.settings == before.settings:
        return []
    try:
        said = {name: json.loads(text) for name, text in before.settings.items()}
        config = next(map(Path, said["config"]), None)
        is_same = config is None or digests_of([config]) == said["config"]
        if not (before.is_there and is_same):
            gone = config if before.is_there else before.model
            note(
                f"note: {plain(str(gone))} is not there as it was: the reference alone is left to "
                "compare by, which tells only large changes"
            )
            return []
        how = replace(  # the key of an encrypted model is in no file
            now,
            target=said["target"],
            device_id=said["device"],
            threads=said["threads"],
            config=config,
            settings=tuple(said["set"]),
        )
        [old], _ = prepared([Setup(_BEFORE, Path(before.model), how)], given, shapes)
    except (EngineError, OSError, LookupError, TypeError, ValueError, click.UsageError) as error:
        note(f"note: the saved model cannot be run now: {plain(str(error))}")
        return []
    return [old, old]
