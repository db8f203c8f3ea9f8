"""Strategy files, read and written: MindSpore's node_strategy.proto, and the same as JSON.

Also the group files of MindSpore (which ranks hold the same parameters): they are of that schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from engine.errors import ModelError, one_line
from engine.formats.onnx import limits
from engine.formats.onnx.writer import head, number
from engine.formats.protobuf import Budget, WireError, fields, signed, varints
from engine.sharding.files import Malformed, read_file, text_of, write_file
from engine.sharding.layout import Layout, NodeStrategy

# node_strategy.proto: fields as keys (number << 3 | wire type).
_MAP_STAGE, _MAP_NODE, _MAP_LAYOUT = 1 << 3, 2 << 3 | 2, 3 << 3 | 2
_ITEM_NAME, _ITEM_VALUE = 1 << 3 | 2, 2 << 3 | 2
_NODE_STAGE, _NODE_INPUT = 1 << 3, 2 << 3 | 2
_DIM, _DIM_PACKED = 1 << 3, 1 << 3 | 2
_LISTS = {1: "dev_matrix", 2: "tensor_map", 3: "param_split_shape", 4: "indices_offset"}
_NUMBERS = {5: "field_size", 6: "opt_weight_shard_step", 7: "opt_weight_shard_size"}
_GROUP_RESTORE = 2 << 3 | 2

Contents: TypeAlias = tuple[Mapping[str, NodeStrategy], Mapping[str, Layout], int, str]
"""A strategy's nodes, layouts, current stage and source: see Strategy."""

_HINT = (
    "expected a strategy file of MindSpore: protobuf, or JSON in a file whose name ends in .json"
)


def read(path: Path) -> Contents:
    """Read a strategy file. Raises ModelError."""
    data = read_file(path, "a strategy file")
    try:
        if path.suffix == ".json":
            return _from_json(bytes(data), str(path))
        return _from_protobuf(memoryview(data), str(path))
    except WireError as error:
        at = error.offset(memoryview(data))
        raise ModelError(f"{path}: damaged at byte {at:,}: {error}; {_HINT}", str(path)) from error
    except Malformed as error:
        raise ModelError(f"{path}: {error}; {_HINT}", str(path)) from error


def write(contents: Contents, path: Path) -> None:
    """Write a strategy file, readable by its owner only. Raises ModelError."""
    if path.suffix == ".json":
        content = json.dumps(_to_json(contents), indent=1).encode()
    else:
        content = _to_protobuf(contents)
    write_file(path, content)


# ------------------------------------------------------------------------------------ protobuf


def _from_protobuf(view: memoryview, source: str) -> Contents:
    budget = Budget(limits.FIELDS)
    nodes: dict[str, NodeStrategy] = {}
    layouts: dict[str, Layout] = {}
    stage = 0
    for key, value in fields(view, budget):
        if key == _MAP_STAGE:
            stage = int(value)
        elif key == _MAP_NODE:
            name, inner = _item(value, budget)
            nodes[name] = _node(inner, budget)
        elif key == _MAP_LAYOUT:
            name, inner = _item(value, budget)
            layouts[name] = _layout(inner, budget)
    if not nodes and not layouts:
        raise Malformed("has neither a strategy of an operator nor a layout of a parameter")
    return nodes, layouts, stage, source


def _item(view: memoryview, budget: Budget) -> tuple[str, memoryview]:
    name, inner = "", view[:0]
    for key, value in fields(view, budget):
        if key == _ITEM_NAME:
            name = text_of(value)
        elif key == _ITEM_VALUE:
            inner = value
    if not name:
        raise Malformed("has an entry without a name")
    return name, inner


def _node(view: memoryview, budget: Budget) -> NodeStrategy:
    stage, inputs = 0, []
    for key, value in fields(view, budget):
        if key == _NODE_STAGE:
            stage = int(value)
        elif key == _NODE_INPUT:
            inputs.append(tuple(_dims(value, budget)))
    return NodeStrategy(tuple(inputs), stage)


def _layout(view: memoryview, budget: Budget) -> Layout:
    found: dict[str, Any] = {}
    for key, value in fields(view, budget):
        field, wire = key >> 3, key & 7
        if field in _LISTS and wire == 2:
            # Repeated in the schema; MindSpore writes one, and reads the first.
            found.setdefault(_LISTS[field], tuple(_dims(value, budget)))
        elif field in _NUMBERS and wire == 0:
            found[_NUMBERS[field]] = signed(value)
    return Layout(**found)


def _dims(view: memoryview, budget: Budget) -> Iterator[int]:
    for key, value in fields(view, budget):
        if key == _DIM:
            yield _int32(value)
        elif key == _DIM_PACKED:
            yield from map(_int32, varints(value, budget))


def _int32(value: int) -> int:
    """Return a number as its writer meant it: -1 may come as 32 or as 64 bits."""
    return value - (1 << 32) if 1 << 31 <= value < 1 << 32 else signed(value)


def _to_protobuf(contents: Contents) -> bytes:
    nodes, layouts, stage, _ = contents
    parts = [number(1, stage)]
    for name, node in nodes.items():
        inner = number(1, node.stage) + b"".join(_field(2, _list(dims)) for dims in node.inputs)
        parts.append(_field(2, _field(1, name.encode()) + _field(2, inner)))
    for name, layout in layouts.items():
        inner = b"".join(
            _field(tag, _list(getattr(layout, key))) for tag, key in _LISTS.items()
        ) + b"".join(number(tag, getattr(layout, key)) for tag, key in _NUMBERS.items())
        parts.append(_field(3, _field(1, name.encode()) + _field(2, inner)))
    return b"".join(parts)


def _field(tag: int, data: bytes) -> bytes:
    return head(tag, len(data)) + data


def _list(values: Iterable[int]) -> bytes:
    return b"".join(number(1, value) for value in values)


# ---------------------------------------------------------------------------------------- JSON

_KEYS = {
    "dev_matrix": "dev_matrix",
    "tensor_map": "tensor_map",
    "tensor_shape": "tensor_shape",
    "param_split_shape": "param_split_shape",
    "indices_offset": "indices_offset",
    "field": "field_size",
    "opt_weight_shard_step": "opt_weight_shard_step",
    "opt_weight_shard_size": "opt_weight_shard_size",
}
_IN_EVERY_LAYOUT = ("dev_matrix", "tensor_map")
_LEFT_OUT_WHERE_EMPTY = ("param_split_shape", "indices_offset", "tensor_shape")


def _from_json(content: bytes, source: str) -> Contents:
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is no JSON: {one_line(error)}") from error
    if not isinstance(whole, dict):
        raise Malformed(f"holds {type(whole).__name__}; expected an object")
    nodes = {
        name: NodeStrategy(
            tuple(map(tuple, _checked(item, "parallel_strategy", name, _is_lists, ()))),
            _checked(item, "stage", name, _is_int, 0),
        )
        for name, item in _section(whole, "parallel_strategy_item")
    }
    layouts = {}
    for name, item in _section(whole, "parallel_layout_item"):
        for key in _IN_EVERY_LAYOUT:
            if key not in item:
                raise Malformed(f"parameter {name!r} has no {key!r}")
        layouts[name] = Layout(
            **{
                field: _number_or_list(item, key, name)
                for key, field in _KEYS.items()
                if item.get(key) is not None
            }
        )
    if not nodes and not layouts:
        raise Malformed("has neither a strategy of an operator nor a layout of a parameter")
    return nodes, layouts, _checked(whole, "current_stage", "the file", _is_int, 0), source


def _section(whole: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    section = whole.get(key) or {}
    if not isinstance(section, dict):
        raise Malformed(f"{key!r} is {type(section).__name__}; expected an object")
    for name, item in section.items():
        if not isinstance(item, dict):
            raise Malformed(f"{key!r}: {name!r} is {type(item).__name__}; expected an object")
        yield name, item


def _number_or_list(item: Mapping[str, Any], key: str, name: str) -> Any:
    if isinstance(getattr(Layout(), _KEYS[key]), int):
        return _checked(item, key, name, _is_int, 0)
    return tuple(_checked(item, key, name, _is_list, ()))


def _checked(
    item: Mapping[str, Any], key: str, name: str, fits: Callable[[Any], bool], default: Any
) -> Any:
    value = item.get(key, default)
    if value is not default and not fits(value):
        raise Malformed(f"{name!r}: {key!r} is {str(value)[:60]}; expected whole numbers")
    return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_int, value))


def _is_lists(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_list, value))


def _to_json(contents: Contents) -> dict[str, Any]:
    nodes, layouts, stage, _ = contents
    return {
        "current_stage": stage,
        "parallel_strategy_item": {
            name: {"stage": node.stage, "parallel_strategy": [*map(list, node.inputs)]}
            for name, node in nodes.items()
        },
        "parallel_layout_item": {
            name: {
                key: _plain(getattr(layout, field))
                for key, field in _KEYS.items()
                if getattr(layout, field) or key not in _LEFT_OUT_WHERE_EMPTY
            }
            for name, layout in layouts.items()
        },
    }


def _plain(value: int | Sequence[int]) -> int | list[int]:
    return value if isinstance(value, int) else list(value)


# -------------------------------------------------------------------------------------- groups


def read_restore_list(path: Path) -> list[int]:
    """Return the ranks that a group file lists as holders of the same parameters."""
    data = read_file(path, "a group information file")
    budget = Budget(limits.FIELDS)
    try:
        for key, value in fields(memoryview(data), budget):
            if key == _GROUP_RESTORE:
                return list(_dims(value, budget))
    except WireError as error:
        raise ModelError(f"{path}: no group information file: {error}", str(path)) from error
    raise ModelError(
        f"{path}: lists no ranks to restore from (ckpt_restore_rank_list); expected the file that "
        "GROUP_INFO_FILE named in training",
        str(path),
    )
