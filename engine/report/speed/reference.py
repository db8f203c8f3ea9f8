"""A fixed computation of numpy's, by which runs of different days are compared.

Half of it is arithmetic on numbers in the nearest cache, half of it goes through memory: a model
does both. Each product is too small for BLAS to divide it among threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from engine.report.speed.rounds import Call


@contextmanager
def reference() -> Iterator[Call]:
    """Yield the computation: one call takes about 0.4 ms."""
    generator = np.random.default_rng(0)
    left, right = (generator.standard_normal((16, 48, 48), np.float32) for _ in range(2))
    large = generator.standard_normal(1 << 19, np.float32)
    product, total = np.empty_like(left), np.empty_like(large)

    def compute() -> None:
        for _ in range(4):
            np.matmul(left, right, out=product)
        np.add(large, np.float32(1), out=total)

    yield compute
