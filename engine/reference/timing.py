"""Times of the nodes that the reference evaluator runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.types import KernelTime


class Stopwatch:
    """Measures the nodes of an evaluator's main graph; those in a subgraph count to their owner.

    For one predict at a time: each begins with `begin`.
    """

    def __init__(self, nodes: Sequence[Any], is_as_in_file: bool) -> None:
        """Measure these from now on.

        nodes: the evaluator's. is_as_in_file: they are the nodes of the model's graph, in order;
            not where functions have been inlined.
        """
        self.times: list[KernelTime] = []
        self._predict = -1
        for index, node in enumerate(nodes):
            node.run = self._measured(node, (index,) if is_as_in_file else ())

    def begin(self) -> None:
        """Count a predict."""
        self._predict += 1

    def _measured(self, node: Any, indices: tuple[int, ...]) -> Callable[..., Any]:
        run = node.run
        name, op_type = node.onnx_node.name, node.onnx_node.op_type

        def measured(*args: Any, **kwargs: Any) -> Any:
            start_s = time.monotonic()
            results = run(*args, **kwargs)
            duration_s = time.monotonic() - start_s
            self.times.append(
                KernelTime(
                    predict=self._predict,
                    nodes=indices,
                    name=name,
                    op_type=op_type,
                    start_s=start_s,
                    duration_s=duration_s,
                )
            )
            return results

        return measured
