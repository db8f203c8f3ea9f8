"""Models with rare operators among common ones: where a backend lacks one, another runs it.

Their inputs are made up; the answers are those of the other target alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

from engine_testing.making import floats, graph, longs
from engine_testing.models import branch, sequences
from engine_testing.numeric_models import block

Constants: TypeAlias = dict[str, npt.NDArray[Any]]


def counted(folder: Path) -> Path:
    """The places of what is not 0, doubled: NonZero between a product and a sum."""
    text = """(float[4, 8] x) => (float[2, found] y) {
        square = Mul (x, x)
        places = NonZero (square)
        numbers = Cast <to = 1> (places)
        y = Add (numbers, numbers)
    }"""
    return graph(folder, "counted", text)


def ranked(folder: Path) -> Path:
    """The three largest of each row, scaled: TopK, whose two outputs go to both sides."""
    text = """(float[4, 8] x) => (float[4, 3] y, int64[4, 3] places) {
        shifted = Sub (x, one)
        values, places = TopK (shifted, three)
        y = Mul (values, two)
    }"""
    constants: Constants = {"one": floats([1]), "two": floats([2]), "three": longs([3])}
    return graph(folder, "ranked", text, constants)


def crossed(folder: Path) -> Path:
    """Values that go past a rare node, to both sides of it: CumSum beside a product."""
    text = """(float[4, 4] x) => (float[4, 4] y, float[4, 4] z) {
        product = MatMul (x, x)
        summed = CumSum (product, axis)
        y = Add (summed, product)
        ratio = Sub (y, x)
        z = CumSum (ratio, axis)
    }"""
    return graph(folder, "crossed", text, {"axis": longs(1)})


def scattered(folder: Path) -> Path:
    """Three rare nodes in a row of six: Erf, ScatterND and Mod."""
    text = """(float[4, 4] x) => (float[4, 4] y) {
        doubled = Add (x, x)
        curved = Erf (doubled)
        scaled = Mul (curved, three)
        placed = ScatterND (scaled, at, rows)
        rest = Mod <fmod = 1> (placed, three)
        y = Sub (rest, x)
    }"""
    constants: Constants = {
        "three": floats([3]),
        "at": longs([[1], [3]]),
        "rows": floats([[1] * 4, [2] * 4]),
    }
    return graph(folder, "scattered", text, constants)


MODELS = (counted, ranked, crossed, scattered, branch, sequences, block)
