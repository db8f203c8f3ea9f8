"""Values of every ONNX type go in and come out: sequences, optionals, maps, small floats, text."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import engine
from engine import DataType, Tensor
from engine.errors import DeadlineExceeded, InputError, ModelError, ModelStateError
from engine.types import DType
from engine_testing import models, plugins

A = np.array([1, 2], np.float32)
B = np.array([3, 4, 5], np.float32)


def write(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
) -> Path:
    graph = helper.make_graph(nodes, "values", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    path = folder / "values.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)
    return path


@pytest.fixture
def sequences(null_backend: str, tmp_path: Path) -> engine.Model:
    return engine.load(models.sequences(tmp_path), target=null_backend)


@pytest.fixture
def optionals(null_backend: str, tmp_path: Path) -> engine.Model:
    return engine.load(models.optionals(tmp_path), target=null_backend)


# ---------------------------------------------------------------------------------------- sequences


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


def test_an_empty_sequence_is_an_empty_list(null_backend: str, tmp_path: Path) -> None:
    xs = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    path = write(
        tmp_path,
        [helper.make_node("SequenceLength", ["xs"], ["n"])],
        [helper.make_value_info("xs", xs)],
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_value_info("xs", xs),
        ],
    )
    model = engine.load(path, target=null_backend)
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
        (
            A,
            TypeError,
            r"input 'xs': expected sequence\(float32\[n\]\), a list of arrays, got <class",
        ),
        (None, TypeError, "a list of arrays, got <class 'NoneType'>"),
        ({"a": A}, TypeError, "a list of arrays, got <class 'dict'>"),
        (Tensor(), TypeError, "a list of arrays, got <class 'engine.tensor.Tensor'>"),
        (
            [A, [1.0, object()]],
            InputError,
            r"input 'xs\[1\]': expected float32\[...\], got elements of type object",
        ),
        ([A, None], TypeError, r"input 'xs\[1\]': expected float32\[...\], got <class 'NoneType'>"),
        (
            [A, B.astype(np.float64)],
            InputError,
            r"input 'xs\[1\]': expected float32\[...\], got float64",
        ),
        ([Tensor()], InputError, r"input 'xs\[0\]': the tensor has no data"),
    ],
)
def test_what_is_no_such_sequence_is_told_what_is_expected(
    sequences: engine.Model, xs: Any, error: type[Exception], text: str
) -> None:
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


def test_a_model_that_fails_on_a_sequence_is_a_model_error(sequences: engine.Model) -> None:
    with pytest.raises(ModelError, match="predict failed!"):
        sequences(xs=[A], at=np.array(7))


# ---------------------------------------------------------------------------------------- optionals


@pytest.mark.parametrize("absent", [None, "left out", "a tensor without data"])
def test_an_absent_optional(optionals: engine.Model, absent: str | None) -> None:
    if absent == "left out":
        outputs = optionals.predict({})
    elif absent is None:
        outputs = optionals.predict([None])
    else:
        outputs = optionals.predict(optionals.get_inputs())
    y, there = (each.get_data_to_numpy() for each in outputs)
    assert (y.tolist(), there.tolist()) == ([-1], False)


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
    ("x", "error", "text"),
    [
        (
            3.0,
            InputError,
            r"input 'x': expected optional\(float32\[n\]\), got float32\[\]",
        ),
        (A.astype(np.int32), InputError, "got int32"),
        (A.reshape(1, 2), InputError, r"got float32\[1, 2\]"),
    ],
)
def test_what_does_not_fit_an_optional_is_refused(
    optionals: engine.Model, x: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
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


def giving(folder: Path, values: str) -> None:
    plugins.install(folder, "giving", "giving_plugin", source=GIVES.format(values=values))


def test_what_a_backend_gives_for_each_kind_comes_out_as_it_is(
    plugin_folder: Path, tmp_path: Path
) -> None:
    """An absent optional, one that holds a sequence, a sequence of maps, a map."""
    giving(plugin_folder, "[None, [np.ones(2, 'f4')], [{'a': 1.5}, {}], {7: np.ones(1, 'f4')}]")
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"])
    scores = onnx.TypeProto()
    scores.map_type.key_type = TensorProto.STRING
    scores.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    kinds = [
        helper.make_optional_type_proto(tensor),
        helper.make_optional_type_proto(helper.make_sequence_type_proto(tensor)),
        helper.make_sequence_type_proto(scores),
        scores,
    ]
    values = [helper.make_value_info(f"y{place}", kind) for place, kind in enumerate(kinds)]
    model = engine.load(write(tmp_path, [], values, values), target="giving")
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


# --------------------------------------------------------------------------------------------- maps


@pytest.fixture
def vectoriser(null_backend: str, tmp_path: Path) -> engine.Model:
    """y = the numbers of a map under "a", "b", "c"."""
    kind = onnx.TypeProto()
    kind.map_type.key_type = TensorProto.STRING
    kind.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    node = helper.make_node(
        "DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"]
    )
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])
    path = write(tmp_path, [node], [helper.make_value_info("x", kind)], [y])
    return engine.load(path, target=null_backend)


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


# ---------------------------------------------------------------------- what the model says of it


def test_inputs_and_outputs_are_described_by_what_is_inside(sequences: engine.Model) -> None:
    xs, at = sequences.get_inputs()
    assert (xs.name, xs.dtype, xs.shape) == ("xs", DataType.FLOAT32, [-1])
    assert (at.name, at.dtype, at.shape) == ("at", DataType.INT64, [])
    assert [(meta.name, list(meta.shape)) for meta in sequences.get_outputs()] == [
        ("one", [-1]), ("longer", [-1]),
    ]  # fmt: skip
    assert str(sequences.inputs[0]) == "sequence(float32[n])"


def test_resize_leaves_sequences_as_they_are(null_backend: str, tmp_path: Path) -> None:
    xs = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["m"])
    y = helper.make_value_info("y", xs)
    path = write(
        tmp_path,
        [helper.make_node("SequenceInsert", ["xs", "z"], ["y"])],
        [helper.make_value_info("xs", xs), z],
        [y],
    )
    model = engine.load(path, target=null_backend)
    inputs = model.get_inputs()
    model.resize(inputs, [[], [3]])
    assert [array.size for array in model(xs=[A], z=B)["y"]] == [2, 3]
    with pytest.raises(InputError, match="'z'"):
        model(xs=[A], z=A)
    with pytest.raises(
        InputError, match=r"it is sequence\(float32\[n\]\), which has no shape to fix"
    ):
        model.resize(inputs, [[2], [3]])
    model.resize(inputs, ([], [2]))
    assert [array.size for array in model(xs=[B], z=A)["y"]] == [3, 2]


# ---------------------------------------------------------------------- preallocated ones


@pytest.mark.parametrize("place", [None, Tensor()])
def test_tensors_are_filled_beside_a_sequence(
    sequences: engine.Model, place: Tensor | None
) -> None:
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


def test_a_tensor_without_data_gets_new_memory(sequences: engine.Model) -> None:
    one, _ = sequences.predict([[A, B], np.array(1)], [Tensor(), None])
    assert one.get_data_to_numpy().tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("outputs", "error", "text"),
    [
        (
            [Tensor(), Tensor(A)],
            InputError,
            r"output 'longer' is sequence.*; pass None or Tensor\(\)",
        ),
        (
            [None, None],
            TypeError,
            "outputs element must be Tensor, but got .*NoneType.* at index 0",
        ),
        (
            [Tensor(np.zeros((1, 2), np.float32)), None],
            InputError,
            "output 'one': expected a buffer",
        ),
        ([Tensor()], InputError, "expected 2 outputs"),
        ((Tensor(), None), TypeError, "outputs must be list"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(
    sequences: engine.Model, outputs: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        sequences.predict([[A, B], np.array(1)], outputs)


# ---------------------------------------------------------------------- threads and deadlines


def test_threads_run_a_model_of_sequences_in_contexts_of_their_own(sequences: engine.Model) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for call in range(30):
            x = np.array([number, call], np.float32)
            outputs = sequences(xs=[A, x], at=np.array(1))
            if outputs["one"].tolist() != [number, call] or len(outputs["longer"]) != 3:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thread_uses_one_context(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.reference.evaluator import EvaluatorExecutable

    opened = []
    real = EvaluatorExecutable.open_context

    def counted(self: EvaluatorExecutable) -> object:
        opened.append(self)
        return real(self)

    monkeypatch.setattr(EvaluatorExecutable, "open_context", counted)
    model = engine.load(models.sequences(tmp_path), target=null_backend)
    for _ in range(5):
        model(xs=[A], at=np.array(0))
        model.get_inputs()
    assert len(opened) == 1


def test_a_deadline_stops_a_model_of_sequences(null_backend: str, tmp_path: Path) -> None:
    config = {"null_context": {"delay_s": "0.2"}}
    model = engine.load(models.sequences(tmp_path), target=null_backend, config=config)
    with pytest.raises(DeadlineExceeded, match=r"longer than timeout_s, 0\.02 s: .*more time"):
        model.predict([[A], np.array(0)], timeout_s=0.02)
    assert model.predict([[A], np.array(0)], timeout_s=60)[0].shape == [2]
    model.close()
    with pytest.raises(ModelStateError, match="closed"):
        model.predict([[A], np.array(0)])


# ------------------------------------------------------------------------------------ element types

SMALL = [
    dtype
    for dtype in DType
    if dtype.bits and hasattr(ml_dtypes, str(dtype)) and "float6" not in str(dtype)
]


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_every_type_of_ml_dtypes_goes_through(
    null_backend: str, tmp_path: Path, dtype: DType
) -> None:
    x = np.ones((2, 3)).astype(dtype.numpy)
    path = models.moved(tmp_path, dtype) if dtype is DType.BFLOAT16 else identity(tmp_path, dtype)
    model = engine.load(path, target=null_backend)
    for _ in range(2):
        y = model(x=x)["y"]
        assert y.dtype == dtype.numpy
        np.testing.assert_array_equal(y.reshape(2, 3), x)
    with pytest.raises((InputError, TypeError), match="float64"):
        model(x=np.ones((2, 3)))


def identity(folder: Path, dtype: DType) -> Path:
    values = [helper.make_tensor_value_info(name, dtype.onnx, [2, 3]) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "same", values[:1], values[1:]
    )
    path = folder / f"same_{dtype}.onnx"
    opsets = [helper.make_opsetid("", 25)]
    onnx.save(helper.make_model(graph, ir_version=13, opset_imports=opsets), path)
    return path


def test_bfloat16_is_computed(null_backend: str, tmp_path: Path) -> None:
    model = engine.load(models.doubled(tmp_path, DType.BFLOAT16), target=null_backend)
    x = np.array([1, 1.5, -2], ml_dtypes.bfloat16)
    [y] = model.predict([Tensor(x)])
    assert y.dtype is DataType.BFLOAT16
    np.testing.assert_array_equal(y.get_data_to_numpy(), x + x)
    with pytest.raises(InputError, match=r"expected bfloat16\[n\], got float32\[3\]"):
        model(x=x.astype(np.float32))


def test_a_type_without_ml_dtypes_is_a_model_error_that_says_what_to_install(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.doubled(tmp_path, DType.BFLOAT16)

    def without(self: DType) -> np.dtype[Any]:
        raise ImportError(f"element type {str(self)!r} needs ml_dtypes; run: pip install ml_dtypes")

    monkeypatch.setattr(DType, "numpy", property(without))
    with pytest.raises(ModelError, match="'bfloat16' needs ml_dtypes; run: pip install ml_dtypes"):
        engine.load(path, target=null_backend)


@pytest.mark.parametrize("given", [np.float32(3), np.array(3, np.float32)])
def test_scalars_stay_scalars(null_backend: str, tmp_path: Path, given: Any) -> None:
    model = engine.load(models.scalar(tmp_path), target=null_backend)
    for _ in range(2):
        y = model(x=given)["y"]
        assert (type(y), y.shape, float(y)) == (np.ndarray, (), 7.0)
    buffer = np.zeros((), np.float32)
    [y] = model.predict([given], [Tensor(buffer)])
    assert y.get_data_to_numpy() is buffer
    assert buffer == 7


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
