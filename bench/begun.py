"""64 requests in flight on a fake device that takes 50 ms each: begun, and with a thread for each.

    python bench/begun.py
    python bench/begun.py --requests 256 --delay 0.02 -n 5

The null backend with a device, as it is (`engine_predict_async`) and without that capability, by
turns. Each row: the least time from the first request to the last result, over the device's time,
and the most threads beyond those that were there before. Needs the kit.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import engine
from engine_testing import models, plugins

BLOCKING = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    found = null_device.engine_backend()
    return replace(found, name="blocking", capabilities=found.capabilities - {"async_predict"})
"""


async def flight(model: engine.Model, requests: int) -> tuple[float, int]:
    """Return how long so many requests take together, and how many threads they need."""
    x = np.ones((2, 3), np.float32)
    before, most = threading.active_count(), 0
    begin = time.perf_counter()
    tasks = [asyncio.ensure_future(model.predict_async([x])) for _ in range(requests)]
    while not all(task.done() for task in tasks):
        most = max(most, threading.active_count() - before)
        await asyncio.sleep(0.001)
    for task in tasks:
        assert (task.result()[0].get_data_to_numpy() == 3).all()
    return time.perf_counter() - begin, most


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", type=int, default=3, help="rounds (3)")
    parser.add_argument("--requests", type=int, default=64, help="in flight (64)")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds on the device (0.05)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sys.path.insert(0, str(folder))
        plugins.install(folder, "null", "engine_testing.null_device")
        plugins.install(folder, "blocking", "blocking_null", source=BLOCKING)
        path, results = models.affine(folder), dict[str, list[tuple[float, int]]]()
        for _ in range(given.n):
            for name in ("null", "blocking"):
                config = {f"{name}_context": {"delay_s": str(given.delay)}}
                with engine.load(path, target=name, config=config) as model:
                    model.predict([np.ones((2, 3), np.float32)])
                    found = asyncio.run(flight(model, given.requests))
                    results.setdefault(name, []).append(found)
    print(f"{given.requests} requests of {given.delay:g} s each on the device")
    print(f"{'way':24} {'time':>9} {'over the device':>16} {'threads more':>13}")
    for name, way in (("null", "engine_predict_async"), ("blocking", "engine_predict")):
        seconds = min(took for took, _ in results[name])
        threads = max(most for _, most in results[name])
        print(f"{way:24} {seconds:7.3f} s {seconds / given.delay:16.2f} {threads:13}")


if __name__ == "__main__":
    main()
