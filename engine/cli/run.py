"""`engine run`: runs a model once and prints its outputs as MindSpore Lite's tutorial does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from engine.cli import options
from engine.cli.build import (
    Built,
    build,
    decryption_of,
    devices_text,
    parse_shapes,
    require_timeout,
)
from engine.cli.commands import Command, Integer
from engine.cli.files import require_place, storable, write
from engine.cli.inputs import Inputs, collect
from engine.cli.interrupt import interruptible
from engine.cli.options import BuildOptions, InputOptions
from engine.cli.output import as_json, duration, line, note, plain
from engine.cli.values import arrays_of, described
from engine.tensor import Array, Tensor
from engine.types import DType, ValueKind

EPILOG = """[bold]Examples[/bold]

  engine run model.onnx

  engine run model.onnx --input image=photo.npy

  engine run model.onnx --input inputs.npz --output outputs.npz

  engine run model.onnx --input x.bin --shape x=1,3,224,224

  engine run model.onnx --fill random --seed 7 --target gpu,cpu

  engine run model.onnx --set cpu_context.spin_us=0 --json

  engine run secret.mindir --dec-key @key.hex"""


@click.command("run", cls=Command, epilog=EPILOG)
@options.model
@options.model_inputs
@options.model_build
@click.option(
    "--output",
    "-o",
    type=options.PATH,
    metavar="FILE",
    help="Write the outputs: .npz by name, or .npy if there is one.",
)
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop a run that takes longer.")
@click.option(
    "--values",
    type=Integer(0),
    default=10,
    metavar="N",
    help="How many values of each output to print.",
)
@options.json
def run(
    model: Path,
    given: InputOptions,
    how: BuildOptions,
    output: Path | None,
    timeout: float | None,
    values: int,
    json: bool,
) -> None:
    """Run a model once and print its outputs.

    Inputs come from files; one without a file is generated, and the output says so.
    """
    shapes = parse_shapes(given.shapes)
    _check_output(output)
    require_timeout(timeout)
    if output is not None:
        require_place(output)
    decryption = decryption_of(model, how.dec_key, how.dec_mode)
    built = build(model, how, decryption)
    with built.model:
        if output is not None and output.suffix == ".npy":
            _check_single(built)
        inputs = collect(built.inputs, given.files, shapes, given.fill, given.seed)
        begin = time.perf_counter()
        results = interruptible(lambda: built.model.predict(inputs.values(), timeout_s=timeout))
        seconds = time.perf_counter() - begin
        # Not get_outputs(): it does not know the sizes of open axes.
        outputs = {
            spec.name: _plain_value(result)
            for spec, result in zip(built.outputs, results, strict=True)
        }
        where = built.where()
    for text in inputs.notes:
        note(plain(text))
    arrays: dict[str, Array] = {}
    for spec in built.outputs:
        arrays |= arrays_of(spec.name, outputs[spec.name], spec.dtype)
    if output is not None:
        _write_outputs(output, arrays)
    if json:
        _print_json(model, built, inputs, arrays, where, seconds, values, output)
    else:
        _print_text(built, inputs, outputs, where, seconds, values, output)


def _check_output(path: Path | None) -> None:
    if path is not None and path.suffix not in (".npz", ".npy"):
        raise click.BadParameter(
            f"expected a file name ending in .npz or .npy, got {str(path)!r}",
            param_hint="--output",
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
        raise click.BadParameter(
            f"the model has {has}, and .npy holds one array; name it .npz", param_hint="--output"
        )


def _plain_value(result: Any) -> Any:
    """Return what predict gave for one output, with arrays in place of the Tensors."""
    if isinstance(result, list):
        return [_plain_value(element) for element in result]
    return result.get_data_to_numpy() if isinstance(result, Tensor) else result


def _print_text(
    built: Built,
    inputs: Inputs,
    outputs: dict[str, Any],
    where: list[dict[str, Any]],
    seconds: float,
    values: int,
    output: Path | None,
) -> None:
    for given in inputs.given:
        line(plain(str(given)))
    line(
        f"ran on {plain(devices_text(where)) or built.model.provider}: "
        f"built in {duration(built.seconds)}, ran in {duration(seconds)}"
    )
    for spec in built.outputs:
        output_value = outputs[spec.name]
        arrays = arrays_of(spec.name, output_value, spec.dtype)
        if not arrays:
            line()
            line(f"{plain(spec.name)} is {described(output_value)}")
        for part, array in arrays.items():
            line()
            line(
                f"tensor name is: {plain(part)}, tensor size is: {array.nbytes} bytes, "
                f"tensor elements num is: {array.size}, tensor shape is: {described(array)}"
            )
            if values:
                shown = " ".join(_text(value) for value in _first(array, values))
                rest = f" ... (first {values} of {array.size})" if array.size > values else ""
                line(f"output data is: {shown}{rest}")
    if output is not None:
        line()
        line(f"outputs written to {plain(str(output))}")


def _print_json(
    path: Path,
    built: Built,
    inputs: Inputs,
    arrays: dict[str, Array],
    where: list[dict[str, Any]],
    seconds: float,
    values: int,
    output: Path | None,
) -> None:
    as_json(
        {
            "model": str(path),
            "backend": built.model.provider,
            "devices": where,
            "build_s": built.seconds,
            "predict_s": seconds,
            "inputs": inputs.facts(),
            "outputs": [
                {
                    "name": name,
                    "dtype": str(DType.from_numpy(array.dtype)),
                    "shape": list(array.shape),
                    "size_bytes": array.nbytes,
                    "elements": array.size,
                    "first_values": [_json(value) for value in _first(array, values)],
                }
                for name, array in arrays.items()
            ],
            "output_file": None if output is None else str(output),
        }
    )


def _first(array: Array, count: int) -> Sequence[Any]:
    """Return the first values in C order as Python's numbers, text and booleans."""
    head: list[Any] = storable(array.reshape(-1)[:count]).tolist()
    return head


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return plain(repr(value)) if isinstance(value, str) else str(value)


def _json(value: Any) -> Any:
    return [value.real, value.imag] if isinstance(value, complex) else value
