"""Hooks are what pluggy says they are, whether it is asked or not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pluggy
import pytest

from engine import hookspecs
from engine.backends.hooks import Hook, hooks_of, read_by_pluggy, read_plainly
from engine.hookspecs import hookimpl


def module(**contents: Any) -> ModuleType:
    made = ModuleType("a_plugin")
    vars(made).update(contents)
    return made


def marked(function: Callable[..., Any]) -> Callable[..., Any]:
    return hookimpl(function)


def test_a_mark_is_pluggy_s_own() -> None:
    def ours() -> None: ...
    def theirs() -> None: ...

    hookimpl(ours)
    pluggy.HookimplMarker("engine")(theirs)
    assert vars(ours) == vars(theirs)

    def spec() -> None: ...

    pluggy.HookspecMarker("engine")(firstresult=True)(spec)
    assert vars(hookspecs.engine_load) == vars(spec)


def test_a_mark_with_options_is_pluggy_s_too() -> None:
    @hookimpl(specname="engine_load", trylast=True)
    def ours() -> None: ...
    @pluggy.HookimplMarker("engine")(specname="engine_load", trylast=True)
    def theirs() -> None: ...
    @hookimpl()
    def bare() -> None: ...

    assert vars(ours) == vars(theirs)
    assert vars(bare) == vars(marked(lambda: None))


@pytest.mark.parametrize(
    "name",
    [
        "engine_testing.null", "engine_cpu", "engine_cpu.reference", "engine_gpu_trt",
        "engine_ascend_ge",
    ],
)  # fmt: skip
def test_an_ordinary_plugin_has_the_same_hooks_without_pluggy(name: str) -> None:
    package = name.partition(".")[0]
    pytest.importorskip(package, reason=f"{package} is not installed")
    plugin = importlib.import_module(name)
    warnings: list[str] = []
    found = read_plainly(plugin)
    assert found is not None
    assert found == read_by_pluggy("a", plugin, warnings)
    assert {"engine_backend", "engine_devices", "engine_load"} <= found.keys()
    assert warnings == []


def test_pluggy_s_own_marker_is_as_good() -> None:
    @pluggy.HookimplMarker("engine")
    def engine_order(later, device): ...

    plugin = module(engine_order=engine_order, other=lambda: None, number=3)
    assert read_plainly(plugin) == {"engine_order": Hook(engine_order, ("later", "device"))}


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def outer(*given: Any) -> Any: ...

    outer.__wrapped__ = function  # type: ignore[attr-defined]
    return outer


class Holder:
    def method(self, device): ...
    @staticmethod
    def static(device): ...


def engine_order_of_another_name(device): ...
def engine_order(device, surplus=None): ...


def by_keyword(*, device=None): ...
def engine_any(device, *rest): ...


@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        # Marked with options, of another name, of more arguments or of other kinds.
        (module(engine_order=hookimpl(tryfirst=True)(lambda device: None)), ("device",)),
        (module(order=hookimpl(specname="engine_order")(lambda device: None)), ("device",)),
        (module(engine_order=marked(engine_order)), ("device",)),
        (module(engine_order=marked(by_keyword)), ()),
        (module(engine_order=marked(engine_any)), ("device",)),
        (module(engine_order=marked(wrapped(lambda later: None))), ("later",)),
        (module(engine_order=Holder().method), None),
        (SimpleNamespace(engine_order=marked(lambda device: None)), ("device",)),
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_pluggy(
    plugin: object, expected: tuple[str, ...] | None
) -> None:
    assert read_plainly(plugin) is None
    found = hooks_of("a", plugin, [])
    assert found == read_by_pluggy("a", plugin, [])
    assert ("engine_order" in found) == (expected is not None)
    if expected is not None:
        assert found["engine_order"].arguments == expected


def test_an_argument_that_the_specification_lacks_is_refused_by_name() -> None:
    plugin = module(engine_order=marked(lambda device, hurry: None))
    with pytest.raises(pluggy.PluginValidationError, match="hurry"):
        hooks_of("a", plugin, [])


def test_a_hook_that_nobody_knows_is_ignored_with_a_warning() -> None:
    warnings: list[str] = []
    plugin = module(engine_ordre=marked(lambda device: None))
    assert hooks_of("a", plugin, warnings) == {}
    assert warnings == ["unknown hook 'engine_ordre' is ignored; did you mean engine_order?"]


def test_a_function_without_a_mark_is_no_hook() -> None:
    assert read_plainly(module(engine_order=lambda device: None)) == {}
