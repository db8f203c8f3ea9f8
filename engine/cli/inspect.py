"""`engine inspect`: shows what a model's file holds and, with a target, where it would run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import click

from engine.cli import folder, memory_table, mindir, options
from engine.cli.build import build, decryption_of, parse_targets
from engine.cli.commands import Command, bundle
from engine.cli.completion import targets
from engine.cli.example import folder_or_example
from engine.cli.folder import quantization_text, shape_text, type_text
from engine.cli.hints import misuse
from engine.cli.input_files import file_name
from engine.cli.options import KEY_VARIABLE, BuildOptions
from engine.cli.output import as_json, attributes, fields, note, size, table
from engine.model.model import model_state
from engine.report.inspection import locked, of_file
from engine.report.summary import DEFAULT_DOMAIN, ModelSummary, placed
from engine.types import ParameterInfo

EPILOG = """\b
Examples:
  engine inspect --example
  engine inspect model.onnx
  engine inspect model.onnx --nodes --parameters
  engine inspect model.onnx --target gpu,cpu
  engine inspect model.onnx --memory
  engine inspect slices
  engine inspect model.onnx --json"""


@click.command("inspect", cls=Command, epilog=EPILOG)
@folder_or_example
@bundle(
    "how",
    BuildOptions,
    click.option(
        "--target",
        default="",
        show_default=False,
        metavar="TARGET",
        help="Also build the model for this target and show where its nodes run: cpu, gpu, "
        "ascend or an installed backend; several with commas between.",
        shell_complete=targets,
    ),
    options.device_id,
    options.config,
    options.settings,
    options.dec_key,
    options.dec_mode,
)
@click.option("--nodes", is_flag=True, help="List every node.")
@click.option("--parameters", is_flag=True, help="List every parameter.")
@click.option(
    "--memory",
    is_flag=True,
    help="Also build the model, for --target or else the CPU, and show what it takes in memory.",
)
@options.json
def inspect(
    model: Path, how: BuildOptions, nodes: bool, parameters: bool, memory: bool, json: bool
) -> None:
    """Show a model's inputs, outputs, operators and parameters.

    The file is read and checked without a runtime; only --target and --memory build the model.
    Without its key an encrypted file shows how it is encrypted, and no more. Of a folder with
    several models each is a line.
    """
    if model.is_dir():
        if how.target or memory or nodes or parameters:
            raise click.UsageError(f"{str(model)!r} has several models; give the path of one")
        folder.show(model, json)
        return
    is_placed = bool(how.target)
    if memory and not how.target:
        how = replace(how, target="cpu")
    if not how.target and (how.config or how.settings or how.device_id):
        raise misuse(
            "--target",
            "--config, --set and --device-id say how to build the model; give --target or "
            "--memory as well",
        )
    decryption = decryption_of(model, how.dec_key, how.dec_mode)
    if decryption.encryption and decryption.key is None and not how.target:
        _show(locked(str(model), decryption.encryption), False, False, json)
        note(f"note: its key shows what is in it: --dec-key @FILE or the variable {KEY_VARIABLE}")
        return
    decryption.require_key(model)
    name = file_name(model)
    found = of_file(name, decryption.file, parse_targets(how.target) if how.target else ())
    if decryption.nbytes is not None:
        found = replace(found, size_bytes=decryption.nbytes)
    if how.target:
        built = build(model, how, decryption)
        with built.model:
            found = placed(found, model_state(built.model))
        if not is_placed:
            found = replace(found, placement=None)
        if not memory:
            found = replace(found, memory=None)
    _show(found, nodes, parameters, json)


def _show(found: ModelSummary, nodes: bool, parameters: bool, is_json: bool) -> None:
    if is_json:
        as_json(_values(found, nodes, parameters))
        return
    facts = found.facts()
    if found.is_as_written:
        facts["metadata"] = ", ".join(f"{key}={text}" for key, text in found.short_metadata.items())
    fields(facts)
    if found.is_as_written:
        mindir.show(found)
    for title, specs in (("Inputs", found.inputs), ("Outputs", found.outputs)):
        if specs is not None:
            is_quantized = any(spec.quantization for spec in specs)
            columns = ("name", "type", "shape", "quantization")[: 3 + is_quantized]
            rows = [
                (spec.name, type_text(spec), shape_text(spec), quantization_text(spec))
                for spec in specs
            ]
            table(title, columns, [row[: len(columns)] for row in rows])
    if found.nodes is not None:
        _print_operators(found)
    if found.placement is not None:
        _print_placement(found)
    if nodes and (found.nodes is not None or found.placement is not None):
        _print_nodes(found)
    if parameters and found.parameters is not None:
        _print_parameters(found)
    if found.memory is not None:
        memory_table.show(found.memory)


def _print_operators(found: ModelSummary) -> None:
    if found.metadata:
        table("Metadata", ("key", "value"), list(found.short_metadata.items()))
    table(
        "Operators",
        ("operator", "domain", ">count"),
        [(operator.name, operator.domain, f"{operator.count:,}") for operator in found.operators],
    )
    external = found.external_data
    if external:
        table(
            "External data",
            ("file", ">parameters", ">size"),
            [(name, f"{len(some):,}", size(_bytes(some))) for name, some in external.items()],
        )


def _print_parameters(found: ModelSummary) -> None:
    has_files = bool(found.external_data)
    rows = [
        (each.name, each.dtype, list(each.shape), size(each.nbytes), each.location)
        for each in found.parameters or ()
    ]
    columns = ("name", "type", "shape", ">size", "file")[: 4 + has_files]
    table("Parameters", columns, [row[: len(columns)] for row in rows])


def _print_placement(found: ModelSummary) -> None:
    table(
        "Placement",
        ("device", "backend", "provider", ">nodes", "why"),
        [
            (group.device, group.backend, group.provider, f"{group.count:,}", group.reason)
            for group in found.placed
        ],
    )


def _print_nodes(found: ModelSummary) -> None:
    places = found.placement or ()
    devices = {node.index: (node.device, node.backend) for node in places}
    if found.nodes is None:
        rows = [(node.index, node.op_type, node.node, node.device, node.backend) for node in places]
        table("Nodes", (">", "operator", "name", "device", "backend"), rows)
        return
    columns = [">", "operator", "name", "inputs", "outputs"]
    table(
        "Nodes",
        [*columns, "device", "backend"] if devices else columns,
        [
            (
                node.index,
                f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
                node.name,
                ", ".join(node.inputs),
                ", ".join(node.outputs),
                *(devices.get(node.index, ("", "")) if devices else ()),
            )
            for node in found.nodes
        ],
    )


def _bytes(parameters: Sequence[ParameterInfo]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def _values(found: ModelSummary, nodes: bool, parameters: bool) -> dict[str, Any]:
    """Return what is shown as plain values, None where it is not known."""
    values = folder.values(found)
    if found.is_as_written:
        values |= mindir.values(found)
    if found.nodes is not None:
        values |= {
            "graph": found.name,
            "ir_version": found.ir_version,
            "opsets": {domain or DEFAULT_DOMAIN: n for domain, n in found.opsets.items()},
            **attributes(found, "producer", "metadata"),
            "nodes": len(found.nodes),
            "operators": [
                {"operator": each.name, **attributes(each, "domain", "count")}
                for each in found.operators
            ],
        }
        if nodes:
            values["node_list"] = [
                {
                    **attributes(node, "index", "name", "inputs", "outputs"),
                    "operator": node.op_type,
                    "domain": node.domain or DEFAULT_DOMAIN,
                }
                for node in found.nodes
            ]
    if found.parameters is not None:
        values |= _parameter_values(found, found.parameters, parameters)
    if found.placement is not None:
        values["placement"] = [
            {
                **attributes(node, "index", "node", "backend", "device", "provider", "reason"),
                "operator": node.op_type,
            }
            for node in found.placement
        ]
    if found.memory is not None:
        values["memory"] = memory_table.values(found.memory)
    return values


def _parameter_values(
    found: ModelSummary, parameters: Sequence[ParameterInfo], is_listed: bool
) -> dict[str, Any]:
    elements: Counter[str] = Counter()
    for parameter in parameters:
        elements[str(parameter.dtype)] += prod(parameter.shape)
    values: dict[str, Any] = {
        "parameters": {
            "tensors": len(parameters),
            "elements": elements.total(),
            "elements_by_dtype": elements,
            "size_bytes": _bytes(parameters),
        },
        "external_data": [
            {"file": name, "parameters": len(some), "size_bytes": _bytes(some)}
            for name, some in found.external_data.items()
        ],
    }
    if is_listed:
        values["parameter_list"] = [
            {
                **attributes(parameter, "name", "dtype", "shape"),
                "size_bytes": parameter.nbytes,
                "file": parameter.location or None,
            }
            for parameter in parameters
        ]
    return values
