"""Find inputs whose sizes disagree: open axes that meet in one node, and have other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import ModelError
from engine.plan.open_sizes import described
from engine.types import ModelSource, TensorSpec

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TypeProto

    Shapes = Mapping[str, tuple[int, ...]]

_ELEMENTWISE = frozenset(
    ("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max",
     "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor")
)  # fmt: skip


class _Axis(NamedTuple):
    """An open axis of an input."""

    input: str
    place: int


def disagreement(source: ModelSource, shapes: Shapes) -> str:
    """Say which two axes of inputs have sizes that cannot be, and where they meet; "" for unknown.

    shapes: of the inputs, by name. Certain: both axes come to the node as they are. Needs the onnx
    package, and finds nothing without it; nor in a compiled form.
    """
    if source.graph is None:
        return ""
    try:
        from engine.plan.extract import read
    except ImportError:
        return ""
    try:
        model = read(source)
    except ModelError:  # the file is gone; the run's own error counts
        return ""
    return disagreement_in(model, shapes)


def sizes_and_disagreement(
    model: ModelSource | ModelProto | None, specs: Sequence[TensorSpec], shapes: Shapes
) -> str:
    """Return the sizes of open axes, and which two of them cannot be, for people."""
    if model is None:
        cause = ""
    elif isinstance(model, ModelSource):
        cause = disagreement(model, shapes)
    else:
        cause = disagreement_in(model, shapes)
    return "; ".join(filter(None, (described(specs, shapes), cause)))


def disagreement_in(given: ModelProto, shapes: Shapes) -> str:
    """Do as `disagreement`, for a model that is read."""
    from engine.plan.ranges import without_weights

    model = without_weights(given)
    axes = _marked(model, shapes)
    if len(axes) < 2:
        return ""
    types = {value.name: value.type for value in (*model.graph.input, *model.graph.value_info)}
    for node in model.graph.node:
        for one, other in _meeting(node, types):
            if one in axes and other in axes:
                sizes = [shapes[axis.input][axis.place] for axis in (axes[one], axes[other])]
                may_repeat = node.op_type in _ELEMENTWISE and 1 in sizes
                if sizes[0] != sizes[1] and not may_repeat:
                    return _text(node, axes[one], axes[other], sizes)
    return ""


def _marked(model: ModelProto, shapes: Shapes) -> dict[str, _Axis]:
    """Give each open axis of an input a name of its own, and infer types anew from these."""
    from engine.formats.onnx.infer import types_of

    axes: dict[str, _Axis] = {}
    for value in model.graph.input:
        if len(value.type.tensor_type.shape.dim) != len(shapes.get(value.name, ())):
            continue
        for place, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_param = f"open axis {len(axes)}"
                axes[dim.dim_param] = _Axis(value.name, place)
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    made = [name for node in model.graph.node for name in node.output if name]
    types = types_of(model, made, guess=True)
    for name, kind in types.items():
        model.graph.value_info.add(name=name).type.CopyFrom(kind)
    return axes


def _meeting(node: NodeProto, types: Mapping[str, TypeProto]) -> Iterator[tuple[str, str]]:
    """Yield pairs of named axes that a node needs to be of one size."""
    from engine.formats.onnx.infer import shape_of

    found = [shape_of(types.get(name)) for name in node.input]
    if any(dims is None for dims in found):
        return
    operands = [dims for dims in found if dims is not None]
    pairs: list[tuple[str | int | None, str | int | None]] = []
    if node.op_type in _ELEMENTWISE:
        for number, dims in enumerate(operands):
            for later in operands[number + 1 :]:
                pairs += zip(reversed(dims), reversed(later), strict=False)
    elif node.op_type == "MatMul" and len(operands) == 2 and all(map(len, operands)):
        pairs.append((operands[0][-1], operands[1][-2 if len(operands[1]) > 1 else 0]))
    elif node.op_type == "Concat":
        axis = next((entry.i for entry in node.attribute if entry.name == "axis"), 1)
        for dims in operands[1:]:
            if len(dims) == len(operands[0]):
                pairs += (
                    pair
                    for place, pair in enumerate(zip(operands[0], dims, strict=True))
                    if place != axis % len(dims)
                )
    for one, other in pairs:
        if isinstance(one, str) and isinstance(other, str) and one != other:
            yield one, other


def _text(node: NodeProto, one: _Axis, other: _Axis, sizes: Sequence[int]) -> str:
    return (
        f"axis {one.place} of input {one.input!r} is {sizes[0]} and axis {other.place} of input "
        f"{other.input!r} {sizes[1]}, but {node.op_type} {node.name or node.output[0]!r} needs "
        "them to be equal"
    )
