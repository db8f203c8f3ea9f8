"""`engine diff`: finds the node that sets two targets, or two models, apart."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli import options
from engine.cli.build import recipe_of
from engine.cli.commands import Command
from engine.cli.hints import misuse
from engine.cli.input_files import STANDARD_INPUT
from engine.cli.interrupt import interruptible
from engine.cli.options import BuildOptions
from engine.cli.output import as_json, aside, attributes, fields, line, notes, plain, table
from engine.cli.progress import progress
from engine.cli.sides import (
    TOLERANCES,
    Asked,
    Both,
    not_numbers,
    of_two_sides,
    run_both,
    side,
)
from engine.types import CancelToken

if TYPE_CHECKING:
    from engine.report.fault.found import Diff, Fault, FaultNode
    from engine.report.fault.spread import Spread

EPILOG = f"""\b
Examples:
  engine diff model.onnx
  engine diff model.onnx --a gpu --b cpu --input image=photo.png
  engine diff model_fp16.onnx model.onnx --rtol 0.01
  engine diff model.onnx --a cpu --b cpu --set-b cpu_context.workarounds=off
  engine diff model.onnx --out fault --json

{TOLERANCES}\b
Exit status:
  0  all outputs are within the tolerances: nothing is apart
  1  one is not, or a model could not be run"""

_MOST_NODES = 8
_SEARCH = ("builds", "unpaired", "folder", "notes")


@click.command("diff", cls=Command, epilog=EPILOG)
@of_two_sides
@click.option(
    "--out",
    type=options.PATH,
    metavar="FOLDER",
    help="Where to write the reproducer.  [default: MODEL.diff, in the current folder]",
)
@click.option("--write/--no-write", default=True, help="Write a reproducer of what is apart.")
@click.option(
    "--inside", is_flag=True, help="Look at the values inside even if all outputs are within."
)
def diff(asked: Asked, out: Path | None, write: bool, inside: bool) -> None:
    """Find the node that sets two targets, or two models, apart.

    Runs both as engine compare does. Where an output is not within the tolerances, it finds the
    first node, or the smallest block of nodes, that makes the error, and writes a reproducer: that
    block as a model, its inputs, and the command that shows the fault.
    """
    from engine.formats import ModelFile
    from engine.report.fault.ranks import together
    from engine.report.fault.reproducer import require_place

    if out is not None and not write:
        raise misuse("--out, --no-write", "expected one of the two")
    folder = None
    if write:
        is_piped = str(asked.model) == STANDARD_INPUT
        folder = out or Path(f"{'model' if is_piped else asked.model.stem}.diff")
        require_place(folder)
    asked.check()
    joined = together(asked.model, asked.other or asked.model)
    file_a, file_b = (ModelFile.of_bytes(data) if data else None for data in (joined.a, joined.b))
    both = run_both(asked, (file_a, file_b))
    is_searched = inside or not both.found.is_within
    found = _searched(asked, both, inside, joined.is_sliced, folder) if is_searched else None
    if asked.json:
        as_json({**both.facts(), **_facts(found)})
    else:
        both.show()
        _print(found, inside)
    if found is not None and not found.is_within:
        raise click.exceptions.Exit(1)


def _searched(asked: Asked, both: Both, inside: bool, is_sliced: bool, folder: Path | None) -> Diff:
    """Search for the fault; Ctrl-C ends it."""
    from engine.report.fault.diff import find, words_of
    from engine.report.fault.sides import Side, opener, settled

    cancel = CancelToken()
    inputs = {given.spec.name: given.value for given in both.inputs.given}
    paths = asked.model, asked.other or asked.model
    settings = asked.sides.settings_a, asked.sides.settings_b
    given = [recipe_of(how) for how in both.hows]
    recipes = [settled(file, *recipe) for file, recipe in zip(both.files, given, strict=True)]
    is_tuned = any("tuned" in config for _, config in given)
    command = words_of(recipes, asked.rtol, asked.atol) if is_tuned else _words(asked, both.hows)
    both_sides = [
        Side(file, opener(*recipe, cancel), asked.timeout, partial(side, name, path, own))
        for name, file, recipe, path, own in zip(
            "ab", both.files, recipes, paths, settings, strict=True
        )
    ]
    with progress() as show:
        return interruptible(
            lambda: find(
                both_sides[0],
                both_sides[1],
                inputs,
                (both.a.outputs, both.b.outputs),
                rtol=asked.rtol,
                atol=asked.atol,
                inside=inside,
                is_sliced=is_sliced,
                folder=folder,
                command=command,
                show=show,
            ),
            cancel,
        )


def _words(asked: Asked, hows: tuple[BuildOptions, BuildOptions]) -> list[str]:
    """Return the options with which `engine compare` builds both sides as here."""
    how = asked.how
    words = ["--a", hows[0].target, "--b", hows[1].target]
    for name, values in (
        ("--set", how.settings),
        ("--set-a", asked.sides.settings_a),
        ("--set-b", asked.sides.settings_b),
    ):
        words += [word for value in values for word in (name, value)]
    if how.device_id:
        words += ["--device-id", str(how.device_id)]
    for name, number in (
        ("--threads", how.threads or None),
        ("--threads-a", asked.sides.threads_a),
        ("--threads-b", asked.sides.threads_b),
    ):
        words += [] if number is None else [name, str(number)]
    if how.config is not None:
        words += ["--config", str(how.config.absolute())]
    for name, tolerance in (("--rtol", asked.rtol), ("--atol", asked.atol)):
        words += [] if tolerance is None else [name, f"{tolerance!r}"]
    return words


# ---------------------------------------------------------------------------------------- printing


def _print(found: Diff | None, inside: bool) -> None:
    if found is None or found.fault is None:
        has_inside = found is not None and found.has_inside
        what = "all outputs and the values inside" if has_inside else "all outputs"
        if found is None or found.is_within:
            line(f"\nNothing is apart: {what} are within the tolerances.")
        else:
            line("\nNo node was found that makes the error.")
        if inside and not has_inside:
            line("The values inside could not be compared.")
        notes(f"note: {note}" for note in (found.notes if found else ()))
        if found is None:
            aside("Values inside were not compared: --inside does that.")
        return
    fault = found.fault
    line("\nFault")
    first = "" if fault.first.name == fault.value else f" ({fault.first.name!r} is the first apart)"
    pairs = {
        "found": _SAID[fault.kind],
        "node" if len(fault.nodes) == 1 else "nodes": _listed(fault.nodes),
        "result": "; ".join(
            (plain(f"{fault.value}: {fault.own.verdict}{first}"), *not_numbers(fault.own))
        ),
    }
    if fault.spread is not None and fault.spread.where:
        pairs["where"] = _where(fault.spread)
    if {*map(str, fault.nodes_b)} != {*map(str, fault.nodes)}:
        pairs["in b"] = _listed(fault.nodes_b)
    pairs["against float64"] = fault.no_float64 or "; ".join(
        f"{name} differs in {spread.apart:,} of {spread.size:,} values"
        for name, spread in (("a", fault.exact_a), ("b", fault.exact_b))
        if spread is not None
    ) + ("; both are about as far: this is rounding" if fault.is_rounding else "")
    if any(found.unpaired):
        counts = [f"{len(names):,} values of {name}" for name, names in zip("ab", found.unpaired)]
        pairs["unpaired"] = f"{' and '.join(counts)} have no counterpart"
    pairs["builds"] = f"{found.builds}"
    if found.folder:
        pairs["reproducer"] = plain(found.folder)
    fields(pairs)
    rows = [
        (whose, kind, *(f"{error:.3g}" for error in errors))
        for whose, spread in (
            ("a from b", fault.spread),
            ("a from float64", fault.exact_a),
            ("b from float64", fault.exact_b),
        )
        if spread is not None
        for kind, errors in attributes(spread, "absolute", "relative", "ulp").items()
        if errors
    ]
    if rows:
        head = ("error", "kind", "of half at most", "90 %", "99 %", "all")
        table(f"Errors of {plain(fault.value)}, with equal inputs", head, rows)
    notes(f"note: {note}" for note in found.notes)


_SAID = {
    "node": "one node makes the error",
    "fused": "these nodes make the error, and only when they are built together",
    "block": "these nodes make the error; the graphs have no value in common between them",
    "grows": "no node is wrong alone: the error grows through these nodes",
}


def _listed(nodes: tuple[FaultNode, ...]) -> str:
    said = [
        f"{node}" + ("" if node.own is None else f", own error {node.own:.2g} of the tolerance")
        for node in nodes[:_MOST_NODES]
    ]
    more = len(nodes) - len(said)
    return "; ".join(said) + (f"; and {more:,} more" if more else "")


def _where(spread: Spread) -> str:
    axes = [
        f"axis {axis} at {', '.join(map(str, places))}" for axis, places in spread.where.items()
    ]
    return "only " + "; ".join(axes)


def _facts(found: Diff | None) -> dict[str, Any]:
    """Return what is said of a fault in JSON."""
    if found is None or found.fault is None:
        return {"fault": None, **({"builds": 2} if found is None else attributes(found, *_SEARCH))}
    return {
        "fault": _fault_facts(found.fault),
        **attributes(found, *_SEARCH),
    }


def _fault_facts(fault: Fault) -> dict[str, Any]:
    def nodes(listed: tuple[FaultNode, ...]) -> list[dict[str, Any]]:
        return [attributes(node, "index", "name", "op_type", "outputs", "own") for node in listed]

    def spread(found: Spread | None) -> dict[str, Any] | None:
        names = ("size", "apart", "unmatched", "absolute", "relative", "ulp", "where")
        return None if found is None else attributes(found, *names)

    return {
        **attributes(fault, "kind", "value", "value_b", "inputs", "no_float64"),
        "nodes": nodes(fault.nodes),
        "nodes_b": nodes(fault.nodes_b),
        "verdict": fault.own.verdict,
        "first_apart": {"value": fault.first.name, "verdict": fault.first.verdict},
        "spread": spread(fault.spread),
        "a_from_float64": spread(fault.exact_a),
        "b_from_float64": spread(fault.exact_b),
    }
