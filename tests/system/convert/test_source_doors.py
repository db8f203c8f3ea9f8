"""Sources of other packages: what they read is converted, and a broken one stops nothing."""

from __future__ import annotations

import numpy as np
import pytest
from conversions import converted

import engine
from engine import FmkType, ModelError
from engine.converter.sources import framework_of, frameworks
from engine.formats import ModelFile
from engine_testing import models
from engine_testing.plugins import install

SCALE = """
import numpy as np
import onnx
from onnx import helper

title = "a scale"
suffixes = (".scale",)

def read(job):
    factor = np.float32(job.model_file.read_text())
    value = [helper.make_tensor_value_info(name, 1, ["n"]) for name in "xy"]
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    constant = onnx.numpy_helper.from_array(np.array(factor), "factor")
    graph = helper.make_graph([node], "g", value[:1], value[1:], [constant])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), []
"""


@pytest.fixture
def offer(plugin_folder):
    def offer(name, source=SCALE, group="engine.sources.v1"):
        install(plugin_folder, name, f"source_{name}", group=group, source=source)

    return offer


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.scale"
    path.write_text("2.5")
    return path


def test_a_model_of_another_packages_source_is_converted(offer, file, tmp_path):
    offer("scale")
    converted(file, tmp_path / "net", "scale")
    with engine.load(tmp_path / "net.mindir", target="cpu") as model:
        np.testing.assert_array_equal(model(np.ones(3, np.float32))["y"], [2.5, 2.5, 2.5])
        assert model.metadata["converted_from"] == "scale net.scale"


def test_the_ending_of_a_files_name_tells_the_source(offer, file):
    offer("scale")
    assert framework_of(ModelFile(file), by_name=True) == "scale"
    assert framework_of(ModelFile(file)) is None
    assert frameworks()["SCALE"] == "scale"


def test_the_names_of_sources_are_read_without_importing_any(offer):
    offer("torn", "raise SystemExit('imported')")
    assert frameworks()["TORN"] == "torn"
    assert frameworks()["ONNX"] is FmkType.ONNX


def test_a_name_that_no_source_has_is_a_wrong_type(file, tmp_path):
    with pytest.raises(TypeError, match="fmk_type must be FmkType"):
        converted(file, tmp_path / "net", "scale")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_library\n", "source 'scale' is broken: .*no_such_library"),
        ("title = 'a scale'\n", "source 'scale' is broken: .*cannot serve as source.*no read"),
        (SCALE.replace("def read(job):", "def read(job):\n    1 / 0"), "'scale' failed: ZeroDiv"),
    ],
)
def test_a_broken_source_says_why_and_stops_no_other(offer, file, tmp_path, source, said):
    offer("scale", source)
    with pytest.raises(ModelError, match=said):
        converted(file, tmp_path / "net", "scale")
    converted(models.affine(tmp_path), tmp_path / "affine")
    assert (tmp_path / "affine.mindir").exists()


def test_a_source_of_another_version_is_not_asked(offer, file):
    offer("scale", "raise SystemExit('imported')", group="engine.sources.v2")
    assert "SCALE" not in frameworks()
    assert framework_of(ModelFile(file), by_name=True) is None
