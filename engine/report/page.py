"""A model's summary as HTML for notebooks: no script, no style sheet, the page's own colours."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config.text import counted, size
from engine.model.summary import ModelSummary, Operator, operator_name
from engine.report.fragments import bold, details, heading, table
from engine.report.picture import colours, picture, swatch, text

_MOST_OPERATORS = 10
_BAR = "#4a90d9"


def page(summary: ModelSummary) -> str:
    """Return the summary as an HTML fragment."""
    facts = summary.facts()
    name = facts.pop("model") or "model from memory"
    parts = [
        f'<div style="font-size:1.15em;font-weight:600">{text(name)}</div>',
        _placement(summary),
        table(
            [(bold(label), text(words)) for label, words in facts.items() if words],
        ),
        _ports(summary),
        _operators(summary.operators),
        _memory(summary),
        details("Metadata", [(text(key), text(words)) for key, words in summary.metadata.items()]),
    ]
    return f'<div style="line-height:1.4;max-width:60em">{"".join(filter(None, parts))}</div>'


def _placement(summary: ModelSummary) -> str:
    placement = summary.placement
    if not placement:
        return ""
    palette = colours(placement, summary.backend)
    strange = sum(group.count for group in summary.placed if group.is_fallback)
    verdict = f"all {counted(len(placement), 'node')} on {text(summary.backend)}"
    if strange:
        verdict = f"{strange:,} of {counted(len(placement), 'node')} not on {text(summary.backend)}"
    rows = [
        (
            swatch(palette[group.device, group.backend], group.is_fallback),
            f"{group.count:,}",
            f"<b>{text(group.device)}</b>",
            text(group.backend),
            text(group.provider),
            text(group.reason),
        )
        for group in sorted(summary.placed, key=lambda group: group.is_fallback)
    ]
    drawn = picture(placement, summary.backend, palette)
    return f'{heading("Placement", verdict)}<div style="margin:4px 0">{drawn}</div>' + table(
        rows, [1]
    )


def _ports(summary: ModelSummary) -> str:
    rows = [
        (bold(kind), text(spec.name), f"<code>{text(spec)}</code>")
        for kind, specs in (("input", summary.inputs), ("output", summary.outputs))
        for spec in specs or ()
    ]
    return heading("Inputs and outputs") + table(rows) if rows else ""


def _operators(operators: Sequence[Operator]) -> str:
    if not operators:
        return ""
    most = max(operator.count for operator in operators)
    rows = [
        (
            f"{op.count:,}",
            f'<span style="display:inline-block;height:0.7em;background:{_BAR};'
            f'width:{max(1, round(80 * op.count / most))}px"></span>',
            text(operator_name(op)),
            "" if op.support == "yes" else text(op.support),
        )
        for op in operators
    ]
    shown, others = rows[:_MOST_OPERATORS], rows[_MOST_OPERATORS:]
    rest = details(counted(len(others), "other operator"), others, [0])
    total = counted(sum(operator.count for operator in operators), "node")
    return heading("Operators", total) + table(shown, [0]) + rest


def _memory(summary: ModelSummary) -> str:
    if summary.memory is None:
        return ""
    rows = [
        tuple(map(bold, ("device", "backend", "private", "shared", "mapped", "workspace"))),
        *(
            (
                text(part.device),
                text(part.backend or "core"),
                size(part.private_bytes),
                size(part.shared_bytes),
                size(part.mapped_bytes),
                size(part.workspace_bytes) if part.workspace_bytes else "none known",
            )
            for part in summary.memory.parts
        ),
    ]
    return heading("Memory", text(summary.memory.uncounted)) + table(rows, [2, 3, 4, 5])
