"""From a model's file and its configuration to a loaded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import SettingError
from engine_serve.config_file import config_type, type_name
from engine_serve.loaded import LoadedModel
from engine_serve.repository import Build
from engine_serve.runners import Running


def builder(running: Running) -> Build:
    """Return what builds models."""

    def build(name: str, version: str, path: Path, config: Any) -> LoadedModel:
        runner = running.runner(name, path, config)
        try:
            model = LoadedModel(name, version, path, config, runner)
            _check(model)
            batching = config.dynamic_batching
            model.max_batch_size = config.max_batch_size
            model.highest_level = running.highest_level
            model.default_level = batching.default_priority_level
            timeout_us = batching.default_queue_policy.default_timeout_microseconds
            model.default_timeout_s = timeout_us / 1e6
            model.labels = _labels(config, path)
        except BaseException:
            runner.close()
            raise
        return model

    return build


def _check(model: LoadedModel) -> None:
    """Compare a model with its configuration. Raises SettingError, which names the tensor."""
    config = model.config
    if config.max_batch_size < 0:
        raise SettingError(
            f"config.pbtxt of {model.name!r}: max_batch_size must be a whole number from 0, "
            f"got {config.max_batch_size}"
        )
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
                    f"model's {spec}: dims {dims}, "
                    f"data_type {type_name(tensor.data_type)}"
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
