"""`engine run --profile`: where the time of a predict goes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from engine.cli.output import attributes, line, note, plain

if TYPE_CHECKING:
    from engine.cli.build import Built
    from engine.report.profiling import Profile


def measured(built: Built, values: Any, trace: Path | None) -> Profile:
    """Measure a model's predicts, and write the trace where one is asked for."""
    profile = cast("Profile", built.model.profile(values))
    if trace is not None:
        profile.save_trace(trace)
    return profile


def show(profile: Profile, trace: Path | None) -> None:
    """Print the hottest kernels, with bars."""
    line()
    for text in str(profile).splitlines():
        line(plain(text))
    if trace is not None:
        note(f"note: trace written to {plain(str(trace))}; open it in https://ui.perfetto.dev")


def facts(profile: Profile) -> dict[str, Any]:
    """Return it as plain values, without each run of each kernel: these are in the trace."""
    return {
        **attributes(profile, "predict_s", "measured_s", "kernels_s", "predicts", "unmeasured"),
        "kernels": [asdict(kernel) for kernel in profile.kernels],
        "operators": [asdict(operator) for operator in profile.by_operator],
    }
