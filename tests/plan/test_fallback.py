"""Nodes that a target cannot run go to the next, and what ran where is known."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_models import Config, chain, long_chain, refusing, save

import engine
from engine.errors import BackendUnavailable, ModelError
from engine.host.child import command, environment
from engine_testing import models

Install = Callable[..., ModuleType]
NO_TANH = refusing(null="Tanh")
NO_QUICK_TANH = refusing(quick="Tanh")
X = np.linspace(-1, 1, 7, dtype=np.float32)


def load(path: Path, *target: str, config: Config = NO_TANH, **more: Any) -> engine.Model:
    return engine.load(path, target=[*target], config=config, **more)


def where(model: engine.Model) -> list[str]:
    return [placed.backend for placed in model.placement]


@pytest.fixture
def quick(install: Install, second: ModuleType) -> ModuleType:
    """A backend that is completed by `second`."""
    return install("quick", completed_by=("second",))


def test_each_of_20_tensors_crosses_once_in_a_model_of_200_nodes(
    install: Install, second: ModuleType, tmp_path: Path
) -> None:
    first = install("first")
    model = load(long_chain(tmp_path), "first", "second", config=refusing(first="Tanh"))
    y = model(x=X)["y"]

    expected = X
    for i in range(200):
        expected = np.tanh(expected) if i % 20 == 10 else expected + np.float32(0.001)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert where(model) == ["second" if i % 20 == 10 else "first" for i in range(200)]

    assert (len(first.calls), len(second.calls)) == (11, 10), "21 segments"
    calls = first.calls + second.calls
    given = [array for inputs, _ in calls for array in inputs]
    made = [array for _, results in calls for array in results]
    assert len(given) == 21
    assert given[0] is X
    # Each result of one segment is once another's input: the same memory, so never copied.
    assert sorted(map(id, given[1:])) == sorted(id(array) for array in made if array is not y)


@pytest.mark.usefixtures("second")
def test_placement_says_why_a_node_is_elsewhere(tmp_path: Path) -> None:
    model = load(chain(tmp_path, "Neg", "Tanh", "Neg"), "null", "second")
    assert "on null" in repr(model)
    placed = model.placement
    assert [(each.index, each.node, each.op_type, each.backend) for each in placed] == [
        (0, "make_a", "Neg", "null"), (1, "make_b", "Tanh", "second"), (2, "make_y", "Neg", "null"),
    ]  # fmt: skip
    assert placed[0].reason == "the only provider; target ['null', 'second']"
    assert placed[1].reason == (
        "backend 'null' cannot run it: option 'unsupported_ops' names its operator; "
        "the only provider; target ['null', 'second']"
    )


@pytest.mark.usefixtures("second")
def test_what_nobody_can_run_is_named_with_everybody(tmp_path: Path) -> None:
    refuses = refusing(null="Tanh", second="Tanh,Exp")
    with pytest.raises(ModelError) as caught:
        load(chain(tmp_path, "Neg", "Tanh"), "null", "second", config=refuses)
    text = str(caught.value)
    assert "backend 'second' cannot run Tanh 'make_y'" in text
    assert "(backend 'null' cannot run it: " in text
    assert "list a further target" in text


@pytest.mark.parametrize(
    ("ops", "backends"),
    [
        (["Neg", "Tanh", "Exp", "Neg", "Exp", "Tanh"], "null second third null third second"),
        (["Tanh", "Exp"], "second third"),
    ],
    ids=["each has a part", "the first has none"],
)
@pytest.mark.usefixtures("second")
def test_a_third_target_gets_what_the_second_refuses(
    install: Install, tmp_path: Path, ops: list[str], backends: str
) -> None:
    install("third")
    refuses = refusing(null="Tanh,Exp", second="Exp")
    model = load(chain(tmp_path, *ops), "null", "second", "third", config=refuses)
    assert where(model) == backends.split()
    reason = model.placement[ops.index("Exp")].reason
    assert "'null' cannot run it" in reason
    assert "'second' cannot run it" in reason
    expected = X
    for op in ops:
        expected = {"Neg": np.negative, "Tanh": np.tanh, "Exp": np.exp}[op](expected)
    np.testing.assert_allclose(model(x=X)["y"], expected, rtol=1e-6)


def test_a_target_that_cannot_be_had_is_passed_over(install: Install, tmp_path: Path) -> None:
    gone = """
from engine.types import Devices

@hookimpl
def engine_devices():
    return Devices((), 'off', 'on')
"""
    install("gone", extra=gone)
    path = chain(tmp_path, "Tanh")
    with pytest.raises(engine.BackendError, match=r"cannot run Tanh .*: backend 'gone' has no dev"):
        load(path, "null", "gone")
    install("second")
    assert where(load(path, "null", "gone", "second")) == ["second"]


def test_a_model_of_which_a_target_can_run_nothing_is_the_next_ones_as_it_is(
    second: ModuleType, tmp_path: Path
) -> None:
    path = chain(tmp_path, "Tanh", "Tanh")
    model = load(path, "null", "second")
    np.testing.assert_allclose(model(x=X)["y"], np.tanh(np.tanh(X)), rtol=1e-6)
    assert [source.data for source in second.loads] == [path.read_bytes()]
    assert all("'null' cannot run it" in placed.reason for placed in model.placement)
    assert "on second" in repr(model)


def test_nodes_that_no_output_depends_on_are_not_run(second: ModuleType, tmp_path: Path) -> None:
    model = load(save(tmp_path, "y = Neg(x); unread = Tanh(x)"), "null", "second")
    np.testing.assert_array_equal(model(x=X)["y"], -X)
    assert second.loads == []
    assert model.placement[1].reason.startswith("it is not run, because no output depends on it")


def test_a_backend_that_does_not_announce_it_is_not_completed(
    install: Install, tmp_path: Path
) -> None:
    install("plain", capabilities=frozenset())
    path = chain(tmp_path, "Neg", "Tanh")
    refuses = refusing(plain="Tanh")
    with pytest.raises(ModelError, match="'plain' cannot run Tanh 'make_y'"):
        load(path, "plain", config=refuses)
    model = load(path, "plain", "null", config=refuses)
    assert where(model) == ["null", "null"]
    assert "'plain' passed over" in model.placement[0].reason


@pytest.mark.usefixtures("quick")
def test_a_backend_is_completed_by_those_that_it_names_and_the_user_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = chain(tmp_path, "Neg", "Tanh", "Neg", "Tanh")
    model = load(path, "quick", config=NO_QUICK_TANH)
    assert where(model) == ["quick", "second", "quick", "second"]
    for _ in range(3):
        np.testing.assert_allclose(model(x=X)["y"], np.tanh(-np.tanh(-X)), rtol=1e-6)
    [said] = [record.getMessage() for record in caplog.records if record.name == "engine"]
    assert said.startswith(f"{path}: 2 of 4 nodes run on backend 'second': Tanh 'make_b': backend")
    assert "'quick' cannot run it: option" in said


@pytest.mark.usefixtures("quick")
def test_nobody_is_told_of_a_backend_that_the_user_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = chain(tmp_path, "Tanh")
    load(path, "quick", "second", config=NO_QUICK_TANH)
    load(path, "quick", config={})  # which needs nobody
    assert caplog.records == []


@pytest.mark.usefixtures("quick")
def test_listed_targets_come_before_those_that_complete(tmp_path: Path) -> None:
    path = chain(tmp_path, "Neg", "Tanh")
    assert where(load(path, "quick", "null", config=NO_QUICK_TANH)) == ["quick", "null"]


@pytest.mark.usefixtures("quick")
def test_what_completes_a_listed_target_may_run_what_that_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = chain(tmp_path, "Neg", "Tanh")
    model = load(path, "null", "quick", config=refusing(null="Tanh", quick="Tanh"))
    assert where(model) == ["null", "second"]
    assert "1 of 2 nodes run on backend 'second'" in caplog.text


def test_a_provider_that_the_user_chose_is_not_the_completing_backends(
    install: Install, tmp_path: Path
) -> None:
    notes_providers = """
seen = []
_load = engine_load

@hookimpl
def engine_load(source, options):
    seen.append(options.provider)
    return _load(source, options)
"""
    gpu = ("gpu",)
    install("quick", completed_by=("slow",), device_types=gpu, providers=("fast",))
    slow = install("slow", extra=notes_providers, device_types=gpu, providers=("exact",))
    context = engine.Context()
    context.target = ["quick"]
    context.gpu.provider = "fast"
    path, form = str(chain(tmp_path, "Neg", "Tanh")), engine.ModelType.MINDIR
    with pytest.raises(BackendUnavailable, match="device gpu:0"):  # there is a null device only
        engine.Model().build_from_file(path, form, context, config_dict=NO_QUICK_TANH)
    assert slow.seen == [""]


REFUSES_EXP = """
from engine.errors import ModelError

_load, _compile = engine_load, engine_compile

def check(when, graph):
    if any(node.op_type == "Exp" for node in graph.nodes) and when == {when!r}:
        raise ModelError("no kernel for Exp, says " + when)

@hookimpl
def engine_load(source, options):
    check("load", source.graph)
    return _load(source, options)

@hookimpl
def engine_compile(loaded, options):
    check("compile", loaded.graph)
    return _compile(loaded, options)
"""


def test_a_part_that_does_not_compile_is_an_error_that_says_which_and_leaves_nothing(
    install: Install, tmp_path: Path
) -> None:
    first = install("first")
    second = install("second", extra=REFUSES_EXP.format(when="compile"))
    path = chain(tmp_path, "Neg", "Exp", "Neg")
    with pytest.raises(ModelError) as caught:
        load(path, "first", "second", config=refusing(first="Exp"))
    assert (
        "no kernel for Exp, says compile (in a part of the model, 1 nodes from 1 to 1, that was "
        "cut out for backend 'second')"
    ) in str(caught.value)
    assert (len(first.opened), second.opened) == (1, [])
    assert first.opened[0].evaluator is None, "it was not closed"


def test_a_part_that_a_target_cannot_read_goes_to_the_next(
    install: Install, tmp_path: Path
) -> None:
    install("second", extra=REFUSES_EXP.format(when="load"))
    install("third")
    path, refuses = chain(tmp_path, "Neg", "Exp"), refusing(null="Exp")
    model = load(path, "null", "second", "third", config=refuses)
    assert where(model) == ["null", "third"]
    assert "'second' cannot run it: no kernel for Exp, says load" in model.placement[1].reason
    with pytest.raises(ModelError, match=r"says load \(in a part of the model"):
        load(path, "null", "second", config=refuses)


def test_a_part_that_the_first_cannot_read_any_more_is_an_error(
    install: Install, tmp_path: Path
) -> None:
    in_one_node = REFUSES_EXP.replace("and when", "and len(graph.nodes) == 1 and when")
    install("first", extra=in_one_node.format(when="load"))
    install("second")
    path, refuses = chain(tmp_path, "Exp", "Tanh"), refusing(first="Tanh", second="Exp")
    with pytest.raises(ModelError, match=r"says load \(in a part .* for backend 'first'\)"):
        load(path, "first", "second", config=refuses)


def test_every_part_has_its_own_progress_and_a_cancel_stops_between_parts(
    install: Install, second: ModuleType, tmp_path: Path
) -> None:
    first = install("first")
    path, targets = chain(tmp_path, "Neg", "Tanh", "Neg"), ("first", "second")
    steps: dict[str, list[int]] = {}
    token = engine.types.CancelToken()

    def progress(phase: str, done: int, total: int | None) -> None:
        steps.setdefault(phase, []).append(done)

    def cancelling(phase: str, done: int, total: int | None) -> None:
        if "2 of 3" in phase:
            token.cancel()

    load(path, *targets, config=refusing(first="Tanh"), progress=progress)
    assert steps == {f"segment {i} of 3: check nodes": [0, 1] for i in (1, 2, 3)}

    first.opened.clear()
    second.opened.clear()
    with pytest.raises(engine.Cancelled):
        load(path, *targets, config=refusing(first="Tanh"), progress=cancelling, cancel=token)
    assert [opened.evaluator for opened in first.opened + second.opened] == [None, None]


@pytest.mark.usefixtures("second")
def test_an_exception_of_the_users_progress_is_the_users(tmp_path: Path) -> None:
    def fail(phase: str, done: int, total: int | None) -> None:
        raise KeyError(phase)

    with pytest.raises(KeyError, match="segment 1 of 2"):
        load(chain(tmp_path, "Neg", "Tanh"), "null", "second", progress=fail)


@pytest.mark.usefixtures("second")
def test_without_the_onnx_package_the_error_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = chain(tmp_path, "Neg", "Tanh"), builtins.__import__

    def find(name: str, *arguments: Any) -> Any:
        if name == "engine.plan.extract":
            raise ModuleNotFoundError("No module named 'onnx'", name="onnx")
        return real(name, *arguments)

    monkeypatch.delitem(sys.modules, "engine.plan.extract", raising=False)
    monkeypatch.setattr("builtins.__import__", find)
    with pytest.raises(ModelError, match=r"needs the onnx package; run: pip install onnx"):
        load(path, "null", "second", config=refusing(null="Tanh", second="Neg"))
    # A later target that takes the model whole needs no cutting.
    assert where(load(path, "null", "second")) == ["second"] * 2


@pytest.mark.usefixtures("null_backend")
def test_a_model_that_one_target_takes_whole_loads_nothing_for_cutting(tmp_path: Path) -> None:
    path = str(models.affine(tmp_path))
    code = f"import sys, engine\nengine.load({path!r}, ['null', 'null'])\nprint(*sys.modules)"
    done = subprocess.run(command("-c", code), env=environment(), check=True, capture_output=True)
    loaded = done.stdout.decode().split()
    assert "engine.plan.build" in loaded
    assert not {f"engine.plan.{name}" for name in ("mixed", "segments", "extract")} & {*loaded}


def install_own(install: Install, load: str) -> None:
    """Install a backend with a format of its own."""
    extra = f"""
from engine.errors import ModelError

class Loaded:
    inputs = outputs = ()
    unsupported = {{3: "made for another chip"}}

    def close(self):
        pass

@hookimpl
def engine_load(source, options):
    {load}
"""
    install("own", extra=extra, formats=("onnx", "own"), suffixes={".own": "own"})


@pytest.mark.parametrize(
    ("load", "targets", "says"),
    [
        ("return Loaded()", ["own"], "'own' cannot run node 3: made for another chip"),
        ("raise ModelError('made for another chip')", ["own", "null"],
         r"'own' passed over: made for another chip; .*'null' reads onnx, .* in format own"),
    ],
    ids=["nodes by number", "reasons of all"],
)  # fmt: skip
def test_a_compiled_form_is_read_by_its_backend_alone_and_errors_say_what_is_known_of_it(
    install: Install, tmp_path: Path, load: str, targets: list[str], says: str
) -> None:
    install_own(install, load)
    path = tmp_path / "model.own"
    path.write_bytes(bytes(range(200, 250)))
    with pytest.raises(ModelError, match=says):
        engine.load(path, target=targets)
