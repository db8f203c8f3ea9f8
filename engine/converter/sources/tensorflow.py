"""TensorFlow models through tf2onnx: SavedModel folders, frozen graphs (.pb), Keras files.

tf2onnx and TensorFlow run in a process of their own (see `exporter`). That is no wall against a
hostile file: a TensorFlow graph is a program that can read and write files; Keras refuses code in
a layer (its `safe_mode`). Convert only models whose author you trust.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.converter.job import Job, Read
from engine.converter.sources.exporter import Shapes, exported, shortened
from engine.errors import ModelError, one_line

if TYPE_CHECKING:
    from onnx import ModelProto

title = "a TensorFlow model"
kinds = ("tensorflow", "keras", "hdf5")
suffixes = (".pb", ".keras", ".h5", ".hdf5")
packages = ("tensorflow", "tf2onnx")
extra = "tensorflow"

OPSET = 18  # the newest that tf2onnx writes
_GRAPH_FILE = "saved_model.pb"


def read(job: Job) -> Read:
    """See engine.converter.sources.read.

    job.input_shape fills in dims that the model leaves open, by the model's own input names.
    """
    return exported(job, __name__, "TensorFlow", extra, packages)


# --------------------------------------------------------------------------------- in that process


def export(request: Mapping[str, Any], step: Callable[[], None]) -> None:
    """See `exporter.exported`."""
    quieten()
    path = Path(request["model"])
    if path.is_file() and path.name == _GRAPH_FILE:
        path = path.parent
    if path.is_dir():
        model = _saved_model(path, request["input_shape"], step)
    elif path.read_bytes()[:4] in (b"PK\x03\x04", b"\x89HDF"):
        model = _keras(path, request["input_shape"], step)
    else:
        model = _frozen(path, request["input_shape"], step)
    Path(request["result"]).write_bytes(model.SerializeToString())


def quieten() -> None:
    """Keep TensorFlow's log short and its hands off the GPU; before it is imported."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ["KERAS_BACKEND"] = "tensorflow"


def _saved_model(folder: Path, shapes: Shapes, step: Callable[[], None]) -> ModelProto:
    from tensorflow.core.protobuf import saved_model_pb2
    from tf2onnx import tf_loader

    step()
    meta = saved_model_pb2.SavedModel.FromString((folder / _GRAPH_FILE).read_bytes()).meta_graphs[0]
    names = sorted(name for name in meta.signature_def if not name.startswith("_"))
    if not names:
        raise ModelError(
            "the SavedModel has no signature; save it with one: tf.saved_model.save(model, folder, "
            "signatures=model.__call__.get_concrete_function(tf.TensorSpec(shape, dtype)))"
        )
    chosen = "serving_default" if "serving_default" in names else names[0]
    frozen, inputs, outputs, tables, names_of = tf_loader.from_saved_model(
        str(folder),
        None,
        None,
        tag=list(meta.meta_info_def.tags),
        signatures=[chosen],
        return_initialized_tables=True,
        return_tensors_to_rename=True,
    )
    step()
    return _converted(
        frozen,
        folder.name,
        inputs,
        outputs,
        tensors_to_rename=names_of,
        initialized_tables=tables,
        shape_override=_open_dims(frozen, names_of, shapes),
    )


def _keras(path: Path, shapes: Shapes, step: Callable[[], None]) -> ModelProto:
    import keras
    import tensorflow as tf
    from tf2onnx import tf_loader

    step()
    try:
        model = keras.models.load_model(path, compile=False)
    except Exception as error:
        raise ModelError(
            f"Keras does not load it: {shortened(one_line(error))}; a SavedModel needs neither "
            "custom classes nor lambdas: model.export(folder)"
        ) from error
    step()
    if not getattr(model, "inputs", None):
        raise ModelError(
            "the Keras model does not know its inputs; call it once on data before it is saved, or "
            "export a SavedModel: model.export(folder)"
        )
    signature = [
        tf.TensorSpec(_filled(value.shape, shapes.get(value.name)), value.dtype, value.name)
        for value in model.inputs
    ]

    # Its arguments: a tensor, a list or a dict of them. A Sequential does not say.
    structure = getattr(model, "input", model.inputs[0])

    def call(*inputs: Any) -> Any:
        return tf.nest.flatten(model(tf.nest.pack_sequence_as(structure, inputs), training=False))

    concrete = tf.function(call, input_signature=signature).get_concrete_function()
    inputs = [value.name for value in concrete.inputs[: len(signature)]]  # weights come after them
    outputs = [output.name for output in concrete.outputs]
    names = list(getattr(model, "output_names", ()))
    if len({*names}) != len(outputs):  # a Sequential has none
        names = [f"output_{index}" for index in range(len(outputs))] if outputs[1:] else ["output"]
    taken = {value.name for value in model.inputs}
    frozen, tables = tf_loader.from_trackable(model, concrete, inputs, outputs, large_model=False)
    return _converted(
        frozen,
        path.stem,
        inputs,
        outputs,
        tensors_to_rename={
            **{tensor: value.name for tensor, value in zip(inputs, model.inputs, strict=True)},
            **{
                tensor: f"{name}_" if name in taken else name
                for tensor, name in zip(outputs, names, strict=True)
            },
        },
        initialized_tables=tables,
    )


def _frozen(path: Path, shapes: Shapes, step: Callable[[], None]) -> ModelProto:
    import tensorflow as tf
    from google.protobuf.message import DecodeError
    from tf2onnx import tf_loader

    step()
    try:
        graph_def = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    except DecodeError as error:
        raise ModelError(
            "is not a frozen graph, or damaged; expected a GraphDef (.pb), a SavedModel folder, "
            ".keras or .h5"
        ) from error
    variables = [node.name for node in graph_def.node if node.op in _VARIABLES]
    if variables:
        raise ModelError(
            f"the graph is not frozen: {variables[0]!r} is a variable, whose value is not in the "
            "file; give the SavedModel folder, or freeze it with TensorFlow's "
            "convert_variables_to_constants_v2"
        )
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
    operations = graph.get_operations()
    inputs = [
        operation.outputs[0].name for operation in operations if operation.type == "Placeholder"
    ]
    outputs = [
        tensor.name
        for operation in operations
        if operation.type not in _NO_RESULTS
        and not any(tensor.consumers() for tensor in operation.outputs)
        for tensor in operation.outputs
    ]
    if not (inputs and outputs):
        raise ModelError(
            f"the graph has {len(inputs)} inputs (Placeholder) and {len(outputs)} outputs; "
            "expected a model of at least one each"
        )
    step()
    # "x:1", an operation's second output, stays as it is.
    names_of = {name: name.removesuffix(":0") for name in inputs + outputs}
    frozen, inputs, outputs = tf_loader.from_graphdef(str(path), inputs, outputs)
    return _converted(
        frozen,
        path.stem,
        inputs,
        outputs,
        tensors_to_rename=names_of,
        shape_override=_open_dims(graph_def, names_of, shapes),
    )


def _converted(
    frozen: Any, name: str, inputs: Sequence[str], outputs: Sequence[str], **more: Any
) -> ModelProto:
    """Return a frozen graph as ONNX: what `python -m tf2onnx.convert` does after loading."""
    from tf2onnx import convert

    model: ModelProto
    model, _ = convert._convert_common(
        frozen, name=name, opset=OPSET, input_names=inputs, output_names=outputs, **more
    )
    return model


_VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})
# Operations without consumers that are no result of the model.
_NO_RESULTS = frozenset({"Placeholder", "Const", "NoOp", "Assert", "SaveV2", "MergeV2Checkpoints"})


def _open_dims(graph_def: Any, names_of: Mapping[str, str], shapes: Shapes) -> dict[str, list[int]]:
    """Return the requested shapes by tensor, where they only fill in open dims.

    Contradictions to the model are left for the conversion's later steps, which say so.
    """
    placeholders = {f"{node.name}:0": node for node in graph_def.node if node.op == "Placeholder"}
    filled_shapes = {}
    for tensor, name in names_of.items():
        if name in shapes and tensor in placeholders:
            shape = placeholders[tensor].attr["shape"].shape
            own = None if shape.unknown_rank else [dim.size for dim in shape.dim]
            filled = _filled(own, shapes[name])
            filled_shapes[tensor] = [-1 if dim is None else dim for dim in filled or ()]
    return filled_shapes


def _filled(
    own: Sequence[int | None] | None, asked: Sequence[int] | None
) -> list[int | None] | None:
    """Return a model's own shape (open dims: None or -1; None: open rank), open dims as asked."""
    if own is None:
        return None if asked is None else [None if dim < 0 else dim for dim in asked]
    shape = [None if dim is None or dim < 0 else dim for dim in own]
    if asked is None or len(asked) != len(shape):
        return shape
    return [
        wanted if dim is None and wanted > 0 else dim
        for dim, wanted in zip(shape, asked, strict=True)
    ]
