"""Pieces of HTML for notebooks: no script, no style sheet, the page's own colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from engine.config.text import counted, duration
from engine.report.picture import text

if TYPE_CHECKING:
    from engine.model.profiling import Profile

_LEFT = "text-align:left;padding:1px 12px 1px 0;vertical-align:top"
_RIGHT = "text-align:right;padding:1px 12px 1px 0;vertical-align:top"
_BAR = "#4a90d9"
_STATUS = {"ok": "#2e8b57", "note": "#b8860b", "problem": "#c0392b"}
_MOST_KERNELS = 20


def profile(headline: str, profile: Profile) -> str:
    """Return the times of a profile: by kernel and, where these are fewer, by operator type."""
    parts = [_title(headline)]
    parts += [f"<div>not measured: {text(name)} cannot tell</div>" for name in profile.unmeasured]
    hottest = profile.kernels[0].share if profile.kernels else 0
    rows = [
        (
            f"{kernel.share:.1%}",
            _bar(kernel.share, hottest),
            duration(kernel.time_s),
            text(kernel.op_type),
            text(kernel.name),
        )
        for kernel in profile.kernels
    ]
    shown, others = rows[:_MOST_KERNELS], rows[_MOST_KERNELS:]
    parts += [heading("Kernels", counted(len(rows), "kernel")), table(shown, [0, 2])]
    parts.append(details(counted(len(others), "further kernel"), others, [0, 2]))
    sums = profile.by_operator
    if len(sums) < len(rows):
        hottest = sums[0].share
        rows = [
            (
                f"{each.share:.1%}",
                _bar(each.share, hottest),
                duration(each.time_s),
                text(each.op_type),
                counted(each.kernels, "kernel"),
            )
            for each in sums
        ]
        parts += [heading("By operator type"), table(rows, [0, 2])]
    return _box(parts)


def findings(
    verdict: str, sections: Iterable[tuple[str, Sequence[tuple[str, str, str, str]]]]
) -> str:
    """Return what a diagnosis found: what is well is shown at a click.

    sections: titles, each with (status, name, detail, fix) of its findings.
    """
    parts = [_title(verdict)]
    for title, found in sections:
        rows = [
            (
                f'<span style="color:{_STATUS.get(status, "inherit")}">{text(status)}</span>',
                bold(name),
                text(detail) + (f"<br/><code>{text(fix)}</code>" if fix else ""),
            )
            for status, name, detail, fix in found
        ]
        well = [row for row, (status, *_) in zip(rows, found, strict=True) if status == "ok"]
        parts += [heading(text(title)), table([row for row in rows if row not in well])]
        parts.append(details(f"{len(well)} ok", well))
    return _box(parts)


def facts(title: str, named: Mapping[str, str], notes: Sequence[str] = ()) -> str:
    """Return facts by name, and notes below them."""
    rows = [(bold(name), text(words)) for name, words in named.items()]
    rows += [("note", text(note)) for note in notes]
    return _box([_title(title), table(rows)])


def _box(parts: Iterable[str]) -> str:
    return f'<div style="line-height:1.4;max-width:60em">{"".join(filter(None, parts))}</div>'


def _title(words: str) -> str:
    return f'<div style="font-size:1.15em;font-weight:600">{text(words)}</div>'


def _bar(share: float, most: float) -> str:
    width = round(120 * share / (most or 1))
    return (
        f'<span style="display:inline-block;height:0.7em;background:{_BAR};width:{width}px"></span>'
    )


def bold(words: str) -> str:
    """Return words as bold text."""
    return f"<b>{text(words)}</b>"


def heading(title: str, remark: str = "") -> str:
    """Return a heading. remark: HTML beside it."""
    beside = f' <span style="font-weight:400;opacity:0.75">{remark}</span>' if remark else ""
    return f'<div style="font-weight:600;margin-top:10px">{title}{beside}</div>'


def details(title: str, rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return rows that are shown when the title is clicked; "" for none."""
    if not rows:
        return ""
    return f"<details><summary>{title}</summary>{table(rows, numbers)}</details>"


def table(rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
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
