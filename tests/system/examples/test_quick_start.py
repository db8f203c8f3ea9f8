"""The tutorial's first script runs as it is and prints what the model gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from own_python import python

import engine

FOLDER = Path(__file__).parents[3] / "examples"
MODEL = FOLDER / "digits" / "digits.onnx"


def printed(*arguments: str | Path) -> list[str]:
    script = FOLDER / "quick_start" / "quick_start.py"
    done = python(script, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def expected(image: np.ndarray) -> list[str]:
    lines = []
    with engine.load(MODEL) as model:
        for name, array in model(image=image).items():
            lines.append(
                f"tensor name is: {name}, tensor size is: {array.nbytes} bytes, "
                f"tensor elements num is: {array.size}"
            )
            lines.append(f"output data is: {' '.join(map(str, array.ravel()))}")
    return lines


def test_it_runs_on_ones_and_prints_its_table():
    lines = printed()
    assert lines == expected(np.ones((1, 1, 8, 8), np.float32))
    assert len(lines) == 4
    assert lines[2] == "tensor name is: label, tensor size is: 8 bytes, tensor elements num is: 1"


def test_it_reads_an_input_from_a_raw_file(tmp_path):
    with np.load(FOLDER / "digits" / "test_images.npz") as held_back:
        image, label = held_back["image"][:1], held_back["label"][0]
    image.tofile(tmp_path / "input.bin")
    lines = printed(MODEL, tmp_path / "input.bin")
    assert lines == expected(image)
    assert lines[3] == f"output data is: {label}"
