"""LRN, which onnx 1.23's evaluator sums over as many channels as there are samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


class LRN(OpRun):
    """Local response normalisation: divide by a sum of squares over neighbouring channels."""

    def _run(
        self, x: Any, alpha: Any = None, beta: Any = None, bias: Any = None, size: Any = None
    ) -> tuple[Any]:
        before, after = (size - 1) // 2, size // 2
        margin = [(0, 0)] * x.ndim
        margin[1] = (before, after)
        squares = np.pad(x.astype(np.promote_types(x.dtype, np.float32)) ** 2, margin)
        channels = x.shape[1]
        total = sum(squares[:, first : first + channels] for first in range(size))
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)
