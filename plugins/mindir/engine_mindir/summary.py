"""Summarise a .mindir without lowering it, for `engine inspect`."""

from __future__ import annotations

from collections import Counter
from math import prod

from engine.formats.description import Description
from engine.formats.format import FormatFile
from engine.types import ParameterInfo, TensorSpec
from engine_mindir import constants, decode
from engine_mindir.compiled import COMPILED, compiled_models, kernel_of
from engine_mindir.errors import refused
from engine_mindir.messages import ValueProto
from engine_mindir.names import local
from engine_mindir.primitives import primitive_table
from engine_mindir.structural import STRUCTURAL
from engine_mindir.values import Abstract, leaves


def describe(file: FormatFile) -> Description:
    """Describe what is in the file. Raises ModelError for one that cannot be decoded."""
    view = memoryview(file.data)
    with refused(file.path, view):
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
