"""A model's summary as HTML for notebooks: no script, no style sheet, the page's own colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.report.picture import colours, picture, swatch, text
from engine.report.summary import ModelSummary, Operator, operator_name
from engine.report.wording import counted, size

_MOST_OPERATORS = 10
_LEFT = "text-align:left;padding:1px 12px 1px 0;vertical-align:top"
_RIGHT = "text-align:right;padding:1px 12px 1px 0;vertical-align:top"
_BAR = "#4a90d9"


def page(summary: ModelSummary) -> str:
    """Return the summary as an HTML fragment."""
    facts = summary.facts()
    name = facts.pop("model") or "model from memory"
    parts = [
        f'<div style="font-size:1.15em;font-weight:600">{text(name)}</div>',
        _placement(summary),
        _table(
            [(_bold(label), text(words)) for label, words in facts.items() if words],
        ),
        _ports(summary),
        _operators(summary.operators),
        _memory(summary),
        _details("Metadata", [(text(key), text(words)) for key, words in summary.metadata.items()]),
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
    return f'{_heading("Placement", verdict)}<div style="margin:4px 0">{drawn}</div>' + _table(
        rows, [1]
    )


def _ports(summary: ModelSummary) -> str:
    rows = [
        (_bold(kind), text(spec.name), f"<code>{text(spec)}</code>")
        for kind, specs in (("input", summary.inputs), ("output", summary.outputs))
        for spec in specs or ()
    ]
    return _heading("Inputs and outputs") + _table(rows) if rows else ""


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
    rest = _details(counted(len(others), "other operator"), others, [0])
    total = counted(sum(operator.count for operator in operators), "node")
    return _heading("Operators", total) + _table(shown, [0]) + rest


def _memory(summary: ModelSummary) -> str:
    if summary.memory is None:
        return ""
    rows = [
        tuple(map(_bold, ("device", "backend", "private", "shared", "mapped", "workspace"))),
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
    return _heading("Memory", text(summary.memory.uncounted)) + _table(rows, [2, 3, 4, 5])


def _bold(words: str) -> str:
    return f"<b>{text(words)}</b>"


def _heading(title: str, remark: str = "") -> str:
    """Return a heading. remark: HTML beside it."""
    beside = f' <span style="font-weight:400;opacity:0.75">{remark}</span>' if remark else ""
    return f'<div style="font-weight:600;margin-top:10px">{title}{beside}</div>'


def _details(title: str, rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return rows that are shown when the title is clicked; "" for none."""
    if not rows:
        return ""
    return f"<details><summary>{title}</summary>{_table(rows, numbers)}</details>"


def _table(rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table of cells that are HTML; the columns in `numbers` are set to the right."""
    lines = []
    for row in rows:
        cells = (
            f'<td style="{_RIGHT if place in numbers else _LEFT}">{cell}</td>'
            for place, cell in enumerate(row)
        )
        lines.append(f'<tr style="background:none">{"".join(cells)}</tr>')
    # A table inherits neither in a page without a doctype.
    own = "border-collapse:collapse;margin:2px 0;color:inherit;font-size:inherit"
    return f'<table style="{own}">{"".join(lines)}</table>'
