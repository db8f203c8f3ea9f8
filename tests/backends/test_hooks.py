"""A plugin's hooks as the core binds them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pluggy
import pytest

from engine.backends.hooks import hooks_of
from engine.hookspecs import hookimpl


def module(**contents: Any) -> ModuleType:
    made = ModuleType("a_plugin")
    vars(made).update(contents)
    return made


def surplus(device, surplus=None):
    return device


def between(device, surplus=None, earlier=None, later=None):
    return device, surplus, earlier, later


def by_keyword(*, device="none"):
    return device


def test_an_implementation_of_all_arguments_is_bound_itself() -> None:
    @pluggy.HookimplMarker("engine")
    def engine_order(device, earlier, later): ...

    plugin = module(engine_order=engine_order, other=lambda: None, number=3)
    assert hooks_of("a", plugin, []) == ({"engine_order": engine_order}, {})


@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        (module(engine_order=hookimpl(lambda later, device: (later, device))), (3, 1)),
        (module(engine_order=hookimpl(tryfirst=True)(lambda device: device)), 1),
        (module(order=hookimpl(specname="engine_order")(lambda device: device)), 1),
        (module(engine_order=hookimpl(surplus)), 1),
        (module(engine_order=hookimpl(between)), (1, None, 2, 3)),
        (module(engine_order=hookimpl(by_keyword)), "none"),
        (SimpleNamespace(engine_order=hookimpl(lambda device: device)), 1),
    ],
)
def test_an_implementation_gets_the_arguments_that_it_names(plugin, expected) -> None:
    order: Callable[..., Any] = hooks_of("a", plugin, [])[0]["engine_order"]
    assert order(1, 2, 3) == expected


def test_a_function_without_a_mark_is_no_hook() -> None:
    assert hooks_of("a", module(engine_order=lambda device: None), []) == ({}, {})


def optional(context, inputs, options=None, surplus=7):
    return context, inputs, options, surplus


def without_default(context, inputs, outputs, deadline_s, options):
    raise AssertionError("never called")


def only_by_keyword(context, *, options=None):
    raise AssertionError("never called")


def test_one_that_takes_an_optional_argument_is_bound_with_and_without_it() -> None:
    plugin = module(engine_predict=hookimpl(optional))
    plain, whole = (found["engine_predict"] for found in hooks_of("a", plugin, []))
    assert plain(1, 2, 3, 4) == (1, 2, None, 7)
    assert whole(1, 2, 3, 4, 5) == (1, 2, 5, 7)


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (
            module(engine_predict=hookimpl(without_default)),
            r"its engine_predict takes 'options' without a default; write options=None \(a "
            r"parameter with a default is optional; give it the same default\)",
        ),
        (
            module(engine_predict_async=hookimpl(without_default)),
            "its engine_predict_async takes 'options' without a default",
        ),
        (
            module(run=hookimpl(specname="engine_predict")(only_by_keyword)),
            r"its engine_predict takes 'options' only by keyword; move it before the \*",
        ),
    ],
)
def test_an_optional_parameter_that_is_not_is_refused(plugin: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        hooks_of("a", plugin, [])
