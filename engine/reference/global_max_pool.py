"""GlobalMaxPool, for which onnx 1.23's evaluator takes other axes unless there are two in space."""

from __future__ import annotations

from typing import Any

from onnx.reference.op_run import OpRun


class GlobalMaxPool(OpRun):
    """The largest value of each channel, with axes of size 1 in the place of those in space."""

    def _run(self, x: Any) -> tuple[Any]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)
