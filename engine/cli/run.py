"""`engine run`: one predict, its outputs printed in the manner of MindSpore Lite's tutorial."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from engine.cli.build import (
    Built,
    Config,
    DeviceId,
    ModelPath,
    Settings,
    Target,
    Threads,
    build,
    parse_shapes,
)
from engine.cli.files import storable, write
from engine.cli.inputs import Fill, Inputs, collect
from engine.cli.output import as_json, duration, line, note, plain

Array = np.ndarray[Any, Any]

EPILOG = """[bold]Examples[/bold]

  engine run model.onnx

  engine run model.onnx --input image=photo.npy

  engine run model.onnx --input inputs.npz --output outputs.npz

  engine run model.onnx --input x.bin --shape x=1,3,224,224

  engine run model.onnx --fill random --seed 7 --target gpu,cpu

  engine run model.onnx --set cpu_context.spin_us=0 --json"""


def run(
    model: ModelPath,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="[NAME=]FILE",
            help="A .npy, .npz or raw .bin file. An .npz holds arrays by input name; another "
            "file without a name goes to the next input. May be repeated.",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZES",
            help="The shape of a generated or .bin input, as x=1,3,8,8. May be repeated.",
            show_default=False,
        ),
    ] = None,
    fill: Annotated[
        Fill, typer.Option(help="What inputs without a file are filled with.")
    ] = Fill.ONES,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="For --fill random.")] = 0,
    target: Target = "cpu",
    device_id: DeviceId = 0,
    threads: Threads = 0,
    config: Config = None,
    settings: Settings = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the outputs: .npz by name, or .npy if there is one.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Stop a run that takes longer.", show_default=False),
    ] = None,
    values: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many values of each output to print.")
    ] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Run a model once and print its outputs.

    Inputs come from files; one without a file is generated, and the output says so.
    """
    shapes = parse_shapes(shape or [])
    if output is not None and output.suffix not in (".npz", ".npy"):
        raise typer.BadParameter(
            f"expected a file name ending in .npz or .npy, got {str(output)!r}",
            param_hint="--output",
        )
    if timeout is not None and not timeout > 0:
        raise typer.BadParameter(
            f"expected a number of seconds above 0, got {timeout:g}", param_hint="--timeout"
        )
    built = build(model, target, config, settings, threads, device_id)
    with built.model:
        if output is not None and output.suffix == ".npy" and len(built.outputs) != 1:
            raise typer.BadParameter(
                f"the model has {len(built.outputs)} outputs, and .npy holds one; name it .npz",
                param_hint="--output",
            )
        inputs = collect(built.inputs, input or [], shapes, fill, seed)
        begin = time.perf_counter()
        results = built.model.predict(inputs.arrays(), timeout_s=timeout)
        seconds = time.perf_counter() - begin
        # Not get_outputs(): it does not know the sizes of open axes.
        arrays = {
            spec.name: tensor.get_data_to_numpy()
            for spec, tensor in zip(built.outputs, results, strict=True)
        }
        where = _where(built)
    for text in inputs.notes:
        note(plain(text))
    if output is not None:
        write(output, arrays)
        for name, array in arrays.items():
            kept = storable(array).dtype.name
            if kept != array.dtype.name and array.dtype != object:
                note(f"note: {plain(str(output))}: {plain(name)} is stored as {kept}, exactly")
    if json:
        _print_json(model, built, inputs, arrays, where, seconds, values, output)
    else:
        _print_text(built, inputs, arrays, where, seconds, values, output)


def _where(built: Built) -> list[dict[str, Any]]:
    """The devices that the model's nodes run on, each with its number of nodes."""
    counts: dict[tuple[str, str, str], int] = {}
    for each in built.model.placement:
        key = (each.backend, each.device, each.provider)
        counts[key] = counts.get(key, 0) + 1
    return [
        {"backend": backend, "device": device, "provider": provider, "nodes": nodes}
        for (backend, device, provider), nodes in counts.items()
    ]


def _print_text(
    built: Built,
    inputs: Inputs,
    arrays: dict[str, Array],
    where: list[dict[str, Any]],
    seconds: float,
    values: int,
    output: Path | None,
) -> None:
    for each in inputs.given:
        line(plain(f"input {each.spec.name}: {_said(each.array)}, {each.source}"))
    devices = ", ".join(
        f"{each['device']} ({each['provider'] or each['backend']})" for each in where
    )
    line(
        f"ran on {plain(devices) or built.model.provider}: built in {duration(built.seconds)}, "
        f"ran in {duration(seconds)}"
    )
    for name, array in arrays.items():
        line()
        line(
            f"tensor name is: {plain(name)}, tensor size is: {array.nbytes} bytes, "
            f"tensor elements num is: {array.size}, tensor shape is: {_said(array)}"
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
            "inputs": [
                {
                    "name": each.spec.name,
                    "dtype": str(each.spec.dtype),
                    "shape": list(each.array.shape),
                    "source": each.source,
                }
                for each in inputs.given
            ],
            "outputs": [
                {
                    "name": spec.name,
                    "dtype": str(spec.dtype),
                    "shape": list(arrays[spec.name].shape),
                    "size_bytes": arrays[spec.name].nbytes,
                    "elements": arrays[spec.name].size,
                    "first_values": [_json(v) for v in _first(arrays[spec.name], values)],
                }
                for spec in built.outputs
            ],
            "output_file": None if output is None else str(output),
        }
    )


def _first(array: Array, count: int) -> Sequence[Any]:
    """The first values in C order as Python's numbers, text and booleans."""
    head: list[Any] = storable(array.reshape(-1)[:count]).tolist()
    return head


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return plain(repr(value)) if isinstance(value, str) else str(value)


def _json(value: Any) -> Any:
    return [value.real, value.imag] if isinstance(value, complex) else value


def _said(array: Array) -> str:
    dtype = "string" if array.dtype == object else array.dtype.name
    return f"{dtype}{list(array.shape)}"
