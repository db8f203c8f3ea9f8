"""Models that take weights from a checkpoint: an ONNX file, a ModelProto, an engine.Model.

network = network_of("model.onnx", output_file="trained.onnx")
network.parameters["fc.weight"]       # a TensorSpec: what the weight is now
network.replace({"fc.weight": read})  # read() gives the new one, when its turn comes
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias

from engine.errors import InputError, ModelError, ModelStateError
from engine.formats import ModelFile, OpenedSource
from engine.formats.files import open_file
from engine.formats.onnx import limits, schema, writer
from engine.formats.onnx.rewrite import changed, stored_tensor
from engine.formats.onnx.writer import External, Parts
from engine.formats.opened import open_external
from engine.formats.protobuf import Budget
from engine.sharding.files import aside
from engine.sharding.stored import Array, bytes_of
from engine.types import DType, TensorSpec

if TYPE_CHECKING:
    from engine.model import Model

Values: TypeAlias = "Mapping[str, Callable[[], Array]]"

INLINE_BYTES = 64 << 20
"""Models with more weights have them in a file beside them, written one by one."""
_APART_BYTES = 1024  # smaller tensors stay in the model's file
_ALIGNMENT = 4096  # a page, so that runtimes can map each tensor


class Network(Protocol):
    """A model whose weights can be replaced."""

    @property
    def name(self) -> str:
        """The name in messages."""

    @property
    def parameters(self) -> Mapping[str, TensorSpec]:
        """The weights as they are now, by name."""

    def replace(self, values: Values) -> None:
        """Replace weights, each by an array of its dtype and shape."""


def network_of(network: object, output_file: str | os.PathLike[str] | None) -> Network:
    """Return how to put weights into a model: a path, an onnx.ModelProto or an engine.Model.

    output_file: the model to write, for a path. Raises TypeError, InputError, ModelError.
    """
    from engine.model import Model

    if isinstance(network, str | os.PathLike):
        if output_file is None:
            raise InputError(
                f"network {str(network)!r} is a file; say where the model with its new weights is "
                "to be written: output_file=..."
            )
        return _File(Path(network), Path(output_file))
    if output_file is not None:
        raise InputError(
            f"output_file is for a network that is a file; this is {type(network).__name__}, whose "
            "weights are replaced in memory: leave output_file out"
        )
    if isinstance(network, Model):
        return _Built(network)
    graph = getattr(network, "graph", None)
    if hasattr(graph, "initializer"):
        return _Proto(graph)
    raise TypeError(
        "network must be the path of an ONNX model, an onnx.ModelProto or an engine.Model, but got "
        f"{type(network)}."
    )


class _Built:
    """An engine.Model: its weights that were declared variable are updated, all at once."""

    def __init__(self, model: Model) -> None:
        self.name = "the model"
        self._model = model
        from engine.model.model import model_state

        recipe = model_state(model).recipe
        declared = None if recipe is None else recipe.weights
        if recipe is None or declared is None:
            raise ModelStateError(
                "the model has no weights that can be replaced; build it with variable_weights="
                "[...] naming them, or give the path of its file and output_file"
            )
        if declared.kind == "add":
            raise ModelStateError(
                "updates of this model are added to its weights; build it with [common_context] "
                "variable_weights_update = replace, or give the path of its file and output_file"
            )
        self.parameters = {spec.name: spec for spec in declared.specs}

    def replace(self, values: Values) -> None:
        """See Network. All new values are in memory together: an update is one step."""
        self._model.update_weights({name: value() for name, value in values.items()})


class _Proto:
    """The graph of an onnx.ModelProto: initializers are replaced in place, one by one."""

    def __init__(self, graph: Any) -> None:
        self.name = "the ModelProto"
        self._graph = graph
        self.parameters = {
            tensor.name: TensorSpec(
                tensor.name, DType.from_onnx(tensor.data_type), tuple(tensor.dims)
            )
            for tensor in graph.initializer
        }

    def replace(self, values: Values) -> None:
        """See Network."""
        for tensor in self._graph.initializer:
            if tensor.name in values:
                content = bytes(bytes_of(values[tensor.name]()))
                kept = tensor.name, tensor.data_type, list(tensor.dims)
                tensor.Clear()
                tensor.name, tensor.data_type = kept[:2]
                tensor.dims.extend(kept[2])
                tensor.raw_data = content


class _File:
    """An ONNX (or MindIR) file, of which another is written, as ONNX."""

    def __init__(self, path: Path, output: Path) -> None:
        self.name = str(path)
        self._output = output
        if not output.parent.is_dir():
            raise ModelError(
                f"output_file {str(output)!r}: no folder {str(output.parent)!r}; make it first"
            )
        source = ModelFile(path)()
        if source.graph is None:
            raise ModelError(f"{path}: is a compiled form; expected an ONNX model", str(path))
        if source.is_secret:
            raise ModelError(
                f"{path}: is encrypted, and is not written in clear; build it with engine.Model "
                "and variable_weights, and give that as network",
                str(path),
            )
        self._source: OpenedSource = source
        self._held = source.graph.parameters
        self.parameters = {
            info.name: TensorSpec(info.name, info.dtype, info.shape) for info in self._held
        }

    def replace(self, values: Values) -> None:
        """See Network. The new file appears when it is complete; large weights lie beside it."""
        output = self._output
        data = output.with_name(f"{output.name}.data")
        is_large = sum(info.nbytes for info in self._held) > INLINE_BYTES
        with aside(output.parent, output) as folder:
            if is_large:
                with (folder / data.name).open("wb") as file:
                    content = self._changed(values, _Beside(file, data.name))
            else:
                content = self._changed(values, None)
            (folder / output.name).write_bytes(content)
            ModelFile(folder / output.name)()  # what was written is a model
            if is_large:
                (folder / data.name).replace(data)
            (folder / output.name).replace(output)

    def _changed(self, values: Values, beside: _Beside | None) -> bytes:
        source, budget = self._source, Budget(limits.FIELDS)
        content: bytes | mmap.mmap | None = source.data
        if content is None:
            assert source.path is not None
            content, _ = open_file(source.path)
            source.check_unchanged()

        left = {*values}

        def initializer(payload: memoryview) -> Parts | None:
            stored = stored_tensor(payload, budget)
            if stored.name in values:
                left.discard(stored.name)
                data: bytes | memoryview = bytes_of(values[stored.name]())
            elif stored.entries:
                data = _external(source, stored.entries, prod(stored.shape) * stored.dtype.bits)
            elif beside is not None and stored.raw is not None:
                data = stored.raw
            else:
                return [payload]
            place: bytes | memoryview | External = data
            if beside is not None and len(data) >= _APART_BYTES:
                place = beside.put(data)
            return writer.tensor_parts(
                writer.Tensor(stored.name, stored.dtype, stored.shape, place)
            )

        def graph(payload: memoryview) -> Parts:
            return changed(payload, {schema.GRAPH_INITIALIZER: initializer}, budget)

        parts = changed(memoryview(content), {schema.MODEL_GRAPH: graph}, budget)
        if left:
            raise ModelError(
                f"{self.name}: the weight {min(left)!r} is stored as a sparse tensor or as a node, "
                "and cannot be replaced; store it as an initializer",
                self.name,
            )
        return writer.joined(parts)


class _Beside:
    """The file of weights beside a model, while it is written."""

    def __init__(self, file: BinaryIO, location: str) -> None:
        self._file = file
        self._location = location

    def put(self, data: bytes | memoryview) -> External:
        """Write a tensor's bytes; return where they are."""
        start = self._file.tell()
        offset = start + -start % _ALIGNMENT
        self._file.write(bytes(offset - start))
        self._file.write(data)
        return External(self._location, offset, len(data))


def _external(source: OpenedSource, entries: Mapping[str, str], bits: int) -> bytes | memoryview:
    location, offset = entries["location"], int(entries.get("offset", "0"))
    length = (bits + 7) // 8
    if location in source.files:
        return memoryview(source.files[location])[offset : offset + length]
    with open_external(source, location) as file:
        file.seek(offset)
        return file.read(length)
