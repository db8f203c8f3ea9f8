"""Extensions: found by their entry points, called once a request, and not there when off."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import Tensor
from engine.backends.doors import EXTENSIONS
from engine.model.model import model_state
from engine_testing import models, plugins
from engine_testing.interrupts import Interrupter

pytestmark = pytest.mark.usefixtures("null_backend")

X = np.arange(6, dtype=np.float32).reshape(2, 3)

NOTES = """
models, events = [], []

def wrap(model, predict):
    models.append(model)

    def noted(context, inputs, outputs, deadline_s):
        events.append(("{name}", model.name, len(inputs), deadline_s is not None))
        return predict(context, inputs, outputs, deadline_s)

    return noted
"""


@pytest.fixture
def notes(plugin_folder: Path) -> Any:
    """Two extensions, "inner" and "outer", that note their events in one list."""
    for name in ("outer", "inner"):
        source = NOTES.format(name=name)
        plugins.install(
            plugin_folder, name, f"notes_{name}:wrap", group=EXTENSIONS.group, source=source
        )
    modules = [importlib.import_module(f"notes_{name}") for name in ("outer", "inner")]
    modules[1].events = modules[0].events
    modules[1].wrap.__globals__["events"] = modules[0].events
    return modules[0]


def load(tmp_path: Path) -> engine.Model:
    return engine.load(models.affine(tmp_path), target="null")


@pytest.fixture
def install_bad(plugin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install an extension "bad" of this source, and switch it on, alone or among others."""

    def install(source: str, switched_on: str = "bad") -> None:
        plugins.install(plugin_folder, "bad", "bad_one:wrap", group=EXTENSIONS.group, source=source)
        monkeypatch.setenv("ENGINE_EXTENSIONS", switched_on)

    return install


def test_off_means_the_backends_own_function(notes, tmp_path, monkeypatch) -> None:
    for text in (None, "", " , "):
        if text is not None:
            monkeypatch.setenv("ENGINE_EXTENSIONS", text)
        model = load(tmp_path)
        assert model_state(model).built is not None
        plan, predict = model_state(model).built.plan, model_state(model).built.predict
        assert predict is plan.predict is plan.backend.predict
        assert model.predict([X])
    assert notes.models == notes.events == []


def test_off_imports_nothing(plugin_folder: Path, tmp_path: Path) -> None:
    plugins.install(
        plugin_folder, "bad", "never_imported:wrap", group=EXTENSIONS.group, source="1 / 0"
    )
    assert load(tmp_path).predict([X])
    assert "never_imported" not in sys.modules


def test_one_event_a_request_with_the_models_name_the_first_outermost(
    notes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_EXTENSIONS", "outer, inner")
    with load(tmp_path) as model:
        for outputs in (None, [Tensor(np.empty_like(X))]):
            np.testing.assert_array_equal(model.predict([X], outputs)[0], 2 * X + 1)
        model.predict([X], timeout_s=60)
    assert notes.events == [
        event
        for timed in (False, False, True)
        for event in (("outer", "affine", 1, timed), ("inner", "affine", 1, timed))
    ]
    [description] = notes.models
    assert (description.name, description.backends) == ("affine", ("null",))
    assert description.path == str(models.affine(tmp_path))
    assert [str(spec) for spec in description.inputs] == ["float32[batch, 3]"]


def test_a_model_in_memory_is_named_by_its_graph(notes, tmp_path, monkeypatch) -> None:
    import onnx

    monkeypatch.setenv("ENGINE_EXTENSIONS", "outer")
    proto = onnx.load(models.affine(tmp_path))
    proto.graph.name = "the graph"
    context = engine.Context()
    context.target = ["null"]
    model = engine.Model()
    model.build_from_buffer(proto.SerializeToString(), context=context)
    model.predict([X])
    assert [(model.name, model.path) for model in notes.models] == [("the graph", "")]


def test_one_that_is_not_installed_is_named_with_those_that_are(
    notes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_EXTENSIONS", "outer,outre")
    says = r"no extension 'outre' is installed \(installed: [^)]*inner, [^)]*outer[^)]*\), and "
    with pytest.raises(engine.ExtensionError, match=says) as caught:
        load(tmp_path)
    assert caught.value.name == "outre"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 / 0", "importing 'bad_one:wrap' failed: ZeroDivisionError"),
        ("wrap = 5", "'bad_one:wrap' cannot serve as extension: it has no __call__"),
        ("def wrap(model, predict): 1 / 0", "wrapping the model raised ZeroDivisionError"),
        ("import sys\ndef wrap(*_): sys.exit(3)", "wrapping the model raised SystemExit"),
        ("def wrap(model, predict): pass", "it returned None, expected a function"),
    ],
)
def test_one_that_fails_is_at_fault_and_leaves_no_model(
    source: str, message: str, install_bad: Callable[..., None], tmp_path: Path, monkeypatch: Any
) -> None:
    install_bad(source)
    with pytest.raises(engine.ExtensionError, match=f"extension 'bad' is at fault: .*{message}"):
        load(tmp_path)
    monkeypatch.delenv("ENGINE_EXTENSIONS")
    assert load(tmp_path).predict([X])


def test_an_error_inside_an_extension_names_it(notes, install_bad, tmp_path) -> None:
    install_bad("def wrap(model, predict): return lambda *arguments: 1 / 0", "outer,bad,inner")
    says = r"^predict failed! extension 'bad' is at fault: its predict raised ZeroDivisionError"
    with pytest.raises(engine.ExtensionError, match=says) as caught:
        load(tmp_path).predict([X])
    assert caught.value.name == "bad"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("predict(*arguments)[:1]", None),  # the same values in a list of its own
        ("tuple(predict(*arguments))", None),
        ("None", "it gave results, but the model gave none"),
        ("[arguments[1][0]]", "it gave results, but the model gave none"),
        ("predict(*arguments) and None", "it gave back other results than the model gave it"),
        ("predict(*arguments) * 2", "it gave back other results than the model gave it"),
        ("[y.copy() for y in predict(*arguments)]", "it gave back other results"),
        ("[str(y) for y in predict(*arguments)]", "it gave back other results"),
    ],
)
def test_an_extension_gives_back_what_the_model_gave_it(
    returned: str, message: str | None, install_bad: Callable[..., None], tmp_path: Path
) -> None:
    install_bad(f"def wrap(model, predict): return lambda *arguments: {returned}")
    model = load(tmp_path)
    outputs = [Tensor(np.zeros((2, 3), np.float32))]
    for given in (None, outputs):
        if message is None:
            np.testing.assert_array_equal(model.predict([X], given)[0], 2 * X + 1)
            continue
        with pytest.raises(engine.ExtensionError, match=f"extension 'bad' is at fault: {message}"):
            model.predict([X], given)


FREE = """
def wrap(model, predict, options):
    def free(context, inputs, outputs, deadline_s):
        return {returned}
    return free

wrap.changes_results = True
"""


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[float(options['factor']) * inputs[0]]", None),  # without a call of the model
        ("[y + 1 for y in predict(context, inputs, None, deadline_s)]", None),
        ("predict(context, inputs, outputs, deadline_s)", None),
        ("[inputs[0].astype('float64')]", r"it gave float64 for output 'y', expected float32"),
        ("[[1.0]]", r"it gave list for output 'y', expected float32"),
        ("[inputs[0][:, :2]]", r"it gave the shape \[2, 2\] for output 'y', expected float32"),
        ("inputs + inputs", r"it gave <class 'list'>, expected a list of 1 results"),
        ("None", r"it gave <class 'NoneType'>, expected a list of 1 results"),
        ("1 / 0", "its predict raised ZeroDivisionError"),
    ],
)
def test_one_that_says_so_may_give_other_results_of_the_outputs_types(
    returned: str, message: str | None, install_bad: Callable[..., None], tmp_path: Path
) -> None:
    install_bad(FREE.format(returned=returned), "bad;factor=4")
    wanted = {"[float": 4 * X, "[y + 1": 2 * X + 2}.get(returned[:6], 2 * X + 1)
    model = load(tmp_path)
    for given in (None, [Tensor(np.zeros((2, 3), np.float32))]):
        if message is None:
            [y] = model.predict([X], given)
            np.testing.assert_array_equal(y.get_data_to_numpy(), wanted)
            continue
        with pytest.raises(engine.ExtensionError, match=f"extension 'bad' is at fault: {message}"):
            model.predict([X], given)


def test_trials_of_a_build_do_not_reach_an_extension(
    notes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_EXTENSIONS", "outer,inner")
    context = engine.Context()
    context.target = ["null"]
    runner = engine.ModelParallelRunner()
    runner.build_from_file(str(models.affine(tmp_path)), context)  # measures what batches gain
    with runner:
        assert notes.events == []
        runner.predict([X])
    assert [name for name, *_ in notes.events] == ["outer", "inner"]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (["trace"], TypeError),
        ({"trace": "port=1"}, TypeError),
        ({1: {}}, TypeError),
        ({"trace": {1: "a"}}, TypeError),
    ],
)
def test_a_contexts_extensions_are_names_with_options(value: Any, error: type) -> None:
    context = engine.Context()
    with pytest.raises(error, match=r"extensions|trace"):
        context.extensions = value
    context.extensions = {"trace": {"port": 9}}
    assert context.extensions == {"trace": {"port": "9"}}


def test_an_error_of_the_backend_inside_an_extension_is_the_backends(
    notes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_EXTENSIONS", "outer,inner")
    model = engine.load(models.pairs(tmp_path), target="null")
    with pytest.raises(engine.ModelError, match="the model failed on this data"):
        model.predict([np.zeros(3, np.float32)])
    assert model.predict([np.zeros(4, np.float32)])


def test_a_signal_handlers_exception_inside_an_extension_is_the_handlers(
    notes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_EXTENSIONS", "outer,inner")
    model = load(tmp_path)
    interrupter = Interrupter(seed=4)
    with interrupter.installed():
        for _ in interrupter.calls(lambda: model.predict([X]), 60):
            np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)
    assert (interrupter.lost, interrupter.unraisable) == ([], [])
