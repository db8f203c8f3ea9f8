"""From a model's results to the outputs of an answer: those that were asked for, as asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from engine_serve.datatypes import of_array
from engine_serve.errors import RequestError
from engine_serve.loaded import LoadedModel
from engine_serve.request import Inference, Output
from engine_serve.tensors import Array


def outputs_of(
    results: Mapping[str, Array], inference: Inference, model: LoadedModel
) -> Iterator[tuple[Output, str, Array]]:
    """Yield what to answer: each output with its datatype and values."""
    if inference.outputs is None:
        for name, values in results.items():
            yield Output(name, is_binary=inference.all_binary), of_array(values), values
        return
    for output in inference.outputs:
        values = results[output.name]
        if output.classes:
            values = classified(values, output, model.labels.get(output.name, ()))
        yield output, of_array(values), values


def classified(values: Array, output: Output, labels: Sequence[str] = ()) -> Array:
    """Return the highest elements of each sample as "value:index", the highest first.

    A value of one axis is one sample; else the first axis is the batch. labels: by index.
    """
    if values.dtype.kind not in "biuf" and values.dtype.kind != "V":
        raise RequestError(f"output {output.name!r}: only numbers can be classified", output.name)
    if values.ndim == 0:
        raise RequestError(f"output {output.name!r}: a scalar has no classes", output.name)
    rows = values.reshape(1, -1) if values.ndim == 1 else values.reshape(len(values), -1)
    count = min(output.classes, rows.shape[1])
    # The order is by value, the highest first; equal ones by index. NaN comes last.
    keys = rows if rows.dtype.kind in "iub" else rows.astype(np.float64)
    texts = np.empty((len(rows), count), object)
    for row, key in enumerate(keys):
        falling: Array = -key if key.dtype.kind == "f" else np.invert(key)
        order = np.argsort(falling, kind="stable")[:count]
        for place, index in enumerate(order.tolist()):
            text = f"{_text(rows[row, index])}:{index}"
            texts[row, place] = f"{text}:{labels[index]}" if index < len(labels) else text
    return texts[0] if values.ndim == 1 else texts


def _text(value: Any) -> str:
    return f"{float(value):f}" if value.dtype.kind not in "iub" else str(value)
