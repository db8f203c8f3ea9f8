"""onnx's shape inference, kept from models that would crash it or make it fill memory.

It is C++ that trusts a model in more than its checker looks at: a required input that is left out
is a null pointer, an axis an index, and data propagation writes out each element of any tensor of
one dim, so that a few nodes become gigabytes. Such models are a runtime's to refuse.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from engine.formats.onnx import limits
from engine.formats.onnx.graphs import bodies

PROPAGATED = 1 << 22
"""Elements that data propagation may write out in all, at about 100 bytes each. Shapes have a few,
and a bias that is added counts too: a language model of 80 layers has about three million."""


class UnsafeModelError(ValueError):
    """Shape inference of this model could crash or fill memory; the message says why."""


def infer_shapes(
    model: ModelProto,
    *,
    check_type: bool = False,
    strict_mode: bool = False,
    data_prop: bool = False,
) -> ModelProto:
    """Infer as onnx.shape_inference.infer_shapes does.

    data_prop: also through values of shapes, where these are of a size that shapes have.
    Raises UnsafeModelError, and what onnx raises.
    """
    check(model)
    infer = functools.partial(
        onnx.shape_inference.infer_shapes, check_type=check_type, strict_mode=strict_mode
    )
    if not data_prop:
        return infer(model)
    known = onnx.shape_inference.infer_shapes(model)
    return infer(model, data_prop=True) if _is_bounded(known) else infer(model)


def check(model: ModelProto) -> None:
    """Raise UnsafeModelError for a node that onnx's rules for its operator are not made for."""
    versions = _versions(model)
    for body in bodies(model):
        for node in body.node:
            reason = _unsafe(node, versions)
            if reason:
                raise UnsafeModelError(f"node {node.name!r} ({node.op_type}) {reason}")


def _unsafe(node: NodeProto, versions: Mapping[str, int]) -> str:
    domain = "" if node.domain == "ai.onnx" else node.domain
    signature = _signature(node.op_type, versions.get(domain or "ai.onnx", 1), domain)
    if signature is None:
        return ""  # not onnx's to infer
    required, most, outputs = signature
    if len(node.output) > outputs:
        return f"has {len(node.output)} outputs; expected at most {outputs}"
    if len(node.input) > most:
        return f"has {len(node.input)} inputs; expected at most {most}"
    for index, is_required in enumerate(required):
        if is_required and (index >= len(node.input) or not node.input[index]):
            return f"leaves out input {index}, which its operator requires"
    if "" in node.input[len(required) :]:
        return "leaves out one of a list of inputs"
    for attribute in node.attribute:
        reason = _unsafe_attribute(node, attribute)
        if reason:
            return reason
    return ""


def _unsafe_attribute(node: NodeProto, attribute: AttributeProto) -> str:
    name = attribute.name
    if attribute.type == AttributeProto.INT:
        values = [attribute.i]
    elif attribute.type == AttributeProto.INTS:
        values = list(attribute.ints)
    else:
        return ""
    if name in ("axis", "axes", "batch_axis", "time_axis", "batch_dims"):
        most = limits.RANK
    elif node.op_type in ("Constant", "ConstantOfShape") or name in _ANY_NUMBER:
        return ""
    else:
        most = (1 << 31) - 1
    least = 0 if name == "batch_dims" else -most
    wrong = [value for value in values if not least <= value <= most]
    return f"has {name} {wrong[0]}; expected a number from {least} to {most}" if wrong else ""


# Attributes that may say "to the end" with the largest number that there is.
_ANY_NUMBER = frozenset(("starts", "ends", "start", "end"))


@functools.lru_cache(maxsize=1024)
def _signature(op_type: str, version: int, domain: str) -> tuple[tuple[bool, ...], int, int] | None:
    """Return which of an operator's inputs are required, and how many inputs and outputs it has.

    Of a list of inputs all are required, and only the first is in the answer.
    """
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    required = tuple(
        parameter.option is not optional and index < max(schema.min_input, 1)
        for index, parameter in enumerate(schema.inputs)
    )
    return required, schema.max_input, schema.max_output


def _is_bounded(known: ModelProto) -> bool:
    """Return whether data propagation writes out little.

    It writes out each tensor of one dim, of any type, that goes through an operator on shapes.
    known: a model with the types that follow without it.
    """
    versions = _versions(known)
    sizes: dict[str, int] = {}
    written = 0
    for body in bodies(known):
        if isinstance(body, GraphProto):
            for tensor in body.initializer:
                sizes[tensor.name] = tensor.dims[0] if len(tensor.dims) == 1 else 1
            for value in (*body.input, *body.value_info, *body.output):
                dims = value.type.tensor_type.shape.dim
                sizes[value.name] = dims[0].dim_value if len(dims) == 1 else 1
        for node in body.node:
            # Of unknown size: what grows by joining; the others are as large as what they read.
            read = [sizes.get(name, 0) or limits.RANK for name in node.input if name]
            size = sum(read) if node.op_type == "Concat" else max(read, default=1)
            for name in node.output:
                sizes[name] = sizes.get(name, 0) or size
                size = sizes[name]
            if _propagates(node.op_type, versions.get(node.domain or "ai.onnx", 1), node.domain):
                written += sum(read) + size
                if written > PROPAGATED:
                    return False
    return True


def _versions(model: ModelProto) -> dict[str, int]:
    return {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}


@functools.lru_cache(maxsize=1024)
def _propagates(op_type: str, version: int, domain: str) -> bool:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_data_propagation_function)
