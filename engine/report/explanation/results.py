"""The types of what a node with bodies gives, as they follow from those of its bodies' results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onnx import TypeProto, helper

from engine.formats.onnx.infer import shape_of
from engine.report.explanation.tensors import Tensors


class Body(NamedTuple):
    """A body of a node. times: how often a run of the node runs it; None where data say it.

    outputs: the names of its results, in order.
    """

    name: str
    times: int | None
    inside: Tensors
    outputs: tuple[str, ...]


def results(outside: Tensors, index: int, bodies: Sequence[Body]) -> dict[str, TypeProto]:
    """Return the types of a node's outputs, with the sizes that follow from its bodies."""
    node = outside.nodes[index]
    rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if [body.name for body in bodies] == ["function"]:
        kinds = _kinds(bodies[0])
    elif rule is None:
        return {}
    else:
        said = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        kinds = rule(bodies, [outside.kind(name) for name in node.input], said)
    pairs = zip(node.output, kinds, strict=False)  # a node may leave out its last outputs
    return {name: kind for name, kind in pairs if name and kind is not None}


def common(kind: TypeProto | None, later: TypeProto | None) -> TypeProto | None:
    """Return the type of a value that has one type or another: with the sizes that both have."""
    one, other = shape_of(kind), shape_of(later)
    if kind is None or one is None or one == other:
        return kind
    sizes = None
    if other is not None and len(other) == len(one):
        sizes = [size if size == new else None for size, new in zip(one, other, strict=True)]
    return helper.make_tensor_type_proto(kind.tensor_type.elem_type, sizes)


def says_more(kind: TypeProto, other: TypeProto | None) -> bool:
    """Return whether a type of a value says more than another, which may be a guess."""
    return (
        other is None
        or kind.tensor_type.elem_type != other.tensor_type.elem_type
        or _known_sizes(kind) > _known_sizes(other)
    )


def _known_sizes(kind: TypeProto) -> int:
    shape = shape_of(kind)
    return -1 if shape is None else sum(isinstance(size, int) for size in shape)


def _kinds(body: Body) -> list[TypeProto | None]:
    return [body.inside.kind(name) for name in body.outputs]


def _of_if(
    bodies: Sequence[Body], given: Sequence[TypeProto | None], said: Mapping[str, Any]
) -> list[TypeProto | None]:
    taken = [_kinds(body) for body in bodies if body.times != 0]
    return [common(kinds[0], kinds[-1]) for kinds in zip(*taken, strict=True)]


def _of_loop(
    bodies: Sequence[Body], given: Sequence[TypeProto | None], said: Mapping[str, Any]
) -> list[TypeProto | None]:
    [body] = bodies
    count = max(len(given) - 2, 0)
    _, *kinds = _kinds(body)
    return [
        *_states(body, given[2:], kinds[:count]),
        *(_stacked(kind, body.times, 0) for kind in kinds[count:]),
    ]


def _of_scan(
    bodies: Sequence[Body], given: Sequence[TypeProto | None], said: Mapping[str, Any]
) -> list[TypeProto | None]:
    [body] = bodies
    count = len(given) - int(said["num_scan_inputs"])
    kinds = _kinds(body)
    axes = said.get("scan_output_axes") or [0] * len(kinds)
    return [
        *_states(body, given[:count], kinds[:count]),
        *(
            _stacked(kind, body.times, axis)
            for kind, axis in zip(kinds[count:], axes, strict=False)
        ),
    ]


def _states(
    body: Body, first: Sequence[TypeProto | None], later: Sequence[TypeProto | None]
) -> list[TypeProto | None]:
    """Return the types of what a body passes on, after its last run."""
    if body.times is None:
        return [common(*pair) for pair in zip(first, later, strict=True)]
    return [*(later if body.times else first)]


def _stacked(kind: TypeProto | None, times: int | None, axis: int) -> TypeProto | None:
    """Return the type of the results of all runs of a body, along a new axis."""
    shape = shape_of(kind)
    if kind is None or shape is None:
        return None
    sizes = [*shape]
    sizes.insert(axis if axis >= 0 else axis + len(sizes) + 1, times)
    return helper.make_tensor_type_proto(kind.tensor_type.elem_type, sizes)


_RULES = {"If": _of_if, "Loop": _of_loop, "Scan": _of_scan}
