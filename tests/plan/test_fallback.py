"""Nodes that a target cannot run go to the next, and what ran where is known."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_models import REFUSES_TANH, long_chain, node, save

import engine
from engine.errors import BackendUnavailable, ModelError
from engine_testing import models, plugins

Install = Callable[..., ModuleType]
NOTES_PROVIDERS = """
seen = []
_load = engine_load

@hookimpl
def engine_load(source, options):
    seen.append(options.provider)
    return _load(source, options)
"""
X = np.linspace(-1, 1, 7, dtype=np.float32)


def where(model: engine.Model) -> list[str]:
    return [each.backend for each in model.placement]


# -------------------------------------------------------------------------------- who runs what


def test_each_of_20_tensors_crosses_once_in_a_model_of_200_nodes(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    first, second = install("first"), install("second")
    path = long_chain(tmp_path)
    refuses = {"first_context": {"unsupported_ops": "Tanh"}}
    model = engine.load(path, target=["first", "second"], config=refuses)
    y = model(x=X)["y"]

    expected = X
    for i in range(200):
        expected = np.tanh(expected) if i % 20 == 10 else expected + np.float32(0.001)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert where(model) == ["second" if i % 20 == 10 else "first" for i in range(200)]

    assert (len(first.calls), len(second.calls)) == (11, 10), "21 segments"
    given = [
        array for backend in (first, second) for inputs, _ in backend.calls for array in inputs
    ]
    made = [
        array for backend in (first, second) for _, results in backend.calls for array in results
    ]
    assert len(given) == 21
    assert given[0] is X
    # What one segment made is, once each, what another got: the same memory, so never copied.
    assert sorted(map(id, given[1:])) == sorted(id(array) for array in made if array is not y)


def test_placement_says_why_a_node_fell(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install("second")
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "a", "b"), node("Neg", "b", "y")])
    model = engine.load(path, target=["null", "second"], config=REFUSES_TANH)
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


def test_what_nobody_can_run_is_named_with_everybody(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install("second")
    refuses = {**REFUSES_TANH, "second_context": {"unsupported_ops": "Tanh,Exp"}}
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "a", "y")])
    with pytest.raises(ModelError) as caught:
        engine.load(path, target=["null", "second"], config=refuses)
    text = str(caught.value)
    assert "backend 'second' cannot run Tanh 'make_y'" in text
    assert "(backend 'null' cannot run it: " in text
    assert "list a further target" in text


def test_a_third_target_gets_what_the_second_refuses(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install("second")
    install("third")
    refuses = {
        "null_context": {"unsupported_ops": "Tanh,Exp"},
        "second_context": {"unsupported_ops": "Exp"},
    }
    names = ["Neg", "Tanh", "Exp", "Neg", "Exp", "Tanh"]
    values = ["x", "a", "b", "c", "d", "e", "y"]
    path = save(tmp_path, [node(op, values[i], values[i + 1]) for i, op in enumerate(names)])
    model = engine.load(path, target=["null", "second", "third"], config=refuses)
    assert where(model) == ["null", "second", "third", "null", "third", "second"]
    assert "'null' cannot run it" in model.placement[2].reason
    assert "'second' cannot run it" in model.placement[2].reason
    np.testing.assert_allclose(model(x=X)["y"], np.tanh(np.exp(-np.exp(np.tanh(-X)))), rtol=1e-6)


def test_a_target_that_cannot_be_had_is_passed_over(
    null_backend: str, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        "gone",
        extra="\nfrom engine.types import Devices\n\n@hookimpl\n"
        "def engine_devices():\n    return Devices((), 'off', 'on')\n",
    )
    path = save(tmp_path, [node("Tanh", "x", "y")])
    with pytest.raises(engine.BackendError, match=r"cannot run Tanh .*: backend 'gone' has no dev"):
        engine.load(path, target=["null", "gone"], config=REFUSES_TANH)
    install("second")
    model = engine.load(path, target=["null", "gone", "second"], config=REFUSES_TANH)
    assert where(model) == ["second"]


def test_a_model_of_which_a_target_can_run_nothing_is_the_next_ones_as_it_is(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    second = install("second")
    path = save(tmp_path, [node("Tanh", "x", "a"), node("Tanh", "a", "y")])
    model = engine.load(path, target=["null", "second"], config=REFUSES_TANH)
    np.testing.assert_allclose(model(x=X)["y"], np.tanh(np.tanh(X)), rtol=1e-6)
    assert [source.data for source in second.loads] == [path.read_bytes()]
    assert all("'null' cannot run it" in each.reason for each in model.placement)
    assert "on second" in repr(model)


def test_a_model_of_which_two_targets_share_everything_is_cut_for_these_two(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install("second")
    install("third")
    refuses = {
        "null_context": {"unsupported_ops": "Tanh,Exp"},
        "second_context": {"unsupported_ops": "Exp"},
    }
    path = save(tmp_path, [node("Tanh", "x", "a"), node("Exp", "a", "y")])
    model = engine.load(path, target=["null", "second", "third"], config=refuses)
    assert where(model) == ["second", "third"]
    np.testing.assert_allclose(model(x=X)["y"], np.exp(np.tanh(X)), rtol=1e-6)


def test_nodes_that_no_output_depends_on_are_not_run(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    second = install("second")
    path = save(tmp_path, [node("Neg", "x", "y"), node("Tanh", "x", "unread")])
    model = engine.load(path, target=["null", "second"], config=REFUSES_TANH)
    np.testing.assert_array_equal(model(x=X)["y"], -X)
    assert second.loads == []
    assert model.placement[1].reason.startswith("it is not run, because no output depends on it")


def test_a_backend_that_does_not_announce_it_is_not_completed(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install("plain", capabilities=frozenset())
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "a", "y")])
    refuses = {"plain_context": {"unsupported_ops": "Tanh"}}
    with pytest.raises(ModelError, match="'plain' cannot run Tanh 'make_y'"):
        engine.load(path, target="plain", config=refuses)
    model = engine.load(path, target=["plain", "null"], config=refuses)
    assert where(model) == ["null", "null"]
    assert "'plain' passed over" in model.placement[0].reason


# ------------------------------------------------------------------------------ completed by others


def test_a_backend_is_completed_by_those_that_it_names_and_the_user_is_told_once(
    null_backend: str, install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("quick", completed_by=("slow",))
    install("slow")
    refuses = {"quick_context": {"unsupported_ops": "Tanh"}}
    path = save(
        tmp_path,
        [
            node("Neg", "x", "a"),
            node("Tanh", "a", "b"),
            node("Neg", "b", "c"),
            node("Tanh", "c", "y"),
        ],
    )
    model = engine.load(path, target="quick", config=refuses)
    assert where(model) == ["quick", "slow", "quick", "slow"]
    for _ in range(3):
        np.testing.assert_allclose(model(x=X)["y"], np.tanh(-np.tanh(-X)), rtol=1e-6)
    said = [each.getMessage() for each in caplog.records if each.name == "engine"]
    assert len(said) == 1
    assert said[0].startswith(f"{path}: 2 of 4 nodes run on backend 'slow': Tanh 'make_b': backend")
    assert "'quick' cannot run it: option" in said[0]


def test_nobody_is_told_of_a_backend_that_the_user_listed(
    null_backend: str, install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("quick", completed_by=("slow",))
    install("slow")
    path = save(tmp_path, [node("Tanh", "x", "y")])
    refuses = {"quick_context": {"unsupported_ops": "Tanh"}}
    engine.load(path, target=["quick", "slow"], config=refuses)
    engine.load(path, target="quick")  # which needs nobody
    assert caplog.records == []


def test_listed_targets_come_before_those_that_complete(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install("quick", completed_by=("slow",))
    install("slow")
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "a", "y")])
    refuses = {"quick_context": {"unsupported_ops": "Tanh"}}
    assert where(engine.load(path, target=["quick", "null"], config=refuses)) == ["quick", "null"]


def test_what_completes_a_listed_target_may_run_what_that_lacks(
    null_backend: str, install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("quick", completed_by=("slow",))
    install("slow")
    refuses = {**REFUSES_TANH, "quick_context": {"unsupported_ops": "Tanh"}}
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "a", "y")])
    assert where(engine.load(path, target=["null", "quick"], config=refuses)) == ["null", "slow"]
    assert "1 of 2 nodes run on backend 'slow'" in caplog.text


def test_a_provider_that_the_user_chose_is_not_the_completing_backends(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    kind = {"device_types": ("gpu",), "providers": ("fast",)}
    install("quick", completed_by=("slow",), **kind)
    slow = install("slow", extra=NOTES_PROVIDERS, device_types=("gpu",), providers=("exact",))
    context = engine.Context()
    context.target = ["quick"]
    context.gpu.provider = "fast"
    refuses = {"quick_context": {"unsupported_ops": "Tanh"}}
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "a", "y")])
    model = engine.Model()
    with pytest.raises(BackendUnavailable, match="device gpu:0"):  # there is a null device only
        model.build_from_file(str(path), engine.ModelType.MINDIR, context, config_dict=refuses)
    assert slow.seen == [""]


# ----------------------------------------------------------------------- what goes wrong on the way


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
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    first = install("first")
    second = install("second", extra=REFUSES_EXP.format(when="compile"))
    path = save(tmp_path, [node("Neg", "x", "a"), node("Exp", "a", "b"), node("Neg", "b", "y")])
    refuses = {"first_context": {"unsupported_ops": "Exp"}}
    with pytest.raises(ModelError) as caught:
        engine.load(path, target=["first", "second"], config=refuses)
    text = (
        "no kernel for Exp, says compile (in a part of the model, 1 nodes from 1 to 1, that was cut"
    )
    assert f"{text} out for backend 'second')" in str(caught.value)
    assert len(first.opened) == 1
    assert second.opened == []
    assert first.opened[0].evaluator is None, "it was not closed"


def test_a_part_that_a_target_cannot_read_goes_to_the_next(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install("second", extra=REFUSES_EXP.format(when="load"))
    install("third")
    refuses = {"null_context": {"unsupported_ops": "Exp"}}
    path = save(tmp_path, [node("Neg", "x", "a"), node("Exp", "a", "y")])
    model = engine.load(path, target=["null", "second", "third"], config=refuses)
    assert where(model) == ["null", "third"]
    assert "'second' cannot run it: no kernel for Exp, says load" in model.placement[1].reason
    with pytest.raises(ModelError, match=r"says load \(in a part of the model"):
        engine.load(path, target=["null", "second"], config=refuses)


def test_a_part_that_the_first_cannot_read_any_more_is_an_error(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    alone = REFUSES_EXP.format(when="load").replace(
        "and when", "and len(graph.nodes) == 1 and when"
    )
    install("first", extra=alone)
    install("second")
    path = save(tmp_path, [node("Exp", "x", "a"), node("Tanh", "a", "y")])
    refuses = {
        "first_context": {"unsupported_ops": "Tanh"},
        "second_context": {"unsupported_ops": "Exp"},
    }
    with pytest.raises(ModelError, match=r"says load \(in a part .* for backend 'first'\)"):
        engine.load(path, target=["first", "second"], config=refuses)


def test_every_part_has_its_own_progress_and_a_cancel_stops_between_parts(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    first, second = install("first"), install("second")
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "a", "b"), node("Neg", "b", "y")])
    refuses = {"first_context": {"unsupported_ops": "Tanh"}}
    steps: dict[str, list[int]] = {}
    engine.load(
        path,
        target=["first", "second"],
        config=refuses,
        progress=lambda phase, done, total: steps.setdefault(phase, []).append(done),
    )
    assert list(steps) == [f"segment {i} of 3: check nodes" for i in (1, 2, 3)]
    assert all(done == [0, 1] for done in steps.values())

    token = engine.types.CancelToken()
    first.opened.clear()
    second.opened.clear()
    with pytest.raises(engine.Cancelled):
        engine.load(
            path,
            target=["first", "second"],
            config=refuses,
            progress=lambda phase, done, total: token.cancel() if "2 of 3" in phase else None,
            cancel=token,
        )
    assert [each.evaluator for each in first.opened + second.opened] == [None, None]


def test_an_exception_of_the_users_progress_is_the_users(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install("second")
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "a", "y")])

    def fail(phase: str, done: int, total: int | None) -> None:
        raise KeyError(phase)

    with pytest.raises(KeyError, match="segment 1 of 2"):
        engine.load(path, target=["null", "second"], config=REFUSES_TANH, progress=fail)


def refusing(module: str, error: ImportError) -> Callable[..., Any]:
    """Return an import function that raises `error` for one module."""
    real = builtins.__import__

    def find(name: str, *arguments: Any) -> Any:
        if name == module:
            raise error
        return real(name, *arguments)

    return find


def test_without_the_onnx_package_the_error_asks_for_it(
    null_backend: str, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("second")
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "a", "y")])
    absent = ModuleNotFoundError("No module named 'onnx'", name="onnx")
    monkeypatch.delitem(sys.modules, "engine.plan.extract", raising=False)
    monkeypatch.setattr("builtins.__import__", refusing("engine.plan.extract", absent))
    refuses = {**REFUSES_TANH, "second_context": {"unsupported_ops": "Neg"}}
    with pytest.raises(ModelError, match=r"needs the onnx package; run: pip install onnx"):
        engine.load(path, target=["null", "second"], config=refuses)
    # A later target that takes the model whole needs no cutting.
    assert (
        where(engine.load(path, target=["null", "second"], config=REFUSES_TANH)) == ["second"] * 2
    )


def test_a_model_that_one_target_takes_whole_loads_nothing_for_cutting(tmp_path: Path) -> None:
    plugins.install(tmp_path, "null", "engine_testing.null_device")
    code = f"""
import sys, engine
engine.load({str(models.affine(tmp_path))!r}, target=["null", "null"])
names = ("mixed", "segments", "partition", "extract")
print([name for name in names if "engine.plan." + name in sys.modules])
"""
    search = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    printed = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": search},
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert printed == "[]\n"


def test_nodes_of_a_compiled_form_are_named_by_number(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    """Nobody else reads it, and what its nodes are called only its backend knows."""
    install(
        "own",
        extra="""
class Loaded:
    inputs = outputs = ()
    unsupported = {3: "made for another chip"}

    def close(self):
        pass

@hookimpl
def engine_load(source, options):
    return Loaded()
""",
        formats=("onnx", "own"),
        suffixes={".own": "own"},
    )
    path = tmp_path / "model.own"
    path.write_bytes(bytes(range(200, 250)))
    with pytest.raises(ModelError, match="'own' cannot run node 3: made for another chip"):
        engine.load(path, target="own")


def test_a_compiled_form_that_only_the_first_target_reads_fails_with_the_reasons_of_all(
    null_backend: str, install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    refusing = """
@hookimpl
def engine_load(source, options):
    from engine.errors import ModelError
    raise ModelError("made for another chip")
"""
    install("own", extra=refusing, formats=("onnx", "own"), suffixes={".own": "own"})
    path = tmp_path / "model.own"
    path.write_bytes(bytes(range(200, 250)))
    reasons = r"'own' passed over: made for another chip; .*'null' reads onnx, .* in format own"
    with pytest.raises(ModelError, match=reasons):
        engine.load(path, target=["own", null_backend])
