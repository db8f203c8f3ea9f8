"""`engine slice`: cuts a model into those of several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli import options
from engine.cli.build import parse_shapes, parse_targets, require_file
from engine.cli.commands import Choice, Command, Integer
from engine.cli.interrupt import interruptible
from engine.cli.output import as_json, aside, fields, line, plain, size, table
from engine.cli.progress import progress
from engine.types import CancelToken

if TYPE_CHECKING:
    from engine.sharding.slicing.report import Report

_MOST_ROWS = 8

EPILOG = """\b
Examples:
  engine slice model.onnx --tp 2 --out slices
  engine slice model.onnx --tp 2 --pp 2 --out slices
  engine slice net.mindir --tp 4 --strategy strategy.ckpt --out slices

\b
Files:
  DIR/NAME0.onnx, DIR/NAME1.onnx, ...
    the ranks' models; ranks are numbered stage by stage
  DIR/NAME0.onnx.data, ..., DIR/NAME.data
    a rank's own weights, and those in common
  DIR/NAME.strategy.json  what was done, as a strategy"""


@click.command("slice", cls=Command, epilog=EPILOG)
@options.model
@click.option("--tp", type=Integer(1), default=1, metavar="N", help="Ranks that share each layer.")
@click.option("--pp", type=Integer(1), default=1, metavar="N", help="Pipeline stages.")
@click.option("--out", type=options.PATH, required=True, metavar="DIR", help="Where the slices go.")
@click.option(
    "--strategy",
    default=None,
    metavar="auto|FILE",
    help="auto divides what is worth it, a strategy file of MindSpore says what is divided how; "
    "without it all is divided that can be.",
)
@click.option(
    "--input-shape",
    "shapes",
    multiple=True,
    metavar="NAME=SIZES",
    help="Sizes with which the slices are checked, as x=1,128, where a model runs with few sizes "
    "only; open dims stay open. May be repeated.",
)
@click.option(
    "--fix-shapes",
    is_flag=True,
    help="Fix the sizes of --input-shape in the slices: they run with these alone.",
)
@click.option(
    "--outputs",
    type=Choice(["all", "last"]),
    default="all",
    help="Who gives the results: all ranks, or those of the last stage.",
)
@click.option(
    "--micro-batches",
    is_flag=True,
    help="Stages run a batch in parts of as many rows as --input-shape says, at the same time.",
)
@click.option(
    "--annotate",
    is_flag=True,
    help="Also write DIR/NAME.annotated.onnx: the model with ONNX's annotations of its sharding.",
)
@click.option(
    "--replicas",
    is_flag=True,
    help="Also write ranks that each hold the whole model, where nothing can be divided.",
)
@click.option(
    "--check/--no-check", default=True, help="Compare the slices with the original, here, first."
)
@options.target
@options.json
def slice_command(
    model: Path,
    tp: int,
    pp: int,
    shapes: tuple[str, ...],
    fix_shapes: bool,
    replicas: bool,
    target: str,
    json: bool,
    **settings: Any,  # of slice_model, by its own names
) -> None:
    """Slice a model into those of tp x pp ranks, and check them.

    Nodes without a rule run whole on each rank. Where that is all of the model, the reason of
    each node is printed and nothing is written, unless --replicas asks for it.
    """
    require_file(model)
    if tp * pp == 1 and not replicas:
        raise click.UsageError(
            "one rank is the model as it is; give --tp N or --pp N, or --replicas for a copy"
        )
    sizes = parse_shapes(shapes, "--input-shape")
    if fix_shapes and not sizes:
        raise click.UsageError("--fix-shapes: expected sizes to fix; give --input-shape as well")
    from engine.context import Context
    from engine.sharding.slicing.slice import slice_model
    from engine.sharding.slicing.undivided import NothingDivided

    context = Context()
    context.target = parse_targets(target)
    cancel = CancelToken()
    try:
        with progress() as show:
            report = interruptible(
                lambda: slice_model(
                    model,
                    tp=tp,
                    pp=pp,
                    replicas=replicas,
                    input_shapes=sizes,
                    fix_shapes=fix_shapes,
                    context=context,
                    progress=show,
                    cancel=cancel,
                    **settings,
                ),
                cancel,
            )
    except NothingDivided as error:
        if not json:
            table("Nodes that run whole", ("node", "reason"), list(error.nodes.items()))
        raise
    if json:
        as_json(report.values())
    else:
        _show(report)


def _show(report: Report) -> None:
    exchanges = (f"{count} {kind}" for kind, count in sorted(report.collectives.items()))
    fields(
        {
            "model": report.model,
            "ranks": f"{len(report.ranks)}: tp {report.tp}, pp {report.pp}",
            "weights": f"{size(report.weight_bytes)}, {size(report.divided_bytes)} divided",
            "balance": f"{report.balance:.3f} (the largest rank over the mean)",
            "exchanges": ", ".join(exchanges) or "none",
        }
    )
    table(
        "Ranks",
        ("file", ">stage", ">weights", ">of these whole", ">activations", ">sends"),
        [
            (
                rank.file,
                str(rank.stage),
                *map(size, (rank.weight_bytes, rank.whole_bytes, rank.activation_bytes,
                            rank.exchanged_bytes)),
            )
            for rank in report.ranks
        ],
    )  # fmt: skip
    if report.counted_shapes:
        shapes = " ".join(
            f"{plain(name)}={','.join(map(str, shape))}"
            for name, shape in report.counted_shapes.items()
        )
        line(f"activations and sends are those of a predict with open sizes of 1: {shapes}")
    if report.tp > 1 and report.whole:
        rows = [(one.name, size(one.nbytes), one.reason) for one in report.whole[:_MOST_ROWS]]
        table("Weights that are whole on each rank", ("weight", ">size", "reason"), rows)
        if len(report.whole) > _MOST_ROWS:
            rest = sum(one.nbytes for one in report.whole[_MOST_ROWS:])
            line(f"and {len(report.whole) - _MOST_ROWS} more, {size(rest)}")
    if report.differences:
        table(
            "Against the original",
            ("output", ">largest difference", ">largest value", "bit for bit"),
            [
                (one.output, f"{one.difference:.3g}", f"{one.largest:.3g}",
                 "yes" if one.is_equal else "no")
                for one in report.differences
            ],
        )  # fmt: skip
    if report.note:
        aside("")
        aside(f"note: {plain(report.note)}")
