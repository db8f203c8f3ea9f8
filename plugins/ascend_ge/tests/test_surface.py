"""pyACL's surface: the emulator has the table's, and the plugin keeps to it."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import engine_ascend_ge
from engine_ascend_ge import profiling
from engine_ascend_ge.acl_call import CALLS

TABLE: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "emulated" / "surface.json").read_text()
)
# Called where they are there; without them the device lacks a capability, and says so.
OPTIONAL = {
    ("mdl", "get_input_dims_range"),
    ("rt", "stream_abort"),
    *(("rt", f"ipc_mem_{name}") for name in ("get_export_key", "set_import_pid", "close")),
    ("rt", "ipc_mem_import_by_key"),
    *(("mdl", name) for name in ("create_config_handle", "set_config_opt", "load_with_config")),
    ("mdl", "destroy_config_handle"),
    *(("mdl", f"bundle_{name}") for name in ("load_from_file", "get_model_num", "get_model_id")),
    ("mdl", "bundle_unload"),
    *(("prof", name) for name in profiling.CALLS),
}


def emulated(machine: Any) -> dict[tuple[str, str], Any]:
    """Return the emulator's functions, by group and name."""
    found = {}
    for group in TABLE:
        module = importlib.import_module(f"acl.{group}" if group else "acl")
        for name, function in vars(module).items():
            if hasattr(function, "emulated_returns"):
                found[group, name] = function
    return found


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


def test_the_emulator_has_the_arity_and_returns_of_the_table(machine: Any) -> None:
    functions = emulated(machine)
    assert len(functions) > 60
    for (group, name), function in functions.items():
        assert name in TABLE[group], f"acl.{group}.{name} is not in the table"
        row = TABLE[group][name]
        parameters = inspect.signature(function).parameters.values()
        kinds = [
            f"{parameter.annotation}{'?' if parameter.default is not parameter.empty else ''}"
            for parameter in parameters
        ]
        assert kinds == row["arguments"], f"acl.{group}.{name}"
        assert function.emulated_returns == row["returns"], f"acl.{group}.{name}"
        where = f"{group}.{name}" if group else name
        assert function.emulated_name == where, "the name that failures are planned by"


def test_everything_that_the_plugin_calls_is_emulated(machine: Any) -> None:
    functions = emulated(machine)
    for group, names in CALLS.items():
        for name in names:
            assert (group, name) in functions


def test_the_plugin_says_beforehand_what_it_calls() -> None:
    announced = {(group, name) for group, names in CALLS.items() for name in names}
    assert set(called()) - announced - OPTIONAL == set()


def test_the_plugin_calls_with_the_tables_number_of_arguments() -> None:
    for (group, name), count in called().items():
        wanted = TABLE[group][name]["arguments"]
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
