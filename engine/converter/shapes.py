"""Shape pass: set the inputs' shapes and infer those of the rest of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from engine.converter.batch import MAPPED_BYTES, rebatch
from engine.converter.batch_rewriter import Batches
from engine.converter.graphs import add_weights, typed
from engine.converter.job import Job
from engine.converter.weights import total_bytes
from engine.errors import InputError, ModelError, one_line
from engine.formats import ModelFile
from engine.formats.onnx.graphs import bodies, inputs, light
from engine.formats.onnx.reading import is_symbol
from engine.formats.onnx.safe_inference import infer_shapes
from engine.plan.reshape import open_dims


def fix(model: ModelProto, job: Job) -> tuple[ModelProto, list[str]]:
    """Return the model with its inputs shaped as `job.input_shape` says, and notes on that.

    Open dims become what is asked, a symbolic one wherever it stands; -1 leaves a dim as it is. A
    fixed first axis that is to have another size, the batch, is changed by `batch.rebatch`; another
    fixed axis is set, with all constants as they are, and the result must run. All other shapes are
    inferred anew. `model` is not changed.
    Raises InputError where the inputs cannot be so, ModelError where the model cannot, Cancelled.
    """
    if not job.input_shape:
        return model, []
    given = {value.name: value for value in inputs(model.graph)}
    symbols: dict[str, tuple[int, str]] = {}
    batches: dict[str, tuple[int, int]] = {}
    notes: list[str] = []
    changes: list[str] = []
    for name, dims in job.input_shape.items():
        if name not in given:
            raise InputError(
                f"input_shape names {name!r}, which is no input of the model; its inputs are "
                f"{_texts(given.values())}",
                name,
            )
        _ask(given[name], dims, symbols, batches, notes, changes)
    if len({Fraction(new, old) for old, new in batches.values()}) > 1:
        factors = ", ".join(f"{name!r} {old} to {new}" for name, (old, new) in batches.items())
        raise InputError(
            f"input_shape changes the model's fixed batch by different factors: {factors}; "
            "one factor for all inputs is possible"
        )
    for name, value in given.items():
        for dim in value.type.tensor_type.shape.dim:
            if name not in job.input_shape and dim.dim_param in symbols:
                size, by = symbols[dim.dim_param]
                notes.append(f"input {name!r}: {dim.dim_param!r} is {size}, as in input {by!r}")
    result = light(model)
    _set(result, job.input_shape, {symbol: size for symbol, (size, _) in symbols.items()}, batches)
    if changes:
        notes += changes
        for body in bodies(result):
            if isinstance(body, GraphProto):
                open_dims((*body.input, *body.output) if body is not result.graph else body.output)
    if batches:
        notes += rebatch(result, model, batches, job)
    _infer(result, model, job)
    add_weights(result, model)
    if batches:
        _drop_unread(result)
    if changes:
        _run_once(result, job)
    return result, notes


def _run_once(model: ModelProto, job: Job) -> None:
    """Raise ModelError unless the model runs; a large one is taken on trust."""
    from engine.backends import installed
    from engine.converter import trial

    if "cpu" not in installed() or total_bytes(model) > MAPPED_BYTES:
        return
    try:
        trial.run(ModelFile.of_bytes(model.SerializeToString()), job)
    except ModelError as error:
        raise _cannot_have(job, str(error)) from error


def _cannot_have(job: Job, why: str) -> ModelError:
    return job.error(
        f"the model cannot have these input shapes: {why}; give sizes that fit its layers"
    )


def _drop_unread(model: ModelProto) -> None:
    """Drop the constants that others were put in place of."""
    graph = model.graph
    read = {name for body in bodies(model) for node in body.node for name in node.input}
    for body in bodies(model):
        if isinstance(body, GraphProto):
            read.update(value.name for value in (*body.input, *body.output))
    for index in range(len(graph.initializer) - 1, -1, -1):
        if graph.initializer[index].name not in read:
            del graph.initializer[index]


def _ask(
    value: ValueInfoProto,
    dims: tuple[int, ...],
    symbols: dict[str, tuple[int, str]],
    batches: dict[str, tuple[int, int]],
    notes: list[str],
    changes: list[str],
) -> None:
    """Compare what is asked of one input with what it is, and note down what is to change.

    symbols: symbolic dims, their size and the input that it came from.
    batches: by input, first axes of fixed size: what they are and what they are to be.
    changes: descriptions of other axes of fixed size that are to have another.
    """
    name, tensor = value.name, value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        raise InputError(
            f"input_shape gives {name!r} dims, but it is no tensor; leave it out", name
        )
    if not tensor.HasField("shape"):
        return
    if len(tensor.shape.dim) != len(dims):
        raise InputError(
            f"input {name!r}: input_shape gives it {len(dims)} dims, {_listed(dims)}; the model's "
            f"has {len(tensor.shape.dim)}: {_texts([value])}",
            name,
        )
    for axis, (dim, asked) in enumerate(zip(tensor.shape.dim, dims, strict=True)):
        if is_symbol(dim.dim_param) and asked != -1:
            size, by = symbols.setdefault(dim.dim_param, (asked, name))
            if size != asked:
                raise InputError(
                    f"input {name!r}: dim {axis} is {dim.dim_param!r}, which input_shape makes "
                    f"{asked}, but {size} in input {by!r}; they are the same size in the model",
                    name,
                )
        elif dim.dim_value > 0 and asked == -1:
            notes.append(f"input {name!r}: dim {axis} stays {dim.dim_value}, as it is in the model")
        elif dim.HasField("dim_value") and dim.dim_value >= 0 and dim.dim_value != asked != -1:
            if not dim.dim_value:
                raise InputError(
                    f"input {name!r}: dim {axis} is 0 in the model, input_shape asks for {asked}; "
                    "leave it, or export the model with this axis dynamic",
                    name,
                )
            if axis:
                changes.append(
                    f"input {name!r}: dim {axis} is {dim.dim_value} in the model, {asked} in the "
                    "result; constants that were made for the one are as they were"
                )
            else:
                batches[name] = dim.dim_value, asked


def _set(
    model: ModelProto,
    shapes: Mapping[str, tuple[int, ...]],
    symbols: Mapping[str, int],
    batches: Batches,
) -> None:
    """Set open dims of inputs, and symbols wherever they are; forget what was inferred."""
    for body in bodies(model):
        del body.value_info[:]
        if isinstance(body, GraphProto):
            for value in (*body.input, *body.output):
                for dim in value.type.tensor_type.shape.dim:
                    if dim.dim_param in symbols:
                        dim.dim_value = symbols[dim.dim_param]
    for value in model.graph.input:
        shape = value.type.tensor_type.shape
        asked = shapes.get(value.name, ())
        while len(shape.dim) < len(asked):
            shape.dim.add()
        for axis, size in enumerate(asked):
            if size != -1 and not (axis == 0 and value.name in batches):
                shape.dim[axis].dim_value = size


def _infer(model: ModelProto, weights: ModelProto, job: Job) -> None:
    """Infer the shapes of the main graph's values and outputs."""
    whole = typed(model, weights)
    try:
        known = infer_shapes(whole, strict_mode=True, data_prop=True)
    except Exception as error:  # onnx's, of several kinds
        try:
            infer_shapes(typed(light(weights), weights), strict_mode=True, data_prop=True)
        except Exception:  # what it does not understand is not new
            known = infer_shapes(whole, data_prop=True)
        else:
            raise _cannot_have(job, one_line(error)) from error
    model.graph.value_info.extend(known.graph.value_info)
    for output, inferred in zip(model.graph.output, known.graph.output, strict=True):
        _complete(output.type, inferred.type)


def _complete(kind: TypeProto, inferred: TypeProto) -> None:
    """Add to an output's type what was inferred and is not in it; symbols only with the rank."""
    if not kind.tensor_type.HasField("shape"):
        kind.CopyFrom(inferred)
        return
    for dim, inferred_dim in zip(kind.tensor_type.shape.dim, inferred.tensor_type.shape.dim):
        if inferred_dim.dim_value:
            dim.dim_value = inferred_dim.dim_value


def _texts(values: Iterable[ValueInfoProto]) -> str:
    """Return inputs and their shapes: 'x' 1,3,h,w; 'y' 1."""
    texts = []
    for value in values:
        tensor = value.type.tensor_type
        dims = (dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?")
                for dim in tensor.shape.dim)  # fmt: skip
        texts.append(f"{value.name!r} {_listed(dims) if tensor.HasField('shape') else '...'}")
    return "; ".join(texts)


def _listed(dims: Iterable[object]) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"
