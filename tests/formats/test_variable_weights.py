"""Weights that are declared variable: inputs of the graph, before anything is folded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import parsed
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from engine.errors import InputError, ModelError
from engine.formats import ModelFile, OpenedSource, files
from engine.formats.onnx import weights
from engine.formats.onnx.infer import types_of
from engine.formats.onnx.inline import inlined
from engine.plan.extract import Whole
from engine.plan.partition import Segment
from engine.types import DType

X = np.arange(8, dtype=np.float32).reshape(2, 4)
W1 = np.arange(16, dtype=np.float32).reshape(4, 4)
W2 = np.eye(4, dtype=np.float32) * 3
B = np.full(4, 0.5, np.float32)
HALF = W2.astype(ml_dtypes.bfloat16)


def build(
    initializers: Sequence[TensorProto], inputs: Sequence[str] = ("x",), ir_version: int = 8
) -> onnx.ModelProto:
    """y = (x @ w1) @ w2 + b."""
    shapes = {"x": "2,4", "w1": "4,4", "w2": "4,4", "b": "4"}
    values = ", ".join(f"float[{shapes[name]}] {name}" for name in inputs)
    nodes = "h = MatMul(x, w1)\n k = MatMul(h, w2)\n y = Add(k, b)"
    model = model_of(f"g ({values}) => (float[2,4] y) {{ {nodes} }}", initializers, ir_version)
    for node, name in zip(
        model.graph.node, ("first/MatMul-op0", "second/MatMul-op1", "Add-op2"), strict=True
    ):
        node.name = f"net/{name}"
    return model


def model_of(
    text: str, initializers: Sequence[TensorProto], ir_version: int = 8, opset: int = 17
) -> onnx.ModelProto:
    model = parsed(text, opset=opset, ir_version=ir_version)
    model.graph.initializer.extend(initializers)
    return model


def stored(**arrays: np.ndarray) -> list[TensorProto]:
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


Save = Callable[[onnx.ModelProto], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def save(model: onnx.ModelProto) -> Path:
        path = tmp_path / "net.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return save


@pytest.fixture
def net(save: Save) -> Path:
    return save(build(stored(w1=W1, w2=W2, b=B)))


@pytest.fixture
def mapped(net: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as a file that is mapped and whose weights are large."""
    monkeypatch.setattr(weights, "APART_BYTES", 64)
    monkeypatch.setattr(files, "READ_BYTES", 100)
    return net


def test_a_weight_that_is_stored_in_another_type_is_named(save: Save) -> None:
    """As `engine convert --fp16` stores it; the weight's own name is then that of a Cast."""
    half = build(
        [numpy_helper.from_array(W1.astype(np.float16), "w1.float16"), *stored(w2=W2, b=B)]
    )
    half.graph.node.insert(0, helper.make_node("Cast", ["w1.float16"], ["w1"], to=1))
    path = save(half)
    with pytest.raises(InputError, match=r"'w1' is neither.*did you mean 'w1\.float16'"):
        opened(path, "w1")
    assert [weight.dtype for weight in opened(path, "w1.float16").variables] == [DType.FLOAT16]


def opened(path: Path, *names: str) -> OpenedSource:
    return ModelFile(path, variable_weights=names)()


def run(source: OpenedSource, **inputs: np.ndarray) -> np.ndarray:
    data = inlined(source).data
    assert data is not None
    proto = onnx.load_model_from_string(data)
    onnx.checker.check_model(proto, full_check=True)
    [y] = ReferenceEvaluator(proto).run(None, inputs)
    return np.asarray(y)


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        (["w2"], ["w2"]),
        (["w2", "w1"], ["w2", "w1"]),
        (["net/first/MatMul-op0"], ["w1"]),
        (["net/second", "w2", "b"], ["w2", "b"]),
    ],
)
def test_declared_weights_are_inputs_after_the_users_own(
    net: Path, names: list[str], meant: list[str]
) -> None:
    source = opened(net, *names)
    assert source.graph is not None
    assert [spec.name for spec in source.graph.inputs] == ["x", *meant]
    assert [slot.name for slot in source.variables] == meant
    assert {info.name for info in source.graph.parameters} == {"w1", "w2", "b"} - {*meant}
    values = {"w1": W1, "w2": W2, "b": B}
    for slot in source.variables:
        assert (slot.dtype, slot.shape) == (DType.FLOAT32, values[slot.name].shape)
        np.testing.assert_array_equal(slot.initial, values[slot.name])
        assert slot.initial.flags.owndata or slot.initial.base is None
    new = {name: values[name] + 1 for name in meant}
    w1, w2, b = ({**values, **new}[name] for name in ("w1", "w2", "b"))
    np.testing.assert_array_equal(run(source, x=X, **new), X @ w1 @ w2 + b)


def test_an_initializer_that_is_an_input_too_moves_behind_the_users(save: Save) -> None:
    tensors = stored(w1=W1, w2=W2, b=B)
    source = opened(save(build(tensors, ("w1", "w2", "b", "x"), ir_version=3)), "w1")
    assert source.graph is not None
    assert [spec.name for spec in source.graph.inputs] == ["x", "w1"]
    np.testing.assert_array_equal(run(source, x=X, w1=W2), X @ W2 @ W2 + B)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("w22", r"neither a weight nor a node with one; did you mean 'w[12]'\?"),
        ("net/frst", r"did you mean 'net/first'\?"),
        ("nothing like it", "neither a weight nor a node with one .engine inspect"),
        ("net/Add-op2", "neither a weight nor a node with one"),
    ],
)
def test_a_name_that_means_no_weight_is_refused_with_the_nearest(
    net: Path, name: str, why: str
) -> None:
    with pytest.raises(InputError, match=why) as caught:
        opened(net, name)
    assert isinstance(caught.value, ValueError)
    assert str(net) in str(caught.value)


def test_a_name_that_means_two_weights_is_refused_by_naming_them(save: Save) -> None:
    model = build(stored(w1=W1, w2=W2, b=B))
    model.graph.node[1].name = "net/first/MatMul-op1"
    with pytest.raises(InputError, match="got 'w1', 'w2'; name the weight itself"):
        opened(save(model), "net/first")


def test_external_data_may_vary_and_other_data_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(build(stored(w1=W1, w2=W2, b=B)), path, save_as_external_data=True,
              location="w.bin", size_threshold=0)  # fmt: skip
    source = opened(path, "w2")
    np.testing.assert_array_equal(source.variables[0].initial, W2)
    assert source.graph is not None
    assert {info.name: info.location for info in source.graph.parameters} == {
        "w1": "w.bin", "b": "w.bin",
    }  # fmt: skip
    assert tmp_path / "w.bin" in source.versions


@pytest.mark.parametrize("is_mapped", [False, True])
def test_no_other_weight_is_copied(
    mapped: Path, monkeypatch: pytest.MonkeyPatch, is_mapped: bool
) -> None:
    if not is_mapped:
        monkeypatch.setattr(files, "READ_BYTES", 1 << 20)
    source = opened(mapped, "w2")
    [held] = source.files.values()
    assert bytes(held) == W1.tobytes()
    assert isinstance(held, memoryview)
    assert type(held.obj).__name__ == ("mmap" if is_mapped else "bytes")
    np.testing.assert_array_equal(run(source, x=X, w2=W1), X @ W1 @ W1 + B)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (helper.make_tensor("w2", 1, W2.shape, W2.ravel().tolist()), W2),
        (*stored(w2=HALF), HALF),
        (
            helper.make_tensor("w2", TensorProto.INT4, [3], [1, -8, 7]),
            np.array([1, -8, 7], ml_dtypes.int4),
        ),
    ],
    ids=["typed", "bfloat16", "int4"],
)
def test_values_are_read_from_every_form(
    save: Save, tensor: TensorProto, expected: np.ndarray
) -> None:
    [slot] = opened(save(build([*stored(w1=W1, b=B), tensor])), "w2").variables
    assert slot.initial.dtype == expected.dtype
    np.testing.assert_array_equal(slot.initial, expected)


def test_a_sparse_weight_cannot_vary(save: Save) -> None:
    model = build(stored(w1=W1, w2=W2))
    values = numpy_helper.from_array(np.ones(1, np.float32), "b")
    indices = numpy_helper.from_array(np.array([2], np.int64), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    with pytest.raises(ModelError, match="'b' is a sparse tensor"):
        opened(save(model), "b")


def test_a_model_taken_apart_refers_to_weights_where_they_are(mapped: Path) -> None:
    source = ModelFile(mapped)()
    apart = weights.with_weights_apart(source)
    assert source.data is None
    assert apart.data is not None
    assert {bytes(held) for held in apart.files.values()} == {W1.tobytes(), W2.tobytes()}
    assert len(apart.data) < mapped.stat().st_size - 2 * 64 + 200
    proto = onnx.load_model_from_string(inlined(apart).data or b"")
    assert proto == onnx.load(mapped)
    assert weights.with_weights_apart(apart) is apart


def test_a_part_of_a_mapped_model_that_changed_is_refused(mapped: Path, save: Save) -> None:
    source = ModelFile(mapped)()
    save(build(stored(w1=W1, w2=W2, b=2 * B, more=B)))
    with pytest.raises(ModelError, match="changed while it was loaded"):
        weights.with_weights_apart(source)


def test_cutting_a_model_copies_no_weights(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 100)
    wide = np.ones((4, 1 << 16), np.float32)
    narrow = np.ones((1 << 16, 4), np.float32)
    whole = Whole(ModelFile(save(build(stored(w1=wide, w2=narrow, b=B))))())
    types = types_of(whole.proto, ["x", "h", "y"], guess=False)
    segments = [Segment(0, (0,), ("x",), ("h",)), Segment(0, (1, 2), ("h",), ("y",))]
    parts = [whole.part(segment, types) for segment in segments]
    for part, weight in zip(parts, (wide, narrow), strict=True):
        assert part.data is not None
        assert len(part.data) < 1000
        proto = onnx.load_model_from_string(inlined(part).data or b"")
        [large, *_] = sorted(proto.graph.initializer, key=lambda tensor: -tensor.ByteSize())
        np.testing.assert_array_equal(numpy_helper.to_array(large), weight)


def test_weights_remember_the_names_by_which_they_were_declared(net: Path) -> None:
    source = opened(net, "net/first", "w2", "w1")
    assert [(slot.name, slot.declared_as) for slot in source.variables] == [
        ("w1", ("net/first", "w1")),
        ("w2", ("w2",)),
    ]


@pytest.mark.parametrize("ir_version", [3, 8])
def test_variable_weights_become_constants_again_with_other_values(
    save: Save, ir_version: int
) -> None:
    names = ("x", "w1", "w2", "b") if ir_version < 4 else ("x",)
    path = save(build(stored(w1=W1, w2=W2, b=B), names, ir_version))
    variable = opened(path, "w1", "b")
    source = weights.with_constants(variable, {"w1": W1 - 7})
    assert source.graph is not None
    assert source.variables == ()
    assert [spec.name for spec in source.graph.inputs] == ["x"]
    assert {info.name for info in source.graph.parameters} == {"w1", "w2", "b"}
    np.testing.assert_array_equal(run(source, x=X), X @ (W1 - 7) @ W2 + B)
    np.testing.assert_array_equal(run(weights.with_constants(variable, {}), x=X), X @ W1 @ W2 + B)


def test_a_large_weight_becomes_a_constant_without_a_copy(save: Save) -> None:
    text = "g (float[1,200] x) => (float[1,100] y) { h = MatMul(x, w)\n y = Add(h, o) }"
    big, other = np.zeros((200, 100), np.float32), np.ones((1, 100), np.float32)  # big: 80 kB
    path = save(model_of(text, stored(w=big, o=other)))
    new = np.arange(20_000, dtype=np.float32).reshape(200, 100)
    source = weights.with_constants(opened(path, "w"), {"w": new})
    [content] = [view for view in source.files.values() if len(view) == new.nbytes]
    assert np.shares_memory(np.frombuffer(content, np.float32), new)
    given = np.ones((1, 200), np.float32)
    np.testing.assert_allclose(run(source, x=given), given @ new + other)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4", "uint4", "bool", "float64"])
def test_weights_of_any_type_become_constants_again(save: Save, name: str) -> None:
    dtype = DType(name).numpy
    first, new = np.array([1, 0, 1]).astype(dtype), np.array([0, 1, 1]).astype(dtype)
    text = "g () => (float[3] y) { y = Cast <to = 1> (w) }"
    variable = opened(save(model_of(text, stored(w=first), ir_version=10, opset=21)), "w")
    assert run(weights.with_constants(variable, {"w": new})).tolist() == [0, 1, 1]
    assert run(weights.with_constants(variable, {})).tolist() == [1, 0, 1]
