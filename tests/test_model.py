"""Model: what a user sees, on the null backend, so that only the core is under test."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import Context, DataType, Model, ModelType, Tensor
from engine.testing import models
from engine.types import CancelToken

pytestmark = pytest.mark.usefixtures("null_backend")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def affine(tmp_path: Path) -> Model:
    """y = 2x + 1, x float32[batch, 3]."""
    return engine.load(models.affine(tmp_path), target="null")


@pytest.fixture
def several(tmp_path: Path) -> Model:
    """Inputs z, a, m; outputs y = z - a, b = a * m, x = z + m."""
    return engine.load(models.several(tmp_path), target="null")


def null_context() -> Context:
    context = Context()
    context.target = ["null"]
    return context


# ------------------------------------------------------------------------------------- predict


def test_predict_takes_lists_tuples_dicts_arrays_and_tensors(affine: Model) -> None:
    for inputs in ([X], (X,), {"x": X}, [Tensor(X)], {"x": Tensor(X)}):
        [y] = affine.predict(inputs)
        assert isinstance(y, Tensor)
        assert (y.name, y.dtype, y.shape) == ("y", DataType.FLOAT32, [2, 3])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)


def test_calling_a_model_takes_arrays_by_name_or_place_and_gives_arrays_by_name(
    several: Model,
) -> None:
    z, a, m = (np.full(s, v, np.float32) for s, v in (((2, 3), 5), ((2, 3), 3), ((3,), 2)))
    for outputs in (several(z=z, a=a, m=m), several(z, a, m)):
        assert list(outputs) == ["y", "b", "x"]
        assert [outputs[name][0, 0] for name in ("y", "b", "x")] == [2, 6, 7]
    with pytest.raises(TypeError, match="all inputs by place or all by name"):
        several(z, a=a, m=m)


def test_a_dict_goes_by_name_and_not_by_order(several: Model) -> None:
    z, a, m = np.ones((2, 3), "f"), np.zeros((2, 3), "f"), np.full(3, 9, "f")
    y, b, x = (t.get_data_to_numpy()[0, 0] for t in several.predict({"m": m, "a": a, "z": z}))
    assert (y, b, x) == (1, 0, 10)


def test_mixed_lists_of_arrays_and_tensors_work(several: Model) -> None:
    z, a, m = np.ones((2, 3), "f"), np.zeros((2, 3), "f"), np.full(3, 9, "f")
    assert several.predict([z, Tensor(a), m])[2].get_data_to_numpy()[0, 0] == 10


def test_a_result_never_changes_under_its_owner(affine: Model) -> None:
    results = [affine.predict([np.full((1, 3), value, np.float32)])[0] for value in range(10)]
    for value, result in enumerate(results):
        assert result.get_data_to_numpy().tolist() == [[2 * value + 1] * 3]


def test_given_outputs_are_filled_and_returned(affine: Model) -> None:
    buffer = np.zeros((2, 3), np.float32)
    outputs = [Tensor(buffer)]
    for step in range(4):
        assert affine.predict([X + step], outputs)[0] is outputs[0]
        np.testing.assert_array_equal(buffer, 2 * (X + step) + 1)


def test_a_given_output_without_data_gets_memory(affine: Model) -> None:
    output = Tensor()
    affine.predict([X], [output])
    np.testing.assert_array_equal(output.get_data_to_numpy(), 2 * X + 1)
    assert output.shape == [2, 3]


def test_an_output_that_changes_between_calls_is_written_where_it_is_now(affine: Model) -> None:
    inputs = affine.get_inputs()
    inputs[0].set_data_from_numpy(X)
    output = Tensor(np.zeros((2, 3), np.float32))
    affine.predict(inputs, [output])
    first = output.get_data_to_numpy()
    fresh = np.zeros((2, 3), np.float32)
    output.set_data_from_numpy(fresh)
    first[:] = -1
    affine.predict(inputs, [output])
    np.testing.assert_array_equal(fresh, 2 * X + 1)
    assert (first == -1).all()


def test_a_bound_tensor_that_changes_is_seen_by_the_next_predict(affine: Model) -> None:
    inputs = affine.get_inputs()
    outputs = [Tensor(np.zeros((2, 3), np.float32))]
    array = X.copy()
    inputs[0].set_data_from_numpy(array)
    for change in ("nothing", "in place", "another array", "through the tensor"):
        if change == "in place":
            array += 10
        elif change == "another array":
            array = X - 5
            inputs[0].set_data_from_numpy(array)
        elif change == "through the tensor":
            inputs[0].get_data_to_numpy()[0, 0] = 77
        expected = 2 * array + 1
        np.testing.assert_array_equal(affine.predict(inputs)[0], expected, err_msg=change)
        affine.predict(inputs, outputs)
        np.testing.assert_array_equal(outputs[0], expected, err_msg=change)


def test_an_array_that_is_reshaped_in_place_is_seen(affine: Model) -> None:
    array = X.copy()
    outputs = [Tensor()]
    affine.predict([array], outputs)
    array.resize((1, 3), refcheck=False)
    assert affine.predict([array])[0].shape == [1, 3]
    outputs[0] = Tensor(np.zeros((1, 3), np.float32))
    affine.predict([array], outputs)
    np.testing.assert_array_equal(outputs[0], 2 * array + 1)


def test_shapes_may_change_from_call_to_call_where_the_model_leaves_them_open(
    affine: Model,
) -> None:
    for rows in (1, 4, 4, 2, 4, 0):
        assert affine.predict([np.zeros((rows, 3), np.float32)])[0].shape == [rows, 3]


@pytest.mark.parametrize(
    "array",
    [
        X[:, ::-1],
        np.asfortranarray(X),
        X.astype(">f4"),
        np.broadcast_to(np.float32(3), (4, 3)),
        np.frombuffer(b"\0" + X.tobytes(), np.float32, 6, 1).reshape(2, 3),
    ],
    ids=["strided", "fortran", "big endian", "broadcast and read-only", "unaligned"],
)
def test_any_memory_layout_just_works(affine: Model, array: np.ndarray) -> None:
    for _ in range(3):
        np.testing.assert_array_equal(affine.predict([array])[0], 2 * array + 1)


def test_a_scalar_model_takes_numpy_scalars(tmp_path: Path) -> None:
    with engine.load(models.scalar(tmp_path), target="null") as model:
        for value in (np.float32(3), np.array(3, np.float32)):
            assert float(model(x=value)["y"]) == 7
        assert model.get_inputs()[0].shape == []


# ----------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("inputs", "kind", "text"),
    [
        ("x", TypeError, "inputs must be list or tuple, but got <class 'str'>"),
        (X, TypeError, "inputs must be list or tuple"),
        (None, TypeError, "inputs must be list or tuple"),
        ([], RuntimeError, "model input len:1 not equal input len:0!"),
        ([X, X], RuntimeError, "model input len:1 not equal input len:2!"),
        ([[1, 2, 3]], TypeError, "inputs element must be Tensor, of numpy.*'x'"),
        ([1.0], TypeError, "inputs element must be Tensor, of numpy"),
        ([Tensor(shape=[-1, 3], dtype=DataType.FLOAT32)], RuntimeError, "'x': the tensor has no d"),
        ([X.astype(np.float64)], RuntimeError, r"'x': expected float32\[batch, 3\], got float64"),
        ([X.astype(np.float64)], ValueError, r"astype\('float32'\)"),
        ([X[0]], RuntimeError, r"'x': expected float32\[batch, 3\], got float32\[3\]"),
        ([np.zeros((2, 4), "f")], RuntimeError, r"got float32\[2, 4\]"),
        ({"y": X}, RuntimeError, "unknown input 'y'; the model has: 'x'"),
        ({}, RuntimeError, "input 'x' is missing"),
        ({1: X}, RuntimeError, "unknown input 1"),
    ],
)
def test_wrong_inputs_are_named_and_leave_the_model_usable(
    affine: Model, inputs: object, kind: type[Exception], text: str
) -> None:
    for outputs in (None, [Tensor()]):
        with pytest.raises(kind, match=text):
            affine.predict(inputs, outputs)
        np.testing.assert_array_equal(affine.predict([X])[0], 2 * X + 1)


@pytest.mark.parametrize(
    ("outputs", "kind", "text"),
    [
        ((Tensor(),), TypeError, "outputs must be list, but got"),
        ([X], TypeError, "outputs element must be Tensor, but got .* at index 0"),
        ([], RuntimeError, r"expected 1 outputs \('y'\), got 0"),
        ([Tensor(), Tensor()], RuntimeError, "expected 1 outputs"),
        ([Tensor(np.zeros((3, 3), "f"))], RuntimeError, r"'y': expected .*float32\[2, 3\]"),
        ([Tensor(np.zeros((2, 3)))], RuntimeError, r"'y': .* got float64\[2, 3\]"),
    ],
)
def test_wrong_outputs_are_named_and_leave_the_model_usable(
    affine: Model, outputs: object, kind: type[Exception], text: str
) -> None:
    for _ in range(2):
        with pytest.raises(kind, match=text):
            affine.predict([X], outputs)
    np.testing.assert_array_equal(affine.predict([X], [Tensor()])[0], 2 * X + 1)


def test_one_tensor_for_two_outputs_is_refused(several: Model) -> None:
    z, a, m = np.ones((2, 3), "f"), np.zeros((2, 3), "f"), np.full(3, 9, "f")
    tensor = Tensor()
    with pytest.raises(engine.InputError, match="one tensor was given for two outputs"):
        several.predict([z, a, m], [tensor, Tensor(), tensor])


@pytest.mark.parametrize("copy_it", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_model_cannot_be_copied(affine: Model, copy_it: Callable[[Model], object]) -> None:
    with pytest.raises(TypeError, match="cannot be copied or sent to another process"):
        copy_it(affine)
    assert affine.predict([X])


def test_a_read_only_output_is_refused(affine: Model) -> None:
    buffer = np.zeros((2, 3), np.float32)
    buffer.flags.writeable = False
    with pytest.raises(engine.InputError, match="must be writeable"):
        affine.predict([X], [Tensor(buffer)])


def test_equal_symbols_must_be_equal_sizes(tmp_path: Path) -> None:
    with engine.load(models.shared_dims(tmp_path), target="null") as model:
        left, right = np.ones((2, 3), "f"), np.ones((3, 4), "f")
        assert model(left=left, right=right)["y"].tolist() == [[3] * 4] * 2
        with pytest.raises(engine.InputError, match=r"'right': axis 0 .'common'. is 4.*'left'.*3"):
            model(left=left, right=np.ones((4, 4), "f"))


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((1, ModelType.MINDIR), TypeError, "model_path must be str, but got"),
        (("m", 0), TypeError, "model_type must be ModelType, but got"),
        (("m", ModelType.MINDIR, "cpu"), TypeError, "context must be Context, but got"),
        (("m", ModelType.MINDIR, None, 1), TypeError, "config_path must be str, but got"),
        (("m", ModelType.MINDIR), RuntimeError, "build_from_file failed, model_path does not exis"),
        (
            ("{m}", ModelType.MINDIR, None, "nowhere.ini"), RuntimeError,
            "build_from_file failed, config_path does not exist!",
        ),
        (("{m}", ModelType.MINDIR, None, "", [1]), TypeError, "config_dict must be dict"),
        (("{m}", ModelType.MINDIR, None, "", {1: {}}), TypeError, "config_dict_key must be str"),
        (("{m}", ModelType.MINDIR, None, "", {"a": 1}), TypeError, "config_dict_value must be dic"),
        (
            ("{m}", ModelType.MINDIR, None, "", {"a": {1: ""}}), TypeError,
            "config_dict_value_key must be str",
        ),
        (
            ("{m}", ModelType.MINDIR, None, "", {"a": {"b": 1}}), TypeError,
            "config_dict_value_value must be str",
        ),
        (("{m}", ModelType.MINDIR, None, "", None, "key"), TypeError, "dec_key must be bytes"),
        (
            ("{m}", ModelType.MINDIR, None, "", None, b"k" * 16, ""), ValueError,
            "dec_mode must not be empty string!",
        ),
    ],
)  # fmt: skip
def test_wrong_arguments_of_build_are_refused_in_the_documented_order(
    tmp_path: Path, arguments: tuple[object, ...], kind: type[Exception], text: str
) -> None:
    path = str(models.affine(tmp_path))
    arguments = tuple(path if value == "{m}" else value for value in arguments)
    model = Model()
    with pytest.raises(kind, match=text):
        model.build_from_file(*arguments)
    model.build_from_file(path, ModelType.MINDIR, null_context())
    assert model.predict([X])


def test_a_model_is_built_once(affine: Model, tmp_path: Path) -> None:
    with pytest.raises(engine.ModelStateError, match="already built"):
        affine.build_from_file(str(models.affine(tmp_path)), ModelType.MINDIR, null_context())
    assert affine.predict([X])


def test_an_unbuilt_model_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    assert str(model) == "model_path: ."
    assert model.get_inputs() == []
    assert model.get_outputs() == ()
    assert "not built" in caplog.text
    for call in (lambda: model.predict([X]), lambda: model(X), lambda: model.placement):
        with pytest.raises(RuntimeError, match="not built; call build_from_file first"):
            call()
    model.close()


def test_a_closed_model_says_so_and_closing_twice_does_nothing(affine: Model) -> None:
    affine.get_inputs()
    affine.close()
    affine.close()
    calls: list[Callable[[], object]] = [
        lambda: affine.predict([X]), lambda: affine(x=X), lambda: affine.placement,
        affine.get_inputs, affine.get_outputs, lambda: affine.resize([Tensor()], [[1, 3]]),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(engine.ModelStateError, match="closed; build a new one"):
            call()


def test_leaving_a_with_block_closes_the_model(tmp_path: Path) -> None:
    with engine.load(models.affine(tmp_path), target="null") as model:
        model.predict([X])
    with pytest.raises(engine.ModelStateError, match="closed"):
        model.predict([X])


def test_a_model_that_failed_to_build_can_be_built_again(tmp_path: Path) -> None:
    model = Model()
    with pytest.raises(engine.ModelError, match=r"build_from_file failed! Error is .*truncated"):
        model.build_from_file(str(models.truncated(tmp_path)), ModelType.MINDIR, null_context())
    model.build_from_file(str(models.affine(tmp_path)), ModelType.MINDIR, null_context())
    assert model.predict([X])


@pytest.mark.parametrize(
    ("timeout_s", "kind"), [("1", TypeError), (True, TypeError), (0, ValueError), (-1, ValueError)]
)
def test_a_wrong_timeout_is_refused(affine: Model, timeout_s, kind) -> None:
    with pytest.raises(kind, match="timeout_s must be"):
        affine.predict([X], timeout_s=timeout_s)


# -------------------------------------------------------------------------------------- resize


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


def test_the_tensors_a_script_holds_stay_its_inputs_after_a_resize(affine: Model) -> None:
    inputs = affine.get_inputs()
    affine.resize(inputs, [[2, 3]])
    inputs[0].set_data_from_numpy(X)
    assert affine.get_inputs()[0] is inputs[0]
    np.testing.assert_array_equal(affine.predict(affine.get_inputs())[0], 2 * X + 1)


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


@pytest.mark.parametrize(
    ("dims", "kind", "text"),
    [
        (None, TypeError, "dims must be list or tuple of shape"),
        ([4], TypeError, "dims element must be list or tuple of int"),
        ([[4, "3"]], TypeError, "dims element's element must be int, but got .* at 0th .* 1th"),
        ([[4, 3], [4, 3]], ValueError, "inputs' size does not match dims' size, but got inputs: 1"),
        ([[0, 3]], RuntimeError, "Invalid shape! input 'x': dim 0 is 0"),
        ([[-1, 3]], RuntimeError, "Invalid shape!"),
        ([[2**31, 3]], RuntimeError, "Invalid shape!"),
        ([[4]], RuntimeError, r"expected 2 dims as in float32\[batch, 3\], got \[4\]"),
        ([[4, 5]], RuntimeError, "resize failed! Error is input 'x': dim 1 is fixed to 3"),
    ],
)
def test_a_wrong_resize_is_refused_and_changes_nothing(
    affine: Model, dims: object, kind: type[Exception], text: str
) -> None:
    inputs = affine.get_inputs()
    with pytest.raises(kind, match=text):
        affine.resize(inputs, dims)
    assert affine.get_inputs()[0].shape == [-1, 3]
    assert affine.predict([X])


def test_resize_wants_tensors(affine: Model) -> None:
    with pytest.raises(TypeError, match="inputs must be list or tuple of Lite Tensor"):
        affine.resize(X, [[2, 3]])
    with pytest.raises(TypeError, match=r"inputs element must be Tensor, but got .* at index 0"):
        affine.resize([X], [[2, 3]])


# ------------------------------------------------------------------------------------- threads


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_share_a_model_and_get_their_own_tensors_and_results(affine: Model) -> None:
    seen: list[int] = []

    def work(index: int) -> None:
        [tensor] = affine.get_inputs()
        seen.append(id(tensor))
        assert affine.get_inputs()[0] is tensor
        for step in range(20):
            x = np.full((1 + index, 3), index * 100 + step, np.float32)
            tensor.shape = [-1, 3]
            tensor.set_data_from_numpy(x)
            np.testing.assert_array_equal(affine.predict([tensor])[0], 2 * x + 1)
        time.sleep(0.1)  # so that no two tensors follow each other in the same memory

    in_threads(4, work)
    assert len(set(seen)) == 4


def test_contexts_are_reused_by_the_next_threads(affine: Model) -> None:
    pool = affine._plan.pool  # type: ignore[union-attr]
    for _ in range(20):
        in_threads(1, lambda index: affine.predict([X]) and None)
    gc.collect()
    assert pool._open <= 1


def test_closing_waits_for_nobody_and_frees_after_the_last_predict(tmp_path: Path) -> None:
    config = {"null_context": {"delay_s": "0.4"}}
    model = engine.load(models.affine(tmp_path), target="null", config=config)
    executable = weakref.ref(model._plan.executable)  # type: ignore[union-attr]
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.extend(model.predict([X])))
    thread.start()
    time.sleep(0.1)
    begin = time.monotonic()
    model.close()
    assert time.monotonic() - begin < 0.3
    with pytest.raises(engine.ModelStateError, match="closed"):
        model.predict([X])
    thread.join()
    np.testing.assert_array_equal(results[0], 2 * X + 1)
    gc.collect()
    assert executable() is None


def test_a_resize_reaches_every_thread_at_its_next_call(affine: Model) -> None:
    resized, checked = threading.Event(), threading.Event()

    def work() -> None:
        affine.predict([X])
        checked.set()
        resized.wait(10)
        with pytest.raises(engine.InputError, match=r"expected float32\[5, 3\]"):
            affine.predict([X])
        done.append(True)

    done: list[bool] = []
    thread = threading.Thread(target=work)
    thread.start()
    checked.wait(10)
    affine.resize(affine.get_inputs(), [[5, 3]])
    resized.set()
    thread.join()
    assert done


def test_a_model_is_freed_without_close_when_nobody_holds_it(tmp_path: Path) -> None:
    model = engine.load(models.affine(tmp_path), target="null")
    result = model.predict([X])[0]
    executable = weakref.ref(model._plan.executable)  # type: ignore[union-attr]
    del model
    gc.collect()
    assert executable() is None
    np.testing.assert_array_equal(result, 2 * X + 1)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_gets_a_clear_error_and_ends_well(affine: Model) -> None:
    affine.predict([X])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            affine.predict([X])
        except engine.ModelStateError as error:
            status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert affine.predict([X])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_the_model_was_being_built_can_build_it(tmp_path: Path) -> None:
    path = str(models.affine(tmp_path))
    model = Model()
    status: list[int] = []

    def fork(phase: str, done: int, total: int | None) -> None:
        if status:
            return
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            built = threading.Thread(
                target=lambda: model.build_from_file(path, ModelType.MINDIR, null_context())
            )
            built.start()
            built.join()
            os._exit(0 if model.predict([X]) else 1)
        status.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    model.build_from_file(path, ModelType.MINDIR, null_context(), progress=fork)
    assert status == [0]
    assert model.predict([X])


def test_a_progress_callback_that_builds_the_same_model_is_refused(tmp_path: Path) -> None:
    path = str(models.affine(tmp_path))
    model = Model()

    def again(phase: str, done: int, total: int | None) -> None:
        with pytest.raises(engine.ModelStateError, match="is being built"):
            model.build_from_file(path, ModelType.MINDIR, null_context())

    model.build_from_file(path, ModelType.MINDIR, null_context(), progress=again)


def test_a_signal_handler_may_predict_in_the_middle_of_a_predict(affine: Model) -> None:
    seen: list[float] = []

    def handler(number: int, frame: object) -> None:
        seen.append(
            float(affine.predict([np.full((2, 3), 50, np.float32)])[0].get_data_to_numpy()[0, 0])
        )

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            np.testing.assert_array_equal(affine.predict([X])[0], 2 * X + 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert set(seen) == {101.0}


def test_close_beside_first_calls_of_other_threads_is_a_state_error(tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    for _ in range(30):
        model = engine.load(path, target="null")
        barrier = threading.Barrier(3)

        def work(index: int, model: Model = model, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            if index == 0:
                model.close()
                return
            with suppress(engine.ModelStateError):
                model.predict([X])

        in_threads(3, work)


# ----------------------------------------------------------------------------------- bad plugins


@pytest.mark.parametrize("answer", [None, [], [X, X]])
def test_a_backend_that_gives_a_wrong_number_of_results_is_named(
    affine: Model, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    monkeypatch.setattr(affine._threads, "lane", None, raising=False)
    plan = affine._plan
    object.__setattr__(plan, "predict", lambda *arguments: answer)
    affine._threads = threading.local()
    for outputs in (None, [Tensor()]):
        with pytest.raises(engine.ModelError, match="predict failed! backend 'null' raised TypeEr"):
            affine.predict([X], outputs)


# ------------------------------------------------------------------------------- configuration


def test_the_dict_wins_over_the_file_and_reaches_the_backend(tmp_path: Path) -> None:
    file = tmp_path / "config.ini"
    file.write_text("# a comment\n[null_context]\nunsupported_ops = 'Add'\n")
    path = str(models.affine(tmp_path))
    with pytest.raises(engine.ModelError, match="cannot run Add 'shift'"):
        Model().build_from_file(path, ModelType.MINDIR, null_context(), str(file))
    Model().build_from_file(
        path, ModelType.MINDIR, null_context(), str(file), {"null_context": {"unsupported_ops": ""}}
    )


def test_a_byte_order_mark_and_short_lines_do_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "config.ini"
    file.write_bytes(b"\xef\xbb\xbf[null_context]\r\n}\r\nunsupported_ops=Add\r\n")
    with pytest.raises(engine.ModelError, match="cannot run Add 'shift'"):
        Model().build_from_file(
            str(models.affine(tmp_path)), ModelType.MINDIR, null_context(), str(file)
        )


def test_a_pipe_is_no_config_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.ini")
    with pytest.raises(RuntimeError, match="it is not a regular file"):
        Model().build_from_file(
            str(models.affine(tmp_path)), ModelType.MINDIR, null_context(),
            str(tmp_path / "config.ini"),
        )  # fmt: skip


@pytest.mark.parametrize(
    "text", ["key=value\n", "[s]\nno equals sign\n", "[s]\n=value\n", "\xff\xfe"]
)
def test_a_broken_config_file_is_refused_by_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.ini"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(RuntimeError, match=r"load configuration failed! Error is .*config\.ini"):
        Model().build_from_file(
            str(models.affine(tmp_path)), ModelType.MINDIR, null_context(), str(file)
        )


def test_placement_names_each_node_its_backend_and_why(affine: Model) -> None:
    places = affine.placement
    assert [(p.index, p.node, p.op_type) for p in places] == [
        (0, "scale", "Mul"),
        (1, "shift", "Add"),
    ]
    assert {(p.backend, p.device) for p in places} == {("null", "null:0")}
    assert all("target ['null']" in p.reason for p in places)
