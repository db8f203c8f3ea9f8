"""Loop as ONNX defines it: onnx's reference evaluator has an implementation with three faults.

It does not run at all where the condition is left out, joins what the rounds give along the first
axis instead of stacking it, and fails where there are scan outputs but no round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TypeProto
from onnx.reference.ops.op_loop import Loop as _Loop

from engine.types import DType


class Loop(_Loop):
    """The same operator.

    body, _run_body: what the evaluator makes of the attribute, and the way to run it.
    """

    body: Any
    _run_body: Any

    def _run(
        self,
        M: Any,  # ONNX's names, which are the keywords here
        cond: Any,
        *carried: Any,
        context: Mapping[str, Any] | None = None,
        body: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[Any, ...]:
        """Run the body while its condition holds, at most M times; None stands for no limit."""
        names = self.body.input_names
        states = list(carried)
        scans: list[list[Any]] = [[] for _ in range(self.K)]
        index, goes_on = 0, np.array(True if cond is None else cond)
        while goes_on and (M is None or index < M):
            given = dict(zip(names, (np.array(index, np.int64), goes_on, *states), strict=True))
            goes_on, *found = self._run_body(
                {**(context or {}), **given}, attributes=attributes, bindings=bindings
            )
            states = found[: self.N]
            for scan, value in zip(scans, found[self.N :], strict=True):
                scan.append(value)
            index += 1
        types = self.body.output_types[1 + self.N :]
        stacked = [np.stack(s) if s else _none_of(t) for s, t in zip(scans, types, strict=True)]
        return self._check_and_fix_outputs((*states, *stacked))


def _none_of(declared: TypeProto) -> np.ndarray[Any, Any]:
    """Return the scan output of no round; an open axis has nothing to fix it and is empty too."""
    of = declared.tensor_type
    return np.empty(
        (0, *(dim.dim_value for dim in of.shape.dim)), DType.from_onnx(of.elem_type).numpy
    )
