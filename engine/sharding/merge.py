"""Strategies and slices put together: MindSpore's functions for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np

from engine.config.checks import require
from engine.errors import InputError, ModelError
from engine.sharding.files import NotAFolder
from engine.sharding.layout import Layout, LayoutError, NodeStrategy, boxes, shape_of, within
from engine.sharding.parameter import Parameter, array_of
from engine.sharding.stored import Array
from engine.sharding.strategy import Strategy, staged


class UnknownParameter(InputError, KeyError):
    """A parameter that a strategy does not know. MindSpore raises KeyError."""

    __str__ = InputError.__str__  # KeyError's quotes the message


def build_searched_strategy(strategy_filename: str | os.PathLike[str]) -> dict[str, Layout]:
    """Return the layout of each parameter in a strategy file, by the names in it.

    Raises TypeError; ModelError for a file that is missing, damaged or without layouts.
    """
    if not isinstance(strategy_filename, str | os.PathLike):
        raise TypeError(f"strategy_filename must be str, but got {type(strategy_filename)}.")
    layouts = dict(Strategy.load(Path(strategy_filename)).layouts)
    if not layouts:
        raise ModelError(
            f"{strategy_filename}: has no layout of any parameter; is it the strategy that "
            "strategy_ckpt_save_file named?",
            str(strategy_filename),
        )
    return layouts


def merge_pipeline_strategys(
    src_strategy_dirs: str | os.PathLike[str], dst_strategy_file: str | os.PathLike[str]
) -> None:
    """Merge the strategy files of all stages of a pipeline, all .ckpt or all .json, into one.

    In it a parameter is called "<stage>-<name>". A stage that comes in several files (each rank
    wrote one) is taken once.
    Raises NotADirectoryError; ModelError for files of both forms, or that do not say their stage.
    """
    folder = Path(src_strategy_dirs)
    if not folder.is_dir():
        raise NotAFolder(f"{folder}: no such folder; expected one of strategy files", str(folder))
    files = sorted(path for path in folder.iterdir() if path.suffix in (".ckpt", ".json"))
    if len({path.suffix for path in files}) != 1:
        got = "files of both forms" if files else "none"
        raise ModelError(
            f"{folder}: expected strategy files that all end in .ckpt, or all in .json; got {got}",
            str(folder),
        )
    nodes: dict[str, NodeStrategy] = {}
    layouts: dict[str, Layout] = {}
    by_stage: dict[int, Path] = {}
    for path in files:
        strategy = Strategy.load(path)
        if not strategy.nodes or not strategy.layouts:
            raise ModelError(
                f"{path}: has no {'operators' if not strategy.nodes else 'parameters'}; expected "
                "the strategy of one stage",
                str(path),
            )
        stage = next(iter(strategy.nodes.values())).stage
        if stage in by_stage:
            continue
        by_stage[stage] = path
        nodes.update(strategy.nodes)
        for name, layout in strategy.layouts.items():
            layouts[staged(name, stage)] = layout._replace(pipeline_stages=(stage,))
    Strategy(nodes, layouts, 1).save(Path(dst_strategy_file))


def restore_group_info_list(group_info_file_name: str | os.PathLike[str]) -> list[int]:
    """Return the ranks that hold the same parameters, from the file that GROUP_INFO_FILE named.

    Raises TypeError, ModelError.
    """
    from engine.sharding.strategy_file import read_restore_list

    if not isinstance(group_info_file_name, str | os.PathLike):
        raise TypeError(f"group_info_file_name must be str, but got {type(group_info_file_name)}.")
    return read_restore_list(Path(group_info_file_name))


def merge_sliced_parameter(
    sliced_parameters: Sequence[object], strategy: Mapping[str, Layout] | None = None
) -> Parameter:
    """Return a parameter put together from its slices, in the order of ranks.

    sliced_parameters: Parameters (anything with a `name` and data), of one name.
    strategy: layouts by name, from build_searched_strategy; None joins the slices along axis 0.
    Raises TypeError; InputError for slices that do not fit each other or the layout; KeyError for
    a parameter that the strategy does not know.
    """
    slices = require("sliced_parameters", sliced_parameters, list)
    if not slices:
        raise InputError("sliced_parameters is empty; expected the slice of each rank")
    if strategy is not None and not isinstance(strategy, Mapping):
        raise TypeError(f"strategy must be dict, but got {type(strategy)}.")
    name = getattr(slices[0], "name", "")
    for number, part in enumerate(slices):
        if getattr(part, "name", "") != name:
            raise InputError(
                f"sliced_parameters[{number}] is called {getattr(part, 'name', '')!r}, and the "
                f"first {name!r}; expected slices of one parameter",
                name,
            )
    arrays = [array_of(part, name) for part in slices]
    first = arrays[0]
    for number, array in enumerate(arrays):
        if array.dtype != first.dtype or array.ndim != first.ndim:
            raise InputError(
                f"parameter {name!r}: slice {number} is {array.dtype}{list(array.shape)}, and the "
                f"first {first.dtype}{list(first.shape)}",
                name,
            )
    if strategy is not None and name not in strategy:
        raise UnknownParameter(
            f"parameter {name!r} is not in the strategy, which knows {len(strategy)}", name
        )
    layout = strategy[name] if strategy else None
    try:
        merged = _merged(arrays, layout)
    except (LayoutError, ValueError) as error:
        raise InputError(f"parameter {name!r}: {error}", name) from error
    return Parameter(
        merged,
        name,
        bool(getattr(slices[0], "requires_grad", True)),
        bool(getattr(slices[0], "layerwise_parallel", False)),
    )


def _merged(arrays: list[Array], layout: Layout | None) -> Array:
    if layout is None:
        return np.concatenate([np.atleast_1d(array) for array in arrays])
    layout.check()
    if len(arrays) != layout.device_count:
        raise LayoutError(
            f"got {len(arrays)} slices; its layout is for {layout.device_count} devices"
        )
    if layout.field_size:
        return _interleaved(arrays, layout.field_size)
    whole = layout.whole_shape(arrays[0].shape)
    result = np.empty(whole, arrays[0].dtype)
    for number, (array, box) in enumerate(zip(arrays, boxes(layout, whole), strict=True)):
        if array.shape != shape_of(box):
            raise LayoutError(
                f"slice {number} has shape {list(array.shape)}; expected {list(shape_of(box))}"
            )
        result[within(box, tuple((0, size) for size in whole))] = array
    return result


def _interleaved(arrays: list[Array], fields: int) -> Array:
    """Return a table whose rows are `fields` runs, of each of which every rank has a part."""
    rows, columns = arrays[0].shape
    if rows % fields:
        raise LayoutError(f"{rows} rows are not {fields} fields of one size")
    parts = [array.reshape(fields, rows // fields, columns) for array in arrays]
    return np.concatenate(parts, axis=1).reshape(prod((rows, len(arrays))), columns)


__all__ = [
    "build_searched_strategy",
    "merge_pipeline_strategys",
    "merge_sliced_parameter",
    "restore_group_info_list",
]
