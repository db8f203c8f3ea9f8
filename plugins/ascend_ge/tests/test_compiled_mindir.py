"""MindIR files of models that are compiled for Ascend, as converter_lite makes them. Emulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import engine
from engine import ModelType, MultiModelRunner
from engine_testing import models
from engine_testing.compiled_mindir import bundle_attributes, compiled_mindir

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
GRAPHS = [(["x"], ["encoded"]), (["encoded"], ["decoded"]), (["decoded"], ["y"])]


@pytest.fixture
def om(make_om: Any, tmp_path: Path) -> bytes:
    """y = 2x + 1 of float32[2, 3], compiled."""
    path: Path = make_om(models.affine(tmp_path), input_shape="x:2,3")
    return path.read_bytes()


@pytest.fixture
def written(om: bytes, tmp_path: Path) -> Callable[..., str]:
    """written(executors, graphs=GRAPHS) -> the path of a bundle of models that are y = 2x + 1."""

    def write(executors: Any, graphs: Any = GRAPHS, **changed: Any) -> str:
        path = tmp_path / "split.mindir"
        attributes = bundle_attributes(graphs, executors, ["x"]) | changed
        path.write_bytes(compiled_mindir([om] * len(graphs), ["x"], attributes))
        return str(path)

    return write


def context() -> engine.Context:
    made = engine.Context()
    made.target = ["ascend"]
    return made


def test_a_model_that_this_converter_split_has_its_executors(machine: Any, tmp_path: Path) -> None:
    """y = (2x) + 1, each operator a part."""
    path = models.affine(tmp_path)
    [scaled, _] = [node.output[0] for node in onnx.load(path).graph.node]
    converter = engine.Converter()
    converter.set_config_info("SplitGraph", {"split_node_name": f"[[{scaled}],[y]]"})
    converter.convert(engine.FmkType.ONNX, str(path), str(tmp_path / "split"))
    with MultiModelRunner() as runner:
        runner.build_from_file(str(tmp_path / "split.mindir"), ModelType.MINDIR, context())
        first, second = runner.get_model_executor()
        [middle] = first.predict([X])
        assert middle.name == second.get_inputs()[0].name == scaled
        np.testing.assert_array_equal(middle.get_data_to_numpy(), 2 * X)
        [y] = second.predict([middle])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)


def test_executors_run_their_models_in_declared_order(machine: Any, written: Any) -> None:
    path = written([(0, 2, ["x"], ["y"]), (0, 0, ["x"], ["encoded"]), (1, 2, ["encoded"], ["y"])])
    with MultiModelRunner() as runner:
        runner.build_from_file(path, ModelType.MINDIR, context())
        whole, first, rest = runner.get_model_executor()
        for executor, taken, given in ((whole, "x", "y"), (first, "x", "encoded"),
                                       (rest, "encoded", "y")):  # fmt: skip
            assert [(t.name, t.shape) for t in executor.get_inputs()] == [(taken, [2, 3])]
            assert [(m.name, m.shape) for m in executor.get_outputs()] == [(given, [2, 3])]
        [y] = whole.predict([X])
        assert y.name == "y"
        np.testing.assert_array_equal(y.get_data_to_numpy(), 8 * X + 7)
        [encoded] = first.predict([X])
        np.testing.assert_array_equal(encoded.get_data_to_numpy(), 2 * X + 1)
        [y] = rest.predict([encoded])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 8 * X + 7)
        tensors = whole.get_inputs()
        tensors[0].set_data_from_numpy(X)
        result = engine.Tensor(np.zeros((2, 3), np.float32))
        assert whole.predict(tensors, [result]) == [result]
        np.testing.assert_array_equal(result.get_data_to_numpy(), 8 * X + 7)
    with pytest.raises(RuntimeError, match="closed"):
        whole.predict([X])
    with pytest.raises(RuntimeError, match="closed"):
        whole.get_inputs()


def test_values_between_models_stay_on_the_device(machine: Any, written: Any) -> None:
    with MultiModelRunner() as runner:
        runner.build_from_file(written([(0, 2, ["x"], ["y"])]), ModelType.MINDIR, context())
        [executor] = runner.get_model_executor()
        executor.predict([X])
        machine.copied.clear()
        executor.predict([X], timeout_s=60)
    assert (machine.copied["to device"], machine.copied["to host"]) == (24, 24), "x and y, once"


def test_inputs_go_by_name_where_they_have_names(machine: Any, written: Any) -> None:
    graphs = [(["a"], ["b"]), (["c"], ["d"])]
    path = written([(0, 1, ["c", "a"], ["d", "b"])], graphs)
    a, c = engine.Tensor(X), engine.Tensor(10 * X)
    a.name, c.name = "a", "c"
    with MultiModelRunner() as runner:
        runner.build_from_file(path, ModelType.MINDIR, context())
        [executor] = runner.get_model_executor()
        for given in ([a, c], (c, a), {"a": X, "c": 10 * X}, [10 * X, X]):
            d, b = executor.predict(given)
            np.testing.assert_array_equal(b.get_data_to_numpy(), 2 * X + 1)
            np.testing.assert_array_equal(d.get_data_to_numpy(), 20 * X + 1)
        with pytest.raises(engine.InputError, match=r"unknown input 'b'; .* 'c', 'a'"):
            executor.predict({"a": X, "b": X})
        with pytest.raises(engine.InputError, match="input len:2 not equal input len:1"):
            executor.predict([X])
        with pytest.raises(engine.InputError, match=r"input 'a'.*got float32"):
            executor.predict([X, X[:1]])
        with pytest.raises(engine.InputError, match="expected 2 outputs"):
            executor.predict([X, X], [engine.Tensor()])
        with pytest.raises(TypeError, match="outputs element must be Tensor"):
            executor.predict([X, X], [X, X])
        with pytest.raises(ValueError, match="timeout_s must be above 0 s"):
            executor.predict([X, X], timeout_s=-1)
        with pytest.raises(TypeError, match="timeout_s must be a number"):
            executor.predict([X, X], timeout_s="1")


def test_what_a_caller_gives_goes_before_what_is_computed(machine: Any, written: Any) -> None:
    path = written([(0, 2, ["x", "encoded"], ["y", "encoded"])])
    with MultiModelRunner() as runner:
        runner.build_from_file(path, ModelType.MINDIR, context())
        [executor] = runner.get_model_executor()
        y, encoded = executor.predict([X, 5 * X])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 20 * X + 3)
        np.testing.assert_array_equal(encoded.get_data_to_numpy(), 2 * X + 1)


def test_an_executor_without_inputs_of_its_own_takes_the_whole_models(
    machine: Any, written: Any
) -> None:
    with MultiModelRunner() as runner:
        runner.build_from_file(written([(0, 1, [], ["decoded"])]), ModelType.MINDIR, context())
        [executor] = runner.get_model_executor()
        assert [tensor.name for tensor in executor.get_inputs()] == ["x"]
        [decoded] = executor.predict(X)
        np.testing.assert_array_equal(decoded.get_data_to_numpy(), 4 * X + 3)


def test_an_executor_that_lacks_an_input_says_so_and_the_others_run(
    machine: Any, written: Any
) -> None:
    graphs = [(["x"], ["b"]), (["c"], ["d"])]
    with MultiModelRunner() as runner:
        path = written([(0, 1, ["x"], ["d"]), (0, 0, ["x"], ["b"])], graphs)
        runner.build_from_file(path, ModelType.MINDIR, context())
        lacking, sound = runner.get_model_executor()
        with pytest.raises(
            engine.ModelError, match="Input 'c' of a model in the bundle is neither"
        ):
            lacking.predict([X])
        [b] = sound.predict([X])
        np.testing.assert_array_equal(b.get_data_to_numpy(), 2 * X + 1)


def test_threads_share_the_executors_of_a_bundle(machine: Any, written: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    path = written([(0, 2, ["x"], ["y"]), (1, 2, ["encoded"], ["y"])])
    with MultiModelRunner() as runner, ThreadPoolExecutor(4) as pool:
        runner.build_from_file(path, ModelType.MINDIR, context())
        executors = runner.get_model_executor()

        def run(n: int) -> tuple[int, Any]:
            [y] = executors[n % 2].predict([n * X])
            return n, y.get_data_to_numpy()

        for n, y in pool.map(run, range(40)):
            np.testing.assert_array_equal(y, 4 * n * X + 3 if n % 2 else 8 * n * X + 7)
    assert not machine.faults


def test_a_model_in_a_mindir_that_is_compiled_runs_as_an_om_file(
    machine: Any, om: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "net.mindir"
    path.write_bytes(compiled_mindir([om]))
    with engine.load(path, "ascend") as model:
        np.testing.assert_array_equal(model(X)["y"], 2 * X + 1)
        assert model.get_inputs()[0].name == "x", "the .om file's own names"
    from_memory = engine.Model()
    from_memory.build_from_buffer(path.read_bytes(), None, ModelType.MINDIR, context())
    np.testing.assert_array_equal(from_memory(X)["y"], 2 * X + 1)
    from_memory.close()
    with MultiModelRunner() as runner:
        runner.build_from_file(str(path), ModelType.MINDIR, context())
        [only] = runner.get_model_executor()
        np.testing.assert_array_equal(only.predict(X)[0].get_data_to_numpy(), 2 * X + 1)


def test_a_bundle_by_itself_names_the_runner_of_several(machine: Any, written: Any) -> None:
    message = "a bundle of 3 models compiled for Ascend; run them with engine[.]MultiModelRunner"
    with pytest.raises(engine.ModelError, match=message):
        engine.load(written([(0, 2, ["x"], ["y"])]), "ascend")


def test_a_bundle_that_does_not_fit_its_models_leaves_nothing(
    machine: Any, written: Any, om: bytes, tmp_path: Path
) -> None:
    def refused(path: str, message: str) -> None:
        with pytest.raises(engine.ModelError, match=message) as caught:
            MultiModelRunner().build_from_file(path, ModelType.MINDIR, context())
        assert "\n" not in str(caught.value)
        assert str(caught.value).count(path) == 1
        assert machine.live() == {}

    two = [(["x"], ["b"]), (["b", "c"], ["d"])]
    refused(written([(0, 1, ["x", "c"], ["d"])], two),
            "its model 1 has 1 inputs, but the file names 2 \\('b', 'c'\\)")  # fmt: skip
    path = tmp_path / "cut.mindir"
    attributes = bundle_attributes(GRAPHS, [(0, 2, ["x"], ["y"])], ["x"])
    path.write_bytes(compiled_mindir([om, om[:-40], om], ["x"], attributes))
    refused(str(path), "bytes of weights, expected|cannot be")
    path.write_bytes(compiled_mindir([om, b"weights of nobody", om], ["x"], attributes))
    refused(str(path), "its compiled model 1 begins with b'weights '; an .om file of CANN begins")
    machine.fail("mdl.get_desc", 500002, after=2)
    refused(written([(0, 2, ["x"], ["y"])]), "500002")


def test_a_bundle_of_cann_inside_a_mindir_is_refused(
    machine: Any, om: bytes, tmp_path: Path
) -> None:
    from emulated_ascend.omfile import write_bundle

    path = tmp_path / "net.mindir"
    path.write_bytes(compiled_mindir([write_bundle([om, om])]))
    with pytest.raises(
        engine.ModelError, match="pyACL loads from files only; pass the path of the"
    ):
        engine.load(path, "ascend")
