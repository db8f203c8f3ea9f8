"""Steps that tests of runners have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphs import written

from engine import Context, ModelParallelRunner, Tensor

GATED = """
import threading

plain, begun, go = engine_predict, [], threading.Event()

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    begun.append(float(inputs[0].flat[0]))
    assert go.wait(60)
    return plain(context, inputs, outputs, deadline_s)
"""


def result(outputs: list[Tensor]) -> Any:
    [y] = outputs
    return y.get_data_to_numpy().tolist()


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns or raises."""
    try:
        return call()
    except Exception as error:
        return error


def save(folder: Path, graph: str, opset: int = 17) -> Path:
    """Write a graph that is written as ONNX's text format writes it, without its name."""
    return written(folder / "net.onnx", f"net {graph}", opset=opset)


def build(path: Path, target: str, workers: int = 1, config: Any = None, **settings: Any) -> Any:
    """Build a runner of a model on the host."""
    context = Context()
    context.target = [target]
    context.parallel.workers_num = workers
    if config:
        context.parallel.config_info = config
    runner = ModelParallelRunner()
    runner.build_from_file(str(path), context, **settings)
    return runner
