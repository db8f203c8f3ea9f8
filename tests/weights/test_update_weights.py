"""Model.update_weights: from a user's declaration to a predict that uses the new weights."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper

import engine
from engine import Model, ModelType, Tensor
from engine.model.model import model_state
from engine_testing import models
from engine_testing.making import tensor, write

DATA = Path(__file__).parents[1] / "data" / "mindir"
X = np.array([[1, 2, 3]], np.float32)
MODES = ("auto", "swap", "rebuild")
both = pytest.mark.parametrize("mode", MODES)

Load = Callable[..., Model]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def common(**keys: str) -> dict[str, dict[str, str]]:
    return {"common_context": {f"variable_weights_{key}": text for key, text in keys.items()}}


@pytest.fixture
def affine_path(null_backend: str, tmp_path: Path) -> Path:
    """y = two * x + one, with two = [2] and one = [1]; nodes "scale" and "shift"."""
    return models.affine(tmp_path)


@pytest.fixture
def load(affine_path: Path) -> Load:
    """Build that model with both weights variable."""

    def load(names: tuple[str, ...] = ("two", "one"), **keys: str) -> Model:
        return engine.load(affine_path, "null", variable_weights=names, config=common(**keys))

    return load


def assert_gives(model: Model, two: float, one: float) -> None:
    np.testing.assert_array_equal(model.predict([X])[0].get_data_to_numpy(), two * X + one)


def save(folder: Path, nodes: list[NodeProto], shape: list[Any], **weights: np.ndarray) -> Path:
    """Write a model with an input x and an output y of one shape."""
    x, y = tensor("x", shape), tensor("y", shape)
    return write(folder, "model", [x], [y], nodes, weights, valid=False)


@pytest.mark.parametrize(
    ("section", "quote"), [("ascend_context", '"'), ("common_context", ""), ("null_context", "'")]
)
def test_a_file_of_names_declares_weights_whatever_the_target(
    affine_path: Path, tmp_path: Path, section: str, quote: str
) -> None:
    names = tmp_path / "names.txt"
    names.write_text(f"{quote}two{quote}\n\n{quote}one{quote}\ntwo\n")
    config = tmp_path / "config.ini"
    config.write_text(f"[{section}]\nvariable_weights_file = {quote}{names}{quote}\n")
    with engine.load(affine_path, "null", config=config) as model:
        model.update_weights([[Tensor(floats(3)), Tensor(floats(5))]])
        assert_gives(model, 3, 5)
        assert model.get_model_info("variable_weights") == "two:1;one:1"


def test_a_list_in_the_configuration_and_names_of_the_caller_declare_weights(affine_path) -> None:
    context = engine.Context()
    context.target = ["null"]
    model = Model()
    model.build_from_file(
        str(affine_path),
        ModelType.MINDIR,
        context,
        config_dict={"ascend_context": {"variable_weights_list": "one, 'two'"}},
        variable_weights=["two"],
    )
    assert model.get_model_info("variable_weights") == "two:1;one:1"
    content = affine_path.read_bytes()
    other = Model()
    other.build_from_buffer(content, context=context, variable_weights=("one",))
    other.update_weights({"one": floats(4)})
    assert_gives(other, 2, 4)
    assert other.get_model_info("variable_weights") == "one:1"


def test_a_pair_in_the_file_gives_a_weight_the_users_own_name(affine_path, tmp_path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("lora.scale.weight,two\none\n")
    with engine.load(affine_path, "null", config=common(file=str(names))) as model:
        assert model.lora_name_map == {"lora.scale.weight": "two"}
        new = Tensor(floats(9))
        new.name = "lora.scale.weight"
        model.update_weights([[new]])
        assert_gives(model, 9, 1)


def test_a_weight_that_was_not_declared_is_never_taken_for_another(null_backend, tmp_path) -> None:
    names = ["net.down.0.conv.weight", "net.up.0.conv.weight"]  # an adapter's tensors look so
    nodes = [helper.make_node("Add", ["x", names[0]], ["a"], name="/net.0/conv/Add"),
             helper.make_node("Add", ["a", names[1]], ["y"])]  # fmt: skip
    path = save(tmp_path, nodes, ["n", 3], **dict.fromkeys(names, floats(1)))
    with engine.load(path, "null", variable_weights=names[:1]) as model:
        for wrong in (names[1], "net.0.conv.alpha", "unet.net.down.0.conv.weight"):
            with pytest.raises(engine.InputError, match="was not declared variable") as caught:
                model.update_weights({wrong: floats(7)})
            assert str(caught.value).endswith(f"declared: {names[0]!r}")
        model.update_weights({names[0]: floats(5)})
        assert_gives(model, 1, 5 + 1)


@both
def test_a_weight_goes_by_the_node_that_reads_it_too(null_backend, tmp_path, mode) -> None:
    w = np.arange(9, dtype=np.float32).reshape(3, 3)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="net/dense/MatMul-op0")
    path = save(tmp_path, [node], ["n", 3], w=w)
    named = {"variable_weights": ["net/dense"], "config": common(mode=mode)}
    with engine.load(path, "null", **named) as model:
        for number, name in enumerate(("net/dense", "w")):
            model.update_weights({name: w + number})
            np.testing.assert_array_equal(model(x=X)["y"], X @ (w + number))


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["twoo"], engine.InputError, "'twoo' is neither a weight nor a node.*did you mean 'two'"),
        ("two", TypeError, "variable_weights must be list or tuple of str, but got <class 'str'>"),
        ([b"two"], TypeError, "variable_weights element must be str, but got .* at index 0"),
    ],
)
@both
def test_a_wrong_declaration_is_refused(affine_path, names, error, message, mode) -> None:
    with pytest.raises(error, match=message):
        engine.load(affine_path, "null", variable_weights=names, config=common(mode=mode))


@both
def test_a_weight_that_no_output_depends_on_is_refused(null_backend, tmp_path, mode) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Add", ["x", "w"], ["z"])]
    path = save(tmp_path, nodes, [3], w=floats(1))
    with pytest.raises(engine.ModelError, match="weight 'w' was declared variable, but no output"):
        engine.load(path, "null", variable_weights=["w"], config=common(mode=mode))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((), "weights must be list, but got <class 'tuple'>."),
        ([()], "weight must be list, but got <class 'tuple'>."),
        ([[floats(1)]], "weights element must be Tensor, but got <class 'numpy.ndarray'> as index "
         "00."),
        ([[], [Tensor(floats(1)), 7]],
         "weights element must be Tensor, but got <class 'int'> as index 11."),
        ({1: floats(1)}, "weights key must be str, but got <class 'int'>."),
    ],
)  # fmt: skip
def test_what_is_no_update_of_any_model_is_told_in_mindspore_lites_words(weights, message) -> None:
    with pytest.raises(TypeError) as caught:
        Model().update_weights(weights)  # looked at before the state is
    assert str(caught.value).startswith(message)


def test_a_model_without_variable_weights_or_that_is_not_built_is_not_updated(affine_path) -> None:
    with (
        engine.load(affine_path, "null") as plain,
        pytest.raises(engine.ModelStateError, match="failed! Error is no weight of this model was"),
    ):
        plain.update_weights({"two": floats(3)})
    for model, says in ((Model(), r"update weight failed! Error is .*not built"),
                        (plain, "Error is the model is closed")):  # fmt: skip
        with pytest.raises(engine.ModelStateError, match=says):
            model.update_weights({"two": floats(3)})


@both
def test_tensors_go_by_name_or_all_by_the_order_of_the_declaration(load: Load, mode: str) -> None:
    with load(("one", "two"), mode=mode) as model:
        two = Tensor(floats(7))
        two.name = "two"
        model.update_weights([[two]])
        assert_gives(model, 7, 1)
        model.update_weights([[Tensor(floats(5))], [Tensor(floats(6))]])
        assert_gives(model, 6, 5)
        model.update_weights({"one": Tensor(floats(0)), "two": _Foreign(floats(8))})
        assert_gives(model, 8, 0)


class _Foreign:
    """An array of another library."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array


def named(name: str, value: np.ndarray) -> Tensor:
    tensor = Tensor(value)
    tensor.name = name
    return tensor


UNFIT = [
    ({"twoo": floats(3)}, "weight 'twoo' was not declared variable; did you mean 'two'"),
    ({"two": floats(3), "one": floats(1, 2)}, r"'one': expected .*, got float32\[2\]"),
    ({"two": np.array([3.0])}, r"'two': .* float64\[1\]; convert it with astype\('float32'"),
    ({"two": [3.0]}, r"'two': expected float32\[1\], got list"),
    ({"two": Tensor()}, "weight 'two': the tensor has no data"),
    ({"two": np.ma.masked_array([3.0], [True])}, "a masked array"),
    ({"two_add_param": floats(3)}, "is the name of what is to be added to weight 'two'"),
    ({}, "Common error code. The update has no weights in it; declared: 'two', 'one'"),
    ([[]], "Common error code. The update has no weights"),
    ([], "Common error code."),
    ([[Tensor(floats(3))]], "expected 2 tensors without a name, one a declared weight"),
    ([[named("two", floats(3)), Tensor(floats(3))]], "1 of the 2 tensors have no name"),
    ([[named("two", floats(3)), named("two", floats(4))]], "'two' comes twice"),
]  # fmt: skip


@both
def test_an_update_that_does_not_fit_changes_nothing(load: Load, mode: str) -> None:
    with load(mode=mode) as model:
        model.update_weights({"two": floats(4)})
        for weights, message in UNFIT:
            says = f"update weight failed! Error is .*{message}"
            with pytest.raises(engine.InputError, match=says) as caught:
                model.update_weights(weights)
            assert isinstance(caught.value, RuntimeError)
            assert_gives(model, 4, 1)


@both
def test_updates_of_different_weights_add_up_and_are_copies(load: Load, mode: str) -> None:
    with load(mode=mode) as model:
        two = floats(5)
        model.update_weights({"two": two})
        two[:] = 100
        model.update_weights({"one": floats(-1)})
        assert_gives(model, 5, -1)


def test_a_model_that_is_rebuilt_holds_the_weights_that_were_updated_and_no_others(load) -> None:
    with load(mode="rebuild") as model:
        state = model_state(model)
        assert not state.built.updated
        model.update_weights({"two": floats(5)})
        assert list(state.built.updated) == ["two"]
        assert state.plan.weights is None
        assert state.plan.source.variables == ()
        assert state.plan.source.files == {}


@both
@pytest.mark.parametrize("shape", [["n", 3], [1, 3]])
def test_updates_outlive_a_resize_and_come_after_one(null_backend, tmp_path, mode, shape) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    path = save(tmp_path, nodes, shape, w=floats(2), b=floats(1))
    with engine.load(path, "null", variable_weights=["w", "b"], config=common(mode=mode)) as model:
        model.update_weights({"w": floats(5)})
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        model.resize(model.get_inputs(), [[4, 3]])
        np.testing.assert_array_equal(model(x=x)["y"], 5 * x + 1)
        model.update_weights({"b": floats(7)})
        np.testing.assert_array_equal(model(x=x)["y"], 5 * x + 7)
        assert model.get_model_info("input_shape") == "x:4,3"
        with pytest.raises(engine.InputError, match="x"):
            model.predict([x[:2]])
        model.resize(model.get_inputs(), [[1, 3]])
        np.testing.assert_array_equal(model(x=x[:1])["y"], 5 * x[:1] + 7)


@both
def test_input_tensors_keep_their_data_through_an_update(load: Load, mode: str) -> None:
    with load(mode=mode) as model:
        inputs = model.get_inputs()
        inputs[0].set_data_from_numpy(X)
        model.update_weights({"two": floats(3)})
        np.testing.assert_array_equal(model.predict(inputs)[0].get_data_to_numpy(), 3 * X + 1)
        again = model.get_inputs()
        np.testing.assert_array_equal(model.predict(again)[0].get_data_to_numpy(), 3 * X + 1)


@both
def test_an_update_may_be_added_to_the_weights_as_loaded(load: Load, mode: str) -> None:
    with load(mode=mode, update="add") as model:
        for _ in range(2):  # to the weights as loaded, not as they are by now
            model.update_weights({"two": floats(3), "one_add_param": floats(-1)})
            assert_gives(model, 5, 0)
        model.resize(model.get_inputs(), [[1, 3]])
        assert_gives(model, 5, 0)
        says = r"can not find init data name in user update weight tensors.*'one' is missing"
        with pytest.raises(engine.InputError, match=says):
            model.update_weights({"two": floats(3)})
        model.update_weights([[Tensor(floats(0)), Tensor(floats(0.5))]])
        assert_gives(model, 2, 1.5)


@both
def test_nothing_can_be_added_to_a_weight_without_numbers(null_backend, tmp_path, mode) -> None:
    node = helper.make_node("Where", ["w", "x", "b"], ["y"])
    path = save(tmp_path, [node], [3], w=np.array([True, False, True]), b=floats(0))
    config = common(mode=mode, update="add")
    with pytest.raises(engine.InputError, match=r"'w' is bool\[3\], to which nothing can be added"):
        engine.load(path, "null", variable_weights=["w"], config=config)
    with engine.load(path, "null", variable_weights=["w"], config=common(mode=mode)) as model:
        model.update_weights({"w": np.array([False, True, True])})
        np.testing.assert_array_equal(model(x=X[0])["y"], [0, 2, 3])


def test_a_rebuild_that_fails_leaves_the_model_as_it_was(load: Load, affine_path: Path) -> None:
    with load(mode="rebuild") as model:
        model.update_weights({"two": floats(3)})
        affine_path.write_bytes(affine_path.read_bytes() + b"\x7a\x00")
        says = r"update weight failed! Error is .*changed since the model was"
        with pytest.raises(engine.ModelError, match=says):
            model.update_weights({"two": floats(4)})
        assert_gives(model, 3, 1)
        affine_path.unlink()
        with pytest.raises(engine.ModelError, match="update weight failed!"):
            model.update_weights({"one": floats(4)})
        assert_gives(model, 3, 1)


def test_a_rebuilt_model_frees_the_plan_that_it_had(load: Load) -> None:
    with load(mode="rebuild") as model:
        assert_gives(model, 2, 1)
        pool = model_state(model).plan.pool
        executable = weakref.ref(model_state(model).plan.executable)
        model.update_weights({"two": floats(3)})
        assert_gives(model, 3, 1)
        assert pool.is_closed
        assert pool.open_count == 0
        gc.collect()
        assert executable() is None


@both
def test_weights_of_an_isolated_backend_are_updated(affine_path: Path, mode: str) -> None:
    config = common(mode=mode)
    config["common_context"]["isolate"] = "true"
    with engine.load(affine_path, "null", variable_weights=["two"], config=config) as model:
        model.update_weights({"two": floats(3)})
        assert_gives(model, 3, 1)


def test_a_model_that_is_not_kept_is_not_built_to_be_rebuilt(affine_path, monkeypatch) -> None:
    content = affine_path.read_bytes()
    context = engine.Context()
    context.target = ["null"]
    config = common(mode="rebuild", list="two")
    model = Model()
    model.build_from_buffer(content, context=context, config_dict=config)
    model.update_weights({"two": floats(3)})  # a small one is
    assert_gives(model, 3, 1)
    monkeypatch.setattr("engine.plan.source_model.KEPT_BYTES", 10)
    with pytest.raises(engine.ModelError, match=r"is rebuild, but it was in memory.*mode = swap"):
        Model().build_from_buffer(content, context=context, config_dict=config)


def test_a_setting_that_is_none_is_refused_with_the_nearest(load: Load) -> None:
    says = r"variable_weights_mode must be one of .*got 'rebuilt'; did you mean 'rebuild'"
    with pytest.raises(ValueError, match=says):
        load(mode="rebuilt")


@both
@pytest.mark.parametrize("name", ["weight", "Default/MatMul-op0"])
def test_a_mindirs_parameter_is_updated(null_backend: str, mode: str, name: str) -> None:
    path = DATA / "matmul_256.mindir"
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    new = np.random.default_rng(1).standard_normal((256, 128)).astype(np.float32)
    with (
        engine.load(path, "null") as plain,
        engine.load(path, "null", variable_weights=[name], config=common(mode=mode)) as model,
    ):
        np.testing.assert_allclose(*(each.predict([x])[0] for each in (plain, model)), rtol=1e-6)
        model.update_weights({name: new})
        np.testing.assert_allclose(model.predict([x])[0], x @ new, rtol=1e-4, atol=1e-4)


def entries(folder: Path) -> set[str]:
    return {path.name for path in (folder / "v1" / "entries").iterdir()}


def test_a_model_with_variable_weights_has_a_cache_entry_of_its_own(
    affine_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "on")
    folder = tmp_path / "cache"

    def load(names: tuple[str, ...] = (), **keys: str) -> Model:
        config: dict[str, dict[str, Any]] = common(**keys)
        config["common_context"]["model_cache_dir"] = str(folder)
        return engine.load(affine_path, "null", variable_weights=names, config=config)

    assert_gives(load(), 2, 1)
    plain = entries(folder)
    for names in (("two",), ("two", "one"), ("one", "two")):
        for number in (5, 6):  # cold, then warm
            model = load(names)
            model.update_weights({"two": floats(number)})
            assert_gives(model, number, 1)
    assert len(entries(folder)) == len(plain) + 3
    assert_gives(load(), 2, 1)


def test_a_model_that_is_rebuilt_shares_the_plain_ones_entry_and_leaves_none_of_its_updates(
    affine_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "on")
    folder = tmp_path / "cache"
    config: Mapping[str, dict[str, str]] = common(mode="rebuild")
    config["common_context"]["model_cache_dir"] = str(folder)
    engine.load(affine_path, "null", config=config).close()
    before = entries(folder)
    assert len(before) == 1
    model = engine.load(affine_path, "null", variable_weights=["two"], config=config)
    for number in range(4):
        model.update_weights({"two": floats(number)})
        assert_gives(model, number, 1)
    model.resize(model.get_inputs(), [[1, 3]])
    assert_gives(model, 3, 1)
    assert entries(folder) == before


def test_no_way_of_updating_opens_the_form_of_another(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MindIR file, which is kept in lowered form with a digest."""
    monkeypatch.setenv("ENGINE_CACHE", "on")
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    new = np.random.default_rng(1).standard_normal((256, 128)).astype(np.float32)
    for mode in (*MODES, *MODES):  # cold, then warm
        config: dict[str, dict[str, Any]] = common(mode=mode)
        config["common_context"]["model_cache_dir"] = str(tmp_path)
        path = DATA / "matmul_256.mindir"
        with engine.load(path, "null", variable_weights=["weight"], config=config) as model:
            assert model.predict([x])[0].shape == [8, 128]
            model.update_weights({"weight": new})
            np.testing.assert_allclose(model.predict([x])[0], x @ new, rtol=1e-4, atol=1e-4)
