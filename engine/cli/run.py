"""`engine run`: runs a model once and prints its outputs as MindSpore Lite's tutorial does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli import options
from engine.cli.build import (
    Built,
    build,
    decryption_of,
    inputs_of,
    parse_shapes,
    require_free_input,
    require_timeout,
)
from engine.cli.commands import Command, Integer
from engine.cli.example import model_or_example
from engine.cli.files import STANDARD_OUTPUT, print_outputs, require_place, write
from engine.cli.hints import misuse
from engine.cli.inputs import Inputs
from engine.cli.interrupt import interruptible
from engine.cli.open_sizes import run_shown
from engine.cli.options import BuildOptions, InputOptions
from engine.cli.output import as_json, aside, duration, is_terminal, line, note, notes, plain
from engine.cli.progress import waiting
from engine.report.archive import first_values, storable
from engine.report.comparison import plain_value
from engine.report.measurement import DeviceShare, devices_text, shares
from engine.report.parts import arrays_of, described
from engine.tensor.description import Array
from engine.types import DType, ValueKind

if TYPE_CHECKING:
    from engine.report.profiling import Profile

EPILOG = """\b
Examples:
  engine run --example
  engine run model.onnx
  engine run model.onnx --input image=photo.npy
  engine run model.onnx --input inputs.npz --output outputs.npz
  engine run model.onnx --input photo.jpg --resize crop --mean 0.5 --std 0.5
  cat x.npy | engine run model.onnx --input - --output - > outputs.npz
  engine run model.onnx --input x.bin --shape x=1,3,224,224
  engine run model.onnx --fill random --seed 7 --target gpu,cpu
  engine run model.onnx --set cpu_context.spin_us=0 --json
  engine run model.onnx --profile --trace trace.json
  engine run secret.mindir --dec-key @key.hex"""


@click.command("run", cls=Command, epilog=EPILOG)
@model_or_example
@options.model_inputs
@options.model_build
@click.option(
    "--output",
    "-o",
    type=options.PATH,
    metavar="FILE",
    help="Write the outputs: .npz or .json by name, or .npy if there is one; - prints them in "
    "place of the report, as .npz or, with --json, as JSON.",
)
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop a run that takes longer.")
@click.option(
    "--values",
    type=Integer(0),
    default=10,
    metavar="N",
    help="How many values of each output to print.",
)
@click.option(
    "--profile",
    "is_profiled",
    is_flag=True,
    help="Measure 10 more runs, and print the time of each kernel, the hottest first.",
)
@click.option(
    "--trace",
    type=options.PATH,
    metavar="FILE",
    help="Write every run of every kernel for Perfetto, as JSON; implies --profile.",
)
@options.json
def run(
    model: Path,
    given: InputOptions,
    how: BuildOptions,
    output: Path | None,
    timeout: float | None,
    values: int,
    is_profiled: bool,
    trace: Path | None,
    json: bool,
) -> None:
    """Run a model once and print its outputs.

    Inputs come from files; one without a file is generated, and the output says so.
    """
    shapes = parse_shapes(given.shapes)
    require_free_input(given, model)
    _check_output(output, json)
    require_timeout(timeout)
    is_printed = str(output) == STANDARD_OUTPUT
    for file in (None if is_printed else output, trace):
        if file is not None:
            require_place(file)
    decryption = decryption_of(model, how.dec_key, how.dec_mode)
    built = build(model, how, decryption)
    with built.model:
        if output is not None and output.suffix == ".npy":
            _check_single(built)
        inputs = interruptible(  # large arrays are made, or read, in one call of numpy's
            lambda: inputs_of(built, given, shapes)
        )
        notes(inputs.notes)
        predict = partial(built.model.predict, timeout_s=timeout)
        is_shown = not json and not is_printed
        inputs, results, seconds = run_shown(built, inputs, "running", predict, is_shown)
        # Not get_outputs(): it does not know the sizes of open axes.
        outputs = {
            spec.name: plain_value(result)
            for spec, result in zip(built.outputs, results, strict=True)
        }
        where = shares(built.model.placement)
        profile: Profile | None = None
        if is_profiled or trace is not None:
            from engine.cli.profile import measured  # rare

            with waiting("measuring"):
                profile = interruptible(lambda: measured(built, inputs.values(), trace))
    arrays: dict[str, Array] = {}
    for spec in built.outputs:
        arrays |= arrays_of(spec.name, outputs[spec.name], spec.dtype)
    if is_printed:
        print_outputs(arrays, json)
        return
    if output is not None:
        _write_outputs(output, arrays)
    if json:
        _print_json(model, built, inputs, arrays, where, seconds, values, output, profile)
        return
    _print_text(built, outputs, where, seconds, values, output)
    if profile is not None:
        from engine.cli.profile import show as show_profile

        show_profile(profile, trace)


def _check_output(path: Path | None, is_json: bool) -> None:
    if path is None:
        return
    if str(path) == STANDARD_OUTPUT:
        if not is_json and is_terminal("stdout"):
            raise misuse(
                "--output",
                "a terminal cannot show an .npz archive; add --json, or send it on: "
                "--output - > outputs.npz",
            )
    elif path.suffix not in (".npz", ".npy", ".json"):
        raise misuse(
            "--output",
            f"expected a file name ending in .npz, .npy or .json, or -, got {str(path)!r}",
        )


def _write_outputs(path: Path, arrays: dict[str, Array]) -> None:
    """Write the outputs, and say which of them a file holds as another type."""
    write(path, arrays)
    for name, array in arrays.items():
        kept = storable(array).dtype.name
        if kept != array.dtype.name and array.dtype != object:
            note(f"note: {plain(str(path))}: {plain(name)} is stored as {kept}, exactly")


def _check_single(built: Built) -> None:
    outputs = built.outputs
    if len(outputs) != 1 or outputs[0].kind is not ValueKind.TENSOR:
        has = f"{len(outputs)} outputs" if len(outputs) != 1 else f"a {outputs[0].kind} as output"
        raise misuse("--output", f"the model has {has}, and .npy holds one array; name it .npz")


def _print_text(
    built: Built,
    outputs: dict[str, Any],
    where: Sequence[DeviceShare],
    seconds: float,
    values: int,
    output: Path | None,
) -> None:
    aside(
        f"ran on {plain(devices_text(where)) or built.backend}: "
        f"built in {duration(built.seconds)}, ran in {duration(seconds)}"
    )
    for spec in built.outputs:
        output_value = outputs[spec.name]
        arrays = arrays_of(spec.name, output_value, spec.dtype)
        if not arrays:
            _gap(spec is built.outputs[0])
            line(f"{plain(spec.name)} is {described(output_value)}")
        for place, (part, array) in enumerate(arrays.items()):
            _gap(spec is built.outputs[0] and place == 0)
            line(
                f"tensor name is: {plain(part)}, tensor size is: {array.nbytes} bytes, "
                f"tensor elements num is: {array.size}, tensor shape is: {described(array)}"
            )
            if values:
                shown = " ".join(_text(value) for value in first_values(array, values))
                rest = f" ... (first {values} of {array.size})" if array.size > values else ""
                line(f"output data is: {shown}{rest}")
    if output is not None:
        aside("")
        aside(f"outputs written to {plain(str(output))}")


def _gap(is_first: bool) -> None:
    """Print the blank line above an output; none above the first where --quiet prints it alone."""
    if is_first:
        aside("")
    else:
        line()


def _print_json(
    path: Path,
    built: Built,
    inputs: Inputs,
    arrays: dict[str, Array],
    where: Sequence[DeviceShare],
    seconds: float,
    values: int,
    output: Path | None,
    profile: Profile | None,
) -> None:
    facts: dict[str, Any] = {
        "model": str(path),
        "backend": built.backend,
        "devices": [share._asdict() for share in where],
        "build_s": built.seconds,
        "predict_s": seconds,
        "inputs": inputs.facts(),
        "outputs": [
            {
                "name": name,
                "dtype": DType.from_numpy(array.dtype),
                "shape": array.shape,
                "size_bytes": array.nbytes,
                "elements": array.size,
                "first_values": first_values(array, values),
            }
            for name, array in arrays.items()
        ],
        "output_file": None if output is None else str(output),
    }
    if profile is not None:
        from engine.cli.profile import facts as profile_facts

        facts["profile"] = profile_facts(profile)
    as_json(facts)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return plain(repr(value)) if isinstance(value, str) else str(value)
