"""A link in the model's folder that is changed while the model is loaded leads to nothing new."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hostile.graphs import ADD

import engine
from engine import formats
from engine.errors import ModelError
from engine.formats.opened import open_external
from engine_testing import encode, models

OUTSIDE = np.full(4, 7, np.float32).tobytes()
INSIDE = np.ones(4, np.float32).tobytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model whose data is reached through a link inside its folder; a secret lies outside."""
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "w.bin").write_bytes(INSIDE)
    (tmp_path / "w.bin").write_bytes(OUTSIDE)
    (folder / "to").symlink_to("data")
    weight = encode.tensor("w", [4], external={"location": "to/w.bin"})
    kind = encode.type_of([4])
    body = encode.graph(
        [encode.node(*ADD)], [encode.value("x", kind)], [encode.value("y", kind)], [weight]
    )
    (folder / "model.onnx").write_bytes(encode.model(body))
    return folder / "model.onnx"


def turn(folder: Path, target: str) -> None:
    (folder / "next").symlink_to(target)
    os.replace(folder / "next", folder / "to")


@pytest.fixture
def swapping(path: Path) -> Iterator[Path]:
    """The same, while a thread turns the link inside and out as fast as it can."""
    stopped = threading.Event()

    def swap() -> None:
        while not stopped.is_set():
            turn(path.parent, "..")
            turn(path.parent, "data")

    thread = threading.Thread(target=swap)
    thread.start()
    yield path
    stopped.set()
    thread.join()


def test_a_link_that_was_changed_since_the_check_is_not_followed(path: Path) -> None:
    source = formats.open_source(path)
    with open_external(source, "to/w.bin") as file:
        assert file.read() == INSIDE
    turn(path.parent, "..")
    with (
        pytest.raises(ModelError, match=r"to/w\.bin: is not the file that was checked"),
        open_external(source, "to/w.bin"),
    ):
        pass
    (path.parent / "to").unlink()
    with (
        pytest.raises(ModelError, match="cannot be read any more: No such file"),
        open_external(source, "to/w.bin"),
    ):
        pass


def test_another_data_file_of_the_model_is_not_read_for_the_one_that_was_checked(
    tmp_path: Path,
) -> None:
    source = formats.open_source(models.linked(tmp_path))
    (tmp_path / "a.bin").unlink()
    (tmp_path / "a.bin").symlink_to("blobs/b")
    with (
        pytest.raises(ModelError, match=r"a\.bin: is not the file that was checked"),
        open_external(source, "a.bin"),
    ):
        pass


def test_no_moment_lets_a_file_outside_be_checked_for_one_inside(swapping: Path) -> None:
    inside = os.stat(swapping.parent / "data" / "w.bin").st_ino
    end = time.monotonic() + 1
    opened = 0
    while time.monotonic() < end:
        try:
            source = formats.open_source(swapping)
        except ModelError:
            continue
        opened += 1
        inodes = {version.inode for file, version in source.versions.items()}
        assert inodes == {inside}
    assert opened


def test_no_moment_lets_a_backend_read_a_file_outside(swapping: Path, null_backend: str) -> None:
    """Through the evaluator, which opens external data itself: once 1,085 of 5,617 builds."""
    end = time.monotonic() + 1
    built = 0
    x = np.zeros(4, np.float32)
    while time.monotonic() < end:
        try:
            model = engine.load(swapping, target=null_backend)
        except ModelError:
            continue
        built += 1
        [y] = model.predict([x])
        np.testing.assert_array_equal(y.get_data_to_numpy(), np.ones(4, np.float32))
        model.close()
    assert built
