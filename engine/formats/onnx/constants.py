"""The values of a model's constants, with the onnx package; imported where that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_model

from engine.errors import ModelError
from engine.types import ModelSource

Array: TypeAlias = "np.ndarray[Any, Any]"


def constant_values(source: ModelSource) -> Mapping[str, Array]:
    """Return what a model's initializers and Constant nodes hold, by name.

    For a part that was cut out, whose bytes are in memory. Raises ModelError for what is no tensor.
    """
    assert source.data is not None, "a part is in memory"
    model = onnx.load_model_from_string(source.data)
    if source.folder is not None:
        load_external_data_for_model(model, str(source.folder))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            if node.attribute[0].name != "value":
                raise ModelError(
                    f"{source.name}: Constant {node.name!r} holds {node.attribute[0].name!r}; "
                    "between ranks only one that holds a tensor, in 'value', can go",
                    source.name,
                )
            tensors[node.output[0]] = node.attribute[0].t
    return {name: np.array(numpy_helper.to_array(tensor)) for name, tensor in tensors.items()}
