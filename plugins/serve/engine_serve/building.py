"""From a model's file and its configuration to a loaded model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import engine
from engine.errors import ModelError, SettingError
from engine.types import CancelToken
from engine_serve.config_file import config_type
from engine_serve.loaded import LoadedModel
from engine_serve.repository import Build

_log = logging.getLogger("engine_serve")


def builder(
    target: Sequence[str],
    config_path: str = "",
    queue_limit: int = 1000,
    cancel: CancelToken | None = None,
) -> Build:
    """Return what builds models for a target.

    config_path: of a configuration file of the engine. queue_limit: where a model's own
    configuration says none. cancel: ends a build that runs.
    """

    def build(name: str, version: str, path: Path, config: Any) -> LoadedModel:
        context = engine.Context()
        context.target = [*target]
        if config_path:
            context.parallel.config_path = config_path
        context.parallel.workers_num = sum(group.count or 1 for group in config.instance_group)
        context.parallel.device_ids = [
            number for group in config.instance_group for number in group.gpus
        ]
        batching = config.dynamic_batching
        queue = batching.default_queue_policy
        options: dict[str, Any] = {
            "context": context,
            "queue_limit": queue.max_queue_size or queue_limit,
            "max_batch_size": _shared(config),
            "cancel": cancel,
        }
        if batching.max_queue_delay_microseconds:
            options["max_delay_us"] = batching.max_queue_delay_microseconds
        model = _built(name, version, path, config, options)
        try:
            _check(model)
        except BaseException:
            model.close()
            raise
        model.max_batch_size = config.max_batch_size
        model.default_level = batching.default_priority_level
        model.default_timeout_s = queue.default_timeout_microseconds / 1e6
        model.labels = _labels(config, path)
        return model

    return build


def _shared(config: Any) -> int | None:
    """Return how many samples may share a run: None for what pays, 1 for never."""
    if not config.ByteSize():
        return None
    return max(1, config.max_batch_size) if config.HasField("dynamic_batching") else 1


def _built(
    name: str, version: str, path: Path, config: Any, options: dict[str, Any]
) -> LoadedModel:
    try:
        return LoadedModel(name, version, path, config, **options)
    except ModelError as error:
        if (options["max_batch_size"] or 1) == 1:
            raise
        model = LoadedModel(name, version, path, config, **{**options, "max_batch_size": 1})
        _log.warning(
            "model %r: requests share no runs, though config.pbtxt asks for it: %s", name, error
        )
        return model


def _check(model: LoadedModel) -> None:
    """Compare a model with its configuration. Raises SettingError, which names the tensor."""
    config = model.config
    if config.name and config.name != model.name:
        raise SettingError(
            f"config.pbtxt is of model {config.name!r}, but the folder is {model.name!r}"
        )
    for kind, said, specs in (
        ("input", config.input, model.inputs),
        ("output", config.output, model.outputs),
    ):
        for tensor in said:
            spec = specs.get(tensor.name)
            if spec is None:
                raise SettingError(
                    f"config.pbtxt of {model.name!r}: the model has no {kind} {tensor.name!r}; "
                    f"it has {', '.join(specs)}"
                )
            dims = ([-1] if config.max_batch_size else []) + [*tensor.dims]
            fits = len(dims) == len(spec.shape) and all(
                -1 in (size, given) or size == given for size, given in zip(spec.shape, dims)
            )
            if not fits or tensor.data_type not in (0, config_type(spec.datatype)):
                raise SettingError(
                    f"config.pbtxt of {model.name!r}: {kind} {tensor.name!r} does not fit the "
                    f"model's {spec}: dims {dims}, data_type {tensor.data_type}"
                )


def _labels(config: Any, path: Path) -> dict[str, list[str]]:
    """Return the labels of outputs, from files beside config.pbtxt, a label a line."""
    found = {}
    for output in config.output:
        if name := output.label_filename:
            if Path(name).name != name:
                raise SettingError(f"label_filename must be a file's name, got {name!r}")
            file = path.parent.parent / name
            found[output.name] = file.read_text(encoding="utf-8").splitlines()
    return found
