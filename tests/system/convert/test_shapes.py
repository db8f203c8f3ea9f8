"""Input shapes, set: open dims, and the batch of models that were exported with a fixed one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from convert_models import build, changed, dims, value
from graphs import parsed
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import engine
from engine import CancelToken, FmkType, InputError, ModelError
from engine.converter import batch, shapes
from engine.converter.job import Job

Array = np.ndarray[Any, Any]
Run = Callable[..., dict[str, Array]]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def job(**asked: tuple[int, ...]) -> Job:
    return Job(
        framework=FmkType.ONNX,
        model_file=Path("net.onnx"),
        output_file=Path("out"),
        input_shape=asked,
    )


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """A node named after its first output; "-" is an input that is left out."""
    names = [name.strip("-") for name in inputs.split()]
    made = outputs.split()
    return helper.make_node(op_type, names, made, name=f"the_{made[0]}", **attributes)


def fix(model: ModelProto, **asked: tuple[int, ...]) -> tuple[ModelProto, list[str]]:
    return changed(shapes.fix, model, job(**asked))


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# ------------------------------------------------------------------------------------- open dims


def convolution() -> ModelProto:
    """y = mean over height and width of a 3 x 3 convolution of x, with stale inner shapes."""
    model = parsed(
        """g (float[n, 3, h, ?] x) => (float[n, 8] y) {
            c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)
            p = GlobalAveragePool(c)
            y = Flatten(p)
        }""",
        w=floats(8, 3, 3, 3),
    )
    model.graph.value_info.append(value("c", ["n", 8, "stale", "stale"]))
    return model


def test_open_dims_get_their_sizes_and_the_rest_follows(run):
    result, notes = fix(convolution(), x=(2, 3, 8, 6))
    assert notes == []
    assert dims(result.graph.input) == {"x": [2, 3, 8, 6]}
    assert dims(result.graph.output) == {"y": [2, 8]}
    assert dims(result.graph.value_info) == {"c": [2, 8, 4, 3], "p": [2, 8, 1, 1]}
    x = floats(2, 3, 8, 6)
    np.testing.assert_array_equal(run(result, x=x)["y"], run(convolution(), x=x)["y"])
    with pytest.raises(InputError, match="'x'"):
        run(result, x=floats(1, 3, 8, 6))


def test_minus_one_leaves_a_dim_as_it_is():
    result, notes = fix(convolution(), x=(-1, -1, 8, -1))
    assert dims(result.graph.input) == {"x": ["n", 3, 8, 0]}
    assert dims(result.graph.output) == {"y": ["n", 8]}
    assert notes == ["input 'x': dim 1 stays 3, as it is in the model"]


def test_without_shapes_the_model_is_what_it_was():
    model = convolution()
    assert shapes.fix(model, job()) == (model, [])


def pair() -> ModelProto:
    """y = a + b, both float32[n, 3]."""
    return parsed("g (float[n, 3] a, float[n, 3] b) => (float[n, 3] y) { y = Add(a, b) }")


def test_a_symbolic_dim_is_one_size_in_all_inputs():
    result, notes = fix(pair(), b=(4, 3))
    assert dims(result.graph.input) == {"a": [4, 3], "b": [4, 3]}
    assert dims(result.graph.output) == {"y": [4, 3]}
    assert notes == ["input 'a': 'n' is 4, as in input 'b'"]
    with pytest.raises(InputError, match="dim 0 is 'n', which input_shape makes 5, but 4 in input"):
        fix(pair(), a=(4, 3), b=(5, 3))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"z": (1, 3)}, r"names 'z', which is no input .* 'a' \[n, 3\]; 'b' \[n, 3\]"),
        ({"a": (1, 3, 1)}, r"'a': input_shape gives it 3 dims, \[1, 3, 1\]; the model's has 2"),
    ],
)
def test_what_does_not_fit_an_input_is_an_error(asked, message):
    with pytest.raises(InputError, match=message):
        fix(pair(), **asked)


def test_weights_are_not_inputs():
    model = pair()
    model.graph.initializer.append(numpy_helper.from_array(floats(2, 3), "b"))
    with pytest.raises(InputError, match=r"names 'b', which is no input of the model; .* 'a' \["):
        fix(model, b=(2, 3))


def test_sizes_that_a_layer_cannot_take_are_an_error_that_names_it():
    model = parsed(
        """g (float[n, k] x) => (float[n, 2] y) {
            [the_y] y = MatMul(x, w)
        }""",
        w=floats(4, 2),
    )
    assert dims(fix(model, x=(3, 4))[0].graph.output) == {"y": [3, 2]}
    with pytest.raises(ModelError, match=r"net.onnx: .*MatMul, node name: the_y"):
        fix(model, x=(3, 5))


def test_shapes_inside_branches_follow(run):
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(op_type, "x", name)], name, [], [value(name, ["n", "m"])]
        )
        for name, op_type in (("then", "Neg"), ("else", "Abs"))
    }
    model = build(
        [node("If", "c", "y", **branches)],
        [value("c", [], TensorProto.BOOL), value("x", ["n", "m"])],
        [value("y", ["n", "m"])],
    )
    result, _ = fix(model, x=(2, 3), c=())
    assert dims(result.graph.output) == {"y": [2, 3]}
    x = floats(2, 3)
    np.testing.assert_array_equal(run(result, c=np.array(True), x=x)["y"], -x)
    np.testing.assert_array_equal(run(result, c=np.array(False), x=x)["y"], abs(x))


def test_weights_outside_the_file_stay_there():
    model = convolution()
    [weight] = model.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="net.data")
    result, _ = shapes.fix(model, job(x=(2, 3, 8, 6)))
    assert dims(result.graph.output) == {"y": [2, 8]}
    assert result.graph.initializer[0] == weight


# ------------------------------------------------------------------------------- other fixed axes


def fixed_convolution() -> ModelProto:
    model = convolution()
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, (1, 3, 8, 8)):
        dim.dim_value = size
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    return model


def test_a_fixed_height_and_width_are_changed(run):
    result, notes = fix(fixed_convolution(), x=(1, 3, 12, -1))
    assert dims(result.graph.input) == {"x": [1, 3, 12, 8]}
    assert dims(result.graph.output) == {"y": [1, 8]}
    assert dims(result.graph.value_info) == {"c": [1, 8, 6, 4], "p": [1, 8, 1, 1]}
    assert sorted(note.partition(";")[0] for note in notes) == [
        "input 'x': dim 2 is 8 in the model, 12 in the result",
        "input 'x': dim 3 stays 8, as it is in the model",
    ]
    x = floats(1, 3, 12, 8)
    np.testing.assert_array_equal(run(result, x=x)["y"], run(convolution(), x=x)["y"])


def test_the_batch_and_another_axis_are_changed_together(run):
    result, _ = fix(fixed_convolution(), x=(2, 3, 4, 4))
    assert dims(result.graph.output) == {"y": [2, 8]}
    x = floats(2, 3, 4, 4)
    np.testing.assert_allclose(run(result, x=x)["y"], run(convolution(), x=x)["y"], rtol=1e-5)


@pytest.mark.parametrize("size", [4, 5])
def test_a_size_that_the_layers_cannot_take_is_refused(size):
    shape = numpy_helper.from_array(np.array([1, 6]), "shape")
    model = parsed(
        """g (float[1, 2, 3] x) => (float[1, 2] y) {
            r = Reshape(x, shape)
            [the_y] y = MatMul(r, w)
        }""",
        w=floats(6, 2),
    )
    model.graph.initializer.append(shape)
    with pytest.raises(ModelError, match=r"the model cannot have these input shapes: .*fit its la"):
        fix(model, x=(1, 2, size))


# ------------------------------------------------------------------------------------ fixed batch

HEADS, STEPS, WORDS, WIDTH = 4, 6, 5, 16


def attention(batch: int) -> ModelProto:
    """Attention of x [batch, 6, 16] to words [batch, 5, 16], as exporters write it.

    The batch is in every shape, in a learned first step that was expanded for it, in an offset
    that was made for each sample, and once joined with the heads.
    """
    size = WIDTH // HEADS
    weights: dict[str, Any] = {
        **{f"w{name}": floats(WIDTH, WIDTH, seed=place) for place, name in enumerate("qkvo")},
        "first": floats(1, 1, WIDTH, seed=7),
        "first_shape": [batch, -1, -1],
        "offset": np.repeat(floats(1, STEPS + 1, WIDTH, seed=8), batch, 0),
        "heads": [batch, -1, HEADS, size],
        "joined": [batch * HEADS, -1, size],
        "apart": [batch, HEADS, STEPS + 1, size],
        "flat": [batch, STEPS + 1, WIDTH],
        "scale": np.float32(size**-0.5),
        "ones": [1, 1, 1],
    }
    weights["first_shape"] = [batch, 1, WIDTH]
    nodes = [
        node("Expand", "first first_shape", "token"),
        node("Concat", "token x", "longer", axis=1),
        node("Add", "longer offset", "placed"),
        *(
            part
            for name, source in (("q", "placed"), ("k", "words"), ("v", "words"))
            for part in (
                node("MatMul", f"{source} w{name}", name),
                node("Reshape", f"{name} heads", f"{name}1"),
                node("Transpose", f"{name}1", f"{name}2", perm=[0, 2, 1, 3]),
                node("Reshape", f"{name}2 joined", f"{name}3"),
            )
        ),
        node("Transpose", "k3", "k4", perm=[0, 2, 1]),
        node("MatMul", "q3 k4", "scores"),
        node("Mul", "scores scale", "scaled"),
        node("Softmax", "scaled", "weights", axis=-1),
        node("MatMul", "weights v3", "mixed"),
        node("Reshape", "mixed apart", "mixed1"),
        node("Transpose", "mixed1", "mixed2", perm=[0, 2, 1, 3]),
        node("Reshape", "mixed2 flat", "mixed3"),
        node("MatMul", "mixed3 wo", "y"),
    ]
    return build(
        nodes,
        [value("x", [batch, STEPS, WIDTH]), value("words", [batch, WORDS, WIDTH])],
        [value("y", [batch, STEPS + 1, WIDTH])],
        weights,
    )


@pytest.mark.parametrize(("old", "new"), [(2, 1), (4, 2), (3, 2), (1, 4), (2, 3), (1, 2)])
def test_a_fixed_batch_is_changed(old, new, run):
    result, notes = fix(attention(old), x=(new, STEPS, WIDTH), words=(new, WORDS, WIDTH))
    assert len(notes) == 1
    assert notes[0].startswith(f"the fixed batch of 'x' from {old} to {new}, 'words' from {old}")
    assert dims(result.graph.input) == {"x": [new, STEPS, WIDTH], "words": [new, WORDS, WIDTH]}
    assert dims(result.graph.output) == {"y": [new, STEPS + 1, WIDTH]}
    # The batch is what is asked: each sample gives what it gives in a model made for one.
    x, words = floats(new, STEPS, WIDTH, seed=1), floats(new, WORDS, WIDTH, seed=2)
    found = run(result, x=x, words=words)["y"]
    for sample in range(new):
        one = {"x": x[sample : sample + 1], "words": words[sample : sample + 1]}
        expected = run(attention(1), **one)["y"]
        np.testing.assert_allclose(found[sample : sample + 1], expected, atol=1e-5)


def test_constants_that_were_exchanged_are_gone():
    result, _ = fix(attention(2), x=(3, STEPS, WIDTH), words=(3, WORDS, WIDTH))
    read = {name for node in result.graph.node for name in node.input}
    assert {each.name for each in result.graph.initializer} <= read


def test_an_equal_batch_changes_nothing():
    result, notes = fix(attention(2), x=(2, STEPS, WIDTH))
    assert notes == []
    assert [each.op_type for each in result.graph.node] == [
        each.op_type for each in attention(2).graph.node
    ]


def test_an_input_that_was_forgotten_is_named():
    with pytest.raises(ModelError, match="give 'words' another batch too, or export the model"):
        fix(attention(2), x=(1, STEPS, WIDTH))


def test_batches_change_by_one_factor_and_may_be_several_rows_a_sample(run):
    def model(batch: int) -> ModelProto:
        """y = a + the sum of two rows of b, a [batch, 3], b [2 * batch, 3]."""
        return parsed(
            f"""g (float[{batch}, 3] a, float[{2 * batch}, 3] b) => (float[{batch}, 3] y) {{
                rows = Reshape(b, shape)
                sums = ReduceSum <keepdims = 0> (rows, axes)
                y = Add(a, sums)
            }}""",
            shape=[batch, 2, 3],
            axes=[1],
        )

    with pytest.raises(InputError, match="by different factors: 'a' 2 to 1, 'b' 4 to 8; one"):
        fix(model(2), a=(1, 3), b=(8, 3))
    for old, new in ((2, 1), (1, 3)):
        result, _ = fix(model(old), a=(new, 3), b=(2 * new, 3))
        a, b = floats(new, 3), floats(2 * new, 3, seed=1)
        expected = a + b.reshape(new, 2, 3).sum(1)
        np.testing.assert_allclose(run(result, a=a, b=b)["y"], expected, rtol=1e-5)


@pytest.mark.parametrize(("old", "new"), [(2, 1), (1, 4), (2, 6)])
def test_the_batch_may_be_in_the_middle(old, new, run):
    """Steps first, then the batch, joined and taken apart as in torch's MultiheadAttention."""
    weight = floats(WIDTH, WIDTH)

    def model(batch: int) -> ModelProto:
        return parsed(
            f"""g (float[{batch}, {STEPS}, {WIDTH}] x)
                => (float[{batch}, {HEADS}, {STEPS}, {WIDTH // HEADS}] y) {{
                steps = Transpose <perm = [1, 0, 2]> (x)
                rows = Reshape(steps, joined)
                made = Gemm(rows, w)
                made1 = Reshape(made, apart)
                made2 = Reshape(made1, heads)
                made3 = Transpose <perm = [1, 0, 2]> (made2)
                made4 = Softmax <axis = 1> (made3)
                [the_y] y = Reshape(made4, last)
            }}""",
            w=weight,
            joined=[STEPS * batch, WIDTH],
            apart=[STEPS, batch, WIDTH],
            heads=[STEPS, batch * HEADS, WIDTH // HEADS],
            last=[batch, HEADS, STEPS, WIDTH // HEADS],
        )

    result, _ = fix(model(old), x=(new, STEPS, WIDTH))
    x = floats(new, STEPS, WIDTH, seed=3)
    made = (x @ weight).reshape(new, STEPS, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)
    expected = np.exp(made) / np.exp(made).sum(2, keepdims=True)
    np.testing.assert_allclose(run(result, x=x)["y"], expected, rtol=1e-4)


@pytest.mark.parametrize(("old", "new"), [(2, 1), (1, 3), (2, 5)])
def test_states_that_start_a_recurrence_follow(old, new, run):
    arrays = {"w": floats(1, 8, 3), "r": floats(1, 8, 2, seed=1)}

    def model(batch: int) -> ModelProto:
        return parsed(
            f"""g (float[{batch}, 4, 3] x) => (float[{batch}, 2] y) {{
                steps = Transpose <perm = [1, 0, 2]> (x)
                zeros = ConstantOfShape(shape)
                s, h = LSTM <hidden_size = 2> (steps, w, r, "", "", zeros, state)
                y = Squeeze(h, axes)
            }}""",
            **arrays,
            shape=[1, batch, 2],
            state=np.ones((1, batch, 2), np.float32),
            axes=[0],
        )

    result, _ = fix(model(old), x=(new, 4, 3))
    x = floats(new, 4, 3, seed=2)
    found = run(result, x=x)["y"]
    for sample in range(new):
        one = run(model(1), x=x[sample : sample + 1])["y"]
        np.testing.assert_allclose(found[sample : sample + 1], one, rtol=1e-5)


def test_sizes_that_are_computed_from_constants_follow(run):
    model = parsed(
        """g (float[2, 6] x) => (float[2, 3, 2] y, float[2, 6] z) {
            sizes = Shape(x)
            last = Gather(sizes, one)
            third = Div(last, three)
            shape = Concat <axis = 0> (batch, three, third)
            y = Reshape(x, shape)
            z = Slice(x, zero, batch, zero)
        }""",
        one=[1],
        three=[3],
        batch=[2],
        zero=[0],
    )
    for new in (1, 4):
        result, _ = fix(model, x=(new, 6))
        x = floats(new, 6)
        found = run(result, x=x)
        np.testing.assert_array_equal(found["y"], x.reshape(new, 3, 2))
        np.testing.assert_array_equal(found["z"], x)


def test_open_dims_may_stay_open_beside_a_changed_batch(run):
    model = parsed(
        """g (float[2, steps, 4] x) => (float[2, steps, 2, 2] y) {
            a = Reshape(x, shape)
            y = Mul(a, two)
        }""",
        shape=[2, -1, 2, 2],
        two=np.float32(2),
    )
    result, _ = fix(model, x=(3, -1, 4))
    assert dims(result.graph.input) == {"x": [3, "steps", 4]}
    assert dims(result.graph.output) == {"y": [3, "steps", 2, 2]}
    x = floats(3, 7, 4)
    np.testing.assert_array_equal(run(result, x=x)["y"], 2 * x.reshape(3, 7, 2, 2))


def test_samples_that_depend_on_each_other_are_an_error():
    model = parsed(
        """g (float[2, 3] x) => (float[2, 3] y) {
            m = ReduceMean <axes = [0]> (x)
            y = Sub(x, m)
        }"""
    )
    with pytest.raises(ModelError, match=r"'y' differs by .*not independent; export the model"):
        fix(model, x=(1, 3))


def test_a_constant_that_is_another_for_each_sample_is_an_error():
    model = parsed("g (float[2, 3] x) => (float[2, 3] y) { y = Mul(x, c) }", c=floats(2, 3))
    with pytest.raises(ModelError, match="'y' differs by"):
        fix(model, x=(1, 3))
    with pytest.raises(ModelError, match="'y' differs by"):
        fix(model, x=(4, 3))


def test_a_node_that_mixes_the_batch_with_other_axes_is_named():
    model = parsed(
        """g (float[2, 3] x) => (float[3, 2] y) {
            [the_y] y = Reshape(x, shape)
        }""",
        shape=[3, 2],
    )
    message = r"Reshape 'the_y' makes \[3, 2\] of \[2, 3\], in which the batch has no axis; export"
    with pytest.raises(ModelError, match=message):
        fix(model, x=(1, 3))


def test_a_batch_goes_through_branches_but_not_where_they_have_it_themselves(run):
    def model(inside: bool) -> ModelProto:
        """y = x or -x, reshaped before or in the branches."""
        source = "x" if inside else "flat"
        branches = {}
        for name, op_type in (("then", "Neg"), ("else", "Identity")):
            nodes = [node(op_type, source, f"{name}0"), node("Identity", f"{name}0", name)]
            if inside:
                nodes[1] = node("Reshape", f"{name}0 shape", name)
            branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], [value(name, [2, 6])])
        return build(
            [node("Reshape", "x shape", "flat"), node("If", "c", "y", **branches)],
            [value("x", [2, 2, 3]), value("c", [], TensorProto.BOOL)],
            [value("y", [2, 6])],
            {"shape": [2, 6]},
        )

    result, _ = fix(model(False), x=(1, 2, 3))
    x = floats(1, 2, 3)
    for condition, expected in ((True, -x), (False, x)):
        found = run(result, x=x, c=np.array(condition))["y"]
        np.testing.assert_array_equal(found, expected.reshape(1, 6))
    with pytest.raises(ModelError, match=r"'the_else' .*; export the model with a dynamic batch"):
        fix(model(True), x=(1, 2, 3))


@pytest.mark.parametrize("key", ["decrypt_key", "encrypt_key"])
def test_a_large_model_is_run_from_disk_but_not_what_is_secret(key, tmp_path, run, monkeypatch):
    monkeypatch.setattr(batch, "MAPPED_BYTES", 1000)
    monkeypatch.setattr(batch, "INLINE_BYTES", 2000)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    asked = replace(job(x=(1, STEPS, WIDTH), words=(1, WORDS, WIDTH)), output_file=tmp_path / "out")
    result, _ = shapes.fix(attention(2), asked)
    assert list(tmp_path.iterdir()) == []
    onnx.checker.check_model(result, full_check=True)
    x, words = floats(1, STEPS, WIDTH), floats(1, WORDS, WIDTH, seed=1)
    found, expected = (run(each, x=x, words=words)["y"] for each in (result, attention(1)))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ModelError, match="too large to be run without writing it to disk"):
        shapes.fix(attention(2), replace(asked, **{key: bytes(16)}))


def test_a_cancelled_conversion_stops():
    token = CancelToken()
    token.cancel()
    asked = Job(
        framework=FmkType.ONNX, model_file=Path("net.onnx"), output_file=Path("out"),
        input_shape={"x": (1, STEPS, WIDTH), "words": (1, WORDS, WIDTH)}, cancel=token,
    )  # fmt: skip
    with pytest.raises(engine.Cancelled):
        shapes.fix(attention(2), asked)
