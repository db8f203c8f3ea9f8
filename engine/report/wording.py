"""Numbers, sizes, times and tables as text."""

from __future__ import annotations

from engine.config.text import aligned, plain

__all__ = ["aligned", "counted", "duration", "plain", "rate", "size"]


def counted(count: int, what: str) -> str:
    """Return a number of things as text: "1 node", "1,200 nodes"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """Return bytes as text: "840 bytes", "76.9 kB", "1.25 GB" (powers of 1000)."""
    if count < 1000:
        return counted(count, "byte")
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:.0f} TB"


def duration(seconds: float) -> str:
    """Return a time as text: "85.0 us", "1.20 ms", "3.40 s"."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{seconds * factor:#.3g} {unit}".replace(". ", " ")  # "250. ms"
    return f"{seconds:.2f} s"


def rate(per_second: float) -> str:
    """Return a number of things in a second as text."""
    return f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.3g}"
