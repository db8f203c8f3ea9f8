"""Equivalents by other nodes, for nodes that ONNX Runtime has no kernel for.

Each takes a kind and gives a model with the same inputs x0, x1, ... and outputs y0, y1, ... that
computes the same, or None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, TypeProto, defs, helper, inliner

from engine_cpu.prepare.kind import (
    Kind,
    Opsets,
    element,
    has_subgraphs,
    inferred,
    is_known,
    model_of,
    refill,
)
from engine_cpu.prepare.special import SPECIAL

_CALL = "engine_cpu.call"

FunctionId = tuple[str, str, str]


def expanded(kind: Kind, functions: Mapping[FunctionId, FunctionProto]) -> ModelProto | None:
    """Return the body of an operator that is a function of others, ONNX's own or the model's."""
    node = deepcopy(kind.node)
    body = functions.get((kind.node.domain, kind.node.op_type, kind.node.overload))
    if body is None:
        body = _defined(kind, node)
        if body is None:
            return None
    function = deepcopy(body)
    function.domain, function.name, function.overload = _CALL, "body", ""
    node.domain, node.op_type, node.overload = _CALL, "body", ""
    opsets = {**kind.opsets, **{opset.domain: opset.version for opset in function.opset_import}}
    refill(function.opset_import, (helper.make_opsetid(*opset) for opset in opsets.items()))
    call = model_of([node], kind.types, {**opsets, _CALL: 1}, kind.constants, [function])
    whole = inliner.inline_local_functions(call)
    return model_of(list(whole.graph.node), kind.types, opsets, kind.constants, outputs=node.output)


def _defined(kind: Kind, node: NodeProto) -> FunctionProto | None:
    """Return the function that defines an operator; its defaults are written out in `node`."""
    try:
        # onnx's annotations leave out half of its methods.
        schema: Any = defs.get_schema(node.op_type, kind.version or 1, kind.domain)
    except defs.SchemaError:
        return None
    given = {item.name for item in node.attribute}
    for formal in schema.attributes.values():
        if formal.name not in given and formal.default_value.name:
            node.attribute.append(formal.default_value)
    if schema.has_context_dependent_function:
        versions = schema.context_dependent_function_opset_versions
        usable = [version for version in versions if version <= kind.version]
        types = [kind.types[name].SerializeToString() if name else b"" for name in kind.node.input]
        text = usable and schema.get_context_dependent_function_with_opset_version(
            max(usable), kind.node.SerializeToString(), types
        )
    else:
        usable = [v for v in schema.function_opset_versions if v <= kind.version]
        text = usable and schema.get_function_with_opset_version(max(usable))
    return FunctionProto.FromString(text) if text else None


def widened(kind: Kind, wider: Mapping[int, int]) -> ModelProto | None:
    """Return the operator in wider types, between casts."""
    types = {name: _in(narrow, wider) for name, narrow in kind.types.items()}
    if types == dict(kind.types):
        return None
    before, after = (_outputs(kind, inputs) for inputs in (kind.types, types))
    nodes, casts = [], []
    node = deepcopy(kind.node)
    inside = {name: f"w{name}" for name in types if types[name] != kind.types[name]}
    for name, new in inside.items():
        to = types[name].tensor_type.elem_type
        nodes.append(helper.make_node("Cast", [name], [new], to=to))
    node.input[:] = [inside.get(name, name) for name in node.input]
    for i, name in enumerate(kind.node.output):
        if not name:
            continue
        if name not in before or name not in after:
            return None
        narrow, wide = before[name], after[name]
        if narrow == wide:
            continue
        if wider.get(narrow) != wide:
            return None
        node.output[i] = f"w{name}"
        casts.append(helper.make_node("Cast", [f"w{name}"], [name], to=narrow))
    return model_of(
        [*nodes, node, *casts],
        kind.types,
        kind.opsets,
        kind.constants,
        outputs=kind.node.output,
    )


def _in(kind: TypeProto, wider: Mapping[int, int]) -> TypeProto:
    if kind.WhichOneof("value") != "tensor_type" or kind.tensor_type.elem_type not in wider:
        return kind
    wide = deepcopy(kind)
    wide.tensor_type.elem_type = wider[kind.tensor_type.elem_type]
    return wide


def _outputs(kind: Kind, types: Mapping[str, TypeProto]) -> dict[str, int]:
    """Return the element types of the outputs that are tensors, for inputs of these types."""
    known = model_of([kind.node], types, kind.opsets)
    return {
        output.name: element(output.type)
        for output in inferred(known).graph.output
        if is_known(output.type) and output.type.WhichOneof("value") == "tensor_type"
    }


def _is_misaligned(kind: Kind) -> bool:
    """Return whether onnx's converter may broadcast a second input elsewhere than `axis` says.

    It is right for the first axis, and where the second input reaches to the last one.
    """
    given = {each.name: each.i for each in kind.node.attribute if each.name in _BROADCASTING}
    if len(given) < 2 or given["axis"] == 0:
        return False
    first, second = (_rank(kind, name) for name in kind.node.input)
    return not first or second is None or given["axis"] % first + second != first


def _rank(kind: Kind, name: str) -> int | None:
    if name in kind.constants:
        return len(kind.constants[name].dims)
    tensor = kind.types[name].tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def converted(kind: Kind, version: int) -> ModelProto | None:
    """Convert a node that is written for an older operator set, with onnx's converter."""
    if kind.domain or kind.version >= version:
        return None
    if kind.version < 7 and _is_misaligned(kind):
        return None
    result = onnx.version_converter.convert_version(kind.model(), version)
    opsets = {**kind.opsets, "": version}
    made = [tensor for tensor in result.graph.initializer if tensor.name not in kind.constants]
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in made]
    nodes += result.graph.node
    return model_of(nodes, kind.types, opsets, kind.constants, outputs=kind.node.output)


# Attributes by which binary operators before set 7 say where their second input is.
_BROADCASTING = ("axis", "broadcast")
# Operators that give types of their own choosing: other input types would mean something else.
_TYPED = frozenset({
    "BitCast", "Bernoulli", "Cast", "CastLike", "Constant", "ConstantOfShape",
    "DynamicQuantizeLinear", "EyeLike", "Multinomial", "QuantizeLinear", "RandomNormal",
    "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
# Attributes that name the type in which floats are computed.
_PRECISIONS = ("precision", "softmax_precision", "stash_type")
# Operators that only move elements, so that any type that holds them will do.
_MOVING = frozenset({
    "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements",
    "GatherND", "Identity", "OneHot", "Pad", "Reshape", "ReverseSequence", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
# Operators on integers of which the low bits of a wide result are the narrow result.
_INTEGRAL = _MOVING | frozenset({
    "Abs", "Add", "ArgMax", "ArgMin", "Clip", "CumSum", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "NonZero", "Pow", "ReduceMax", "ReduceMin",
    "ReduceSum", "Relu", "Sign", "Sub", "Sum", "TopK", "Unique",
})  # fmt: skip
_T = TensorProto
_FLOATS: Mapping[int, int] = {_T.BFLOAT16: _T.FLOAT, _T.FLOAT16: _T.FLOAT}
_INTEGERS: Mapping[int, int] = dict.fromkeys((_T.INT8, _T.UINT8, _T.INT16, _T.UINT16), _T.INT32)
_STORED: Mapping[int, int] = {
    **dict.fromkeys((_T.INT2, _T.INT4), _T.INT8),
    **dict.fromkeys((_T.UINT2, _T.UINT4), _T.UINT8),
    **dict.fromkeys(
        (_T.FLOAT8E4M3FN, _T.FLOAT8E4M3FNUZ, _T.FLOAT8E5M2, _T.FLOAT8E5M2FNUZ), _T.FLOAT
    ),
}


def wider_types(kind: Kind) -> Iterator[Mapping[int, int]]:
    """Yield types in which the operator computes the same, to be tried in this order."""
    name = kind.node.op_type
    if kind.domain or name in _TYPED or has_subgraphs(kind.node):
        return
    precise = (item.i for item in kind.node.attribute if item.name in _PRECISIONS)
    if all(precision in (0, _T.FLOAT) for precision in precise):
        yield _FLOATS
    if name in _INTEGRAL:
        yield _INTEGERS
    if name in _MOVING:
        yield _STORED
        yield {_T.BOOL: _T.UINT8}
    if name in _MOVING or name == "Pow":
        # Not more: onnxruntime 1.31 compares int64 wrongly beyond 32 bits in some kernels.
        yield {_T.UINT32: _T.INT64}


def special(kind: Kind, versions: Opsets) -> ModelProto | None:
    """Return special.py's equivalent of the operator, in the operator sets `versions`."""
    nodes = SPECIAL[kind.node.op_type](kind) if _is_special(kind) else None
    if nodes is None:
        return None
    return model_of(
        nodes, kind.types, {**kind.opsets, **versions}, kind.constants, outputs=kind.node.output
    )


def _is_special(kind: Kind) -> bool:
    return kind.domain in ("", "ai.onnx.ml") and kind.node.op_type in SPECIAL
