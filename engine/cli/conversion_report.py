"""Prints what a conversion of `engine convert` has done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.cli.folder import shape_text, spec_values, type_text
from engine.cli.output import aside, counted, duration, fields, line, plain, size, table
from engine.report.archive import first_values
from engine.report.parts import arrays_of, described

if TYPE_CHECKING:
    from engine.converter.job import Job, Report


def show(job: Job, report: Report) -> None:
    """Print a conversion as text; the last line is converter_lite's."""
    from engine.converter.job import name_of

    pairs = {
        "source": str(job.model_file),
        "framework": name_of(job.framework),
        "result": str(report.files[0]),
        "size": f"{size(report.size_after)}, before {size(report.size_before)}",
        "graph": counted(report.nodes, "node"),
        "took": duration(report.seconds),
    }
    if len(report.files) > 1:
        pairs["weights"] = str(report.files[1])
    if job.encrypt_key is not None:
        pairs["encrypted"] = "AES-GCM"
    fields(pairs)
    for title, specs in (("Inputs", report.inputs), ("Outputs", report.outputs)):
        rows = [(spec.name, type_text(spec), shape_text(spec)) for spec in specs]
        table(title, ("name", "type", "shape"), rows)
    if report.accuracy:
        from engine.converter.job import title_of

        shown = {
            name: {title_of(key): value for key, value in values.items()}
            for name, values in report.accuracy.items()
        }
        measures = list(dict.fromkeys(name for values in shown.values() for name in values))
        table(
            "Accuracy against the original",
            ("output", *(f">{measure}" for measure in measures)),
            [
                (name, *(f"{values[key]:.6g}" if key in values else "" for key in measures))
                for name, values in shown.items()
            ],
        )
    if report.trial:
        gave = [(name, (what, first)) for name, what, first in _trial_rows(report)]
        table("Trial run", ("output", "gave"), gave)
    if report.notes:
        aside("")
        for text in report.notes:
            aside(f"note: {plain(text)}")
    line()
    line("CONVERT RESULT SUCCESS:0")


def _trial_rows(report: Report) -> list[tuple[str, str, str]]:
    return [
        (part, described(array), " ".join(_text(value) for value in first_values(array, 4)))
        for spec in report.outputs
        if spec.name in report.trial
        for part, array in arrays_of(spec.name, report.trial[spec.name], spec.dtype).items()
    ]


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def values(job: Job, report: Report) -> dict[str, Any]:
    """Return the same as plain values, for JSON."""
    from engine.converter.job import name_of

    return {
        "source": str(job.model_file),
        "framework": name_of(job.framework),
        "result": str(report.files[0]),
        "files": [str(path) for path in report.files],
        "encrypted": job.encrypt_key is not None,
        "size_before_bytes": report.size_before,
        "size_after_bytes": report.size_after,
        "nodes": report.nodes,
        "convert_s": report.seconds,
        "inputs": [spec_values(spec) for spec in report.inputs],
        "outputs": [spec_values(spec) for spec in report.outputs],
        "notes": list(report.notes),
        "accuracy": report.accuracy,
        "trial": [
            {"name": name, "is": what, "begins_with": begin}
            for name, what, begin in _trial_rows(report)
        ],
    }
