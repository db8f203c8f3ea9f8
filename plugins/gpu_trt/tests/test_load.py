"""Loading: what TensorRT takes, what it refuses and why, and engines that were compiled before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends import open_backend
from engine.errors import BackendUnavailable, ModelError
from engine.formats import open_source
from engine.types import CompileOptions, Device, DType, ModelSource, ShapeRange
from engine_testing import models
from engine_testing.level import Trial

Make = Callable[..., Any]


def test_nodes_that_tensorrt_lacks_are_reported_by_index(trial: Trial, model: Make) -> None:
    maker = model(
        [
            ("Relu", ["x"], ["a"]),
            ("Det", ["a"], ["b"], {"name": "determinant"}),
            ("Neg", ["b"], ["c"]),
            ("Unique", ["c"], ["y"], {"name": "distinct"}),
        ],
        [("x", [2, 2])],
        [("y", ["n"])],
    )
    loaded = trial.load(maker)
    assert loaded.unsupported == {
        1: "TensorRT does not run operator 'Det'",
        3: "TensorRT does not run operator 'Unique'",
    }


def test_compiling_what_cannot_run_names_file_node_operator_and_reason(trial: Trial) -> None:
    with pytest.raises(ModelError) as caught:
        trial.compile(models.unknown_operator)
    message = str(caught.value)
    assert "unknown_operator.onnx" in message
    assert "node 1 'odd_one' (Frobnicate)" in message
    assert "TensorRT has no operator 'Frobnicate' and no plugin of that name" in message


def test_an_operator_inside_a_branch_is_the_main_graphs_node(trial: Trial) -> None:
    import onnx

    def inner_det(folder: Path) -> Path:
        path = models.branch(folder)
        proto = onnx.load(path)
        proto.graph.node[0].attribute[0].g.node[0].op_type = "SequenceConstruct"
        onnx.save(proto, path)
        return path

    loaded = trial.load(inner_det)
    assert list(loaded.unsupported) == [0]
    assert "'SequenceConstruct'" in loaded.unsupported[0]


def test_mixed_element_types_are_refused_in_tensorrts_words(trial: Trial, model: Make) -> None:
    # ONNX forbids it too; the core's reader checks no types.
    maker = model(
        [("Add", ["x", "h"], ["y"], {"name": "sum"})],
        [("x", [2]), ("h", [2], DType.FLOAT16)],
        [("y", [2])],
    )
    with pytest.raises(ModelError, match=r"node 0 'sum' \(Add\).*must have same input types. But "
                                         "they are of types Float and Half"):  # fmt: skip
        trial.compile(maker)


def test_contradictory_shapes_are_the_nodes_fault(trial: Trial) -> None:
    assert "multiply" in trial.load(models.mismatched).unsupported[0]


@pytest.mark.parametrize(
    ("dtype", "said"),
    [(DType.FLOAT64, "float64"), (DType.INT16, "int16"), (DType.STRING, "string")],
)
def test_a_type_that_tensorrt_lacks_is_named(trial: Trial, dtype: DType, said: str) -> None:
    with pytest.raises(ModelError, match=rf"input 'x' is {said}\[2, 3\], and TensorRT has no such"):
        trial.compile(partial(models.moved, dtype=dtype))


def test_only_the_nodes_that_touch_a_foreign_type_are_unsupported(
    trial: Trial, model: Make
) -> None:
    maker = model(
        [("Relu", ["x"], ["a"]), ("Cast", ["d"], ["b"], {"to": 1}), ("Add", ["a", "b"], ["y"])],
        [("x", [2]), ("d", [2], DType.FLOAT64)],
        [("y", [2])],
    )
    assert list(trial.load(maker).unsupported) == [1]


def test_a_foreign_type_that_no_node_touches_is_an_error(trial: Trial, model: Make) -> None:
    maker = model([("Relu", ["x"], ["y"])], [("x", [2]), ("d", [2], DType.INT16)], [("y", [2])])
    with pytest.raises(ModelError, match="input 'd' is int16"):
        trial.load(maker)


def test_an_unknown_rank_is_named(trial: Trial, model: Make) -> None:
    # TensorRT's parser would take it for a scalar.
    maker = model([("Relu", ["x"], ["y"])], [("x", None)], [("y", None)])
    with pytest.raises(ModelError, match=r"input 'x' is float32\[\.\.\.\], and TensorRT must know"):
        trial.compile(maker)


def test_an_input_that_decides_a_shape_is_named(trial: Trial, model: Make) -> None:
    maker = model(
        [("Reshape", ["x", "s"], ["y"])],
        [("x", [2, 3]), ("s", [2], DType.INT64)],
        [("y", ["a", "b"])],
    )
    with pytest.raises(ModelError, match="input 's' decides a shape"):
        trial.compile(maker)


def test_bytes_that_are_no_model_are_a_model_error(trial: Trial) -> None:
    source = trial.source(models.affine)
    with pytest.raises(
        ModelError, match=r"model bytes: TensorRT's parser cannot read it: .*Failed"
    ):
        trial.load(replace(source, path=None, data=b"not onnx at all"))


def test_a_file_that_is_gone_is_a_model_error(trial: Trial) -> None:
    source = trial.source(models.affine)
    gone = replace(source, data=None, path=source.path.with_name("gone.onnx"))  # type: ignore[union-attr]
    with pytest.raises(ModelError, match=r"gone\.onnx: TensorRT's parser cannot read it"):
        trial.load(gone)


def test_missing_weights_are_a_model_error(trial: Trial) -> None:
    source = trial.source(models.external)
    (trial.folder / "external.bin").unlink()
    with pytest.raises(ModelError, match="Failed to import initializer: ramp"):
        trial.load(source)


@pytest.mark.parametrize(
    ("dtype", "values"), [(DType.UINT8, [0, 7, 255]), (DType.FLOAT8E4M3FN, [0, 1.5, -448])], ids=str
)
def test_types_that_tensorrt_only_casts_can_be_cast(
    trial: Trial, model: Make, dtype: DType, values: list[float]
) -> None:
    maker = model([("Cast", ["x"], ["y"], {"to": 1})], [("x", [3], dtype)], [("y", [3])])
    [y] = trial.run(maker, np.array(values, dtype.numpy))
    np.testing.assert_array_equal(y, np.float32(values))


def test_an_input_that_is_an_output_too_keeps_its_name(trial: Trial, model: Make) -> None:
    # TensorRT's parser renames such an input to "__x".
    maker = model([("Neg", ["x"], ["y"])], [("x", [3])], [("x", [3]), ("y", [3])])
    running = trial.open(maker)
    assert [spec.name for spec in running.executable.inputs] == ["x"]
    x = np.float32([1, 2, 3])
    same, negated = running.predict(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(negated, -x)


def test_an_input_may_be_called_as_tensorrt_calls_others(trial: Trial, model: Make) -> None:
    maker = model([("Neg", ["__x"], ["x"])], [("__x", ["n"])], [("x", ["n"])])
    [x] = trial.run(maker, np.float32([1, 2, 3]))
    np.testing.assert_array_equal(x, np.float32([-1, -2, -3]))


@pytest.fixture
def plan(trial: Trial) -> Path:
    """An engine of y = 2x + 1 for 2 to 8 rows, as a compile saves it."""
    shapes = {"x": ShapeRange((2, 3), (4, 3), (8, 3))}
    folder = trial.folder / "saved"
    folder.mkdir()
    trial.compile(models.affine, shapes=shapes, save_to=folder)
    return (folder / "engine.plan").rename(folder / "model.plan")


def as_source(path: Path) -> ModelSource:
    return ModelSource(format="plan", path=path)


def test_a_saved_engine_is_read_natively(trial: Trial, plan: Path) -> None:
    running = trial.open(as_source(plan))
    [x] = running.executable.inputs
    assert (x.name, x.dtype, x.shape) == ("x", DType.FLOAT32, (None, 3))
    assert x.bounds == ((2, 8), None)
    data = np.float32([[1, 2, 3], [4, 5, 6]])
    [y] = running.predict(data)
    np.testing.assert_array_equal(y, 2 * data + 1)
    assert running.executable.placement() == ()


def test_an_engine_is_read_from_bytes(trial: Trial, plan: Path) -> None:
    source = ModelSource(format="plan", data=plan.read_bytes())
    data = np.ones((2, 3), np.float32)
    [y] = trial.open(source).predict(data)
    np.testing.assert_array_equal(y, 2 * data + 1)


def test_an_engine_is_found_by_its_suffix(trial: Trial, plan: Path) -> None:
    engine = plan.rename(plan.with_suffix(".engine"))
    suffixes = trial.backend.info.suffixes
    assert set(suffixes) == {".engine", ".plan"}
    assert open_source(str(engine), suffixes).format == "plan"


def test_a_plan_that_is_loaded_and_not_compiled_is_freed(trial: Trial, plan: Path) -> None:
    trial.load(as_source(plan)).close()  # the fixture looks at what is left


@pytest.mark.parametrize("damage", ["flipped", "truncated", "another file"])
def test_a_damaged_engine_is_a_model_error(trial: Trial, plan: Path, damage: str) -> None:
    data = bytearray(plan.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    plan.write_bytes(
        b"\x7fELF" * 100 if damage == "another file" else data if damage == "flipped" else data[:99]
    )
    wanted = r"model\.plan: TensorRT .* cannot load this engine on gpu:0: .*incompatible serializ"
    with pytest.raises(ModelError, match=wanted):
        trial.load(as_source(plan))


def test_an_empty_engine_is_a_model_error(trial: Trial, plan: Path) -> None:
    plan.write_bytes(b"")
    with pytest.raises(ModelError, match=r"model\.plan: it is empty"):
        trial.load(as_source(plan))


def test_an_engine_of_another_version_is_a_model_error(
    plan: Path, trt: Any, emulate: Callable[..., None]
) -> None:
    here = trt.__version__.partition("+")[0]
    emulate(TENSORRT="11.4" if here.startswith("10.") else "10.16")
    wanted = f"Version tag does not match: the engine is of {here}.*compile the model here"
    with pytest.raises(ModelError, match=wanted):
        open_backend("gpu_trt").load(as_source(plan), CompileOptions(device=Device("gpu")))


def test_too_little_memory_for_an_engines_weights_is_said(
    trial: Trial, plan: Path, emulated: Any
) -> None:
    with emulated.fail("deserialize"), pytest.raises(BackendUnavailable) as caught:
        trial.load(as_source(plan))
    message = str(caught.value)
    assert "gpu:0: out of memory while loading" in message
    assert "bytes are free" in message
