"""Every public name is documented: all that a script, a backend or an extension may import."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import errors, hookspecs

DOCS = Path(__file__).parents[1] / "docs"
REFERENCE = (DOCS / "backends/reference.md").read_text()
CORE = (
    "engine",
    "engine.errors",
    "engine.hookspecs",
    "engine.onnxruntime",
    "engine.options",
    "engine.sharding",
    "engine.types",
    "engine.typing",
)
PLUGINS = (
    "engine_ascend_ge",
    "engine_cpu",
    "engine_gpu_trt",
    "engine_mindir",
    "engine_serve",
    "engine_telemetry",
    "engine_telemetry.opentelemetry",
    "engine_telemetry.prometheus",
    "engine_telemetry.recorder",
    "engine_testing",
    "engine_testing.conformance",
    "engine_testing.models",
    "engine_testing.null",
    "engine_testing.plugins",
)


def names(module: Any) -> list[str]:
    """Return the public names of a module: its `__all__`, or what it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def documented(module: Any) -> Iterator[tuple[str, bool]]:
    """Yield each public name of a module, of its classes too, and whether it has a docstring."""
    yield module.__name__, bool(module.__doc__)
    for name in names(module):
        value = getattr(module, name)
        is_class = inspect.isclass(value)
        if not (is_class or inspect.isroutine(value)) or not value.__module__.startswith("engine"):
            continue
        yield f"{module.__name__}.{name}", bool(inspect.getdoc(vars(hookspecs).get(name, value)))
        for member in members(value) if is_class else ():
            text = inspect.getdoc(getattr(value, member)) or of_contract(value, member)
            yield f"{module.__name__}.{name}.{member}", bool(text)


def of_contract(protocol: type, member: str) -> bool:
    """Return whether the backends' reference has a row for a member of the contract's protocols."""
    row = re.search(rf"^\|[^|]*`{member}[`(]", REFERENCE, re.M)
    return protocol.__module__ == "engine.types" and row is not None


def members(kind: type) -> list[str]:
    """Return the public methods and properties that a class defines; a test's name documents it."""
    return [
        name
        for name, value in vars(kind).items()
        if not name.startswith(("_", "test_"))
        and (inspect.isroutine(value) or isinstance(value, property | cached_property))
    ]


def test_the_reference_of_python_has_every_public_name() -> None:
    page = (DOCS / "reference/python.md").read_text()
    public = {*engine.__all__} - {*vars(errors), "__version__"}
    assert public - {*re.findall(r"^::: engine\.(?:.*\.)?(\w+)$", page, re.M)} == set()


@pytest.mark.parametrize("name", [*CORE, *PLUGINS])
def test_every_public_name_of_a_module_is_documented(name: str) -> None:
    if name in PLUGINS:
        pytest.importorskip(name, reason="the plugin is not installed", exc_type=ImportError)
    module = importlib.import_module(name)
    found = dict(documented(module))
    assert len(found) > 1 or not names(module)
    assert [place for place, is_documented in found.items() if not is_documented] == []
