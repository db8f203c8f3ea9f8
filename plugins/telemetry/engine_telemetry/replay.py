"""`engine replay`: runs recorded requests against a model, and says whether it gives the same."""

from __future__ import annotations

import json as json_module
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import engine
from engine.errors import EngineError, InputError, one_line
from engine_telemetry.record import Record, RecordError, read
from engine_telemetry.verdicts import DIFFERS, EQUAL, WITHIN, Verdict, verdict_of

NUMBERED = re.compile(r"(\d{6,})\.npz")

EPILOG = """\b
Examples:
  engine replay requests model.onnx
  engine replay requests model.onnx --target gpu --rtol 0.01
  engine replay requests model_int8.onnx --atol 0.05 --json

\b
Requests are recorded by
  ENGINE_EXTENSIONS="recorder;path=requests"
those without results, as cancelled ones, are skipped.

\b
Tolerances:
  within  |now - recorded| <= atol + rtol * |recorded| for every element.
          Whole numbers have --atol alone, text is equal or not
  rtol    1e-3 by default; 1e-2 for types of 2 bytes, 1e-1 for 1 byte
  atol    1e-5 by default; 1e-3 for types of 2 bytes, 1e-2 for 1 byte; 0 for
          whole numbers

\b
Exit status:
  0  all requests are equal or within the tolerances
  1  one is not, or the requests or the model could not be read"""

_TOLERANCE = click.FloatRange(0, math.inf, max_open=True)


@click.command("replay", epilog=EPILOG)
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path())
@click.option(
    "--target",
    default="cpu",
    metavar="TARGET",
    help="Where to run: cpu, gpu, ascend or an installed backend; several, with commas between, "
    "are tried in that order.",
)
@click.option("--config", type=click.Path(), metavar="FILE", help="A configuration file.")
@click.option("--rtol", type=_TOLERANCE, metavar="X", help="Relative error that is within.")
@click.option("--atol", type=_TOLERANCE, metavar="X", help="Absolute error that is within.")
@click.option(
    "--recorded",
    metavar="NAME",
    help="Replay the requests of this model alone, where those of several are recorded.",
)
@click.option("--json", is_flag=True, help="Print JSON, for programs.")
def replay(
    folder: Path,
    model: str,
    target: str,
    config: str | None,
    rtol: float | None,
    atol: float | None,
    recorded: str | None,
    json: bool,
) -> None:
    """Run the recorded requests of FOLDER against MODEL, and compare the outputs."""
    records = records_of(folder, recorded)
    skipped = Counter(record.status for record in records if record.status != "completed")
    completed = [record for record in records if record.status == "completed"]
    if not completed:
        raise RecordError(f"{folder}: none of {_count(records)} has results to compare with")
    # A recorder that is on for other processes of this shell would record what is replayed.
    os.environ.pop("ENGINE_EXTENSIONS", None)
    with engine.load(model, target.split(","), config=config) as built:
        verdicts = [
            run(built, read(record.path, record.number), rtol, atol) for record in completed
        ]
    if json:
        click.echo(json_module.dumps(_facts(verdicts, skipped), allow_nan=False))
    else:
        for line in _lines(verdicts, skipped, completed):
            click.echo(line)
    if any(verdict.verdict == DIFFERS for verdict in verdicts):
        raise click.exceptions.Exit(1)


def records_of(folder: Path, name: str | None = None) -> list[Record]:
    """Return the recorded requests of a folder in the order of their numbers, without values.

    name: of the model whose requests are wanted. Raises RecordError for a folder without any, and
    for one with those of several models if no name is given.
    """
    try:
        found = [(match, entry) for entry in folder.iterdir()
                 if (match := NUMBERED.fullmatch(entry.name))]  # fmt: skip
    except OSError as error:
        raise RecordError(
            f"{folder}: expected a folder of recorded requests: {error.strerror}", str(folder)
        ) from error
    numbered = sorted((int(match[1]), path) for match, path in found)
    records = [read(path, number, with_values=False) for number, path in numbered]
    if not records:
        raise RecordError(
            f"{folder}: has no recorded requests, which are files as 000001.npz; they are recorded "
            f"by ENGINE_EXTENSIONS='recorder;path={folder}'",
            str(folder),
        )
    names = Counter(record.model for record in records)
    listed = ", ".join(f"{model} ({count})" for model, count in names.items())
    if name is None and len(names) > 1:
        raise RecordError(
            f"{folder}: has requests of several models: {listed}; choose one: --recorded NAME",
            str(folder),
        )
    if name is not None and name not in names:
        raise RecordError(f"{folder}: has no requests of {name!r}, but of {listed}", str(folder))
    return [record for record in records if name in (None, record.model)]


def run(model: engine.Model, record: Record, rtol: float | None, atol: float | None) -> Verdict:
    """Run a recorded request against a model. Raises InputError for a model of other inputs."""
    inputs, outputs = record.inputs or {}, record.outputs or {}
    for side, recorded, specs in (
        ("inputs", inputs, model.inputs),
        ("outputs", outputs, model.outputs),
    ):
        own = [spec.name for spec in specs]
        if {*own} != {*recorded}:
            raise InputError(
                f"{record.path}: recorded of model {record.model!r} with {side} "
                f"{', '.join(recorded) or 'none'}, but this model has {', '.join(own) or 'none'}"
            )
    try:
        results = model.predict([inputs[spec.name] for spec in model.inputs])
    except InputError as error:
        raise InputError(f"{record.path}: does not fit this model: {error}", error.name) from error
    except EngineError as error:  # it completed when it was recorded
        return Verdict(record.number, record.path.name, DIFFERS, error=one_line(error))
    now = {spec.name: _plain(result) for spec, result in zip(model.outputs, results, strict=True)}
    return verdict_of(record, now, rtol, atol)


def _plain(result: Any) -> Any:
    """Return a result of predict with arrays in place of Tensors."""
    if isinstance(result, list):
        return [_plain(element) for element in result]
    return result.get_data_to_numpy() if isinstance(result, engine.Tensor) else result


def _lines(
    verdicts: Sequence[Verdict], skipped: Counter[str], records: Sequence[Record]
) -> Iterator[str]:
    counts = Counter(verdict.verdict for verdict in verdicts)
    requests = _count(verdicts)
    first = next((verdict for verdict in verdicts if verdict.verdict == DIFFERS), None)
    if first is not None:
        yield f"differs at request {first.request}: {first}"
        rest = f"within tolerance: {counts[WITHIN]:,}, equal: {counts[EQUAL]:,}"
        yield f"{counts[DIFFERS]:,} of {requests} differ; {rest}"
    elif counts[WITHIN]:
        yield f"within tolerance: {requests}, of which {counts[EQUAL]:,} equal"
    else:
        yield f"equal: {requests}"
    if skipped:
        listed = ", ".join(f"{count:,} {status}" for status, count in skipped.items())
        yield f"skipped: {listed}"
    updated = next((record for record in records if record.updated), None)
    if updated is not None:
        yield (
            f"note: request {updated.number} and later ones ran after an update of weights, which "
            "is not recorded"
        )


def _facts(verdicts: Sequence[Verdict], skipped: Counter[str]) -> dict[str, Any]:
    counts = Counter(verdict.verdict for verdict in verdicts)
    differing = [asdict(verdict) for verdict in verdicts if verdict.verdict == DIFFERS]
    return {
        "verdict": DIFFERS if differing else WITHIN if counts[WITHIN] else EQUAL,
        "requests": len(verdicts),
        "equal": counts[EQUAL],
        "within": counts[WITHIN],
        "differ": counts[DIFFERS],
        "skipped": dict(skipped),
        "first": differing[0]["request"] if differing else None,
        "differing": differing,
    }


def _count(things: Sequence[object]) -> str:
    return f"{len(things):,} {'request' if len(things) == 1 else 'requests'}"
