"""Optional as ONNX defines it: onnx's reference evaluator gives a list of what it is to hold."""

from __future__ import annotations

from typing import Any

from onnx.reference.ops.op_optional import Optional as _Optional


class Optional(_Optional):
    """The same operator: its output is the value itself, None where there is none."""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:
        return (x,)

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return res if res[0] is None else super()._check_and_fix_outputs(res)
