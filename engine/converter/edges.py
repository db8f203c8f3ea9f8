"""Edge pass: give a model's inputs and outputs another element type or layout.

A Transpose or Cast between the edge and the model; inputs and outputs keep their names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto, helper

from engine.converter.graphs import Names, add_opset, add_weights, cast, rename
from engine.converter.integer_edges import expose
from engine.converter.job import Framework, Job
from engine.formats.onnx.graphs import constants, light
from engine.tensor.enums import DataType, FmkType, Format
from engine.types import DType

_TO = {Format.NHWC: (0, 2, 3, 1), Format.NCHW: (0, 3, 1, 2)}
"""The other layout's axes in the order of this one."""

LAYOUT_KEYS = "input_format", "output_format"
"""Keys of a result's metadata."""

_LAYOUTS = {"NHWC": Format.NHWC, "NCHW": Format.NCHW}

_FLOATS = {DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16}
_IDS = (DType.INT32, DType.INT64)


@dataclass(slots=True)
class _Edge:
    """An input or output. inner: its type in the model; outer: what a user gives or gets.

    perm: the model's axes in the order of the user's; () where they are the same.
    """

    name: str
    inner: TypeProto
    outer: TypeProto
    perm: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def is_changed(self) -> bool:
        return bool(self.perm) or self.outer != self.inner


def layouts(model: ModelProto, framework: Framework) -> tuple[Format, Format]:
    """Return the model's own layouts, of inputs and of outputs: its framework's.

    A result of this converter says its own, if that is not NCHW.
    """
    if framework in (FmkType.TF, FmkType.TFLITE):
        return Format.NHWC, Format.NHWC
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    first, last = (_LAYOUTS.get(metadata.get(key, ""), Format.NCHW) for key in LAYOUT_KEYS)
    return first, last


def adapt(model: ModelProto, job: Job) -> tuple[ModelProto, list[str]]:
    """Give the model's edges the types and layouts that the job asks for; return it and notes.

    dtype: of floating inputs and outputs; where the model has just these integers behind them they
        are laid bare (`integer_edges`), else by a Cast. Integers (token ids, say) become int32 or
        int64 where no value can change by that; else they stay as they are, with a note.
    format: of inputs and outputs of 4 axes, by a Transpose where the model's own layout (`layouts`)
        is the other one. Symbolic dims go with their axes.
    A tensor that is input and output at once changes only where the same is asked for both.
    `model` is not changed; it is what is returned where there is nothing to do.
    """
    own = layouts(model, job.framework)
    dtypes = _element(job.input_dtype), _element(job.output_dtype)
    result = light(model)
    exposed = expose(result, model, *dtypes)
    known = constants(model.graph)
    given = {
        value.name: _edge(value, "input", dtypes[0], job.input_format, own[0])
        for value in result.graph.input
        if value.name not in known
    }
    taken = {
        output.name: _edge(output, "output", dtypes[1], job.output_format, own[1])
        for output in result.graph.output
    }
    for name in given.keys() & taken.keys():
        given_edge, taken_edge = given[name], taken[name]
        if (given_edge.outer, given_edge.perm) != (taken_edge.outer, taken_edge.perm):
            text = f"{name!r} stays as it is: an input and an output that are one value"
            given[name] = taken[name] = _Edge(
                name, given_edge.inner, given_edge.inner, notes=[text]
            )
    edges = [*given.values(), *(edge for name, edge in taken.items() if name not in given)]
    notes = exposed + [note for edge in edges for note in edge.notes]
    for what, requested, specs in (
        ("input", job.input_format, given), ("output", job.output_format, taken),
    ):  # fmt: skip
        ranked = [spec.inner for spec in specs.values() if spec.inner.tensor_type.HasField("shape")]
        if (
            requested is not None
            and len(ranked) == len(specs)
            and not any(map(_is_picture, ranked))
        ):
            notes.append(f"{what}_format has no effect: no {what} has 4 axes")
    if not exposed and not any(edge.is_changed for edge in edges):
        return model, notes

    add_weights(result, model)
    add_opset(result)
    graph, names = result.graph, Names(model)
    inner = {edge.name: names.free(f"{edge.name}.inner") for edge in edges if edge.is_changed}
    before: list[NodeProto] = []
    after: list[NodeProto] = []
    for edge in edges:
        if not edge.is_changed:
            continue
        if edge.name in given:
            back = tuple(edge.perm.index(axis) for axis in range(len(edge.perm)))
            ends = edge.name, inner[edge.name]
            before += _steps(*ends, back, edge.outer, edge.inner, result, names)
        else:
            ends = inner[edge.name], edge.name
            after += _steps(*ends, edge.perm, edge.inner, edge.outer, result, names)
    for values, adapted in ((graph.input, given), (graph.output, taken)):
        for value in values:
            if value.name in adapted:
                value.type.CopyFrom(adapted[value.name].outer)
    rename(graph, inner)
    for node in reversed(before):
        graph.node.insert(0, node)
    graph.node.extend(after)
    weights = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
    listed = [value for value in graph.input if value.name in known]  # weights as well
    for named in (*weights, *graph.value_info, *listed):
        named.name = inner.get(named.name, named.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = inner.get(annotation.tensor_name, annotation.tensor_name)
    return result, notes


def _element(dtype: DataType | None) -> DType | None:
    return None if dtype in (None, DataType.UNKNOWN) else DType(dtype.to_numpy().name)


def _edge(
    value: ValueInfoProto, what: str, dtype: DType | None, layout: Format | None, own: Format
) -> _Edge:
    """Plan the change of one input or output."""
    edge = _Edge(value.name, TypeProto(), TypeProto())
    edge.inner.CopyFrom(value.type)
    edge.outer.CopyFrom(value.type)
    wants_layout = layout is not None and layout is not own
    if value.type.WhichOneof("value") != "tensor_type":
        if wants_layout or dtype is not None:
            edge.notes.append(f"{what} {value.name!r} stays as it is: it is no tensor")
        return edge
    if dtype is not None:
        _set_dtype(edge, what, dtype)
    tensor = value.type.tensor_type
    if layout is not None and wants_layout:
        if not tensor.HasField("shape"):
            edge.notes.append(f"{what} {value.name!r} keeps its layout: its rank is not known")
        elif _is_picture(value.type):
            edge.perm = _TO[layout]
            dims = edge.outer.tensor_type.shape.dim
            for position, axis in enumerate(edge.perm):
                dims[position].CopyFrom(tensor.shape.dim[axis])
            edge.notes.append(f"{what} {value.name!r} is {layout.name}; the model's is {own.name}")
    return edge


def _is_picture(kind: TypeProto) -> bool:
    return len(kind.tensor_type.shape.dim) == 4


def _set_dtype(edge: _Edge, what: str, wanted: DType) -> None:
    """Give the edge another element type where that is safe."""
    current = DType.from_onnx(edge.inner.tensor_type.elem_type)
    if current is wanted:
        return
    # Each int32 is an int64: such may go in as the first and come out as the second.
    narrow, wide = (wanted, current) if what == "input" else (current, wanted)
    if current not in _FLOATS and (narrow, wide) != _IDS:
        edge.notes.append(
            f"{what} {edge.name!r} stays {current}: only floating ones become {wanted} safely"
        )
        return
    edge.outer.tensor_type.elem_type = wanted.onnx
    text = f"{what} {edge.name!r} is {wanted}, the model's is {current}"
    if wanted not in _FLOATS and current in _FLOATS:
        text += "; a plain cast, without scale"
        if what == "output":
            text += ": fractions are cut off, and what is out of range is undefined"
    edge.notes.append(text)


def _steps(
    source: str,
    result: str,
    perm: tuple[int, ...],
    before: TypeProto,
    after: TypeProto,
    model: ModelProto,
    names: Names,
) -> list[NodeProto]:
    element = after.tensor_type.elem_type
    casts = before.tensor_type.elem_type != element
    if not perm:
        return [cast(source, result, element, model.opset_import)]
    middle = names.free(f"{source}.transposed") if casts else result
    nodes = [helper.make_node("Transpose", [source], [middle], name=middle, perm=perm)]
    if casts:
        nodes.append(cast(middle, result, element, model.opset_import))
    return nodes
