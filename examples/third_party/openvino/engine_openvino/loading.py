"""A model as OpenVINO reads it, and the nodes that it leaves to another backend."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from engine.errors import ModelError, one_line
from engine.hookspecs import hookimpl
from engine.model_bytes import infer_shapes
from engine.options import parsed
from engine.types import CompileOptions, GraphInfo, ModelSource
from engine_openvino.manifest import OPTIONS
from engine_openvino.nodes import unsupported_nodes


class OpenVINOModel:
    """A LoadedModel. model: OpenVINO's; None where it was not read, as for a compiled form."""

    def __init__(self, source: ModelSource) -> None:
        assert source.graph is not None  # it is None only for formats that are not announced
        self.source = source
        self.graph = source.graph
        self.inputs = self.graph.inputs
        self.outputs = self.graph.outputs
        self.unsupported: Mapping[int, str] = {}
        self.model: Any = None

    def close(self) -> None:
        self.model = None


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> OpenVINOModel:
    """Read a model; a node that OpenVINO cannot compute is reported, and is no error."""
    import onnx

    parsed(options.options, OPTIONS)  # a wrong option is an error before anything is read
    loaded = OpenVINOModel(source)
    if source.compiled is not None:  # only a model that had no unsupported node has this
        return loaded
    try:
        if source.data is None:
            proto = onnx.load(str(source.path), load_external_data=False)
        else:
            proto = onnx.load_model_from_string(source.data)
            if source.folder is not None:
                onnx.load_external_data_for_model(proto, str(source.folder))
        typed = infer_shapes(proto)
        loaded.unsupported = unsupported_nodes(source, loaded.graph, typed)
        if not loaded.unsupported:
            data = proto.SerializeToString() if source.data and source.folder else source.data
            loaded.model = _converted(str(source.path) if data is None else data)
            loaded.unsupported = _unknown(loaded.model, loaded.graph)
    except Exception as error:  # protobuf, onnx and OpenVINO share no base
        raise refused(source, error) from error
    return loaded


def _converted(model: str | bytes) -> Any:
    """Return OpenVINO's form of a model; what it cannot convert stays ONNX's."""
    from openvino.frontend import FrontEndManager

    reader = FrontEndManager().load_by_framework("onnx")

    def read() -> Any:  # anew each time: a conversion empties what it was given
        return reader.load(model if isinstance(model, str) else io.BytesIO(model))

    try:
        return reader.convert(read())
    except RuntimeError:
        return reader.convert_partially(read())


def _unknown(model: Any, graph: GraphInfo) -> dict[int, str]:
    """Return the nodes that OpenVINO has not converted, or whose results' rank it cannot tell."""
    unknown = [
        output
        for operator in model.get_ops()
        for output in operator.outputs()
        if "ONNX" in operator.get_type_name() or output.partial_shape.rank.is_dynamic
    ]
    names = {name for output in unknown for name in (*output.names, output.node.friendly_name)}
    found = [node.index for node in graph.nodes if names.intersection(node.outputs)]
    found = found or list(range(len(graph.nodes) if unknown else 0))  # it is in a subgraph
    return dict.fromkeys(found, "OpenVINO cannot read it, or cannot tell the rank of its result")


def refused(source: ModelSource, why: BaseException | str) -> ModelError:
    """Return the error for a model that cannot be read, compiled or run."""
    text = f"{source.name}: {why if isinstance(why, str) else one_line(why)}"
    return ModelError(text, str(source.path or ""))
