"""`engine compare`: runs two models, or one on two targets, and says how far they are apart."""

from __future__ import annotations

import click

from engine.cli.commands import Command
from engine.cli.output import as_json
from engine.cli.sides import TOLERANCES, Asked, of_two_sides, run_both

EPILOG = f"""\b
Examples:
  engine compare model.onnx
  engine compare model.onnx --a gpu --b cpu --input image=photo.png
  engine compare model.onnx model_fp16.onnx --rtol 0.01
  engine compare model.onnx --b cpu --set-b cpu_context.workarounds=off
  engine compare model.onnx --input inputs.npz --json

{TOLERANCES}\b
Exit status:
  0  all outputs are within the tolerances
  1  one is not, or a model could not be run"""


@click.command("compare", cls=Command, epilog=EPILOG)
@of_two_sides
def compare(asked: Asked) -> None:
    """Compare the outputs of two targets or two models.

    Both get the same inputs: from files, or random ones. The first side is a, the second one, b,
    is the reference. Where they are apart, engine diff finds the node that makes it so.
    """
    both = run_both(asked)
    if asked.json:
        as_json(both.facts())
    else:
        both.show()
    if not both.found.is_within:
        raise click.exceptions.Exit(1)
