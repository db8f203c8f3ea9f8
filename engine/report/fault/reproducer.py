"""A reproducer: the block as a model, its inputs, and the command that shows the fault."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnx
from onnx import ModelProto
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_model,
    uses_external_data,
)

from engine.errors import InputError
from engine.formats.onnx.graphs import tensors
from engine.formats.opened import OpenedSource
from engine.host.version import __version__
from engine.report.archive import write_archive
from engine.report.fault.blame import Blame
from engine.report.fault.found import Fault
from engine.report.fault.search import Search
from engine.report.fault.sides import as_type, rename
from engine.report.parts import arrays_of
from engine.tensor.description import Array

FACTS = "fault.json"
_FILES = ("a.onnx", "b.onnx", "inputs.npz", "README.txt", "a.onnx.data", "b.onnx.data")
_PACKAGES = ("inference-engine-cpu", "onnx", "onnxruntime", "numpy")
_MOST_BYTES = 1 << 30  # of one ONNX file; weights of a larger one are beside it


def require_place(folder: Path) -> None:
    """Raise InputError for a folder that holds other things than a reproducer."""
    if folder.exists() and not (folder.is_dir() and (folder / FACTS).exists()):
        if folder.is_dir() and not any(folder.iterdir()):
            return
        raise InputError(
            f"{folder}: exists and is no reproducer; give another folder, or remove it first"
        )


def write(
    folder: Path, search: Search, blame: Blame, fault: Fault, command: Sequence[str]
) -> tuple[str, ...]:
    """Write the reproducer of a fault, whole or not at all; returns the notes on it.

    a.onnx, b.onnx: the block in either graph. inputs.npz: its inputs, the values that b computes.
    fault.json, README.txt: the fault, the command, the versions. command: how the sides are run,
    without the models and their inputs. Nothing is written of a model that was decrypted.
    """
    if search.a.source.is_secret or search.b.source.is_secret:
        return ("no reproducer was written: the model is encrypted, and its parts would not be",)
    require_place(folder)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove(folder)
        _write(folder, search, blame, fault, command)
    except BaseException as error:  # half of one would be taken for the user's own files
        _remove(folder)
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):  # the fault is worth more than its files
            return (f"no reproducer was written: {error}",)
        raise
    return ()


def _remove(folder: Path) -> None:
    for name in (*_FILES, FACTS):
        with suppress(OSError):
            (folder / name).unlink()


def _write(
    folder: Path, search: Search, blame: Blame, fault: Fault, command: Sequence[str]
) -> None:
    known = search.b_at(blame.block.given)
    part_a = search.a.part([fault.value], {**known, **search.inputs})
    feeds_b = {**search.pairs.of_b(known), **search.inputs_b}
    part_b = search.b.part([fault.value_b], feeds_b)
    assert part_a.graph is not None
    assert part_b.graph is not None
    of_a = {search.pairs.name_b(name): name for name in (*known, *search.inputs)}
    protos = _bare(part_a, {}), _bare(part_b, of_a)
    _give_both(*protos)
    for proto, name in zip(protos, _FILES):
        _save(proto, folder / name)
    narrow = {of_a.get(spec.name, spec.name): spec.dtype for spec in part_b.graph.inputs}
    values = {of_a.get(name, name): value for name, value in feeds_b.items()}
    values |= {**known, **search.inputs}
    arrays: dict[str, Array] = {}
    for spec in part_a.graph.inputs:
        dtype = min((spec.dtype, narrow.get(spec.name, spec.dtype)), key=lambda each: each.bits)
        arrays |= arrays_of(spec.name, as_type(values[spec.name], dtype.numpy), dtype)
    for name in narrow.keys() - {spec.name for spec in part_a.graph.inputs}:  # b alone reads it
        arrays |= arrays_of(name, values[name], narrow[name])
    write_archive(folder / "inputs.npz", arrays)
    words = ["engine", "compare", "a.onnx", "b.onnx", *command, "--input", "inputs.npz"]
    versions = _versions(_PACKAGES)
    facts = {
        "kind": fault.kind,
        "said": str(fault),
        "nodes": [str(node) for node in fault.nodes],
        "value": fault.value,
        "models": [search.a.source.name, search.b.source.name],
        "command": words,
        "versions": versions,
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    listed = "\n".join(f"  {name} {number}" for name, number in versions.items())
    text = f"{fault}\n\nIn this folder:\n  {shlex.join(words)}\n\nVersions:\n{listed}\n"
    (folder / "README.txt").write_text(text, "utf-8")


def _bare(source: OpenedSource, names: Mapping[str, str]) -> ModelProto:
    """Return a part with its weights in it.

    names: other names for its inputs.
    """
    proto: ModelProto = ModelProto.FromString(source.data or b"")
    used = {name for node in proto.graph.node for name in (*node.input, *node.output)}
    given = [value for value in proto.graph.input if names.get(value.name, value.name) not in used]
    new = {value.name: names[value.name] for value in given if value.name in names}
    for value in given:
        value.name = new.get(value.name, value.name)
    for node in proto.graph.node:
        rename(node, new)
    for tensor in tensors(proto):
        info = ExternalDataInfo(tensor) if uses_external_data(tensor) else None
        if info is not None and info.location in source.files:
            start = info.offset or 0
            held = source.files[info.location]
            tensor.raw_data = bytes(held[start : start + (info.length or len(held))])
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    if source.folder is not None:
        load_external_data_for_model(proto, str(source.folder))
    return proto


def _give_both(*protos: ModelProto) -> None:
    """Give each model the inputs that the other alone reads: both are run on the same."""
    given = {value.name: value for proto in protos for value in proto.graph.input}
    for proto in protos:
        used = {value.name for value in (*proto.graph.input, *proto.graph.initializer)}
        used.update(name for node in proto.graph.node for name in node.output)
        proto.graph.input.extend(value for name, value in given.items() if name not in used)


def _save(proto: ModelProto, path: Path) -> None:
    """Write a model; the weights of a large one go beside it."""
    is_large = sum(len(tensor.raw_data) for tensor in tensors(proto)) > _MOST_BYTES
    onnx.save(proto, path, save_as_external_data=is_large, location=f"{path.name}.data")


def _versions(names: Iterable[str]) -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**found, "engine": __version__}
