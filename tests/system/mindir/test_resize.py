"""Real files of MindSpore at other shapes than they were exported for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import ModelError, ModelType
from engine.formats import ModelFile
from engine.plan import BuildOptions, Targets, build_plan

OWN = Path(__file__).parents[2] / "data" / "mindir"
SHARED = Path(__file__).parents[4] / "shared" / "data" / "mindir"
MOBILENET = SHARED / "mobilenetv2.mindir"


def _random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).random(shape, np.float32)


@pytest.mark.parametrize("name", ["lenet_bn", "mlp", "matmul_256", "const_tensors"])
def test_lowered_for_the_shapes_it_has_a_file_gives_what_it_gives(name):
    path = OWN / f"{name}.mindir"
    with engine.load(path) as model, np.load(path.with_suffix(".npz")) as arrays:
        inputs = [arrays[f"in_{place}"] for place in range(len(model.inputs))]
        expected = [result.get_data_to_numpy() for result in model.predict(inputs)]
        shapes = {spec.name: x.shape for spec, x in zip(model.inputs, inputs, strict=True)}
    targets = Targets(BuildOptions(engine.Context(), {}))
    plan = build_plan(ModelFile(path, input_shapes=shapes)(), targets)
    results = plan.predict(plan.executable.open_context(), inputs, None, None)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)
    plan.pool.close()


def test_a_fixed_batch_is_changed_and_each_row_is_what_it_was():
    with engine.load(OWN / "lenet_bn.mindir") as model:
        x = _random((2, 1, 32, 32))
        [two] = model.predict([x])
        for rows in (1, 4, 2):
            model.resize(model.get_inputs(), [[rows, 1, 32, 32]])
            assert model.get_outputs()[0].shape == [rows, 10]
            [y] = model.predict([np.resize(x, (rows, 1, 32, 32))])
            expected = np.resize(two.get_data_to_numpy(), (rows, 10))
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)


def test_a_size_that_a_layer_cannot_take_leaves_the_model_as_it_was():
    with engine.load(OWN / "lenet_bn.mindir") as model:
        with pytest.raises(RuntimeError, match=r"^resize failed! Error is The given input shape's"):
            model.resize(model.get_inputs(), [[2, 1, 40, 40]])
        assert model.predict([_random((2, 1, 32, 32))])[0].shape == [2, 10]


@pytest.mark.skipif(not MOBILENET.is_file(), reason=f"no {MOBILENET}")
def test_mobilenet_takes_images_of_another_size(tmp_path):
    converter = engine.Converter()
    converter.input_shape = {"x": [1, 3, 112, 112]}
    with engine.load(MOBILENET) as model:
        [x] = model.get_inputs()
        model.resize([x], [[1, 3, 112, 112]])
        assert x.shape == [1, 3, 112, 112]
        assert model.get_outputs()[0].shape == [1, 1000]
        image = _random((1, 3, 112, 112))
        [y] = model.predict([image])
        converter.input_shape = {x.name: [1, 3, 112, 112]}
    converter.convert(engine.FmkType.MINDIR, str(MOBILENET), str(tmp_path / "small"))
    with engine.load(tmp_path / "small.mindir") as small:
        assert small.get_inputs()[0].shape == [1, 3, 112, 112]
        np.testing.assert_allclose(small.predict([image])[0], y, rtol=1e-4, atol=1e-5)


def test_every_size_of_an_open_models_outputs_is_known_after_resize():
    entries = json.loads((OWN / "manifest.json").read_text())["files"]
    count = 0
    for entry in entries:
        path = OWN / entry["file"]
        if entry.get("kind") == "sliced" or "dec_key" in entry or not path.is_file():
            continue
        model = engine.Model()
        try:
            model.build_from_file(str(path), ModelType.MINDIR)
        except ModelError:
            continue
        with model:
            inputs = model.get_inputs()
            if not any(-1 in tensor.shape for tensor in inputs):
                continue
            with np.load(path.with_suffix(".npz")) as arrays:
                given = [arrays[name] for name in arrays.files if name.startswith("in_")]
                given = given or [v for k, v in arrays.items() if k.startswith("case1_in_")]
            if len(given) != len(inputs) or any(not each.size for each in given):
                continue
            model.resize(inputs, [list(array.shape) for array in given])
            known = [meta.shape for meta in model.get_outputs()]
            results = model.predict(given)
            assert known == [result.shape for result in results], entry["name"]
            count += 1
    assert count
