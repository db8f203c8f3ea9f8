"""Times of layers: what TensorRT's profiler tells after each predict that is measured.

It tells how long each layer took, in the order in which they ran, and not when. So a layer is said
to begin where the one before it ended.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from engine.errors import BackendUnavailable
from engine.types import KernelTime
from engine_gpu_trt import messages
from engine_gpu_trt.layers import Layer

Times: TypeAlias = Sequence[tuple[str, float]]
"""Layers of one predict with the milliseconds that each took, in running order."""


class Measurement:
    """Times of all predicts of one executable; any thread. Its kind is in `add`."""

    def __init__(self, trt: Any) -> None:
        self._trt = trt
        self._lock = threading.Lock()
        self._predicts = itertools.count()

    def watch(self, context: Any) -> Watch:
        """Measure a context of TensorRT's from now on, inside `with gpu`."""
        return Watch(context, _profiler(self._trt)(), self._predicts, self._add)

    def _add(self, predict: int, begin_s: float, times: Times) -> None:
        with self._lock:
            self.add(predict, begin_s, times)

    def add(self, predict: int, begin_s: float, times: Times) -> None:
        """Take the times of one predict that began then."""
        raise NotImplementedError

    def close(self) -> None:
        """No more predicts come."""


class KernelTimes(Measurement):
    """Each time of each layer, for `Executable.profile()`."""

    def __init__(self, trt: Any) -> None:
        super().__init__(trt)
        self._kept: list[tuple[int, float, Times]] = []

    def add(self, predict: int, begin_s: float, times: Times) -> None:
        """See Measurement."""
        self._kept.append((predict, begin_s, times))

    def times(self, layers: Sequence[Layer]) -> Sequence[KernelTime]:
        """Return them all; layers: the engine's, as far as they are known."""
        known = {layer.name: layer for layer in layers}
        return [
            layer_time
            for predict, begin_s, times in self._kept
            for layer_time in _in_order(predict, begin_s, times, known)
        ]


def _in_order(
    predict: int, begin_s: float, times: Times, known: dict[str, Layer]
) -> Iterator[KernelTime]:
    start_s = begin_s
    for name, ms in times:
        layer = known.get(name) or Layer(name)
        yield KernelTime(
            predict=predict,
            nodes=tuple(sorted(layer.nodes)),
            name=name,
            op_type=layer.kind,
            start_s=start_s,
            duration_s=ms / 1e3,
        )
        start_s += ms / 1e3


class LayerFile(Measurement):
    """Sums of the times of each layer, for the setting `layer_profile`: a file as JSON."""

    def __init__(self, trt: Any, path: str) -> None:
        super().__init__(trt)
        self._path = path
        self._sums: dict[str, list[float]] = {}

    def add(self, predict: int, begin_s: float, times: Times) -> None:
        """See Measurement."""
        for name, ms in times:
            total = self._sums.setdefault(name, [0, 0.0])
            total[0] += 1
            total[1] += ms

    def close(self) -> None:
        """Write the file, slowest layer first. Raises BackendUnavailable."""
        slowest_first = sorted(self._sums.items(), key=lambda item: -item[1][1])
        rows = [
            {"layer": name, "runs": runs, "mean_ms": total / runs, "total_ms": total}
            for name, (runs, total) in slowest_first
        ]
        try:
            Path(self._path).write_text(json.dumps(rows, indent=1) + "\n")
        except OSError as error:
            raise BackendUnavailable(
                f"layer_profile: {self._path} cannot be written: {error.strerror or error}",
                "gpu_trt",
            ) from error


class Watch:
    """The measurement of one context: `begin` and `end` stand around each execution."""

    def __init__(
        self,
        context: Any,
        profiler: Any,
        predicts: Iterator[int],
        add: Callable[[int, float, Times], None],
    ) -> None:
        context.enqueue_emits_profile = False  # or each would be waited for
        context.profiler = profiler
        self._profiler = profiler
        self._predicts = predicts
        self._add = add
        self._predict, self._begin_s = -1, 0.0

    def begin(self) -> None:
        """An execution begins, everything before it being done."""
        self._profiler.times = []
        self._begin_s = time.monotonic()
        self._predict = next(self._predicts)

    def end(self, context: Any) -> None:
        """It is done: take the times of its layers. Raises BackendUnavailable."""
        mark = messages.mark()
        if not context.report_to_profiler():
            raise BackendUnavailable(
                f"TensorRT does not tell the times of layers: {messages.since(mark)}", "gpu_trt"
            )
        self._add(self._predict, self._begin_s, self._profiler.times)


@cache
def _profiler(trt: Any) -> Any:
    """Return the class that TensorRT tells the times of one context's layers."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]  # a class of a module without types
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.times: list[tuple[str, float]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times.append((layer_name, ms))

    return Profiler
