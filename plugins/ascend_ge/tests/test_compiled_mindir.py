"""MindIR files of models that are compiled for Ascend, as converter_lite makes them. Emulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import engine
from engine import ModelType, MultiModelRunner
from engine_testing.compiled_mindir import bundle_attributes, compiled_mindir

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
GRAPHS = [(["x"], ["encoded"]), (["encoded"], ["decoded"]), (["decoded"], ["y"])]
WHOLE = [(0, 2, ["x"], ["y"])]


@pytest.fixture
def om(make_om: Any, path: Path) -> bytes:
    """y = 2x + 1 of float32[2, 3], compiled."""
    made: Path = make_om(path, input_shape="x:2,3")
    return made.read_bytes()


@pytest.fixture
def written(om: bytes, tmp_path: Path) -> Callable[..., str]:
    """written(executors, graphs=GRAPHS) -> the path of a bundle of models that are y = 2x + 1."""

    def write(executors: Any, graphs: Any = GRAPHS, oms: Any = None) -> str:
        path = tmp_path / "split.mindir"
        attributes = bundle_attributes(graphs, executors, ["x"])
        path.write_bytes(compiled_mindir(oms or [om] * len(graphs), ["x"], attributes))
        return str(path)

    return write


@pytest.fixture
def executors(machine: Any, ascend: engine.Context) -> Iterator[Callable[..., list[Any]]]:
    """executors(path) -> those of the file; its runner is closed when the test ends."""
    with ExitStack() as stack:

        def build(path: object) -> list[Any]:
            runner = stack.enter_context(MultiModelRunner())
            runner.build_from_file(str(path), ModelType.MINDIR, ascend)
            return runner.get_model_executor()

        yield build


def run(executor: Any, *inputs: Any) -> list[Any]:
    """Return the arrays that an executor gives."""
    return [output.get_data_to_numpy() for output in executor.predict(list(inputs))]


def test_a_model_that_this_converter_split_has_its_executors(
    executors: Any, path: Path, tmp_path: Path
) -> None:
    """y = (2x) + 1, each operator a part."""
    [scaled, _] = [node.output[0] for node in onnx.load(path).graph.node]
    converter = engine.Converter()
    converter.set_config_info("SplitGraph", {"split_node_name": f"[[{scaled}],[y]]"})
    converter.convert(engine.FmkType.ONNX, str(path), str(tmp_path / "split"))
    first, second = executors(tmp_path / "split.mindir")
    [middle] = first.predict([X])
    assert middle.name == second.get_inputs()[0].name == scaled
    np.testing.assert_array_equal(middle.get_data_to_numpy(), 2 * X)
    np.testing.assert_array_equal(run(second, middle)[0], 2 * X + 1)


def test_executors_run_their_models_in_declared_order(executors: Any, written: Any) -> None:
    path = written([*WHOLE, (0, 0, ["x"], ["encoded"]), (1, 2, ["encoded"], ["y"])])
    whole, first, rest = executors(path)
    for executor, taken, given in ((whole, "x", "y"), (first, "x", "encoded"),
                                   (rest, "encoded", "y")):  # fmt: skip
        assert [(t.name, t.shape) for t in executor.get_inputs()] == [(taken, [2, 3])]
        assert [(m.name, m.shape) for m in executor.get_outputs()] == [(given, [2, 3])]
    [y] = whole.predict([X])
    assert y.name == "y"
    np.testing.assert_array_equal(y.get_data_to_numpy(), 8 * X + 7)
    [encoded] = run(first, X)
    np.testing.assert_array_equal(encoded, 2 * X + 1)
    np.testing.assert_array_equal(run(rest, encoded)[0], 8 * X + 7)
    tensors = whole.get_inputs()
    tensors[0].set_data_from_numpy(X)
    result = engine.Tensor(np.zeros((2, 3), np.float32))
    assert whole.predict(tensors, [result]) == [result]
    np.testing.assert_array_equal(result.get_data_to_numpy(), 8 * X + 7)


def test_an_executor_of_a_closed_runner_says_so(written: Any, ascend: engine.Context) -> None:
    with MultiModelRunner() as runner:
        runner.build_from_file(written(WHOLE), ModelType.MINDIR, ascend)
        [executor] = runner.get_model_executor()
    with pytest.raises(RuntimeError, match="closed"):
        executor.predict([X])
    with pytest.raises(RuntimeError, match="closed"):
        executor.get_inputs()


def test_values_between_models_stay_on_the_device(
    machine: Any, executors: Any, written: Any
) -> None:
    [executor] = executors(written(WHOLE))
    executor.predict([X])
    machine.copied.clear()
    executor.predict([X], timeout_s=60)
    assert (machine.copied["to device"], machine.copied["to host"]) == (24, 24), "x and y, once"


@pytest.fixture
def crossed(executors: Any, written: Any) -> Any:
    """Takes c and a in this order, gives d and b: 2c + 1 and 2a + 1."""
    [executor] = executors(
        written([(0, 1, ["c", "a"], ["d", "b"])], [(["a"], ["b"]), (["c"], ["d"])])
    )
    return executor


def test_inputs_go_by_name_where_they_have_names(crossed: Any) -> None:
    a, c = engine.Tensor(X), engine.Tensor(10 * X)
    a.name, c.name = "a", "c"
    for given in ([a, c], (c, a), {"a": X, "c": 10 * X}, [10 * X, X]):
        d, b = crossed.predict(given)
        np.testing.assert_array_equal(b.get_data_to_numpy(), 2 * X + 1)
        np.testing.assert_array_equal(d.get_data_to_numpy(), 20 * X + 1)


def test_arguments_that_do_not_fit_are_named(crossed: Any) -> None:
    both = [X, X]
    for arguments, timeout_s, kind, message in (
        (({"a": X, "b": X},), None, engine.InputError, r"unknown input 'b'; .* 'c', 'a'"),
        (([X],), None, engine.InputError, "input len:2 not equal input len:1"),
        (([X, X[:1]],), None, engine.InputError, r"input 'a'.*got float32"),
        ((both, [engine.Tensor()]), None, engine.InputError, "expected 2 outputs"),
        ((both, [X, X]), None, TypeError, "outputs element must be Tensor"),
        ((both,), -1, ValueError, "timeout_s must be above 0 s"),
        ((both,), "1", TypeError, "timeout_s must be a number"),
    ):
        with pytest.raises(kind, match=message):
            crossed.predict(*arguments, timeout_s=timeout_s)


def test_what_a_caller_gives_goes_before_what_is_computed(executors: Any, written: Any) -> None:
    [executor] = executors(written([(0, 2, ["x", "encoded"], ["y", "encoded"])]))
    y, encoded = run(executor, X, 5 * X)
    np.testing.assert_array_equal(y, 20 * X + 3)
    np.testing.assert_array_equal(encoded, 2 * X + 1)


def test_an_executor_without_inputs_of_its_own_takes_the_whole_models(
    executors: Any, written: Any
) -> None:
    [executor] = executors(written([(0, 1, [], ["decoded"])]))
    assert [tensor.name for tensor in executor.get_inputs()] == ["x"]
    [decoded] = executor.predict(X)
    np.testing.assert_array_equal(decoded.get_data_to_numpy(), 4 * X + 3)


def test_an_executor_that_lacks_an_input_says_so_and_the_others_run(
    executors: Any, written: Any
) -> None:
    graphs = [(["x"], ["b"]), (["c"], ["d"])]
    lacking, sound = executors(written([(0, 1, ["x"], ["d"]), (0, 0, ["x"], ["b"])], graphs))
    with pytest.raises(engine.ModelError, match="Input 'c' of a model in the bundle is neither"):
        lacking.predict([X])
    np.testing.assert_array_equal(run(sound, X)[0], 2 * X + 1)


def test_threads_share_the_executors_of_a_bundle(executors: Any, written: Any) -> None:
    pair = executors(written([*WHOLE, (1, 2, ["encoded"], ["y"])]))
    with ThreadPoolExecutor(4) as pool:
        for n, [y] in enumerate(pool.map(lambda n: run(pair[n % 2], n * X), range(40))):
            np.testing.assert_array_equal(y, 4 * n * X + 3 if n % 2 else 8 * n * X + 7)


def test_a_model_in_a_mindir_that_is_compiled_runs_as_an_om_file(
    executors: Any, om: bytes, ascend: engine.Context, tmp_path: Path
) -> None:
    path = tmp_path / "net.mindir"
    path.write_bytes(compiled_mindir([om]))
    with engine.load(path, "ascend") as model:
        np.testing.assert_array_equal(model(X)["y"], 2 * X + 1)
        assert model.get_inputs()[0].name == "x", "the .om file's own names"
    from_memory = engine.Model()
    from_memory.build_from_buffer(path.read_bytes(), None, ModelType.MINDIR, ascend)
    np.testing.assert_array_equal(from_memory(X)["y"], 2 * X + 1)
    from_memory.close()
    [only] = executors(path)
    np.testing.assert_array_equal(run(only, X)[0], 2 * X + 1)


def test_a_bundle_by_itself_names_the_runner_of_several(written: Any) -> None:
    message = "a bundle of 3 models compiled for Ascend; run them with engine[.]MultiModelRunner"
    with pytest.raises(engine.ModelError, match=message):
        engine.load(written(WHOLE), "ascend")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda om: om[:-40], "bytes of weights, expected|cannot be"),
        (lambda om: b"weights of nobody",
         "its compiled model 1 begins with b'weights '; an .om file of CANN begins"),
        (None, r"its model 1 has 1 inputs, but the file names 2 \('b', 'c'\)"),
        ("mdl.get_desc", "500002"),
    ],
    ids=["cut off", "foreign", "of other inputs", "refused by the device"],
)  # fmt: skip
def test_a_bundle_that_does_not_fit_its_models_leaves_nothing(
    machine: Any, ascend: engine.Context, written: Any, om: bytes, change: Any, message: str
) -> None:
    if change is None:
        path = written([(0, 1, ["x", "c"], ["d"])], [(["x"], ["b"]), (["b", "c"], ["d"])])
    elif callable(change):
        path = written(WHOLE, oms=[om, change(om), om])
    else:
        machine.fail(change, 500002, after=2)
        path = written(WHOLE)
    with pytest.raises(engine.ModelError, match=message) as caught:
        MultiModelRunner().build_from_file(path, ModelType.MINDIR, ascend)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count(path) == 1
    assert machine.live() == {}


def test_a_bundle_of_cann_inside_a_mindir_is_refused(om: bytes, tmp_path: Path) -> None:
    from emulated_ascend.omfile import write_bundle

    path = tmp_path / "net.mindir"
    path.write_bytes(compiled_mindir([write_bundle([om, om])]))
    with pytest.raises(engine.ModelError, match="pyACL loads from files only; pass the path of"):
        engine.load(path, "ascend")
