"""Contexts of a model with inputs of no declared rank: see prepare/ranks.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.types import Values
from engine_cpu.run import CpuContext

if TYPE_CHECKING:
    from engine_cpu.prepare.ranks import RankCheck


def checked(context: type[CpuContext], check: RankCheck) -> type[CpuContext]:
    """Return a context class that checks the ranks of inputs before each run."""

    class Checked(context):  # type: ignore[misc, valid-type]
        """A context that runs nothing on inputs of ranks that no kernel is prepared for."""

        def run(self, inputs: Any, outputs: Any, deadline_s: float | None) -> Values:
            check.check(inputs)
            results: Values = super().run(inputs, outputs, deadline_s)
            return results

    return Checked
