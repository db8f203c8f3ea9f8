"""Steps that tests of runners have in common."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from engine import Tensor

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


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.001)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
