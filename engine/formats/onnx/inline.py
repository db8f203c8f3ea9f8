"""External data that is in memory, put into the model that names it."""

from __future__ import annotations

from dataclasses import replace

from engine.errors import ModelError
from engine.formats.onnx import limits, schema, writer
from engine.formats.onnx.rewrite import changed, stored_tensor
from engine.formats.onnx.writer import Parts
from engine.formats.protobuf import Budget
from engine.types import ModelSource


def inlined(source: ModelSource) -> ModelSource:
    """Return the model with all of `source.files` in its `data`; itself where there are none.

    `data` must have been checked. Raises ModelError where the result is larger than protobuf can.
    """
    if not source.files:
        return source
    assert source.data is not None, "what names files in memory is in memory itself"
    budget = Budget(limits.FIELDS)

    def tensor(view: memoryview) -> Parts:
        return _with_data(view, source, budget)

    def graph(view: memoryview) -> Parts:
        return changed(view, {schema.GRAPH_INITIALIZER: tensor}, budget)

    parts = changed(memoryview(source.data), {schema.MODEL_GRAPH: graph}, budget)
    size = sum(map(len, parts))
    if size > limits.MODEL_BYTES:
        raise ModelError(
            f"{source.name}: {size:,} bytes as one ONNX model, and protobuf's limit is "
            f"{limits.MODEL_BYTES:,}; use a backend that reads weights in memory, such as cpu",
            str(source.path or ""),
        )
    return replace(source, data=writer.joined(parts), files={})


def _with_data(view: memoryview, source: ModelSource, budget: Budget) -> Parts:
    """Return a tensor with its data in it; as it is where that is in no file in memory."""
    tensor = stored_tensor(view, budget)
    content = source.files.get(tensor.entries.get("location", ""))
    if content is None:
        return [view]
    data = memoryview(content)[int(tensor.entries.get("offset", "0")) :]
    if "length" in tensor.entries:
        data = data[: int(tensor.entries["length"])]
    return writer.tensor_parts(writer.Tensor(tensor.name, tensor.dtype, tensor.shape, data))
