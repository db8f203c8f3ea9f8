"""Predict: what it takes, what it gives, whose memory that is; on the null backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from predict_steps import parsed

import engine
from engine import DataType, Model, Tensor
from engine.model.model import model_state
from engine.runtime import fitting
from engine.types import DeviceInfo
from engine_testing import models

pytestmark = pytest.mark.usefixtures("null_backend")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_predict_takes_lists_tuples_dicts_arrays_and_tensors(affine: Model) -> None:
    for inputs in ([X], (X,), {"x": X}, [Tensor(X)], {"x": Tensor(X)}):
        [y] = affine.predict(inputs)
        assert isinstance(y, Tensor)
        assert (y.name, y.dtype, y.shape) == ("y", DataType.FLOAT32, [2, 3])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)


def test_a_result_never_changes_under_its_owner(affine: Model) -> None:
    results = [affine.predict([np.full((1, 3), value, np.float32)])[0] for value in range(10)]
    for value, result in enumerate(results):
        assert result.get_data_to_numpy().tolist() == [[2 * value + 1] * 3]


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


def test_shapes_may_change_from_call_to_call_where_the_model_leaves_them_open(affine) -> None:
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
        np.frombuffer(X.tobytes(), np.float32).reshape(2, 3),
    ],
    ids=["strided", "fortran", "big endian", "broadcast and read-only", "unaligned", "read-only"],
)
def test_any_memory_layout_just_works(affine: Model, array: np.ndarray) -> None:
    for _ in range(3):
        np.testing.assert_array_equal(affine.predict([array])[0], 2 * array + 1)


@pytest.mark.parametrize("is_writeable", [True, False])
def test_an_array_like_the_last_one_is_not_checked_in_full_again(
    affine: Model, monkeypatch: pytest.MonkeyPatch, is_writeable: bool
) -> None:
    affine.predict([X])
    array = X + 5
    array.flags.writeable = is_writeable
    monkeypatch.delattr(fitting, "values")  # the full check, which takes twenty times as long
    np.testing.assert_array_equal(affine.predict([array])[0], 2 * array + 1)
    with pytest.raises(AttributeError, match="values"):
        affine.predict([X[:1]])


def test_one_tensor_for_two_outputs_is_refused(several: Model) -> None:
    z, a, m = np.ones((2, 3), "f"), np.zeros((2, 3), "f"), np.full(3, 9, "f")
    tensor = Tensor()
    with pytest.raises(engine.InputError, match="one tensor was given for two outputs"):
        several.predict([z, a, m], [tensor, Tensor(), tensor])


def test_masked_elements_are_refused_with_the_step_that_helps(affine: Model) -> None:
    x = np.ma.masked_array(X, mask=X > 3)
    says = r"'x': expected float32\[batch, 3\], got float32\[2, 3\] with masked .*filled\(\)"
    with pytest.raises(engine.InputError, match=says):
        affine.predict([x])
    for plain in (x.filled(0), np.ma.masked_array(X)):
        np.testing.assert_array_equal(affine.predict([plain])[0], 2 * plain + 1)


@pytest.mark.parametrize("given", [False, True])
def test_a_predict_that_is_stopped_says_the_limit_and_what_to_do(
    null_backend: str, tmp_path: Path, given: bool
) -> None:
    config = {"null_context": {"delay_s": "0.2"}}
    with engine.load(models.affine(tmp_path), target=null_backend, config=config) as model:
        outputs = [Tensor(np.empty_like(X))] if given else None
        with pytest.raises(engine.DeadlineExceeded) as caught:
            model.predict([X], outputs, timeout_s=0.02)
        assert caught.value.timeout_s == 0.02
        assert str(caught.value) == (
            "predict failed! it took longer than timeout_s, 0.02 s: predict was stopped at its "
            "deadline; give it more time, or leave timeout_s out"
        )
        np.testing.assert_array_equal(model.predict([X], outputs, timeout_s=60)[0], 2 * X + 1)


@pytest.mark.parametrize("predicts", [1, 2, 5])
def test_an_output_that_becomes_read_only_is_not_written_any_more(affine, predicts) -> None:
    x, y = np.zeros((2, 3), np.float32), Tensor(np.zeros((2, 3), np.float32))
    inputs, outputs = [x], [y]
    for _ in range(predicts):
        affine.predict(inputs, outputs)
    memory = y._value
    assert isinstance(memory, np.ndarray)
    memory.flags.writeable = False
    x += 1
    with pytest.raises(engine.InputError, match="'y': the buffer must be writeable and C-cont"):
        affine.predict(inputs, outputs)
    assert memory.tolist() == [[1] * 3] * 2
    memory.flags.writeable = True
    affine.predict(inputs, outputs)
    assert memory.tolist() == [[3] * 3] * 2


@pytest.mark.parametrize("place", [0, 1, 2])
def test_whatever_changes_in_lists_that_were_bound_is_seen(several: Model, place: int) -> None:
    inputs = [np.ones(spec.shape or (), np.float32) for spec in several.inputs]
    outputs = [Tensor(np.zeros((2, 3), np.float32)) for _ in several.outputs]
    for _ in range(3):
        assert several.predict(inputs, outputs) is outputs

    inputs[place] = 5 * inputs[place]
    z, a, m = inputs
    several.predict(inputs, outputs)
    for output, expected in zip(outputs, (z - a, a * m, z + m), strict=True):
        np.testing.assert_array_equal(output, expected)

    outputs[place].get_data_to_numpy().flags.writeable = False
    with pytest.raises(engine.InputError, match="must be writeable"):
        several.predict(inputs, outputs)
    outputs[place].get_data_to_numpy().flags.writeable = True
    several.predict(inputs, outputs)

    with pytest.raises(TypeError, match=f"must be Tensor, but got .*ndarray.* at index {place}"):
        several.predict(inputs, [*outputs[:place], z.copy(), *outputs[place + 1 :]])
    extra = inputs.pop(place)
    with pytest.raises(engine.InputError, match="input len:3 not equal input len:2"):
        several.predict(inputs, outputs)
    inputs.insert(place, extra)
    last = outputs.pop()
    with pytest.raises(engine.InputError, match="3"):
        several.predict(inputs, outputs)
    np.testing.assert_array_equal(several.predict(inputs, [*outputs, last])[2], z + m)


def test_sizes_that_contradict_a_symbol_are_the_models_to_judge(tmp_path, caplog) -> None:
    with engine.load(models.shared_dims(tmp_path), target="null") as model:
        left, right = np.ones((2, 3), "f"), np.ones((3, 4), "f")
        assert model(left=left, right=right)["y"].tolist() == [[3] * 4] * 2
        assert not caplog.records
        with pytest.raises(engine.ModelError, match=r"^predict failed! .*MatMul"):
            model(left=left, right=np.ones((4, 4), "f"))
        [record] = caplog.records
        assert "'right': axis 0 is called 'common', as an axis of input 'left'" in record.message


def test_sizes_that_contradict_a_symbol_run_where_the_model_can(null_backend: str) -> None:
    graph = "(float[n,n] a, float[n,n] b) => (float[n,n] y) {y = Add(a, b)}"
    with parsed(graph, null_backend) as model:
        a, b = np.ones((2, 1), "f"), np.ones((1, 3), "f")
        for outputs in (None, [Tensor()], [Tensor(np.empty((2, 3), "f"))]):
            [y] = model.predict([a, b], outputs)
            assert y.get_data_to_numpy().tolist() == [[2] * 3] * 2
        model.resize(model.get_inputs(), [[2, 1], [1, 3]])
        assert model.predict([a, b])[0].shape == [2, 3]


@pytest.mark.parametrize("answer", [None, [], [X, X]])
def test_a_backend_that_gives_a_wrong_number_of_results_is_named(affine, answer) -> None:
    state = model_state(affine)
    state.built = state.built._replace(predict=lambda *_: answer)
    for outputs in (None, [Tensor()]):
        with pytest.raises(engine.ModelError, match="failed! backend 'null' raised Ty") as caught:
            affine.predict([X], outputs)
        assert caught.value.at_fault == "null"


def test_what_a_device_lacks_is_told_with_its_reason(affine: Model) -> None:
    [(backend, device)] = model_state(affine).plan.parts
    lacks = {"deadlines": "its driver is too old"}
    backend._present = {device: DeviceInfo(device, "old", lacks=lacks)}
    try:
        with pytest.raises(RuntimeError, match=r"^timeout_s: backend 'null' cannot stop a running "
                           r"model \(its driver is too old\); leave timeout_s out$"):  # fmt: skip
            affine.predict([X], timeout_s=1)
    finally:
        backend.devices()
