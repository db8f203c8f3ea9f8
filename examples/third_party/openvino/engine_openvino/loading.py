"""A model as OpenVINO reads it, and the nodes that it leaves to another backend."""

import io
from typing import Any

from engine.errors import ModelError, one_line
from engine.hookspecs import hookimpl
from engine.model_bytes import infer_shapes
from engine.types import CompileOptions, GraphInfo, ModelSource
from engine_openvino.nodes import unsupported_nodes


class Loaded:
    """A LoadedModel. model: OpenVINO's; None where it was not read, as for a compiled form."""

    def __init__(self, source: ModelSource) -> None:
        assert source.graph is not None  # it is None only for formats that are not announced
        self.source, self.graph = source, source.graph
        self.inputs, self.outputs = self.graph.inputs, self.graph.outputs
        self.unsupported: dict[int, str] = {}
        self.model: Any = None

    def close(self) -> None:
        self.model = None


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> Loaded:
    """Read a model; a node that OpenVINO cannot compute is reported, and is no error."""
    import onnx
    from openvino.frontend import FrontEndManager

    loaded = Loaded(source)
    if source.compiled is not None:  # only a model that had no unsupported node has this
        return loaded
    try:
        file = str(source.path) if source.data is None else io.BytesIO(source.data)
        proto = onnx.load(file, load_external_data=False)
        if source.data is not None and source.folder is not None:
            onnx.load_external_data_for_model(proto, str(source.folder))
            file = io.BytesIO(proto.SerializeToString())
        loaded.unsupported = unsupported_nodes(source, loaded.graph, infer_shapes(proto).graph)
        if not loaded.unsupported:
            reader = FrontEndManager().load_by_framework("onnx")
            loaded.model = reader.convert_partially(reader.load(file))  # the rest stays ONNX's
            loaded.unsupported = _unknown(loaded.model, loaded.graph)
    except Exception as error:  # protobuf, onnx and OpenVINO share no base
        raise refused(source, one_line(error)) from error
    return loaded


def _unknown(model: Any, graph: GraphInfo) -> dict[int, str]:
    """Return the nodes that OpenVINO has not converted, or whose results' rank it cannot tell."""
    names = {
        name
        for operator in model.get_ops()
        for output in operator.outputs()
        if "ONNX" in operator.get_type_name() or output.partial_shape.rank.is_dynamic
        for name in (*output.names, operator.friendly_name)
    }
    found = [node.index for node in graph.nodes if names.intersection(node.outputs)]
    found = found or list(range(len(graph.nodes) if names else 0))  # it is in a subgraph
    return dict.fromkeys(found, "OpenVINO cannot read it, or cannot tell the rank of its result")


def refused(source: ModelSource, why: str) -> ModelError:
    """Return the error for a model that cannot be read, compiled or run."""
    return ModelError(f"{source.name}: {why}", str(source.path or ""))
