"""Messages about inputs that do not fit say what would: another axis, another order, an array."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predict_steps import parsed

import engine
from engine import Model
from engine.runtime import advice
from engine.types import DType, TensorSpec

pytestmark = pytest.mark.usefixtures("null_backend")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def said(model: Model, *values: Any) -> str:
    with pytest.raises((engine.InputError, TypeError)) as error:
        model.predict([*values])
    return str(error.value).partition(" (data size not equal! ")[0]


IMAGE = (1, 3, 224, 224)
IN_FILE = "axis {} is fixed to {} in the model's file: {}, or export the model with that axis open"


@pytest.mark.parametrize(
    ("wanted", "shape", "todo"),
    [
        (IMAGE, (3, 224, 224), "the model wants 4 axes, got 3: x[None] adds the first"),
        (("n", 3, 224, 224), (3, 224, 224), "wants 4 axes, got 3: x[None] adds the first"),
        (IMAGE, (1, 1, 3, 224, 224), "the model wants 4 axes, got 5: x[0] removes the first"),
        ((5, 1), (5,), "the model wants 2 axes, got 1: x[..., None] adds the last"),
        ((5,), (5, 1), "the model wants 1 axis, got 2: x[..., 0] removes the last"),
        (IMAGE, (224, 224), "the model wants 4 axes, got 2: pass that shape"),
        (("n", 1, 8, 8), (8, 8), "wants 4 axes, got 2: x[None, None] adds the first two"),
        ((), (2,), "the model wants 0 axes, got 1: pass that shape"),
        (IMAGE, (1, 224, 224, 3), "x.transpose(0, 3, 1, 2) has the axes in that order"),
        (("n", "h", "w", 3), (8, 3, 224, 224), "x.transpose(0, 2, 3, 1) has the axes in that"),
        ((3, 8, 9), (8, 9, 3), "x.transpose(2, 0, 1) has the axes in that order"),
        ((1, 3, 8, 8), (8, 8, 3), "4 axes, got 3: x[None].transpose(0, 3, 1, 2) has the axes in"),
        (("n", 8, 8, 3), (3, 8, 8), "4 axes, got 3: x[None].transpose(0, 2, 3, 1) has the axes"),
        ((2, 3), (3, 2), "x.transpose(1, 0) has the axes in that order"),
        (IMAGE, (2, 3, 224, 224), IN_FILE.format(0, 1, "pass 1 at a time")),
        (("n", 3), (2, 4), IN_FILE.format(1, 3, "pass that size")),
        (None, (2,), "pass that shape"),
    ],
)
def test_a_wrong_shape_is_told_with_what_would_fit(wanted, shape, todo) -> None:
    spec = TensorSpec("x", DType.FLOAT32, wanted)
    text = advice.for_shape(spec, shape, None)
    assert todo in text
    if found := re.search(r"x(\[.*\]|\.transpose\(.*\)) ", text):  # what is advised does fit
        fitting = eval(f"x{found[1]}", {"x": np.empty(shape)})
        assert len(fitting.shape) == len(wanted or ())
        assert all(isinstance(d, str) or d == n for d, n in zip(wanted or (), fitting.shape))


def test_the_advice_stands_behind_what_was_wanted_and_what_came(affine: Model) -> None:
    assert said(affine, X[0]).endswith(
        "input 'x': expected float32[batch, 3], got float32[3]; the model wants 2 axes, got 1: "
        "x[None] adds the first"
    )
    assert affine(X[0][None])["y"].shape == (1, 3)
    resize = "pass that size, try model.resize(model.get_inputs(), [[2, 4]])"
    assert said(affine, np.zeros((2, 4), "f")).endswith(IN_FILE.format(1, 3, resize))
    empty = np.zeros((0, 4), "f")  # an axis cannot be fixed to 0
    assert said(affine, empty).endswith(IN_FILE.format(1, 3, "pass that size"))


def test_the_resize_that_is_advised_makes_the_array_fit(several: Model) -> None:
    wide = np.ones((4, 5), "f")
    inputs = {"z": wide, "a": wide, "m": np.full(5, 3, "f")}
    with pytest.raises(engine.InputError) as error:
        several(inputs)
    [advised] = re.findall(r"try (model\.resize\(.*\)), or export", str(error.value))
    assert advised == "model.resize(model.get_inputs(), [[4, 5], [4, 5], [5]])"
    eval(advised, {"model": several})
    assert several(inputs)["b"].tolist() == [[3] * 5] * 4  # a * m


def test_resize_is_named_for_the_axes_that_it_has_fixed(affine: Model) -> None:
    affine.resize(affine.get_inputs(), [[4, 3]])
    by_resize = "axis 0 has that size by Model.resize: resize again, to -1 for any size"
    assert said(affine, X).endswith(by_resize)
    affine.resize(affine.get_inputs(), [[-1, 3]])
    assert affine.predict([X])
    affine.resize(affine.get_inputs(), [[2, 5]])  # built anew: the file says 3
    assert said(affine, X).endswith("axis 1 has that size by Model.resize: resize again")


def test_advice_on_a_list_works_on_what_is_in_it(null_backend: str) -> None:
    model = parsed("(float[1,3,8,8] x) => (float[1,3,8,8] y) {y = Add(x, x)}", null_backend)
    x = np.zeros((8, 8, 3), "f")
    todo = "the list [x] was taken as the batch: x[None].transpose(0, 3, 1, 2) has the axes in"
    for call in (lambda: model([x]), lambda: model(x=[x]), lambda: model.predict([[x]])):
        with pytest.raises(engine.InputError) as error:
            call()
        assert f"got float32[1, 8, 8, 3]; {todo} that order" in str(error.value)
    assert model([x[None].transpose(0, 3, 1, 2)])["y"].shape == (1, 3, 8, 8)
    resize = "try model.resize(model.get_inputs(), [[2, 3, 8, 8]])"
    fixed = IN_FILE.format(0, 1, f"pass 1 at a time, {resize}")
    both = [x.transpose(2, 0, 1)] * 2
    assert said(model, both).endswith(f"; the list was taken as the batch: {fixed}")
    fitting = x[None].transpose(0, 3, 1, 2)
    alone = "the list [x] was taken as the batch: pass x without the list"
    assert said(model, [fitting]).endswith(alone)
    as_array = "numpy.asarray(..., 'float32').transpose(0, 3, 1, 2) has the axes in that order"
    assert said(model, x[None].tolist()).endswith(f"; {as_array}")
    assert model(np.asarray(x[None].tolist(), "float32").transpose(0, 3, 1, 2))


def test_names_that_are_no_names_of_python_are_not_written_as_such() -> None:
    spec = TensorSpec("input.1", DType.FLOAT32, (1, 3))
    assert advice.for_shape(spec, (3,)).endswith("array[None] adds the first")


LOAD = "pass the array itself: numpy.load(path) gives that of an .npy file"
NO_ARRAY = "pass an array, or what has __array__ or __dlpack__"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"a": X}, "pass one of its arrays, as x['a']"),
        (None, "<class 'NoneType'>; pass an array"),
        (Path("x.npy"), LOAD),
        (b"x.npy", LOAD),
        ([[None, 0.5]], "pass a list of numbers, or of arrays of one shape"),
        (object(), NO_ARRAY),
        ({1.0}, NO_ARRAY),
        (iter([X]), NO_ARRAY),
    ],
)
def test_what_is_no_array_is_told_with_what_helps_for_it(affine, given, says) -> None:
    assert says in said(affine, given)


def test_an_archive_is_told_to_give_its_arrays(affine: Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X, second=X)
    with np.load(tmp_path / "x.npz") as archive:
        assert "NpzFile'>; pass one of its arrays, as x['x']" in said(affine, archive)
        assert (affine(archive["x"])["y"] == 2 * X + 1).all()


def test_numpy_asarray_is_advised_where_it_gives_an_array(affine: Model) -> None:
    row = deque([0.5, 1.5, 2.5])
    assert "convert it with numpy.asarray(..., 'float32')" in said(affine, row)
    assert affine(np.asarray(row, "float32")[None])["y"].tolist() == [[2, 4, 6]]


def test_the_conversion_that_is_advised_for_numbers_works(null_backend: str, affine: Model) -> None:
    text = said(affine, [[1j, 0, 0]])
    assert "convert it yourself: numpy.asarray(...).astype('float32')" in text
    spec = TensorSpec("x", DType.UINT8, (1,))
    from engine.runtime.casting import listed

    with pytest.raises(engine.InputError, match=r"got 300, which uint8 cannot.*astype\('uint8'\)"):
        listed([300], spec, spec.dtype.numpy)
    assert np.asarray([300]).astype("uint8").tolist() == [44]
    assert said(affine, [["1", "2", "3"]]).endswith("float32 cannot hold; pass numbers that it can")


class Tracked:
    """A tensor as torch's where gradients are recorded: it gives its memory once detached."""

    requires_grad = True

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def detach(self) -> np.ndarray[Any, Any]:
        return self._array


class Closed(Tracked):
    requires_grad = False


def test_a_tensor_with_a_gradient_is_told_to_be_detached(affine: Model) -> None:
    assert said(affine, Tracked(X)).endswith("pass what its detach() gives")
    assert affine(Tracked(X).detach())["y"].tolist() == (2 * X + 1).tolist()
    assert said(affine, Closed(X)).endswith("pass a numpy array")


def test_torch_says_the_same(affine: Model) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(X).requires_grad_()
    assert said(affine, tensor).endswith("pass what its detach() gives")
    assert affine(tensor.detach())["y"].tolist() == (2 * X + 1).tolist()
    assert said(affine, torch.eye(3).to_sparse()).endswith("pass what its to_dense() gives")
    assert said(affine, torch.from_numpy(X).double()).endswith("convert it with to(torch.float32)")
    assert "x.permute(1, 0) has the axes in that order" in said(affine, torch.zeros(3, 2))
    assert "the list [x] was taken as the batch: " in said(affine, [torch.zeros(2)])
    rows = [row.requires_grad_() for row in torch.from_numpy(X).clone().unbind()]
    assert said(affine, rows).endswith("pass what its detach() gives")


def test_torch_s_words_are_used_for_torch_s_tensors() -> None:
    assert advice.in_torch_words("x.transpose(0, 3, 1, 2) has") == "x.permute(0, 3, 1, 2) has"
    assert advice.in_torch_words("with astype('float32')") == "with to(torch.float32)"
    image = type("Tensor", (), {"__module__": "torch", "__array__": None})()
    spec = TensorSpec("x", DType.FLOAT32, (1, 3, 8, 8))
    assert "x[None].permute(0, 3, 1, 2) has" in advice.for_shape(spec, (1, 8, 8, 3), None, [image])


def test_a_list_of_tensors_that_do_not_give_their_memory_says_what_does(affine: Model) -> None:
    text = said(affine, [Tracked(X[0]), Tracked(X[1])])
    assert text.startswith("input 'x': expected float32[batch, 3], and the list's <class ")
    assert text.endswith("requires grad.; pass what its detach() gives")
    assert affine([row.detach() for row in (Tracked(X[0]), Tracked(X[1]))])["y"].shape == (2, 3)


def test_a_path_in_place_of_an_array_is_told_so(affine: Model) -> None:
    assert "numpy.load(path)" in said(affine, "x.npy")


def test_the_order_of_onnxruntime_s_arguments_is_told(affine: Model) -> None:
    with pytest.raises(TypeError, match=r"inputs go first: model\(inputs, outputs=\['y'\]\)$"):
        affine(["y"], {"x": X})
    with pytest.raises(TypeError, match=r"inputs go first: model\(inputs\)$"):
        affine(None, {"x": X})
    with pytest.raises(engine.InputError, match=r"float32.batch, 3.; pass a dict of inputs alone"):
        affine.predict(["y", {"x": X}])
    with pytest.raises(TypeError, match=r"index 0\. model\(inputs, outputs=\[...\]\) chooses by"):
        affine.predict({"x": X}, ["y"])
    assert affine({"x": X}, outputs=["y"])["y"].shape == (2, 3)
