"""Facts kept of the original model: the shapes of its outputs at other shapes of its inputs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, load, save

import engine
from engine.errors import ModelError
from engine.formats import ModelFile
from engine.plan.reshape import reshape
from engine.plan.source_model import SourceModel
from engine_testing import models


@pytest.fixture
def original(tmp_path: Path) -> SourceModel:
    """Two outputs, two and three times as long as the input, which the file does not say."""
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["x", "x"], ["twice"], axis=0),
            helper.make_node("Concat", ["x", "x", "x"], ["thrice"], axis=0),
        ],
        "several",
        [tensor("x", TensorProto.FLOAT, [None])],
        [tensor(name, TensorProto.FLOAT, [None]) for name in ("twice", "thrice")],
    )
    path = tmp_path / "several.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    file = ModelFile(path)
    return SourceModel(file, file())


def test_another_output_is_inferred_at_the_same_shapes_too(original: SourceModel) -> None:
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


def opened(path: Path) -> SourceModel:
    file = ModelFile(path)
    return SourceModel(file, file())


def test_data_that_was_written_to_is_not_taken_for_the_model_s(external: Path) -> None:
    original = opened(external)
    assert original.declared().folder == external.parent
    data = external.parent / "blobs" / "first"
    with data.open("r+b") as file:
        file.write(b"1234")
    os.utime(data, ns=(0, data.stat().st_mtime_ns + 1))  # clocks of file systems tick slowly
    with pytest.raises(
        ModelError, match=r"external\.bin: changed since the model was built; build it"
    ):
        original.declared()
    with pytest.raises(
        ModelError, match=r"external\.bin: changed since the model was built; build it"
    ):
        original.reshaped({"x": (2, 256)})


def test_data_behind_another_link_is_not_taken_for_the_model_s(external: Path) -> None:
    original = opened(external)
    (external.parent / "external.bin").unlink()
    (external.parent / "external.bin").symlink_to(external.parent / "blobs" / "second")
    with pytest.raises(
        ModelError, match=r"external\.bin: changed since the model was built; build it"
    ):
        original.declared()


def test_links_to_two_data_files_that_were_exchanged_are_noticed(tmp_path: Path) -> None:
    path = models.linked(tmp_path)
    original = opened(path)
    assert original.declared().folder == tmp_path
    exchange(tmp_path / "a.bin", tmp_path / "b.bin")
    with pytest.raises(ModelError, match=r"[ab]\.bin: changed since the model was built; build it"):
        original.declared()


def exchange(first: Path, second: Path) -> None:
    """Exchange two links."""
    targets = first.readlink(), second.readlink()
    for link, target in zip((second, first), targets, strict=True):
        link.unlink()
        link.symlink_to(target)


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


def test_another_model_in_the_file_s_place_is_called_that_whatever_it_is(external: Path) -> None:
    original = opened(external)
    external.write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"external\.onnx: changed since the model was built"):
        original.declared()


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
