"""Nodes with tensors of an element type that a device does not declare run elsewhere."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_models import save

import engine
from engine import wings
from engine.errors import ModelError
from engine.plan.mixed import element_types
from engine_testing import models, plugins

Install = Callable[..., ModuleType]

NARROW = """
from engine.types import DeviceInfo, Devices, DType


@hookimpl
def engine_devices():
    dtypes = frozenset({DType.FLOAT32, DType.BOOL})
    return Devices(found=(DeviceInfo(DEVICE, "of two types", dtypes=dtypes),))
"""
REASON = r"element type int64 is not among those that backend 'narrow' declares for device null:0"
X = np.array([1.5, -2.5, 3.25], np.float32)


@pytest.fixture
def narrow(install: Install) -> ModuleType:
    """A backend whose device has float32 and bool."""
    return install("narrow", extra=NARROW)


def where(model: engine.Model) -> list[str]:
    return [placed.backend for placed in model.placement]


def truncating(folder: Path) -> Path:
    """y = 2 * trunc(x) + 1: nodes 0 and 1 of four have an int64, which the file leaves out."""
    nodes = "i = Cast<to = 7>(x); t = Cast<to = 1>(i); d = Add(t, t); y = Add(d, one)"
    return save(folder, nodes, constants={"one": np.float32(1)})


def test_nodes_of_other_types_go_to_the_next_target(
    narrow: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    with engine.load(truncating(tmp_path), target=["narrow", "second"]) as model:
        assert where(model) == ["second", "second", "narrow", "narrow"]
        np.testing.assert_array_equal(model(x=X)["y"], 2 * np.trunc(X) + 1)
        reasons = [placed.reason for placed in model.placement]
    assert f"backend 'narrow' cannot run it: {REASON}" in reasons[0]
    assert "element type" not in reasons[2]


def test_a_single_target_refuses_them_by_name(narrow: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"'make_i', Cast 'make_t': {REASON}; list a further"):
        engine.load(truncating(tmp_path), target="narrow")


def test_a_backend_that_takes_whole_models_only_refuses_them_too(
    install: Install, second: ModuleType, tmp_path: Path
) -> None:
    install("narrow", extra=NARROW, capabilities=frozenset({"dynamic_shapes"}))
    with pytest.raises(ModelError, match=REASON):
        engine.load(truncating(tmp_path), target="narrow")
    with engine.load(truncating(tmp_path), target=["narrow", "second"]) as model:
        assert where(model) == ["second"] * 4


@pytest.mark.parametrize(
    "shape", ["", "shape = Constant<value_ints = [-1, 1]>(); "], ids=["initializer", "Constant"]
)
def test_constants_of_other_types_do_not_count(
    narrow: ModuleType, tmp_path: Path, shape: str
) -> None:
    constants = {} if shape else {"shape": np.array([-1, 1], np.int64)}
    path = save(
        tmp_path, f"{shape}y = Reshape(x, shape)", "(float[n] x) => (float[n, 1] y)", constants
    )
    with engine.load(path, target="narrow") as model:
        np.testing.assert_array_equal(model(x=X)["y"], X.reshape(3, 1))


def test_a_constant_that_is_a_result_does_count(
    narrow: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    nodes = "y = Neg(x); z = Constant<value_ints = [4, 5]>()"
    path = save(tmp_path, nodes, "(float[n] x) => (float[n] y, int64[2] z)")
    with pytest.raises(ModelError, match=f"Constant 'make_z': {REASON}"):
        engine.load(path, target="narrow")
    with engine.load(path, target=["narrow", "second"]) as model:
        assert where(model) == ["narrow", "second"]
        assert model(x=X)["z"].tolist() == [4, 5]


def test_inputs_and_outputs_of_the_model_cross_to_a_device_that_has_them(
    narrow: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    nodes = "f = Cast<to = 1>(i); s = Add(f, f); y = Neg(s); o = Cast<to = 7>(y)"
    path = save(tmp_path, nodes, "(int64[n] i) => (float[n] y, int64[n] o)")
    with engine.load(path, target=["narrow", "second"]) as model:
        assert where(model) == ["second", "narrow", "narrow", "second"]
        found = model(i=np.array([3, -4], np.int64))
    assert found["y"].tolist() == [-6, 8]
    assert found["o"].tolist() == [-6, 8]
    given = [array.dtype for inputs, results in narrow.calls for array in (*inputs, *results)]
    assert {str(dtype) for dtype in given} == {"float32"}


def test_an_input_that_no_node_reads_cannot_cross_either(
    narrow: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    path = save(tmp_path, "y = Neg(x)", "(float[n] x, int64[n] idle) => (float[n] y)")
    with pytest.raises(ModelError, match=f"input 'idle': {REASON}; list a further target"):
        engine.load(path, target="narrow")
    with engine.load(path, target=["narrow", "second"]) as model:
        assert where(model) == ["second"]
        y = model(x=X, idle=np.zeros(3, np.int64))["y"]
        np.testing.assert_array_equal(y, -X)


def test_what_a_body_reads_of_the_graph_around_it_counts(
    narrow: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    nodes = (
        "i = Cast<to = 7>(x); y = If(flag)<"
        "then_branch = taken () => (float[n] a) { a = Cast<to = 1>(i) }, "
        "else_branch = other () => (float[n] b) { b = Neg(x) }>"
    )
    path = save(tmp_path, nodes, "(bool flag, float[n] x) => (float[n] y)")
    with engine.load(path, target=["narrow", "second"]) as model:
        assert where(model) == ["second", "second"]


def test_a_type_that_nobody_knows_is_left_to_the_backend(
    narrow: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    path = models.unknown_operator(tmp_path)  # y is float32 in the file
    with pytest.raises(ModelError) as caught:
        engine.load(path, target=["narrow", "second"])
    assert "element type" not in str(caught.value)


def test_elements_of_sequences_count(
    narrow: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    nodes = "i = Cast<to = 7>(x); s = SequenceConstruct(i); n = SequenceLength(s); y = Neg(x)"
    path = save(tmp_path, nodes, "(float[n] x) => (float[n] y, int64 n)")
    with engine.load(path, target=["narrow", "second"]) as model:
        assert where(model) == ["second", "second", "second", "narrow"]
        assert model(x=X)["n"] == 1


def test_without_the_onnx_package_the_types_of_inputs_and_outputs_are_known(
    narrow: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.backends import open_backend
    from engine.formats import open_source
    from engine.plan.mixed.element_types import refused_by_type
    from engine.types import Device

    nodes = "f = Cast<to = 1>(i); y = Neg(f)"
    source = open_source(save(tmp_path, nodes, "(int64[n] i) => (float[n] y)"))
    original = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "engine.formats.onnx.graphs":
            raise ImportError("No module named 'onnx'", name="onnx")
        return original(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    found = refused_by_type(open_backend("narrow"), Device("null"), source)
    assert [*found] == [0]


def test_a_partition_by_type_is_made_once(
    plugin_folder: Path, second: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second build takes the parts from the cache: no type is looked at again."""
    whole = f"""
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device
from engine_testing.null_device import *


@hookimpl
def engine_backend():
    return replace(null_device.engine_backend(), name="kept")

{NARROW}"""
    plugins.install(plugin_folder, "kept", "plan_kept", source=whole)
    monkeypatch.setenv("ENGINE_CACHE", "on")
    asked: list[object] = []
    own = element_types.refused_by_type

    def counted(*arguments: Any) -> Any:
        asked.append(arguments)
        return own(*arguments)

    monkeypatch.setitem(wings._found, "refused_by_type", counted)
    config = {"common_context": {"model_cache_dir": str(tmp_path / "cache")}}
    counts = []
    for _ in range(2):
        path = truncating(tmp_path)
        with engine.load(path, target=["kept", "second"], config=config) as model:
            np.testing.assert_array_equal(model(x=X)["y"], 2 * np.trunc(X) + 1)
            assert where(model)[:2] == ["second", "second"]
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0


def test_an_isolated_device_keeps_its_types(
    narrow: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    config = {"common_context": {"isolate": "true"}}
    with engine.load(truncating(tmp_path), target=["narrow", "second"], config=config) as model:
        assert where(model) == ["second", "second", "narrow", "narrow"]
        np.testing.assert_array_equal(model(x=X)["y"], 2 * np.trunc(X) + 1)
