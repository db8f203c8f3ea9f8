"""`engine bench --by-operator` and `--by-layer`: the shares of a run, as the runtime measures them.

A runtime that measures its kernels is slower, so this is a measurement of its own, afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from engine.cli.commands import bundle
from engine.cli.hints import misuse
from engine.cli.output import duration, note, plain, table

if TYPE_CHECKING:
    from engine.report.profiling import Kernel, Profile


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The tables that are asked for."""

    by_operator: bool = False
    by_layer: bool = False

    def __bool__(self) -> bool:
        return self.by_operator or self.by_layer

    @property
    def option(self) -> str:
        """The option that is given, for messages."""
        return "--by-operator" if self.by_operator else "--by-layer"

    def require_one_run(self, others: Sequence[tuple[str, bool]]) -> None:
        """Raise a usage error where something else than the runs of one model is measured."""
        for option, is_given in others:
            if self and is_given:
                raise misuse(self.option, f"is for the runs of one model, without {option}")

    def show(self, profile: Profile) -> None:
        """Print the tables."""
        for name in profile.unmeasured:
            note(f"note: not measured: {name} cannot tell the time of its kernels")
        if self.by_operator:
            rows = [
                (f"{one.share:.1%}", duration(one.time_s), plain(one.op_type), f"{one.kernels:,}")
                for one in profile.by_operator
            ]
            table("By operator type", (">share", ">a run", "operator", ">kernels"), rows)
        if self.by_layer:
            kernels = in_running_order(profile)
            table("By layer, as they run", (">share", ">a run", "operator", "layer", "on"), [
                (f"{one.share:.1%}", duration(one.time_s), plain(one.op_type), plain(one.name),
                 plain(one.device))
                for one in kernels
            ])  # fmt: skip

    def facts(self, profile: Profile) -> dict[str, Any]:
        """Return the tables as plain values, for JSON."""
        found: dict[str, Any] = {}
        if self.by_operator:
            found["operators"] = [asdict(one) for one in profile.by_operator]
        if self.by_layer:
            found["layers"] = [asdict(one) for one in in_running_order(profile)]
        return found


def in_running_order(profile: Profile) -> list[Kernel]:
    """Return the kernels in the order in which they first ran."""
    begins: dict[int, float] = {}
    for run in profile.runs:
        begins[run.kernel] = min(run.start_s, begins.get(run.kernel, run.start_s))
    return [profile.kernels[place] for place in sorted(begins, key=begins.__getitem__)]


of_breakdown = bundle(
    "breakdown",
    Breakdown,
    click.option(
        "--by-operator", is_flag=True, help="Also the time of each operator type, by the runtime."
    ),
    click.option(
        "--by-layer", is_flag=True, help="Also the time of each kernel, in the order of their runs."
    ),
)
"""Adds these options to a command, which gets them as one."""
