"""A model's life beyond the API's table (tests/api): building, resizing, freeing."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import Context, Model, ModelType, Tensor
from engine.backends import open_backend
from engine.config.reader import number_devices
from engine.config.sections import sections_of
from engine.model import recipe
from engine.model.model import model_state
from engine.types import CancelToken, DType
from engine_testing import models

pytestmark = pytest.mark.usefixtures("null_backend")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_model_that_failed_to_build_can_be_built_again(
    tmp_path: Path, null_context: Context
) -> None:
    model = Model()
    with pytest.raises(engine.ModelError, match=r"build_from_file failed! Error is .*truncated"):
        model.build_from_file(str(models.truncated(tmp_path)), ModelType.MINDIR, null_context)
    model.build_from_file(str(models.affine(tmp_path)), ModelType.MINDIR, null_context)
    assert model.predict([X])


def test_a_cancelled_build_ends_in_cancelled(tmp_path: Path) -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(engine.Cancelled):
        engine.load(models.affine(tmp_path), target="null", cancel=token)


@pytest.mark.parametrize("target", ["null", ["null", "null"]])
def test_an_error_of_the_progress_callback_is_the_callers_own(
    tmp_path: Path, target: str | list[str]
) -> None:
    def fail(phase: str, done: int, total: int | None) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        engine.load(models.affine(tmp_path), target=target, progress=fail)


def test_a_progress_callback_that_builds_the_same_model_is_refused(
    tmp_path: Path, null_context: Context
) -> None:
    path = str(models.affine(tmp_path))
    model = Model()

    def again(phase: str, done: int, total: int | None) -> None:
        with pytest.raises(engine.ModelStateError, match="is being built"):
            model.build_from_file(path, ModelType.MINDIR, null_context)

    model.build_from_file(path, ModelType.MINDIR, null_context, progress=again)


def test_resize_fixes_the_shapes_and_resets_the_inputs(affine: Model) -> None:
    inputs = affine.get_inputs()
    assert inputs[0].shape == [-1, 3]
    assert affine.get_outputs()[0].shape == [-1, 3]
    inputs[0].set_data_from_numpy(X)
    affine.resize(inputs, [[4, 3]])
    assert inputs[0].shape == [4, 3]
    assert affine.get_inputs()[0].shape == [4, 3]
    assert affine.get_outputs()[0].shape == [4, 3]
    assert affine.get_outputs()[0].data_size == 48
    with pytest.raises(engine.InputError, match="has no data"):
        affine.predict(inputs)
    with pytest.raises(engine.InputError, match=r"expected float32\[4, 3\], got float32\[2, 3\]"):
        affine.predict([X])
    assert affine.predict([np.zeros((4, 3), "f")])[0].shape == [4, 3]
    affine.resize(inputs, [[2, 3]])
    np.testing.assert_array_equal(affine.predict([X])[0], 2 * X + 1)


def test_no_rows_are_a_size_like_any_other(affine: Model) -> None:
    """So a decoder begins with a past of length 0."""
    nothing = np.zeros((0, 3), "f")
    assert affine.predict([nothing])[0].shape == [0, 3]
    inputs = affine.get_inputs()
    affine.resize(inputs, [[0, 3]])
    assert inputs[0].shape == affine.get_outputs()[0].shape == [0, 3]
    assert affine.predict([nothing])[0].shape == [0, 3]
    with pytest.raises(engine.InputError, match=r"expected float32\[0, 3\], got float32\[2, 3\]"):
        affine.predict([X])
    with pytest.raises(engine.InputError, match=r"dim 1 is 0, expected 1.*; the model fixes it"):
        affine.resize(inputs, [[2, 0]])
    affine.resize(inputs, [[2, 3]])
    np.testing.assert_array_equal(affine.predict([X])[0], 2 * X + 1)


def test_a_resize_leaves_the_tensors_of_another_model_alone(
    affine: Model, null_backend: str, tmp_path: Path
) -> None:
    path = models.affine(tmp_path)
    other = engine.load(path, target=null_backend)
    theirs = other.get_inputs()
    theirs[0].set_data_from_numpy(X)
    refused = r"^resize failed! Error is inputs element 0 is tensor 'x' of another model; pass what"
    with pytest.raises(engine.InputError, match=refused):
        affine.resize(theirs, [[4, 3]])
    np.testing.assert_array_equal(other.predict(theirs)[0], 2 * X + 1)
    np.testing.assert_array_equal(affine.predict([X])[0], 2 * X + 1)
    del other
    gc.collect()
    with pytest.raises(engine.InputError, match=refused):
        affine.resize(theirs, [[4, 3]])


def test_a_resize_takes_the_tensors_that_another_thread_got(affine: Model) -> None:
    theirs: list[Tensor] = []
    thread = threading.Thread(target=lambda: theirs.extend(affine.get_inputs()))
    thread.start()
    thread.join()
    affine.resize(theirs, [[4, 3]])
    assert theirs[0].shape == affine.get_inputs()[0].shape == [4, 3]


def test_the_tensors_a_script_holds_stay_its_inputs_after_a_resize(affine: Model) -> None:
    inputs = affine.get_inputs()
    affine.resize(inputs, [[2, 3]])
    inputs[0].set_data_from_numpy(X)
    np.testing.assert_array_equal(affine.predict(inputs)[0], 2 * X + 1)
    np.testing.assert_array_equal(affine.predict(affine.get_inputs())[0], 2 * X + 1)


@pytest.mark.parametrize("copy_it", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_model_cannot_be_copied(affine: Model, copy_it: Callable[[Model], object]) -> None:
    with pytest.raises(TypeError, match="cannot be copied or sent to another process"):
        copy_it(affine)
    assert affine.predict([X])


CHANGES: dict[str, Callable[[Model], object]] = {
    "resize": lambda model: model.resize(model.get_inputs(), [[2, 5]]),
    "update weight": lambda model: model.update_weights({"two": np.array([3], np.float32)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_is_closed_while_it_is_changed_stays_closed(
    tmp_path: Path, null_backend: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    config = {"common_context": {"variable_weights_mode": "rebuild"}}
    path = models.affine(tmp_path)
    model = engine.load(path, null_backend, variable_weights=["two"], config=config)
    assert model_state(model).plan is not None
    pools = [model_state(model).plan.pool]
    build = recipe.build

    def close_meanwhile(*given: Any, **named: Any) -> recipe.Built:
        built = build(*given, **named)
        pools.append(built.plan.pool)
        closing = threading.Thread(target=model.close)
        closing.start()
        closing.join(20)
        return built

    monkeypatch.setattr("engine.model.update.build", close_meanwhile)
    with pytest.raises(engine.ModelStateError, match=f"^{change} failed! Error is the model is cl"):
        CHANGES[change](model)
    assert model_state(model).plan is None
    assert len(pools) == 2
    assert all(pool.is_closed and not pool.open_count for pool in pools)


def test_leaving_a_with_block_closes_the_model(tmp_path: Path) -> None:
    with engine.load(models.affine(tmp_path), target="null") as model:
        model.predict([X])
    with pytest.raises(engine.ModelStateError, match="closed"):
        model.predict([X])


def test_a_model_is_freed_without_close_when_nobody_holds_it(tmp_path: Path) -> None:
    model = engine.load(models.affine(tmp_path), target="null")
    result = model.predict([X])[0]
    executable = weakref.ref(model_state(model).plan.executable)  # type: ignore[union-attr]
    del model
    gc.collect()
    assert executable() is None
    np.testing.assert_array_equal(result, 2 * X + 1)


def test_placement_names_each_node_its_backend_and_why(affine: Model) -> None:
    places = affine.placement
    nodes = [(place.index, place.node, place.op_type) for place in places]
    assert nodes == [(0, "scale", "Mul"), (1, "shift", "Add")]
    assert {(p.backend, p.device) for p in places} == {("null", "null:0")}
    assert all("target ['null']" in p.reason for p in places)


def test_a_static_empty_shape_runs_and_its_input_cannot_be_resized(
    tmp_path: Path, null_backend: str
) -> None:
    nothing = np.zeros((0, 3), np.float32)
    with engine.load(models.empty(tmp_path), target=null_backend) as model:
        inputs = model.get_inputs()
        inputs[0].set_data_from_numpy(nothing)
        for given in ([nothing], inputs):
            y, total = model.predict(given)
            assert (y.shape, total.get_data_to_numpy().tolist()) == ([0, 3], [0, 0, 0])
        with pytest.raises(RuntimeError, match=r"Invalid shape!.* dim 0 is 0, expected 1"):
            model.resize(inputs, [[0, 3]])
        assert model.predict([nothing])[0].shape == [0, 3]


def test_looking_at_a_model_opens_no_execution_context(affine: Model) -> None:
    pool = model_state(affine).plan.pool  # type: ignore[union-attr]
    inputs = affine.get_inputs()
    affine.get_outputs()
    affine.resize(inputs, [[2, 3]])
    affine.get_model_info("input_shape")
    assert affine.get_inputs()[0].shape == inputs[0].shape == [2, 3]
    assert pool.open_count == 0
    inputs[0].set_data_from_numpy(X)
    np.testing.assert_array_equal(affine.predict(inputs)[0], 2 * X + 1)
    assert pool.open_count == 1


# -------------------------------------------------------------- what a failed build leaves behind


class Watched:
    """An executable, or a loaded model, that counts how often it was closed."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.closed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def close(self) -> None:
        self.closed += 1
        self.real.close()


class Mute(Watched):
    """An executable that cannot say its inputs."""

    @property
    def inputs(self) -> Any:
        raise KeyError("inputs")


@pytest.fixture
def executables(
    null_backend: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> list[Watched]:
    """Give the executables that the null backend compiles during the test."""
    backend = open_backend(null_backend)
    made: list[Watched] = []
    compile_it = backend.compile
    kind = getattr(request, "param", Watched)

    def watched(*arguments: Any) -> Watched:
        made.append(kind(compile_it(*arguments)))
        return made[-1]

    monkeypatch.setattr(backend, "compile", watched)
    return made


@pytest.fixture
def stuck(
    null_backend: str, executables: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> list[BaseException]:
    """Give the exceptions that closing the null backend's loaded models raises, in this order."""
    errors: list[BaseException] = []

    class Stuck(Watched):
        def close(self) -> None:
            raise errors.pop(0)

    backend = open_backend(null_backend)
    load, compile_it = backend.load, backend.compile
    monkeypatch.setattr(backend, "load", lambda *arguments: Stuck(load(*arguments)))
    monkeypatch.setattr(
        backend, "compile", lambda loaded, options: compile_it(loaded.real, options)
    )
    return errors


@pytest.mark.parametrize("kind", [OSError, SystemExit])
def test_a_loaded_model_that_cannot_be_closed_costs_a_log_line_and_no_model(
    tmp_path: Path,
    null_backend: str,
    executables: list[Watched],
    stuck: list[BaseException],
    kind: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck.append(kind("the file is busy"))
    with engine.load(models.affine(tmp_path), target=null_backend) as model:
        np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)
        assert executables[0].closed == 0
    assert executables[0].closed == 1
    assert "the file is busy" in caplog.text


def test_an_interrupt_while_a_loaded_model_is_closed_leaves_no_executable_open(
    tmp_path: Path, null_backend: str, executables: list[Watched], stuck: list[BaseException]
) -> None:
    stuck.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        engine.load(models.affine(tmp_path), target=null_backend)
    assert [each.closed for each in executables] == [1]


def test_an_executable_is_closed_where_its_inputs_have_no_numpy_dtype(
    tmp_path: Path,
    null_backend: str,
    executables: list[Watched],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(self: DType) -> Any:
        raise ImportError("element type 'float32' needs ml_dtypes; run: pip install ml_dtypes")

    monkeypatch.setattr(DType, "numpy", property(missing))
    with pytest.raises(engine.ModelError, match="run: pip install ml_dtypes"):
        engine.load(models.affine(tmp_path), target=null_backend)
    assert [executable.closed for executable in executables] == [1]


@pytest.mark.parametrize("executables", [Mute], indirect=True)
def test_an_executable_that_cannot_say_its_inputs_is_closed(
    tmp_path: Path, null_backend: str, executables: list[Watched]
) -> None:
    with pytest.raises(engine.BackendUnavailable, match=r"'null' is at fault.*KeyError: 'in"):
        engine.load(models.affine(tmp_path), target=null_backend)
    assert [executable.closed for executable in executables] == [1]


# ------------------------------------------------------------------------------------ engine.load


def test_load_takes_what_a_person_writes(tmp_path: Path, null_backend: str) -> None:
    path = models.affine(tmp_path)
    for target in (null_backend, [null_backend], ("nowhere_else", null_backend)[1:]):
        for file in (path, str(path)):
            np.testing.assert_array_equal(engine.load(file, target)(x=X)["y"], 2 * X + 1)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"model": 5}, TypeError, "model must be a path, bytes, .* but got <class 'int'>"),
        ({"model": b"m.onnx"}, RuntimeError, "model bytes: "),
        ({"model": "nowhere"}, RuntimeError, "engine.load failed, there is no file 'nowhere'"),
        ({"target": 5}, TypeError, "target must be list, but got <class 'int'>"),
        ({"target": ["cpu", 5]}, TypeError, "target element must be str, but got .* at index 1"),
        ({"threads": "4"}, TypeError, "threads must be int"),
        ({"threads": -1}, ValueError, "threads must be a non-negative int"),
        ({"device_id": "1"}, TypeError, "device_id must be int"),
        ({"device_id": -1}, ValueError, "device_id must be a non-negative int"),
        ({"config": [1]}, TypeError, "config must be a path or a dict of sections"),
        ({"config": [1], "device_id": 1}, TypeError, "config must be a path or a dict"),
        ({"progress": 1}, TypeError, "progress must be callable"),
        ({"cancel": True}, TypeError, "cancel must be a CancelToken"),
    ],
)
def test_load_refuses_in_the_same_words(
    tmp_path: Path, null_backend: str, arguments: dict[str, Any], kind: type[Exception], text: str
) -> None:
    right = {"model": models.affine(tmp_path), "target": null_backend}
    with pytest.raises(kind, match=text):
        engine.load(**{**right, **arguments})


def test_load_does_not_number_the_host_behind_another_device() -> None:
    config: dict[str, dict[str, str]] = {}
    number_devices(["null", "cpu", "gpu"], config, 3)
    assert config == {"null_context": {"device_id": "3"}}
    config = {}
    number_devices(["cpu"], config, 3)
    assert config == {"cpu_context": {"device_id": "3"}}


def test_load_leaves_the_configuration_it_was_given_alone(
    tmp_path: Path, null_backend: str
) -> None:
    config: dict[str, dict[str, str]] = {"null_context": {}}
    with pytest.raises(engine.BackendUnavailable, match="null:3"):
        engine.load(models.affine(tmp_path), null_backend, device_id=3, config=config)
    assert config == {"null_context": {}}


@pytest.mark.parametrize("kind", ["path", "text", "values"])
def test_load_takes_a_files_path_and_values_as_python_has_them(
    tmp_path: Path, null_backend: str, kind: str
) -> None:
    file = tmp_path / "x.ini"
    file.write_text("[null_context]\ndevice_id=3\n")
    config: Any = {"path": file, "text": str(file), "values": {"null_context": {"device_id": 3}}}
    with pytest.raises(engine.BackendUnavailable, match="null:3"):
        engine.load(models.affine(tmp_path), null_backend, config=config[kind])


def test_load_writes_values_as_a_file_would_have_them(tmp_path: Path) -> None:
    given = {"a": {"on": True, "off": False, "n": 3, "x": 0.5, "path": tmp_path, "text": "t"}}
    assert sections_of("config", given) == {
        "a": {"on": "1", "off": "0", "n": "3", "x": "0.5", "path": str(tmp_path), "text": "t"}
    }


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (3, r"^config must be a path or a dict of sections, .*'int'"),
        (
            {"spin_us": 0},
            r"^config must be a dict of sections, .* got 'spin_us': 0; put it into th",
        ),
        ({"a": {"b": [1]}}, r"^config: key 'b' in section 'a' must be .*, but got <class 'list'>"),
        ({"a": {1: "b"}}, r"^config: key 1 in section 'a'"),
        ({1: {}}, r"^config must be a dict of sections"),
    ],
)
def test_load_names_its_own_argument_for_a_wrong_configuration(
    tmp_path: Path, null_backend: str, config: Any, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        engine.load(models.affine(tmp_path), null_backend, config=config)
    with pytest.raises(
        RuntimeError, match=r"engine.load failed, config does not exist! got 'nowhere\.ini'"
    ):
        engine.load(models.affine(tmp_path), null_backend, config="nowhere.ini")


@pytest.mark.parametrize("target", [None, [], ()])
def test_load_is_told_where_to_run_or_nothing_at_all(
    null_backend: str, tmp_path: Path, target: Any
) -> None:
    """A list of targets that came out empty is a mistake, not the wish for the CPU."""
    with pytest.raises(ValueError, match=r"target must name where to run, .* leave it out"):
        engine.load(models.affine(tmp_path), target=target)


def test_completion_offers_what_is_public() -> None:
    assert sorted(dir(engine)) == sorted(engine.__all__)


def test_a_resize_to_minus_1_opens_the_axis_again(affine: Model) -> None:
    inputs = affine.get_inputs()
    affine.resize(inputs, [[4, 3]])
    with pytest.raises(RuntimeError, match="expected"):
        affine.predict([np.zeros((2, 3), np.float32)])
    affine.resize(inputs, [[-1, 3]])
    assert (inputs[0].shape, affine.get_inputs()[0].shape) == ([-1, 3], [-1, 3])
    assert affine.inputs[0].shape == ("batch", 3)
    for batch in (2, 5):
        [y] = affine.predict([np.zeros((batch, 3), np.float32)])
        assert y.shape == [batch, 3]
    with pytest.raises(RuntimeError, match=r"dim 1 is fixed to 3 .*, and an axis of -1 beside it"):
        affine.resize(inputs, [[-1, 5]])
