"""pyACL's surface: the emulator has the table's, and the plugin keeps to it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import engine_ascend_ge
from engine_ascend_ge import profiling
from engine_ascend_ge.acl_call import CALLS

# Called where they are there; without them the device lacks a capability, and says so.
OPTIONAL = {
    ("mdl", "get_input_dims_range"),
    ("rt", "stream_abort"),
    ("rt", "get_mem_info"),
    *(("rt", f"ipc_mem_{name}") for name in ("get_export_key", "set_import_pid", "close")),
    ("rt", "ipc_mem_import_by_key"),
    *(("mdl", name) for name in ("create_config_handle", "set_config_opt", "load_with_config")),
    ("mdl", "destroy_config_handle"),
    *(("mdl", f"bundle_{name}") for name in ("load_from_file", "get_model_num", "get_model_id")),
    ("mdl", "bundle_unload"),
    *(("prof", name) for name in profiling.CALLS),
}


@pytest.fixture
def surface(machine: Any) -> dict[str, tuple[list[str], str]]:
    """pyACL's functions, from the table that the emulator's are made by."""
    from emulated_ascend.machine import SURFACE

    return SURFACE


def called() -> dict[tuple[str, str], int]:
    """Return the plugin's calls on `acl` and their numbers of arguments, read from its source."""
    calls: dict[tuple[str, str], int] = {}
    for path in Path(engine_ascend_ge.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            last = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            group = {"acl": "", "_acl": "", "rt": "rt", "mdl": "mdl", "prof": "prof"}.get(last)
            if group is not None:
                stars = any(isinstance(parameter, ast.Starred) for parameter in node.args)
                calls[group, node.func.attr] = -1 if stars else len(node.args)
    return calls


def test_emulated_functions_have_the_names_that_failures_are_planned_by(machine: Any) -> None:
    import acl

    count = 0
    for group in ("", "mdl", "prof", "rt", "util"):
        for name, function in vars(getattr(acl, group) if group else acl).items():
            if hasattr(function, "emulated_name"):
                assert function.emulated_name == f"{group}.{name}".lstrip(".")
                count += 1
    assert count > 60


def test_everything_that_the_plugin_calls_is_emulated(machine: Any) -> None:
    import acl

    for group, names in CALLS.items():
        for name in names:
            assert hasattr(getattr(acl, group) if group else acl, name)


def test_the_plugin_says_beforehand_what_it_calls() -> None:
    announced = {(group, name) for group, names in CALLS.items() for name in names}
    assert set(called()) - announced - OPTIONAL == set()


def test_the_plugin_calls_with_the_tables_number_of_arguments(surface: Any) -> None:
    for (group, name), count in called().items():
        wanted, _ = surface[f"{group}.{name}".lstrip(".")]
        least = len([parameter for parameter in wanted if not parameter.endswith("?")])
        assert count == -1 or least <= count <= len(wanted), f"acl.{group}.{name}"


def test_an_emulated_function_refuses_what_pyacl_cannot_parse(machine: Any) -> None:
    import acl
    import numpy as np

    with pytest.raises(TypeError):
        acl.rt.malloc(np.int64(64), 0)
    with pytest.raises(TypeError):
        acl.rt.malloc(64)
    with pytest.raises(TypeError):
        acl.create_tensor_desc(0, (1, 2), 2)
    with pytest.raises(TypeError):
        acl.init(None)
