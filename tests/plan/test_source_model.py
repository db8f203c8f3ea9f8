"""Facts kept of the original model: the shapes of its outputs at other shapes of its inputs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from graphs import written
from onnx import load, save

import engine
from engine.errors import ModelError
from engine.formats import ModelFile
from engine.plan.reshape import reshape
from engine.plan.source_model import SourceModel
from engine_testing import models


def opened(path: Path) -> SourceModel:
    file = ModelFile(path)
    return SourceModel(file, file())


def test_another_output_is_inferred_at_the_same_shapes_too(tmp_path: Path) -> None:
    """The file does not say how long its outputs are: two and three times the input."""
    nodes = "twice = Concat <axis = 0> (x, x)\n thrice = Concat <axis = 0> (x, x, x)"
    text = f"several (float[?] x) => (float[?] twice, float[?] thrice) {{ {nodes} }}"
    original = opened(written(tmp_path / "several.onnx", text))
    assert original.output_shapes({"x": (5,)}, ["twice"]) == {"twice": (10,)}
    assert original.output_shapes({"x": (5,)}, ["thrice"]) == {"thrice": (15,)}


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model whose constant is in external.bin, which is a link to a folder of blobs."""
    path = models.external(tmp_path)
    (tmp_path / "blobs").mkdir()
    data = (tmp_path / "external.bin").rename(tmp_path / "blobs" / "first")
    (tmp_path / "external.bin").symlink_to(data)
    (tmp_path / "blobs" / "second").write_bytes(bytes(data.stat().st_size))
    return path


def write_to(folder: Path) -> None:
    data = folder / "blobs" / "first"
    with data.open("r+b") as file:
        file.write(b"1234")
    os.utime(data, ns=(0, data.stat().st_mtime_ns + 1))  # clocks of file systems tick slowly


def link_elsewhere(folder: Path) -> None:
    (folder / "external.bin").unlink()
    (folder / "external.bin").symlink_to(folder / "blobs" / "second")


def write_no_model(folder: Path) -> None:
    (folder / "external.onnx").write_bytes(b"no model")


@pytest.mark.parametrize("change", [write_to, link_elsewhere, write_no_model])
def test_a_file_that_changed_is_not_taken_for_the_model_s(
    external: Path, change: Callable[[Path], None]
) -> None:
    original = opened(external)
    assert original.declared().folder == external.parent
    change(external.parent)
    changed = r"external\.(bin|onnx): changed since the model was built; build it"
    for read in (original.declared, lambda: original.reshaped({"x": (2, 256)})):
        with pytest.raises(ModelError, match=changed):
            read()


def test_links_to_two_data_files_that_were_exchanged_are_noticed(tmp_path: Path) -> None:
    original = opened(models.linked(tmp_path))
    assert original.declared().folder == tmp_path
    links = tmp_path / "a.bin", tmp_path / "b.bin"
    targets = [link.readlink() for link in links]
    for link, target in zip(links, reversed(targets), strict=True):
        link.unlink()
        link.symlink_to(target)
    with pytest.raises(ModelError, match=r"[ab]\.bin: changed since the model was built; build it"):
        original.declared()


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """A model for two rows as a hub's cache keeps it: links into the folder of blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    model = load(models.external(tmp_path), load_external_data=False)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    save(model, blobs / "0a1b")
    (tmp_path / "external.bin").rename(blobs / "2c3d")
    (snapshot / "model.onnx").symlink_to("../../blobs/0a1b")
    (snapshot / "external.bin").symlink_to("../../blobs/2c3d")
    return snapshot / "model.onnx"


def test_a_model_in_a_hub_s_cache_takes_other_sizes(cached: Path, null_backend: str) -> None:
    with engine.load(cached, target=null_backend) as model:
        model.resize(model.get_inputs(), [[3, 256]])
        x = np.ones((3, 256), np.float32)
        np.testing.assert_array_equal(model(x=x)["y"], x + np.arange(256, dtype=np.float32))


def test_data_outside_of_a_hub_s_cache_is_not_read_for_a_reshaped_model(cached: Path) -> None:
    source = ModelFile(cached)()
    data = cached.parent / "external.bin"
    (cached.parents[2] / "secret").write_bytes(bytes(data.stat().st_size))
    data.unlink()
    data.symlink_to("../../secret")
    with pytest.raises(ModelError, match="data must lie inside the model's folder"):
        reshape(source, {"x": (3, 256)})


def test_a_model_by_a_relative_path_is_found_from_another_folder(
    external: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(external.parent)
    original = opened(Path(external.name))
    monkeypatch.chdir("blobs")
    assert original.declared().path == external


def test_a_model_behind_a_link_and_two_dots_is_found(tmp_path: Path) -> None:
    (tmp_path / "deep" / "folder").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "folder")
    name = models.affine(tmp_path / "deep").name
    assert opened(tmp_path / "link" / ".." / name).declared().graph is not None
