"""Parameters of a .mindir that are declared variable: inputs, before anything is folded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from engine.errors import InputError
from engine.formats import ModelFile, OpenedSource
from engine.formats.onnx.inline import inlined

DATA = Path(__file__).parents[3] / "tests" / "data" / "mindir"


def opened(path: Path, *names: str) -> OpenedSource:
    return ModelFile(path, variable_weights=names)()


def run(source: OpenedSource, **inputs: np.ndarray) -> np.ndarray:
    data = inlined(source).data
    assert data is not None
    [y] = ReferenceEvaluator(onnx.load_model_from_string(data)).run(None, inputs)
    return np.asarray(y)


@pytest.mark.parametrize(
    "name", ["fc1.weight", "Default/fc1-Dense", "Default/fc1-Dense/MatMul-op0"]
)
def test_a_mindir_parameter_varies_by_its_name_or_its_nodes(name: str) -> None:
    path = DATA / "mlp.mindir"
    plain, source = ModelFile(path)(), opened(path, name)
    assert plain.graph is not None
    assert source.graph is not None
    specs = [spec.name for spec in plain.graph.inputs]
    assert [spec.name for spec in source.graph.inputs] == [*specs, "fc1.weight"]
    [slot] = source.variables
    assert slot.name == "fc1.weight"
    shapes = {spec.name: spec.shape for spec in plain.graph.inputs}
    x = np.ones([dim if isinstance(dim, int) else 1 for dim in shapes[specs[0]] or ()], np.float32)
    np.testing.assert_array_equal(
        run(source, **{specs[0]: x, "fc1.weight": slot.initial}), run(plain, **{specs[0]: x})
    )
    other = run(source, **{specs[0]: x, "fc1.weight": 2 * slot.initial})
    assert not np.array_equal(other, run(plain, **{specs[0]: x}))


def test_a_batch_normalisation_is_not_folded_into_a_variable_weight() -> None:
    path = DATA / "lenet_bn.mindir"
    source = opened(path, "conv1.weight")
    assert source.graph is not None
    first, second, third = source.graph.nodes[:3]
    assert "conv1.weight" in first.inputs
    ops = [first.op_type, second.op_type, third.op_type]
    assert ops == ["Conv", "Add", "BatchNormalization"]
    assert [slot.name for slot in source.variables] == ["conv1.weight"]
    # Its value goes through: as in the plain model, where it is folded.
    plain = ModelFile(path)()
    assert plain.graph is not None
    [spec] = plain.graph.inputs
    x = np.random.default_rng(0).random(
        [dim if isinstance(dim, int) else 1 for dim in spec.shape or ()], np.float32
    )
    np.testing.assert_allclose(
        run(source, **{spec.name: x, "conv1.weight": source.variables[0].initial}),
        run(plain, **{spec.name: x}),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_misspelt_mindir_parameter_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"mlp\.mindir: .*did you mean 'fc1\.weight'\?"):
        opened(DATA / "mlp.mindir", "fc1.wieght")


def test_variables_come_after_state(mindir: SimpleNamespace, tmp_path: Path) -> None:
    add = mindir.node("AssignAdd", ["total", "x"], "y")
    scale = mindir.node("Mul", ["y", "w"], "z")
    data = mindir.net(
        [add, scale],
        {"x": (2,)},
        {"z": (2,)},
        parameters={"total": np.zeros(2, np.float32), "w": np.full(2, 3, np.float32)},
    )
    path = tmp_path / "counter.mindir"
    path.write_bytes(data)
    source = opened(path, "w")
    assert source.graph is not None
    assert [spec.name for spec in source.graph.inputs] == ["x", "total", "w"]
    assert len(source.graph.outputs) == 2
    assert [slot.name for slot in source.state] == ["total"]
    assert [slot.name for slot in source.variables] == ["w"]
    np.testing.assert_array_equal(source.variables[0].initial, [3, 3])
    with pytest.raises(InputError, match="'total' is state that the model itself assigns to"):
        opened(path, "total")
