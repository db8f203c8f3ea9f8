"""Steps that tests of this folder have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from onnx.parser import parse_model

import engine


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.001)


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Call `work` in so many threads, and raise what one of them raised."""
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count)))


def parsed(graph: str, target: str, opset: int = 17, ir_version: int = 8) -> engine.Model:
    """Build a graph that is written as ONNX's text format writes it, without its name."""
    versions = f'ir_version: {ir_version}, opset_import: ["": {opset}, "ai.onnx.ml": 1]'
    return engine.load(parse_model(f"<{versions}> values {graph}"), target=target)
