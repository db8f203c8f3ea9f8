"""Values of every ONNX type go in and come out: sequences, optionals, maps, small floats, text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from predict_steps import parsed
from waiting import in_threads

import engine
from engine import DataType, Tensor
from engine.errors import DeadlineExceeded, InputError, ModelError, ModelStateError
from engine.types import DType
from engine_testing import models, plugins

A = np.array([1, 2], np.float32)
B = np.array([3, 4, 5], np.float32)


@pytest.fixture
def sequences(null_backend: str, tmp_path: Path) -> engine.Model:
    return engine.load(models.sequences(tmp_path), target=null_backend)


@pytest.fixture
def optionals(null_backend: str, tmp_path: Path) -> engine.Model:
    return engine.load(models.optionals(tmp_path), target=null_backend)


def test_a_sequence_is_a_list_of_arrays_for_a_call_by_name(sequences: engine.Model) -> None:
    outputs = sequences(xs=[A, B], at=np.array(1))
    np.testing.assert_array_equal(outputs["one"], B)
    assert [array.tolist() for array in outputs["longer"]] == [[1, 2], [3, 4, 5], [3, 4, 5]]
    assert all(type(array) is np.ndarray for array in outputs["longer"])


def test_predict_gives_a_list_of_tensors_for_a_sequence(sequences: engine.Model) -> None:
    for _ in range(3):
        one, longer = sequences.predict([(A, Tensor(B)), np.array(0)])
        assert (one.name, one.get_data_to_numpy().tolist()) == ("one", [1, 2])
        assert [each.shape for each in longer] == [[2], [3], [2]]
        assert {each.name for each in longer} == {"longer"}
        assert {each.dtype for each in longer} == {DataType.FLOAT32}


def test_an_empty_sequence_is_an_empty_list(null_backend: str) -> None:
    xs = "seq(float[n]) xs"
    model = parsed(f"({xs}) => (int64 n, {xs}) {{n = SequenceLength(xs)}}", null_backend)
    outputs = model(xs=[])
    assert outputs["n"] == 0
    assert outputs["xs"] == []
    given = [A]
    outputs = model(xs=given)
    outputs["xs"][0][:] = 9
    assert given[0] is A
    assert A.tolist() == [1, 2], "what came out is what went in"


@pytest.mark.parametrize(
    ("xs", "error", "text"),
    [
        (A, TypeError, r"'xs': expected sequence\(float32\[n\]\), a list of arrays, got <class"),
        (None, TypeError, "a list of arrays, got <class 'NoneType'>"),
        ({"a": A}, TypeError, "a list of arrays, got <class 'dict'>"),
        (Tensor(), TypeError, "a list of arrays, got <class 'engine.tensor.Tensor'>"),
        ([A, [1.0, object()]], InputError, r"xs\[1\]': expected float32\[...\], got elements of"),
        ([A, None], TypeError, r"input 'xs\[1\]': expected float32\[...\], got <class 'NoneType'>"),
        ([A, B.astype("f8")], InputError, r"'xs\[1\]': expected float32\[...\], got float64"),
        ([Tensor()], InputError, r"input 'xs\[0\]': the tensor has no data"),
    ],
)
def test_what_is_no_such_sequence_is_told_what_is_expected(sequences, xs, error, text) -> None:
    with pytest.raises(error, match=text):
        sequences.predict([xs, np.array(0)])
    np.testing.assert_array_equal(sequences(xs=[A], at=np.array(0))["one"], A)


def test_elements_may_be_of_other_shapes_than_the_file_says(sequences: engine.Model) -> None:
    longer = sequences(xs=[A, B.reshape(1, 3)], at=np.array(0))["longer"]
    assert [array.tolist() for array in longer] == [[1, 2], [[3, 4, 5]], [1, 2]]


def test_arrays_in_a_sequence_are_made_plain(sequences: engine.Model) -> None:
    strided = np.arange(10, dtype=np.float32)[::2]
    swapped = A.astype(">f4")
    outputs = sequences(xs=[strided, swapped], at=np.array(0))
    assert outputs["one"].tolist() == [0, 2, 4, 6, 8]
    assert outputs["longer"][1].tolist() == [1, 2]


@pytest.mark.parametrize(
    "given",
    [lambda model: {}, lambda model: [None], lambda model: model.get_inputs()],
    ids=["left out", "None", "a tensor without data"],
)
def test_an_absent_optional(optionals: engine.Model, given: Any) -> None:
    y, there = (tensor.numpy().tolist() for tensor in optionals.predict(given(optionals)))
    assert (y, there) == ([-1], False)


def test_an_optional_that_is_there(optionals: engine.Model) -> None:
    for given in (A, Tensor(A)):
        outputs = optionals(x=given)
        assert (outputs["y"].tolist(), outputs["there"].tolist()) == ([1, 2], True)


def test_only_optionals_may_be_left_out(sequences: engine.Model, optionals: engine.Model) -> None:
    with pytest.raises(InputError, match="input 'at' is missing"):
        sequences(xs=[A])
    with pytest.raises(InputError, match="unknown input 'z'"):
        optionals(z=A)
    with pytest.raises(InputError, match="model input len:1 not equal input len:0"):
        optionals.predict([])


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (3.0, r"input 'x': expected optional\(float32\[n\]\), got float32\[\]"),
        (A.astype(np.int32), "got int32"),
        (A.reshape(1, 2), r"got float32\[1, 2\]"),
    ],
)
def test_what_does_not_fit_an_optional_is_refused(optionals, x, text) -> None:
    with pytest.raises(InputError, match=text):
        optionals.predict([x])


GIVES = """
from dataclasses import replace
import numpy as np
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="giving")

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    return {values}
"""


def test_what_a_backend_gives_for_each_kind_comes_out_as_it_is(plugin_folder: Path) -> None:
    """An absent optional, one that holds a sequence, a sequence of maps, a map."""
    values = "[None, [np.ones(2, 'f4')], [{'a': 1.5}, {}], {7: np.ones(1, 'f4')}]"
    plugins.install(plugin_folder, "giving", "giving_it", source=GIVES.format(values=values))
    kinds = "optional(float[n])", "optional(seq(float[n]))", f"seq({SCORES})", SCORES
    both = ", ".join(f"{kind} y{place}" for place, kind in enumerate(kinds))
    model = parsed(f"({both}) => ({both}) {{}}", "giving")
    given: list[Any] = [A, None, [{}], {"a": 1.0}]
    none, held, maps, numbers = model.predict(given)
    assert none is None
    assert [each.get_data_to_numpy().tolist() for each in held] == [[1, 1]]
    assert maps == [{"a": 1.5}, {}]
    assert numbers == {7: np.ones(1, np.float32)}
    outputs = model(*given)
    assert outputs["y0"] is None
    assert type(outputs["y1"][0]) is np.ndarray
    assert outputs["y2"] == maps


SCORES = "map(string, float)"


@pytest.fixture
def vectoriser(null_backend: str) -> engine.Model:
    """y = the numbers of a map under "a", "b", "c"."""
    vectorize = 'ai.onnx.ml.DictVectorizer<string_vocabulary = ["a", "b", "c"]>'
    return parsed(f"({SCORES} x) => (float[?] y) {{y = {vectorize}(x)}}", null_backend)


def test_a_map_is_a_dict(vectoriser: engine.Model) -> None:
    assert vectoriser(x={"a": 1.5, "c": 2.0})["y"].tolist() == [1.5, 0, 2]
    assert vectoriser(x={})["y"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("x", [[1.0], A, None, {"a": 1.0, 2: 2.0}, {None: 1.0}])
def test_what_is_no_map_is_told_what_is_expected(vectoriser: engine.Model, x: Any) -> None:
    text = r"input 'x': expected map\(float32\[\]\), a dict with keys of str or of int, got <class"
    with pytest.raises(TypeError, match=text):
        vectoriser(x=x)


def test_a_value_in_a_map_that_is_no_number_is_told_with_its_key(vectoriser: engine.Model) -> None:
    with pytest.raises(TypeError, match=r"map\(float32\[\]\), and its value for 'b' is 'x', a str"):
        vectoriser(x={"a": 1.0, "b": "x"})


def test_inputs_and_outputs_are_described_by_what_is_inside(sequences: engine.Model) -> None:
    xs, at = sequences.get_inputs()
    assert (xs.name, xs.dtype, xs.shape) == ("xs", DataType.FLOAT32, [-1])
    assert (at.name, at.dtype, at.shape) == ("at", DataType.INT64, [])
    assert [(meta.name, list(meta.shape)) for meta in sequences.get_outputs()] == [
        ("one", [-1]), ("longer", [-1]),
    ]  # fmt: skip
    assert str(sequences.inputs[0]) == "sequence(float32[n])"


def test_resize_leaves_sequences_as_they_are(null_backend: str) -> None:
    graph = "(seq(float[n]) xs, float[m] z) => (seq(float[n]) y) {y = SequenceInsert(xs, z)}"
    model = parsed(graph, null_backend)
    inputs = model.get_inputs()
    model.resize(inputs, [[], [3]])
    assert [array.size for array in model(xs=[A], z=B)["y"]] == [2, 3]
    with pytest.raises(InputError, match="'z'"):
        model(xs=[A], z=A)
    with pytest.raises(InputError, match=r"is sequence\(float32\[n\]\), which has no shape to fix"):
        model.resize(inputs, [[2], [3]])
    model.resize(inputs, ([], [2]))
    assert [array.size for array in model(xs=[B], z=A)["y"]] == [3, 2]


@pytest.mark.parametrize("place", [None, Tensor()])
def test_tensors_are_filled_beside_a_sequence(sequences, place) -> None:
    one = Tensor(np.zeros(2, np.float32))
    memory = one.get_data_to_numpy()
    outputs = [one, place]
    for _ in range(2):
        memory[:] = 0
        found, longer = sequences.predict([[A, B], np.array(0)], outputs)
        assert found is one
        assert one.get_data_to_numpy() is memory
        assert memory.tolist() == [1, 2]
        assert [each.shape for each in longer] == [[2], [3], [2]]
    assert outputs == [one, place], "the caller's list is the caller's"


@pytest.mark.parametrize(
    ("outputs", "error", "text"),
    [
        ([Tensor(), Tensor(A)], InputError, r"'longer' is sequence.*; pass None or Tensor\(\)"),
        ([None, None], TypeError, "element must be Tensor, but got .*NoneType.* at index 0"),
        ([Tensor(np.zeros((1, 2), "f")), None], InputError, "output 'one': expected a buffer"),
        ([Tensor()], InputError, "expected 2 outputs"),
        ((Tensor(), None), TypeError, "outputs must be list"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(sequences, outputs, error, text) -> None:
    with pytest.raises(error, match=text):
        sequences.predict([[A, B], np.array(1)], outputs)


def test_a_tensor_without_data_gets_new_memory(sequences: engine.Model) -> None:
    one, _ = sequences.predict([[A, B], np.array(1)], [Tensor(), None])
    assert one.get_data_to_numpy().tolist() == [3, 4, 5]


def test_threads_run_a_model_of_sequences_in_contexts_of_their_own(sequences) -> None:
    def work(number: int) -> None:
        for call in range(30):
            outputs = sequences(xs=[A, np.array([number, call], np.float32)], at=np.array(1))
            assert outputs["one"].tolist() == [number, call]
            assert len(outputs["longer"]) == 3

    in_threads(4, work)


def test_a_deadline_stops_a_model_of_sequences(null_backend: str, tmp_path: Path) -> None:
    config = {"null_context": {"delay_s": "0.2"}}
    model = engine.load(models.sequences(tmp_path), target=null_backend, config=config)
    with pytest.raises(DeadlineExceeded, match=r"longer than timeout_s, 0\.02 s: .*more time"):
        model.predict([[A], np.array(0)], timeout_s=0.02)
    assert model.predict([[A], np.array(0)], timeout_s=60)[0].shape == [2]
    model.close()
    with pytest.raises(ModelStateError, match="closed"):
        model.predict([[A], np.array(0)])


SMALL = [
    dtype
    for dtype in DType
    if dtype.bits and hasattr(ml_dtypes, str(dtype)) and "float6" not in str(dtype)
]


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_every_type_of_ml_dtypes_goes_through(null_backend, tmp_path, dtype) -> None:
    x = np.ones((2, 3)).astype(dtype.numpy)
    if dtype is DType.BFLOAT16:
        model = engine.load(models.moved(tmp_path, dtype), target=null_backend)
    else:
        kind = onnx.TensorProto.DataType.Name(dtype.onnx).lower()
        graph = f"({kind}[2,3] x) => ({kind}[2,3] y) {{y = Identity(x)}}"
        model = parsed(graph, null_backend, opset=25, ir_version=13)
    for _ in range(2):
        y = model(x=x)["y"]
        assert y.dtype == dtype.numpy
        np.testing.assert_array_equal(y.reshape(2, 3), x)
    with pytest.raises((InputError, TypeError), match="float64"):
        model(x=np.ones((2, 3)))


def test_bfloat16_is_computed(null_backend: str, tmp_path: Path) -> None:
    model = engine.load(models.doubled(tmp_path, DType.BFLOAT16), target=null_backend)
    x = np.array([1, 1.5, -2], ml_dtypes.bfloat16)
    [y] = model.predict([Tensor(x)])
    assert y.dtype is DataType.BFLOAT16
    np.testing.assert_array_equal(y.get_data_to_numpy(), x + x)
    with pytest.raises(InputError, match=r"expected bfloat16\[n\], got float32\[3\]"):
        model(x=x.astype(np.float32))


@pytest.mark.parametrize("given", [3, np.float32(3), np.array(3, np.float32)])
def test_scalars_stay_scalars(null_backend: str, tmp_path: Path, given: Any) -> None:
    model = engine.load(models.scalar(tmp_path), target=null_backend)
    assert model.get_inputs()[0].shape == []
    for _ in range(2):
        y = model(x=given)["y"]
        assert (type(y), y.shape, float(y)) == (np.ndarray, (), 7.0)
    buffer = np.zeros((), np.float32)
    [y] = model.predict([given], [Tensor(buffer)])
    assert y.get_data_to_numpy() is buffer
    assert buffer == 7


def test_a_type_without_ml_dtypes_is_a_model_error_that_says_what_to_install(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.doubled(tmp_path, DType.BFLOAT16)

    def without(self: DType) -> np.dtype[Any]:
        raise ImportError(f"element type {str(self)!r} needs ml_dtypes; run: pip install ml_dtypes")

    monkeypatch.setattr(DType, "numpy", property(without))
    with pytest.raises(ModelError, match="'bfloat16' needs ml_dtypes; run: pip install ml_dtypes"):
        engine.load(path, target=null_backend)


def test_tensors_without_elements_stay_tensors(null_backend: str, tmp_path: Path) -> None:
    x = np.zeros((0, 3), np.float32)
    with engine.load(models.empty(tmp_path), target=null_backend) as model:
        outputs = model(x=x)
        assert outputs["y"].shape == (0, 3)
        assert outputs["total"].tolist() == [0, 0, 0]
        buffers = [Tensor(np.zeros((0, 3), np.float32)), Tensor(np.ones(3, np.float32))]
        y, total = model.predict([x], buffers)
        assert (y.shape, total.get_data_to_numpy().tolist()) == ([0, 3], [0, 0, 0])


def test_lists_of_numbers_in_a_sequence_are_arrays(sequences: engine.Model) -> None:
    outputs = sequences(xs=[[1, 2], A, (3.0,)], at=2)
    assert outputs["one"].tolist() == [3]
    assert [array.tolist() for array in outputs["longer"]][:3] == [[1, 2], [1, 2], [3]]
