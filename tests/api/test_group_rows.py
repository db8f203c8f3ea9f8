"""ModelGroup and Model.memory, to the letter of the API, on the null backend."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import Context, Model, ModelGroup, ModelGroupFlag, ModelType
from engine.model import recipe
from engine.model.memory import ModelMemory, PartMemory
from engine_testing import models

X = np.array([[1, 2, 3]], np.float32)
FLAGS = list(ModelGroupFlag)


@pytest.fixture(autouse=True)
def group_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, null_backend: str
) -> Iterator[None]:
    """Groups of this test alone, and a cache of its own."""
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(recipe, "groups", {})
    monkeypatch.setattr("engine.model.build.groups", recipe.groups)
    monkeypatch.setattr("engine.backends.doors._warned", set())
    yield
    assert list(tmp_path.glob("cache/v1/private/*")) == [], "a model was left open"


@pytest.fixture
def context(null_backend: str) -> Context:
    context = Context()
    context.target = [null_backend]
    return context


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(models.affine(tmp_path))


def build(path: str, context: Context, model: Model | None = None) -> Model:
    model = model or Model()
    model.build_from_file(path, ModelType.MINDIR, context)
    return model


# ----------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("flags", [0, "SHARE_WEIGHT", None, 3, ModelType.MINDIR])
def test_a_wrong_flag_is_a_runtime_error(flags):
    with pytest.raises(RuntimeError) as caught:
        ModelGroup(flags)
    assert str(caught.value) == (
        "Parameter flags should be ModelGroupFlag.SHARE_WORKSPACE or ModelGroupFlag.SHARE_WEIGHT "
        "or ModelGroupFlag.kShareWeightAndWorkspace"
    )


def test_workspace_is_what_is_shared_unless_said_otherwise():
    assert repr(ModelGroup()) == "<engine.ModelGroup SHARE_WORKSPACE>"


@pytest.mark.parametrize("models_", ["a.onnx", {"a.onnx"}, None, 1])
def test_models_must_be_a_list_or_a_tuple(models_):
    with pytest.raises(TypeError) as caught:
        ModelGroup().add_model(models_)
    assert str(caught.value) == f"models must be list/tuple, but got {type(models_)}."


@pytest.mark.parametrize("empty", [[], ()])
def test_models_cannot_be_empty(empty):
    with pytest.raises(RuntimeError, match=r"^models cannot be empty$"):
        ModelGroup().add_model(empty)


@pytest.mark.parametrize(
    ("elements", "index", "kind"),
    [
        ([1], 0, int),
        ([None, "a.onnx"], 0, type(None)),
        (["a.onnx", Model()], 1, Model),
        ([Model(), "a.onnx"], 1, str),
        ((Model(), Model(), 2.0), 2, float),
        ([Path("a.onnx")], 0, type(Path())),
    ],
)
@pytest.mark.parametrize("flags", FLAGS)
def test_models_are_all_paths_or_all_objects(flags, elements, index, kind):
    with pytest.raises(TypeError) as caught:
        ModelGroup(flags).add_model(elements)
    expected = f"models element must be all str or Model, but got {kind} at index {index}."
    assert str(caught.value) == expected
    assert recipe.groups == {}


@pytest.mark.parametrize(
    "flags", [ModelGroupFlag.SHARE_WORKSPACE, ModelGroupFlag.SHARE_WEIGHT_WORKSPACE]
)
def test_objects_share_weights_only(flags):
    with pytest.raises(RuntimeError, match=r"^ModelGroup's add model failed\. .*pass the paths"):
        ModelGroup(flags).add_model([Model()])


def test_an_object_is_in_one_group_once():
    model, other = Model(), Model()
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    with pytest.raises(RuntimeError, match="the model at index 1 is in the list twice"):
        group.add_model([model, model])
    group.add_model((model,))
    for again in (group, ModelGroup(ModelGroupFlag.SHARE_WEIGHT)):
        with pytest.raises(
            RuntimeError,
            match=r"^ModelGroup's add model failed\. the model at index 1 is in a group already$",
        ):
            again.add_model([other, model])
    ModelGroup(ModelGroupFlag.SHARE_WEIGHT).add_model([other])  # the failures added nothing


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_object_that_is_built_or_closed_is_refused(is_closed, path, context):
    with build(path, context) as model:
        if is_closed:
            model.close()
        with pytest.raises(RuntimeError, match="is built already, or closed; add a model before"):
            ModelGroup(ModelGroupFlag.SHARE_WEIGHT).add_model([model])


@pytest.mark.parametrize("flags", FLAGS)
def test_paths_go_with_every_flag_and_may_come_again(flags, path, context):
    group = ModelGroup(flags)
    group.add_model([path, path])
    group.add_model((path,))
    with build(path, context) as first, build(os.path.relpath(path), context) as second:
        for model in (first, second):
            np.testing.assert_array_equal(model.predict([X])[0].get_data_to_numpy(), 2 * X + 1)


# --------------------------------------------------------------------------- the size of workspace


def test_the_arguments_of_the_size_are_checked(path, context):
    group = ModelGroup()
    group.add_model([path])
    with pytest.raises(TypeError, match="model_type must be ModelType, but got <class 'int'>"):
        group.cal_max_size_of_workspace(0, context)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="context must be Context, but got <class 'NoneType'>"):
        group.cal_max_size_of_workspace(ModelType.MINDIR, None)  # type: ignore[arg-type]


_FAILED = r"^ModelGroup's cal max size of workspace failed\. "


def test_a_group_without_paths_has_no_size(context):
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    group.add_model([Model()])
    with pytest.raises(RuntimeError, match=_FAILED + "no paths of models were added"):
        group.cal_max_size_of_workspace(ModelType.MINDIR, context)


def test_provider_ge_sizes_workspace_itself(path, context):
    context.ascend.provider = "ge"
    group = ModelGroup()
    group.add_model([path])
    with pytest.raises(RuntimeError, match=_FAILED + "provider 'ge'"):
        group.cal_max_size_of_workspace(ModelType.MINDIR, context)


@pytest.mark.parametrize("content", [None, b"no model"])
def test_a_model_that_cannot_be_built_has_no_size(content, tmp_path, context):
    wrong = tmp_path / "wrong.onnx"
    if content is not None:
        wrong.write_bytes(content)
    group = ModelGroup()
    group.add_model([str(wrong)])
    with pytest.raises(RuntimeError, match=_FAILED + ".*wrong.onnx"):
        group.cal_max_size_of_workspace(ModelType.MINDIR, context)


def test_the_size_of_the_largest_model_is_told_by_memory(tmp_path, context):
    """On the null backend a context's scratch memory is what its backend tells."""
    paths = [str(models.affine(tmp_path)), str(models.heavy(tmp_path))]
    group = ModelGroup()
    group.add_model(paths)
    with build(paths[0], context) as model:
        assert model.memory().group_workspace_bytes == 0
        group.cal_max_size_of_workspace(ModelType.MINDIR, context)
        assert model.memory().group_workspace_bytes > 0


# --------------------------------------------------------------------------------------- memory


def test_memory_needs_a_model_that_is_built(path, context):
    model = Model()
    with pytest.raises(engine.ModelStateError, match="not built"):
        model.memory()
    build(path, context, model).close()
    with pytest.raises(engine.ModelStateError, match="closed"):
        model.memory()


def test_memory_is_told_by_backend_and_device(path, context):
    with build(path, context) as model:
        memory = model.memory()
        [part] = memory.parts
        assert (part.backend, part.device) == (context.target[0], f"{context.target[0]}:0")
        assert memory.private_bytes == part.private_bytes == 2 * 4  # the factor and the summand
        assert memory.why_unshared == ""


def test_memory_prints_as_a_table():
    memory = ModelMemory(
        (PartMemory("cpu", "cpu:0", 1, 2000, 3, 4), PartMemory("", "cpu:0", 10)), "it is secret", 5
    )
    assert str(memory).splitlines() == [
        "backend  device  private  shared  mapped  workspace",
        "cpu      cpu:0         1   2,000       3          4",
        "core     cpu:0        10       0       0          0",
        "weights are not shared: it is secret",
        "workspace of the group's largest model: 5",
    ]
    assert repr(memory) == str(memory), "what a prompt and a notebook show"
    sums = (memory.private_bytes, memory.shared_bytes, memory.mapped_bytes, memory.workspace_bytes)
    assert sums == (11, 2000, 3, 4)


def test_a_backend_that_keeps_copies_says_so_once_and_in_memory(tmp_path, context, caplog):
    path = str(models.heavy(tmp_path))
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT)
    model, other = Model(), Model()
    group.add_model([model, other])
    reason = f"backend {context.target[0]!r} holds a copy of them for each model"
    caplog.set_level(logging.WARNING, "engine")
    with build(path, context, model), build(path, context, other):
        for one in (model, other):
            memory = one.memory()
            assert memory.private_bytes == 4 << 20
            assert memory.shared_bytes == memory.mapped_bytes == 0
            assert memory.why_unshared == reason
    [record] = caplog.records
    assert record.message == f"{path}: its weights are not shared with its group: {reason}"


def test_workspace_that_a_backend_cannot_share_is_said_once(path, context, caplog):
    group = ModelGroup()
    group.add_model([path])
    with caplog.at_level(logging.WARNING, "engine"):
        for _ in range(2):
            build(path, context).close()
    [record] = caplog.records
    assert "do not share workspace: backend" in record.message
