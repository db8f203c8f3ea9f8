"""Weights that were split over ranks: MindSpore's strategies and checkpoints, without MindSpore.

    from engine import sharding

    sharding.transform_checkpoints("trained", "sliced", "net", "train.ckpt", "predict.ckpt")

By MindSpore's names and semantics; docs/resharding.md. Everything streams: a parameter at a time.

layout.py      where the parts of a tensor are; strategy.py, strategy_file.py: a job's, and its file
checkpoint.py  files of tensors; ckpt.py, safetensors.py: their two forms; files.py
reshard.py     one rank's parameters from other ranks' files; transform.py, merge.py, load.py: the
               functions; parameter.py: their values; network.py: models that take the weights
slicing/       the slicer: one model in, those of N ranks out (docs/slicing.md)
predict_layout.py  layouts that follow from split nodes; split_axes.py: how operators split
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from engine.sharding.layout import Layout, NodeStrategy
    from engine.sharding.load import load_distributed_checkpoint
    from engine.sharding.merge import (
        build_searched_strategy,
        merge_pipeline_strategys,
        merge_sliced_parameter,
        restore_group_info_list,
    )
    from engine.sharding.parameter import (
        Parameter,
        load_checkpoint,
        load_segmented_checkpoints,
        save_checkpoint,
    )
    from engine.sharding.predict_layout import infer_predict_layout
    from engine.sharding.slicing.slice import slice_model
    from engine.sharding.strategy import Strategy
    from engine.sharding.transform import (
        convert_checkpoint_by_rank,
        convert_checkpoints,
        rank_list_for_convert,
        rank_list_for_transform,
        transform_checkpoint_by_rank,
        transform_checkpoints,
    )

__all__ = [
    "Layout",
    "NodeStrategy",
    "Parameter",
    "Strategy",
    "build_searched_strategy",
    "convert_checkpoint_by_rank",
    "convert_checkpoints",
    "infer_predict_layout",
    "load_checkpoint",
    "load_distributed_checkpoint",
    "load_segmented_checkpoints",
    "merge_pipeline_strategys",
    "merge_sliced_parameter",
    "rank_list_for_convert",
    "rank_list_for_transform",
    "restore_group_info_list",
    "save_checkpoint",
    "slice_model",
    "transform_checkpoint_by_rank",
    "transform_checkpoints",
]

_HOMES = {
    "layout": ("Layout",),
    "load": ("load_distributed_checkpoint",),
    "merge": (
        "build_searched_strategy",
        "merge_pipeline_strategys",
        "merge_sliced_parameter",
        "restore_group_info_list",
    ),
    "parameter": ("Parameter", "load_checkpoint", "load_segmented_checkpoints", "save_checkpoint"),
    "predict_layout": ("infer_predict_layout",),
    "slicing.slice": ("slice_model",),
    "strategy": ("NodeStrategy", "Strategy"),
    "transform": (
        "convert_checkpoint_by_rank",
        "convert_checkpoints",
        "rank_list_for_convert",
        "rank_list_for_transform",
        "transform_checkpoint_by_rank",
        "transform_checkpoints",
    ),
}
"""Modules and what is public of them: each is imported when a name of it is asked for."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}

if not typing.TYPE_CHECKING:  # for a type checker it would offer every name

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return what is public."""
    return [*__all__]
