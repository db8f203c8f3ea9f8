"""Settings that ONNX Runtime has as fields and calls of its session options, by entries.

They are given as its session configuration entries are, under their own names.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.options import BOOLEANS

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine_cpu.runtime import ort


def _flag(field: str, settings: ort.SessionOptions, text: str) -> None:
    if text.lower() not in BOOLEANS:
        raise ValueError(f"expected true or false, got {text!r}")
    setattr(settings, field, BOOLEANS[text.lower()])


def _number(field: str, lowest: int, highest: int, settings: ort.SessionOptions, text: str) -> None:
    try:
        number = int(text)
    except ValueError:
        number = lowest - 1
    if not lowest <= number <= highest:
        raise ValueError(f"expected a number in {lowest}..{highest}, got {text!r}")
    setattr(settings, field, number)


def _log_id(settings: ort.SessionOptions, text: str) -> None:
    settings.logid = text


def _mode(settings: ort.SessionOptions, text: str) -> None:
    from engine_cpu.runtime import ort

    mode = _one_of({"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}, text)
    settings.execution_mode = getattr(ort.ExecutionMode, mode)
    if mode == "ORT_PARALLEL" and settings.inter_op_num_threads == 1:
        settings.inter_op_num_threads = 0  # of one thread ONNX Runtime makes the other mode


def _order(settings: ort.SessionOptions, text: str) -> None:
    from engine_cpu.runtime import ort

    names = ("default", "priority_based", "memory_efficient")
    order = _one_of({name: name.upper() for name in names}, text)
    settings.execution_order = getattr(ort.ExecutionOrder, order)


def _one_of(choices: Mapping[str, str], text: str) -> str:
    if text.lower() not in choices:
        raise ValueError(f"expected one of {', '.join(choices)}, got {text!r}")
    return choices[text.lower()]


def _profile(settings: ort.SessionOptions, text: str) -> None:
    settings.enable_profiling = True
    settings.profile_file_prefix = text


def _libraries(settings: ort.SessionOptions, text: str) -> None:
    for path in _read(text, list):
        settings.register_custom_ops_library(path)


def _free_dimensions(settings: ort.SessionOptions, text: str) -> None:
    sizes = _read(text, dict)
    for name, size in sizes.get("name", {}).items():
        settings.add_free_dimension_override_by_name(name, size)
    for name, size in sizes.get("denotation", {}).items():
        settings.add_free_dimension_override_by_denotation(name, size)


def _read(text: str, kind: type) -> Any:
    import json  # few give such entries

    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, got {text!r}: {error}") from None
    if not isinstance(found, kind):
        raise ValueError(f"expected a JSON {kind.__name__}, got {text!r}")  # noqa: TRY004 - a text
    return found


FIELDS: Mapping[str, Callable[[ort.SessionOptions, str], None]] = {
    "session.custom_ops_libraries": _libraries,
    "session.enable_mem_pattern": partial(_flag, "enable_mem_pattern"),
    "session.enable_mem_reuse": partial(_flag, "enable_mem_reuse"),
    "session.enable_profiling": _profile,
    "session.execution_mode": _mode,
    "session.execution_order": _order,
    "session.free_dimensions": _free_dimensions,
    "session.log_id": _log_id,
    "session.log_severity_level": partial(_number, "log_severity_level", -1, 4),
    "session.log_verbosity_level": partial(_number, "log_verbosity_level", 0, 1 << 30),
}
"""Functions that set a field, by the entry that gives it."""

OF_THE_GRAPH = ("session.custom_ops_libraries", "session.free_dimensions")
"""Those that decide what the graph and its packed weights are; the others are of a run."""


def is_of_run(key: str) -> bool:
    """Return whether an entry sets a field that a compiled form does not depend on."""
    return key in FIELDS and key not in OF_THE_GRAPH
