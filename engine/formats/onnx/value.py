"""ValueInfoProto and TypeProto: names and types of inputs and outputs, as `TensorSpec`."""

from __future__ import annotations

from engine.formats.onnx import limits, schema
from engine.formats.onnx.reading import Invalid, count_elements, dtype_of, int32, is_symbol, text
from engine.formats.protobuf import Budget, fields, signed
from engine.types import Dim, DType, TensorSpec, ValueKind

_MEMBERS = {
    schema.TYPE_TENSOR_TYPE: ValueKind.TENSOR,
    schema.TYPE_SEQUENCE_TYPE: ValueKind.SEQUENCE,
    schema.TYPE_OPTIONAL_TYPE: ValueKind.OPTIONAL,
    schema.TYPE_MAP_TYPE: ValueKind.MAP,
}
_OTHERS = {
    schema.TYPE_SPARSE_TENSOR_TYPE: "a sparse tensor",
    schema.TYPE_OPAQUE_TYPE: "an opaque value",
}
_INNER = {
    schema.TYPE_SEQUENCE_TYPE: schema.TYPE_SEQUENCE_ELEM_TYPE,
    schema.TYPE_OPTIONAL_TYPE: schema.TYPE_OPTIONAL_ELEM_TYPE,
    schema.TYPE_MAP_TYPE: schema.TYPE_MAP_VALUE_TYPE,
}

# A type that nests deeper than allowed takes at least four bytes a level (two keys, two lengths).
DEEP_BYTES = 4 * limits.TYPE_DEPTH


def read_name_and_type(view: memoryview, budget: Budget) -> tuple[str, memoryview | None]:
    """Read a ValueInfoProto: its name and its TypeProto, not yet decoded."""
    name = ""
    kind: memoryview | None = None
    for tag, value in fields(view, budget):
        if tag == schema.VALUE_INFO_NAME:
            name = text(value)
        elif tag == schema.VALUE_INFO_TYPE:
            if kind is not None:
                raise Invalid(f"value {name!r} has two types")
            kind = value
    return name, kind


def read_spec(name: str, view: memoryview, what: str, budget: Budget) -> TensorSpec | None:
    """Decode the TypeProto of an input or output; None where it says nothing.

    what: names it in errors.
    """
    kind, tensor = ValueKind.TENSOR, None
    for depth in range(limits.TYPE_DEPTH + 1):
        member = _member(view, what, budget)
        if member is None:
            if not depth:
                return None
            raise Invalid(f"{what} is of type {kind} but does not say of what")
        tag, body = member
        if not depth:
            kind = _MEMBERS[tag]
        if tag == schema.TYPE_TENSOR_TYPE:
            tensor = body
            break
        view = _inner(tag, body, what, budget)
    if tensor is None:
        raise Invalid(f"{what} has a type nested more than {limits.TYPE_DEPTH} deep")
    number = 0
    shape: tuple[Dim, ...] | None = None
    for tag, value in fields(tensor, budget):
        if tag == schema.TYPE_TENSOR_ELEM_TYPE:
            number = int32(value, tensor)
        elif tag == schema.TYPE_TENSOR_SHAPE:
            if shape is not None:
                raise Invalid(f"{what} has two shapes")
            shape = _read_shape(value, what, budget)
    if not number and kind is ValueKind.TENSOR:
        return None
    dtype = dtype_of(number, what)
    if shape is not None:
        _check_size(shape, dtype, what)
    return TensorSpec(name, dtype, shape, kind)


def check_depth(view: memoryview, budget: Budget) -> None:
    """Raise Invalid for a TypeProto that nests too deep; its content is the runtime's to judge."""
    pending = [(view, 0)]
    while pending:
        current, depth = pending.pop()
        if depth > limits.TYPE_DEPTH:
            raise Invalid(f"a type is nested more than {limits.TYPE_DEPTH} deep")
        for tag, body in fields(current, budget, _INNER):
            inner = _INNER[tag]
            pending += [(value, depth + 1) for _, value in fields(body, budget, (inner,))]


def _member(view: memoryview, what: str, budget: Budget) -> tuple[int, memoryview] | None:
    """Find which of its possible types a TypeProto holds; None for none."""
    member: tuple[int, memoryview] | None = None
    for tag, value in fields(view, budget):
        if tag in _OTHERS:
            raise Invalid(f"{what} is {_OTHERS[tag]}; expected a tensor, sequence, optional or map")
        if tag in _MEMBERS:
            if member is not None:
                raise Invalid(f"{what} has two types")
            member = tag, value
    return member


def _inner(tag: int, body: memoryview, what: str, budget: Budget) -> memoryview:
    inner: memoryview | None = None
    for _, value in fields(body, budget, (_INNER[tag],)):
        if inner is not None:
            raise Invalid(f"{what} has two types")
        inner = value
    if inner is None:
        raise Invalid(f"{what} is of type {_MEMBERS[tag]} but does not say of what")
    return inner


def _read_shape(view: memoryview, what: str, budget: Budget) -> tuple[Dim, ...]:
    shape: list[Dim] = []
    for tag, value in fields(view, budget):
        if tag != schema.TENSOR_SHAPE_DIM:
            continue
        dim: Dim = None
        for part, payload in fields(value, budget):
            if part == schema.DIMENSION_DIM_VALUE:
                dim = signed(payload)
                if dim == -1:  # what some exporters write for a size that they do not know
                    dim = None
                elif dim < 0:
                    raise Invalid(f"{what} has a negative dim: {dim}")
            elif part == schema.DIMENSION_DIM_PARAM:
                name = text(payload)
                dim = name if is_symbol(name) else None
        shape.append(dim)
        if len(shape) > limits.RANK:
            raise Invalid(f"{what} has more than {limits.RANK} dims")
    return tuple(shape)


def _check_size(shape: tuple[Dim, ...], dtype: DType, what: str) -> None:
    known = [dim for dim in shape if isinstance(dim, int)]
    elements = count_elements([dim for dim in known if dim], what)
    if elements * max(dtype.bits, 8) > 8 * limits.ELEMENTS:
        raise Invalid(f"{what} is {dtype}{list(shape)}, more bytes than any machine addresses")
