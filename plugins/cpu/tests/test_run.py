"""Ways of arrays to ONNX Runtime and back: staged, fed or bound, the results are the same."""

from __future__ import annotations

import gc
import math
import re
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import Tensor
from engine.backends import open_backend
from engine.formats import open_source
from engine.model.model import model_state
from engine.types import CompileOptions, Device
from engine_testing import models
from engine_testing.making import graph

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_the_third_call_of_one_shape_equals_the_first(load: Any) -> None:
    model = load(models.affine)
    for step in range(5):  # fed, fed, then staged
        np.testing.assert_array_equal(model.predict([X + step])[0], 2 * (X + step) + 1)
    assert model_state(model).threads.state.lease.context._staged is not None


@pytest.mark.parametrize("adds", [lambda: {"timeout_s": 100}, lambda: {"outputs": [Tensor()]}])
def test_buffers_are_bound_once_whatever_a_call_adds(load: Any, adds: Any) -> None:
    model = load(models.affine)
    bound = set()
    for _ in range(6):
        [y] = model.predict([X], **adds())
        np.testing.assert_array_equal(y, 2 * X + 1)
        bound.add(model_state(model).threads.state.lease.context._staged)
    assert len(bound - {None}) == 1


def test_big_tensors_are_neither_staged_nor_copied(load: Any) -> None:
    model = load(models.affine)
    x = np.ones((1_000_000, 3), np.float32)
    model.predict([x])
    tracemalloc.start()
    for _ in range(4):
        model.predict([x])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert model_state(model).threads.state.lease.context._staged is None
    assert peak < x.nbytes / 10  # outputs are ONNX Runtime's own memory, and nothing else is made


def test_small_tensors_are_staged_in_time_after_big_ones(load: Any) -> None:
    model = load(models.affine)
    for _ in range(3):
        model.predict([np.ones((100_000, 3), np.float32)])
    for step in range(100):
        np.testing.assert_array_equal(model.predict([X + step])[0], 2 * (X + step) + 1)
    assert model_state(model).threads.state.lease.context._staged is not None


def test_bound_buffers_of_changing_shapes_are_rebound(load: Any) -> None:
    model = load(models.affine)
    for rows in (2, 2, 5, 2, 1):
        x = np.full((rows, 3), rows, np.float32)
        out = Tensor(np.zeros((rows, 3), np.float32))
        model.predict([x], [out])
        np.testing.assert_array_equal(out, 2 * x + 1)


def test_an_input_given_as_output_too_gives_the_right_result(load: Any) -> None:
    model = load(models.affine)
    x = X.copy()
    for _ in range(3):
        before = x.copy()
        model.predict([x], [Tensor(x)])
        np.testing.assert_array_equal(x, 2 * before + 1)


def test_outputs_that_share_memory_are_refused(load: Any) -> None:
    model = load(models.several)
    z, a, m = np.ones((2, 3), "f"), np.zeros((2, 3), "f"), np.ones(3, "f")
    shared = np.zeros((3, 3), "f")
    outputs = [Tensor(shared[:2]), Tensor(shared[1:]), Tensor()]
    with pytest.raises(engine.InputError, match="given the same memory"):
        model.predict([z, a, m], outputs)
    outputs = [Tensor(shared[:2]), Tensor(shared[1:]), Tensor(np.zeros((2, 3), "f"))]
    with pytest.raises(engine.InputError, match="given the same memory"):
        model.predict([z, a, m], outputs)


def test_a_given_buffer_of_an_output_that_is_an_input_is_filled(tmp_path: Path) -> None:
    # ONNX Runtime itself leaves such a bound output untouched.
    text = "(float[n] x) => (float[n] y, float[n] x) { y = Relu (x) }"
    model = engine.load(graph(tmp_path, "model", text))
    x = np.array([-1, 2], np.float32)
    outputs = [Tensor(np.zeros(2, "f")), Tensor(np.zeros(2, "f"))]
    for _ in range(3):
        model.predict([x], outputs)
        assert [o.get_data_to_numpy().tolist() for o in outputs] == [[0, 2], [-1, 2]]
        assert not np.shares_memory(model.predict([x])[1].get_data_to_numpy(), x)


def test_a_buffer_that_does_not_fit_a_data_dependent_result_is_an_input_error(load: Any) -> None:
    model = load(models.nonzero)
    x = np.array([0, 1, 0, 2], np.float32)
    [expected] = model.predict([x])
    too_big = Tensor(np.zeros((expected.shape[0], 9), np.int64))
    for _ in range(2):
        with pytest.raises(engine.InputError, match=r"the result has shape \[1, 2\].*\[1, 9\]"):
            model.predict([x], [too_big])
    fits = Tensor(np.zeros((1, 2), np.int64))
    model.predict([x], [fits])
    assert fits.get_data_to_numpy().tolist() == [[1, 3]]


def test_shapes_that_the_declaration_gets_wrong_still_run(tmp_path: Path) -> None:
    # The file says that y has n elements, but it has as many as x has nonzero ones.
    text = "(float[n] x) => (float[n] y) { b = Cast <to = 9> (x)  y = Compress (x, b) }"
    model = engine.load(graph(tmp_path, "model", text))
    for values in ([1, 2], [1, 2], [1, 2], [0, 2], [1, 0], [1, 3], [0, 0]):
        x = np.array(values, np.float32)
        assert model.predict([x])[0].get_data_to_numpy().tolist() == [v for v in values if v]


def test_bound_arrays_go_with_the_thread_that_bound_them(load: Any) -> None:
    model = load(models.affine)
    references = []

    def work() -> None:
        x, out = X.copy(), Tensor(np.zeros((2, 3), "f"))
        model.predict([x], [out])
        references.extend([weakref.ref(x), weakref.ref(out.get_data_to_numpy())])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_model_keeps_no_copy_of_its_file(tmp_path: Path) -> None:
    model = engine.load(models.heavy(tmp_path))
    assert model_state(model).plan is not None
    assert model_state(model).plan.source.data is None


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "bc"]),
        np.array(["a", "bc"], object),
        np.array(["a", "bc"], np.dtypes.StringDType()),
    ],
    ids=["fixed", "object", "StringDType"],
)
def test_strings_go_in_and_come_out(tmp_path: Path, array: Any) -> None:
    model = engine.load(graph(tmp_path, "model", STRINGS))
    for _ in range(3):
        assert model(x=array)["y"].tolist() == ["a", "bc"]


STRINGS = "(string[n] x) => (string[n] y) { y = Identity (x) }"


class Spiteful:
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, "a"], object), np.array([None], object), np.array([b"a"], object),
        np.array([Spiteful()], object), np.array([b"a"]), np.array([1.0]),
    ],
)  # fmt: skip
def test_what_is_no_string_is_refused(tmp_path: Path, array: Any) -> None:
    model = engine.load(graph(tmp_path, "model", STRINGS))
    for _ in range(3):
        model.predict([np.full(array.shape, "good", object)])
        with pytest.raises(engine.InputError, match=r"elements of type str.*astype\(str\)"):
            model.predict([array])


def test_arrays_of_calls_without_outputs_are_not_kept(load: Any) -> None:
    model = load(models.affine)
    for rows in (2, 2, 2, 100_000):
        x = np.ones((rows, 3), np.float32)
        model.predict([x])
        reference = weakref.ref(x)
        del x
        gc.collect()
        assert reference() is None, rows


@pytest.mark.parametrize("bound", [False, True])
def test_a_model_that_fails_on_its_data_says_why_and_stays_usable(
    tmp_path: Path, bound: bool
) -> None:
    text = "(float[3] x, int64[n] i) => (float[n] y) { y = Gather (x, i) }"
    model = engine.load(graph(tmp_path, "model", text))
    x, good = np.arange(3, dtype=np.float32), np.array([2, 0])
    for _ in range(4):
        outputs = [Tensor(np.zeros(2, "f"))] if bound else None
        assert model.predict([x, good], outputs)[0].get_data_to_numpy().tolist() == [2, 0]
        with pytest.raises(
            engine.ModelError, match=r"predict failed! onnxruntime: .*Gather.*out of"
        ):
            model.predict([x, np.array([5, 0])], outputs)


def test_a_run_out_of_memory_is_an_error(tmp_path: Path) -> None:
    text = "(int64[2] s) => (float[] y) { y = ConstantOfShape (s) }"
    model = engine.load(graph(tmp_path, "model", text, valid=False))
    with pytest.raises(engine.ModelError, match="predict failed!"):
        model.predict([np.array([2**30, 2**30])])
    assert model.predict([np.array([2, 2])])[0].shape == [2, 2]


def test_nothing_is_printed_on_stderr_for_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    test_a_model_that_fails_on_its_data_says_why_and_stays_usable(tmp_path, True)
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------------------------ deadlines


def lasting(predict: Callable[[list[np.ndarray]], Any]) -> tuple[list[np.ndarray], float]:
    """Inputs for the slow model that keep it busy for a good while, and how long, in seconds."""
    rows, needed_s = 32, 0.0
    while needed_s < 0.3:
        rows *= 2
        inputs = [np.ones((rows, models.SLOW_WIDTH), np.float32)]
        needed_s = math.inf
        for _ in range(3):  # the shortest: the machine may stand still in one
            begin = time.monotonic()
            predict(inputs)
            needed_s = min(needed_s, time.monotonic() - begin)
            if needed_s < 0.3:
                break
    return inputs, needed_s


@pytest.mark.parametrize("bound", [False, True])
def test_a_deadline_stops_a_running_predict_and_the_model_stays_usable(
    load: Any, bound: bool
) -> None:
    model = load(models.slow)
    inputs, needed_s = lasting(model.predict)
    begin = time.process_time()  # how much was computed; the clock runs on beside other programs
    [full] = model.predict(inputs)
    whole_s = time.process_time() - begin
    outputs = [Tensor(np.zeros(full.shape, np.float32))] if bound else None
    begin = time.process_time()
    with pytest.raises(engine.DeadlineExceeded, match="stopped at its deadline"):
        model.predict(inputs, outputs, timeout_s=needed_s / 10)
    assert time.process_time() - begin < whole_s * 0.8
    with pytest.raises(TimeoutError):
        model.predict(inputs, outputs, timeout_s=1e-9)
    [again] = model.predict(inputs, outputs, timeout_s=1000)
    np.testing.assert_array_equal(again, full)


def test_one_deadline_does_not_stop_another_threads_run(load: Any) -> None:
    model = load(models.slow)
    inputs, needed_s = lasting(model.predict)
    [expected] = model.predict(inputs)
    results: list[Tensor] = []
    other = threading.Thread(target=lambda: results.extend(model.predict(inputs, timeout_s=1000)))
    other.start()
    with pytest.raises(engine.DeadlineExceeded):
        model.predict(inputs, timeout_s=needed_s / 10)
    other.join()
    np.testing.assert_array_equal(results[0], expected)


def test_deadlines_that_were_kept_leave_nothing_behind(load: Any) -> None:
    from engine.host import deadlines

    model = load(models.affine)
    for _ in range(500):
        model.predict([X], timeout_s=3600)
    end_s = time.monotonic() + 30  # the thread that drops them may wait for its turn
    while (left := len(deadlines._watch.due) + len(deadlines._watch.new)) >= 300:
        assert time.monotonic() < end_s, left
        time.sleep(0.01)


# --------------------------------------------------------------------------------------- threads


def test_threads_run_one_model_in_parallel_with_right_results(load: Any) -> None:
    model = load(models.affine)
    wrong: list[object] = []

    def work(index: int) -> None:
        outputs = [Tensor()]
        for step in range(300):
            x = np.full((1 + index % 3, 3), index * 1000 + step, np.float32)
            outputs = [Tensor()] if step % 50 == 0 or step % 2 else outputs
            y = model.predict([x], outputs if step % 2 else None)[0].get_data_to_numpy()
            if not (y == 2 * x + 1).all():
                wrong.append((index, step))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --------------------------------------------------------------------------------------- cancel


def raw(path: Path) -> Any:
    """The executable behind a model, with one thread."""
    backend = open_backend("cpu")
    options = CompileOptions(device=Device("cpu"))
    return backend.compile(backend.load(open_source(path), options), options)


def cancelled(context: Any, inputs: Any, outputs: Any, deadline_s: float | None) -> float:
    """Predict, cancel soon after the start, and return how much was computed, in seconds."""
    timer = threading.Timer(0.05, context.cancel)
    begin = time.process_time()  # the clock runs on beside other programs
    timer.start()
    with pytest.raises(engine.Cancelled, match="cancelled while the model ran"):
        open_backend("cpu").predict(context, inputs, outputs, deadline_s)
    timer.join()
    return time.process_time() - begin


@pytest.mark.parametrize("way", ["fed", "bound", "deadline"])
def test_a_running_predict_is_cancelled_from_another_thread(tmp_path: Path, way: str) -> None:
    executable = raw(models.slow(tmp_path))
    predict = open_backend("cpu").predict
    inputs, _ = lasting(lambda x: predict(executable.open_context(), x, None, None))
    begin = time.process_time()
    [full] = predict(executable.open_context(), inputs, None, None)
    whole_s = time.process_time() - begin
    outputs = [np.zeros_like(full)] if way == "bound" else None
    deadline_s = time.monotonic() + 1000 if way == "deadline" else None
    context, other = executable.open_context(), executable.open_context()
    assert cancelled(context, inputs, outputs, deadline_s) < whole_s * 0.8
    for given in (None, outputs):  # for good: the core closes the context
        with pytest.raises(engine.Cancelled):
            predict(context, inputs, given, deadline_s)
    np.testing.assert_array_equal(predict(other, inputs, None, None)[0], full)


def test_a_cancel_just_before_the_runtime_starts_holds(tmp_path: Path) -> None:
    executable = raw(models.affine(tmp_path))
    predict = open_backend("cpu").predict
    for calls, deadline_s in ((0, None), (3, None), (0, time.monotonic() + 1000)):
        context = executable.open_context()
        for _ in range(calls):  # the third is staged
            predict(context, [X], None, None)
        assert (context._staged is not None) == (calls == 3)
        context.cancel()
        with pytest.raises(engine.Cancelled):
            predict(context, [X], None, deadline_s)


def test_a_deadline_that_was_kept_or_missed_cancels_nothing(tmp_path: Path) -> None:
    executable = raw(models.affine(tmp_path))
    predict = open_backend("cpu").predict
    context = executable.open_context()
    with pytest.raises(engine.DeadlineExceeded):
        predict(context, [X], None, time.monotonic() - 1)
    for deadline_s in (time.monotonic() + 1000, None):
        np.testing.assert_array_equal(predict(context, [X], None, deadline_s)[0], 2 * X + 1)


def test_values_that_are_no_plain_arrays_are_cancelled_too(tmp_path: Path) -> None:
    text = "(bfloat16[n] x) => (float[n] y) { y = Cast <to = 1> (x) }"
    executable = raw(graph(tmp_path, "model", text))
    x = np.ones(2, executable.inputs[0].dtype.numpy)
    context = executable.open_context()
    assert open_backend("cpu").predict(context, [x], None, None)[0].tolist() == [1, 1]
    context.cancel()
    with pytest.raises(engine.Cancelled):
        open_backend("cpu").predict(context, [x], None, None)


def test_the_same_lists_again_are_bound_once_and_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = raw(models.affine(tmp_path))
    predict = open_backend("cpu").predict
    context = executable.open_context()
    x, y = X.copy(), np.zeros_like(X)
    inputs, outputs = [x], [y]
    assert predict(context, inputs, outputs, None) is outputs
    monkeypatch.setattr(context, "_bind", None)  # not asked again
    for step in range(3):
        x += step
        assert predict(context, inputs, outputs, None) is outputs
        np.testing.assert_array_equal(y, 2 * x + 1)


@pytest.mark.parametrize("which", ["input", "output"])
def test_arrays_that_are_bound_keep_their_memory(which: str, load: Any) -> None:
    """ONNX Runtime has their addresses: to resize one in place would free what it writes to."""
    model = load(models.affine)
    x, y = X.copy(), np.zeros_like(X)
    inputs, outputs = [x], [Tensor(y)]
    model.predict(inputs, outputs)
    with pytest.raises(ValueError, match="cannot resize"):
        (x if which == "input" else y).resize((1 << 20,), refcheck=False)
    np.testing.assert_array_equal(model.predict(inputs, outputs)[0], 2 * X + 1)


VERBOSE = """
import sys

import numpy as np
import onnxruntime as ort

import engine

make = ort.InferenceSession.__init__

def verbose(self, model, sess_options=None, *arguments, **further):
    sess_options.log_severity_level = 1  # ONNX Runtime names the runs that it begins
    make(self, model, sess_options, *arguments, **further)

ort.InferenceSession.__init__ = verbose
x = np.ones((2, 3), np.float32)
with engine.load(sys.argv[1], target="cpu") as model:
    for named in ({"request_id": "r-1"}, {}, {"request_id": "two\\nlines"}):
        model.predict([x], **named)
    model.predict([x], request_id="late", timeout_s=60)
    model.predict([x], request_id="told", cancel=engine.CancelToken())
    model.predict([x], timeout_s=60)
"""


def test_onnx_runtime_names_a_request_in_its_log_and_forgets_it_after_the_run(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", VERBOSE, str(models.affine(tmp_path))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    tags = re.findall("Running with tag: (.*)", ran.stderr)
    assert [tag for tag in tags if tag] == ["r-1", r"two\nlines", "late", "told"]


def test_outputs_that_only_a_run_sizes_have_the_sizes_of_the_last_one(tmp_path: Path) -> None:
    text = "(float[n] x) => (int64[r, k] y) { y = NonZero(x) }"
    with engine.load(graph(tmp_path, "model", text)) as model:

        def known() -> list[int]:
            return model.get_outputs()[0].shape

        assert model.predict([np.float32([0, 1, 2])])[0].shape == [1, 2]
        assert known() == [1, 2]
        own = Tensor(np.zeros((1, 3), np.int64))
        for _ in range(2):  # bound, then as it is bound
            model.predict([np.float32([1, 1, 1])], [own])
            assert known() == [1, 3]
            assert model.predict([np.float32([0, 0, 1])])[0].shape == known() == [1, 1]
        with pytest.raises(engine.EngineError):
            model.predict([np.float32([0, 1, 1])], [own])
        assert known()[1] == -1
