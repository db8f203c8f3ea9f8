"""`engine explain`: shows node by node where a model runs and why, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.cli import options
from engine.cli.build import (
    Built,
    build,
    decryption_of,
    inputs_of,
    parse_shapes,
    recipe_of,
    require_free_input,
)
from engine.cli.commands import Command
from engine.cli.example import folder_or_example
from engine.cli.files import require_place
from engine.cli.hints import misuse
from engine.cli.inputs import Inputs
from engine.cli.interrupt import interruptible
from engine.cli.open_sizes import first_fitting
from engine.cli.options import BuildOptions, InputOptions
from engine.cli.output import as_json, fields, line, note, notes, plain, table
from engine.report.measurement import are_open

if TYPE_CHECKING:
    from engine.report.explanation.explanation import Explanation
    from engine.report.explanation.node import ExplainedNode
    from engine.report.explanation.roof import Roof

EPILOG = """\b
Examples:
  engine explain --example
  engine explain model.onnx
  engine explain model.onnx --target gpu,cpu --nodes
  engine explain model.onnx --profile --html model.html
  engine explain model.onnx --shape x=8,3,224,224 --json
  engine explain model.onnx --roof 200e9,20e9
  engine explain slices --html slices.html"""

_SHOWN = 20
_OF_A_RANK = 5


@click.command("explain", cls=Command, epilog=EPILOG)
@folder_or_example
@options.model_inputs
@options.model_build
@click.option("--profile", is_flag=True, help="Measure the time of each kernel, in 10 runs.")
@click.option("--nodes", is_flag=True, help="List every node, not only those that cost most.")
@click.option(
    "--html",
    type=options.PATH,
    metavar="FILE",
    help="Write a page that draws the graph; it is one file, and loads nothing.",
)
@click.option(
    "--roof",
    "roof_text",
    metavar="FLOPS,BYTES",
    help="What the device does in a second: float32 operations, and bytes of its memory.  "
    "[default: measured, on the CPU]",
)
@options.json
def explain(
    model: Path,
    given: InputOptions,
    how: BuildOptions,
    profile: bool,
    nodes: bool,
    html: Path | None,
    roof_text: str | None,
    json: bool,
) -> None:
    """Show for each node of a model where it runs and why, and what it costs.

    Builds the model, and counts the operations and the bytes of each node for the sizes of the
    inputs. With the rates of the processor, its roof, that is the least time of a kernel. A folder
    with all ranks of a sliced model is explained rank by rank.
    """
    roof = None if roof_text is None else _roof(roof_text)
    if model.is_dir():
        _refuse_inputs(model, given)
        if html is not None:
            require_place(html)
        _explain_ranks(model, how, profile, roof, nodes, html, json)
        return
    require_free_input(given, model)
    shapes = parse_shapes(given.shapes)
    if html is not None:
        require_place(html)
    built = build(model, how, decryption_of(model, how.dec_key, how.dec_mode))
    with built.model:
        inputs = interruptible(lambda: inputs_of(built, given, shapes))
        notes(inputs.notes)
        chosen, sizes = _fitting(built, inputs)
        if given.files or shapes:
            sizes = "as given"
        found = interruptible(lambda: _explained(built, chosen, sizes, profile, roof))
    if html is not None:
        found.save_html(html)
    if json:
        as_json(found.to_json())
    else:
        _show(found, found.nodes if nodes else found.heaviest[:_SHOWN], nodes)
    if html is not None:
        note(f"note: page written to {plain(str(html))}; open it in a browser")


def _refuse_inputs(folder: Path, given: InputOptions) -> None:
    """Raise a usage error for inputs, which ranks do not take: their predicts are made together."""
    if given.files or given.shapes:
        raise misuse(
            "--input" if given.files else "--shape",
            f"{str(folder)!r} has the ranks of a model, which are explained for the sizes in their "
            "files; leave out --input and --shape",
        )


def _explain_ranks(
    folder: Path,
    how: BuildOptions,
    profile: bool,
    roof: Roof | None,
    nodes: bool,
    html: Path | None,
    json: bool,
) -> None:
    """Explain each rank, built in a process of its own."""
    from engine.report.explanation.page import page
    from engine.report.explanation.ranks import explain_ranks, ranks_in

    context, config = recipe_of(how)
    paths = ranks_in(folder)
    found = interruptible(lambda: explain_ranks(paths, context, config, roof, profile=profile))
    if html is not None:
        html.write_text(page(found), encoding="utf-8")
    if json:
        as_json({"ranks": [each.to_json() for each in found]})
    else:
        for each in found:
            if each.rank:
                line()
            _show(each, each.nodes if nodes else each.heaviest[:_OF_A_RANK], nodes)
    if html is not None:
        note(f"note: page written to {plain(str(html))}; open it in a browser")


def _fitting(built: Built, inputs: Inputs) -> tuple[Inputs, str]:
    """Return inputs on which the model runs, and where the sizes of generated ones are from."""
    if not are_open(built.inputs):
        return inputs, "as declared"
    chosen, _ = first_fitting(built, inputs, lambda tried: built.model.predict(tried.values()))
    return chosen, "chosen so that it runs"


def _explained(
    built: Built, inputs: Inputs, sizes: str, profile: bool, roof: Roof | None
) -> Explanation:
    from engine.report.explanation.explaining import explained

    source = built.file() if not built.takes_shapes else None  # what was resized is another's
    return explained(
        built.model, inputs.values(), profile=profile, roof=roof, source=source, sizes=sizes
    )


def _roof(text: str) -> Roof:
    from engine.report.explanation.roof import Roof

    try:
        flops_per_s, bytes_per_s = map(float, text.split(","))
        return Roof(flops_per_s, bytes_per_s)
    except ValueError:
        raise misuse(
            "--roof",
            f"expected two numbers above 0: operations and bytes in a second, as 200e9,20e9; got "
            f"{text!r}",
        ) from None


def _show(found: Explanation, nodes: Sequence[ExplainedNode], is_whole: bool) -> None:
    fields({name: text for name, text in found.facts().items() if text})
    head = [name if place == 0 else f">{name}" for place, name in enumerate(found.operator_head)]
    table("Operators", head, found.operator_rows())
    if nodes:
        names, rows = found.node_table(nodes, is_whole)
        numbers = {"index", "operations", "moved", *found.time_head}
        title = "Nodes" if is_whole else f"The {len(nodes)} nodes that take longest"
        table(title, [f">{name}" if name in numbers else name for name in names], rows)
    if not is_whole and len(nodes) < len(found.nodes):
        line()
        line("--nodes lists all nodes, --html FILE draws them.")
    notes(f"note: {text}" for text in found.notes)
