"""`engine inspect`: shows what a model's file holds and, with a target, where it would run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli import mindir, options
from engine.cli.build import Decryption, build, decryption_of, parse_targets
from engine.cli.commands import Command, bundle
from engine.cli.completion import targets
from engine.cli.options import KEY_VARIABLE, BuildOptions
from engine.cli.output import as_json, counted, fields, note, size, table
from engine.types import GraphInfo, ModelSource, ParameterInfo, Placement, TensorSpec

if TYPE_CHECKING:
    from engine.formats import ModelFile
    from engine.formats.mindir import Description

EPILOG = """[bold]Examples[/bold]

  engine inspect model.onnx

  engine inspect model.onnx --nodes --parameters

  engine inspect model.onnx --target gpu,cpu

  engine inspect model.onnx --json"""

_DEFAULT_DOMAIN = "ai.onnx"  # what ONNX calls the domain whose name is empty


@click.command("inspect", cls=Command, epilog=EPILOG)
@options.model
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
@options.json
def inspect(model: Path, how: BuildOptions, nodes: bool, parameters: bool, json: bool) -> None:
    """Show a model's inputs, outputs, operators and parameters.

    The file is read and checked without a runtime; only --target builds the model. Without its
    key an encrypted file shows how it is encrypted, and no more.
    """
    if not how.target and (how.config or how.settings or how.device_id):
        raise click.BadParameter(
            "--config, --set and --device-id say how to build the model; give --target as well",
            param_hint="--target",
        )
    decryption = decryption_of(model, how.dec_key, how.dec_mode)
    if decryption.encryption and decryption.key is None and not how.target:
        _show_locked(model, decryption.encryption, json)
        return
    decryption.require_key(model)
    written = decryption.file.description()
    source = None if written else _open(decryption.file, how.target)
    placement: list[Placement] | None = None
    shown = written or (source and source.graph)
    specs = (shown.inputs, shown.outputs) if shown else None
    if how.target:
        built = build(model, how, decryption)
        with built.model:
            placement = built.model.placement
        specs = specs or (built.inputs, built.outputs)
    if json:
        values = _values(model, source, written, specs, placement, nodes, parameters)
        as_json(values | {"encryption": decryption.encryption or None})
    else:
        _print(model, decryption, source, written, specs, placement, nodes, parameters)


def _show_locked(path: Path, encryption: str, json: bool) -> None:
    """Print what an encrypted file shows without its key."""
    nbytes = path.stat().st_size
    if json:
        as_json(
            {
                "model": str(path),
                "format": "encrypted",
                "encryption": encryption,
                "size_bytes": nbytes,
                "inputs": None,
                "outputs": None,
            }
        )
    else:
        facts = {"format": "encrypted", "encryption": encryption, "file": size(nbytes)}
        fields({"model": str(path), **facts})
    note(f"note: its key shows what is in it: --dec-key @FILE or the variable {KEY_VARIABLE}")


def _open(file: ModelFile, target: str) -> ModelSource:
    from engine.backends import find_target, open_backend
    from engine.errors import BackendError

    suffixes: dict[str, str] = {}
    for name in parse_targets(target) if target else ():
        try:
            suffixes |= open_backend(find_target(name).backend).info.suffixes
        except BackendError:
            continue  # building for it will say so, unless a later target serves
    return file(suffixes)


Specs = tuple[Sequence[TensorSpec], Sequence[TensorSpec]]


def _print(
    path: Path,
    decryption: Decryption,
    source: ModelSource | None,
    written: Description | None,
    specs: Specs | None,
    placement: list[Placement] | None,
    nodes: bool,
    parameters: bool,
) -> None:
    graph = source.graph if source is not None else None
    if source is None:
        assert written is not None
        mindir.show(path, written, _parameters(written.parameters))
    else:
        _print_facts(path, decryption, source)
    for title, some in zip(("Inputs", "Outputs"), specs or ((), ()), strict=True):
        rows = [(spec.name, _type(spec), _shape(spec)) for spec in some]
        if specs is not None:
            table(title, ("name", "type", "shape"), rows)
    if graph is not None:
        _print_operators(graph)
    if placement is not None:
        _print_placement(placement)
    if nodes and (graph is not None or placement is not None):
        _print_nodes(graph, placement)
    listed = graph or written
    if parameters and listed is not None:
        _print_parameters(listed.parameters)


def _print_facts(path: Path, decryption: Decryption, source: ModelSource) -> None:
    graph = source.graph
    facts = {
        "model": str(path),
        "format": source.format,
        "encryption": decryption.encryption,
        "file": size(path.stat().st_size),
    }
    if graph is not None:
        facts |= {
            "IR version": str(graph.ir_version),
            "opset": ", ".join(
                f"{domain or _DEFAULT_DOMAIN} {version}" for domain, version in graph.opsets.items()
            ),
            "producer": graph.producer,
            "graph": f"{graph.name or 'unnamed'}, {counted(len(graph.nodes), 'node')}",
            "parameters": _parameters(graph.parameters),
        }
    fields(facts)


def _print_operators(graph: GraphInfo) -> None:
    if graph.metadata:
        table("Metadata", ("key", "value"), list(graph.metadata.items()))
    table(
        "Operators",
        ("operator", "domain", ">count"),
        [(op, domain, f"{n:,}") for (domain, op), n in _operators(graph)],
    )
    external = _external(graph.parameters)
    if external:
        table(
            "External data",
            ("file", ">parameters", ">size"),
            [(name, f"{len(some):,}", size(_bytes(some))) for name, some in external.items()],
        )


def _print_parameters(parameters: Sequence[ParameterInfo]) -> None:
    rows = [
        (parameter.name, parameter.dtype, list(parameter.shape), size(parameter.nbytes))
        for parameter in parameters
    ]
    columns = ("name", "type", "shape", ">size")
    if _external(parameters):
        table(
            "Parameters",
            (*columns, "file"),
            [(*row, parameter.location) for row, parameter in zip(rows, parameters, strict=True)],
        )
    else:
        table("Parameters", columns, rows)


def _print_placement(placement: Sequence[Placement]) -> None:
    groups: Counter[tuple[str, str, str, str]] = Counter(
        (node.device, node.backend, node.provider, node.reason) for node in placement
    )
    table(
        "Placement",
        ("device", "backend", "provider", ">nodes", "why"),
        [
            (device, backend, provider, f"{count:,}", why)
            for (device, backend, provider, why), count in groups.items()
        ],
    )


def _print_nodes(graph: GraphInfo | None, placement: Sequence[Placement] | None) -> None:
    placed = placement or ()
    devices = {node.index: node.device for node in placed}
    if graph is None:
        rows = [(node.index, node.op_type, node.node, node.device) for node in placed]
        table("Nodes", (">", "operator", "name", "device"), rows)
        return
    columns = [">", "operator", "name", "inputs", "outputs"]
    table(
        "Nodes",
        [*columns, "device"] if devices else columns,
        [
            (
                node.index,
                f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
                node.name,
                ", ".join(node.inputs),
                ", ".join(node.outputs),
                *((devices.get(node.index, ""),) if devices else ()),
            )
            for node in graph.nodes
        ],
    )


def _parameters(parameters: Sequence[ParameterInfo]) -> str:
    if not parameters:
        return "none"
    elements = sum(prod(parameter.shape) for parameter in parameters)
    types = Counter(str(parameter.dtype) for parameter in parameters)
    return (
        f"{elements:,} in {counted(len(parameters), 'tensor')}, {size(_bytes(parameters))} "
        f"({', '.join(types)})"
    )


def _bytes(parameters: Sequence[ParameterInfo]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def _external(parameters: Sequence[ParameterInfo]) -> dict[str, list[ParameterInfo]]:
    files: dict[str, list[ParameterInfo]] = {}
    for parameter in parameters:
        if parameter.location:
            files.setdefault(parameter.location, []).append(parameter)
    return files


def _operators(graph: GraphInfo) -> list[tuple[tuple[str, str], int]]:
    """Return pairs of (domain, operator) and count, the most frequent first."""
    counts = Counter((node.domain or _DEFAULT_DOMAIN, node.op_type) for node in graph.nodes)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _type(spec: TensorSpec) -> str:
    return str(spec.dtype) if spec.kind == "tensor" else f"{spec.kind} of {spec.dtype}"


def _shape(spec: TensorSpec) -> str:
    if spec.shape is None:
        return "[...]"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in spec.shape)}]"


def _values(
    path: Path,
    source: ModelSource | None,
    written: Description | None,
    specs: Specs | None,
    placement: list[Placement] | None,
    nodes: bool,
    parameters: bool,
) -> dict[str, Any]:
    """Return what is shown as plain values, None where it is not known."""
    graph = source.graph if source is not None else None
    values: dict[str, Any] = {
        "model": str(path),
        "format": source.format if source is not None else "mindir",
        "size_bytes": path.stat().st_size,
        "inputs": None if specs is None else [_spec(spec) for spec in specs[0]],
        "outputs": None if specs is None else [_spec(spec) for spec in specs[1]],
    }
    if written is not None:
        values |= mindir.values(written)
    if graph is not None:
        values |= {
            "graph": graph.name,
            "ir_version": graph.ir_version,
            "opsets": {
                domain or _DEFAULT_DOMAIN: version for domain, version in graph.opsets.items()
            },
            "producer": graph.producer,
            "metadata": dict(graph.metadata),
            "nodes": len(graph.nodes),
            "operators": [
                {"domain": domain, "operator": op, "count": count}
                for (domain, op), count in _operators(graph)
            ],
        }
        if nodes:
            values["node_list"] = [
                {
                    "index": node.index,
                    "name": node.name,
                    "operator": node.op_type,
                    "domain": node.domain or _DEFAULT_DOMAIN,
                    "inputs": list(node.inputs),
                    "outputs": list(node.outputs),
                }
                for node in graph.nodes
            ]
    listed = graph or written
    if listed is not None:
        values |= _parameter_values(listed.parameters, parameters)
    if placement is not None:
        values["placement"] = [
            {
                "index": node.index,
                "node": node.node,
                "operator": node.op_type,
                "backend": node.backend,
                "device": node.device,
                "provider": node.provider,
                "reason": node.reason,
            }
            for node in placement
        ]
    return values


def _parameter_values(parameters: Sequence[ParameterInfo], listed: bool) -> dict[str, Any]:
    elements: Counter[str] = Counter()
    for parameter in parameters:
        elements[str(parameter.dtype)] += prod(parameter.shape)
    values: dict[str, Any] = {
        "parameters": {
            "tensors": len(parameters),
            "elements": elements.total(),
            "elements_by_dtype": dict(elements),
            "size_bytes": _bytes(parameters),
        },
        "external_data": [
            {"file": name, "parameters": len(some), "size_bytes": _bytes(some)}
            for name, some in _external(parameters).items()
        ],
    }
    if listed:
        values["parameter_list"] = [
            {
                "name": parameter.name,
                "dtype": str(parameter.dtype),
                "shape": list(parameter.shape),
                "size_bytes": parameter.nbytes,
                "file": parameter.location or None,
            }
            for parameter in parameters
        ]
    return values


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "kind": str(spec.kind),
        "dtype": str(spec.dtype),
        "shape": None if spec.shape is None else list(spec.shape),
    }
