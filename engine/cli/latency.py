"""Latencies as numbers and as a histogram, in the terminal or in a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cli.output import console, duration, line
from engine.report.measurement import PERCENTILES, latency_summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, np.dtype[np.float64]]

SUFFIXES = (".png", ".svg", ".pdf")
_BINS = 16


def histogram(latencies_s: Array) -> tuple[Array, Array]:
    """Return the edges and counts of bins from the least to the greatest, on a log scale.

    Latencies have a long tail: bins of one width would put nearly all into the first.
    """
    least, most = float(latencies_s.min()), float(latencies_s.max())
    if not 0 < least < most:
        return np.array([least, most]), np.array([len(latencies_s)])
    edges = np.geomspace(least, most, _BINS + 1).clip(least, most)  # not a rounding error outside
    edges[0], edges[-1] = least, most
    counts, _ = np.histogram(latencies_s, edges)
    return edges, counts


def draw(latencies_s: Array) -> None:
    """Print the histogram, a row a bin, with the bins that hold the percentiles marked."""
    edges, counts = histogram(latencies_s)
    shown = latency_summary(latencies_s)
    rows = []
    for least, most, count in zip(edges, edges[1:], counts, strict=False):
        last = most == edges[-1]
        here = [f"p{rank:g}" for rank in PERCENTILES if least <= shown[f"p{rank:g}"]]
        marks = [name for name in here if shown[name] < most or last]
        rows.append((duration(float(least)), f"{count:,}", " ".join(marks)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max(min(console().width, 80) - sum(widths) - 6, 4)
    for (start, number, mark), count in zip(rows, counts, strict=True):
        drawn = bar(int(count), int(counts.max()), room)
        line(f"{start:>{widths[0]}}  {drawn:<{room}}  {number:>{widths[1]}}  {mark}".rstrip())


def bar(count: int, most: int, width: int) -> str:
    """Return a bar of up to `width` characters, in eighths; above 0 it can be seen."""
    eighths = max(round(8 * width * count / most), 1 if count else 0)
    whole, rest = divmod(eighths, 8)
    try:
        "█▏".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return "#" * -(-eighths // 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[rest].strip()


def new_figure(*, or_else: str = "") -> Figure:
    """Return an empty figure; without matplotlib, raise ImportError with the fix and `or_else`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"a plot in a file needs matplotlib ({error}); "
            f'run: pip install "inference-engine[plot]"{or_else}'
        ) from error
    return Figure(figsize=(8, 4.5), layout="constrained")


def draw_figure(figure: Figure, latencies_s: Array, title: str) -> None:
    """Draw the histogram with its percentiles into `figure`."""
    edges, counts = histogram(latencies_s)
    unit, factor = ("ms", 1e3) if np.median(latencies_s) >= 1e-3 else ("us", 1e6)
    axes = figure.subplots()
    axes.stairs(counts, edges * factor, fill=True, color="tab:blue")
    if len(counts) > 1:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    for (name, value), style in zip(
        latency_summary(latencies_s).items(), ("-", (0, (5, 1)), "--", "-.", ":"), strict=False
    ):
        axes.axvline(
            value * factor, color="black", ls=style, lw=1, label=f"{name} {duration(value)}"
        )
    axes.set_xlabel(f"latency of one run, {unit}")
    axes.set_ylabel("runs")
    axes.set_title(title.replace("$", r"\$"), wrap=True, fontsize="medium")  # no formula
    axes.legend()
