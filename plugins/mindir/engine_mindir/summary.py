"""Summarise a .mindir without lowering it, for `engine inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from engine.formats.content import Content
from engine_mindir import constants, decode
from engine_mindir.compiled import COMPILED, CompiledModels, compiled_models, kernel_of
from engine_mindir.errors import refused
from engine_mindir.messages import ValueProto
from engine_mindir.names import local
from engine_mindir.primitives import primitive_table
from engine_mindir.structural import STRUCTURAL
from engine_mindir.values import Abstract, leaves
from engine.types import ParameterInfo, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A .mindir as it is written.

    primitives: how many nodes there are of each, in the main graph and in functions. unsupported:
    those of them that this version has no ONNX form for. collectives: those by which the ranks of
    a sliced model wait for each other; it is read, but not run yet. functions: the names of
    functions that branches and loops call. compiled: models that are compiled for Ascend, which
    such a file has instead of a graph; None for all others.
    """

    producer: str
    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    primitives: Mapping[str, int]
    unsupported: tuple[str, ...]
    collectives: tuple[str, ...]
    parameters: tuple[ParameterInfo, ...]
    functions: tuple[str, ...]
    user_info: Mapping[str, str]
    encryption: str
    compiled: CompiledModels | None


def describe(path: Path | None, content: Content) -> Description:
    """Describe what is in the file. Raises ModelError for one that cannot be decoded."""
    view = memoryview(content.data)
    with refused(path, view):
        model = decode.model(view)
        main = model.graph
        assert main is not None
        functions = model.functions
        compiled = compiled_models(model)
        counts: Counter[str] = Counter()
        for graph in (main, *functions.values()):
            for node in graph.nodes:
                if node.op_type == "Constant" or node.op_type.removeprefix("REF::") in functions:
                    continue
                counts[kernel_of(model, node) or "(call)"] += 1
        table = {*primitive_table(), *STRUCTURAL, "(call)", COMPILED}
        shared = [
            name
            for name in counts
            if name in primitive_table() and primitive_table()[name].is_collective
        ]
        return Description(
            producer=" ".join(part for part in (model.producer, model.version) if part),
            name=local(main.name),
            inputs=tuple(spec for value in main.inputs for spec in _specs(value)),
            outputs=tuple(spec for output in main.outputs for spec in _specs(output)),
            primitives=dict(sorted(counts.items())),
            unsupported=tuple(sorted(name for name in counts if name not in table)),
            collectives=tuple(sorted(shared)),
            parameters=tuple(
                ParameterInfo(
                    parameter.ref_key or local(parameter.name),
                    dtype := constants.dtype_of(parameter),
                    tuple(parameter.dims),
                    (prod(max(dim, 0) for dim in parameter.dims) * dtype.bits + 7) // 8,
                    parameter.location,
                )
                for parameter in main.parameters
            ),
            functions=tuple(functions),
            user_info=model.user_info,
            encryption=content.encryption,
            compiled=compiled,
        )


def _specs(proto: ValueProto) -> list[TensorSpec]:
    declared = tuple(constants.tensor_type(tensor) for tensor in proto.tensors)
    if not declared and proto.structure is not None:
        declared = (constants.abstract(decode.attribute(proto.source, proto.structure)),)
    flat = [leaf for leaf in leaves(declared) if isinstance(leaf, Abstract)]
    name = local(proto.name)
    return [
        TensorSpec(name if len(flat) == 1 else f"{name}_{index}", abstract.dtype, abstract.shape)
        for index, abstract in enumerate(flat)
    ]
