"""The runner of a model: in the server's process, or in worker processes that are its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import engine
from engine.errors import ModelError, SettingError
from engine.types import CancelToken

Runner: TypeAlias = engine.ModelParallelRunner | engine.MultiDeviceRunner
Kind: TypeAlias = Literal["none", "process", "ray"]

_MOST = 64  # workers of one model: a client's configuration may say how many
_GPU = 1  # the number of KIND_GPU
_log = logging.getLogger("engine_serve")


@dataclass(frozen=True, kw_only=True)
class Running:
    """Settings of running models, where their own configurations have none.

    config_path: of a configuration file of the engine. processes: how many worker processes each
    model has; 0 for none, it runs in this process. cancel: ends a build that runs. highest_level:
    the highest priority that clients may ask for, of the protocol's, of which 1 is the highest.
    """

    target: Sequence[str] = ("cpu",)
    config_path: str = ""
    queue_limit: int = 1000
    processes: int = 0
    highest_level: int = 1
    cancel: CancelToken | None = None

    def context(self) -> engine.Context:
        """Return what models are built with. Raises SettingError."""
        context = engine.Context()
        try:
            context.target = [*self.target]
        except ValueError as error:
            raise SettingError(f"--target {','.join(self.target)}: {error}") from error
        if self.config_path:
            try:
                context.parallel.config_path = self.config_path
            except ValueError:
                raise SettingError(
                    f"--config {self.config_path}: no such file; give a configuration file"
                ) from None
        return context

    def runner(self, name: str, path: Path, config: Any) -> Runner:
        """Return the runner of a model's file. config: its ModelConfig. Raises what it raises."""
        for count in (group.count for group in config.instance_group):
            if count < 0:
                raise SettingError(
                    "config.pbtxt: instance_group: count must be a whole number from 0, "
                    f"got {count}"
                )
        if [*self.target] == ["cpu"] and any(group.kind == _GPU for group in config.instance_group):
            _log.warning(
                "model %r: config.pbtxt asks for KIND_GPU, but the model runs on cpu: "
                "--target gpu runs all models on GPUs",
                name,
            )
        context = self.context()
        kind = kind_of(config, "process" if self.processes else "none")
        if kind == "none":
            return self._in_process(name, path, config, context)
        devices = devices_of(config, self.processes or 1)
        if config.HasField("dynamic_batching"):
            _log.warning(
                "model %r: requests share no runs, though config.pbtxt asks for it: worker "
                "processes cut large requests instead",
                name,
            )
        return engine.MultiDeviceRunner(
            path,
            devices,
            context,
            queue_limit=self._queue_limit(config),
            when_full="raise",
            workers=kind,
            cancel=self.cancel,
        )

    def _queue_limit(self, config: Any) -> int:
        limit: int = config.dynamic_batching.default_queue_policy.max_queue_size
        return limit or self.queue_limit

    def _in_process(
        self, name: str, path: Path, config: Any, context: engine.Context
    ) -> engine.ModelParallelRunner:
        groups = config.instance_group
        workers = sum(group.count or 1 for group in groups)
        _check_most(workers, "workers")
        context.parallel.workers_num = workers
        context.parallel.device_ids = [number for group in groups for number in group.gpus]
        most = most_shared(config)

        def built(most: int | None) -> engine.ModelParallelRunner:
            runner = engine.ModelParallelRunner()
            runner.build_from_file(
                str(path),
                context,
                max_batch_size=most,
                max_delay_us=config.dynamic_batching.max_queue_delay_microseconds or None,
                queue_limit=self._queue_limit(config),
                when_full="raise",
                cancel=self.cancel,
            )
            return runner

        try:
            return built(most)
        except ModelError as error:
            if (most or 1) == 1:
                raise
            runner = built(1)
            _log.warning(
                "model %r: requests share no runs, though config.pbtxt asks for it: %s", name, error
            )
            return runner


def most_shared(config: Any) -> int | None:
    """Return how many samples may share a run: None for what pays, 1 for never."""
    shared = type(config)()
    shared.CopyFrom(config)
    shared.ClearField("parameters")
    if not shared.ByteSize():
        return None
    return max(1, config.max_batch_size) if config.HasField("dynamic_batching") else 1


def kind_of(config: Any, default: Kind) -> Kind:
    """Return where a configuration has a model run: its parameter `workers`."""
    if "workers" not in config.parameters:
        return default
    kinds: tuple[Kind, ...] = get_args(Kind)
    wanted = config.parameters["workers"].string_value
    if wanted in kinds:
        return kinds[kinds.index(wanted)]
    raise SettingError(
        f"config.pbtxt: parameter 'workers' must be one of {', '.join(kinds)}, got {wanted!r}"
    )


def devices_of(config: Any, default: int) -> list[int]:
    """Return the device of each worker process. default: how many, where nothing is said.

    `count` processes for each of the group's gpus; without gpus only their number matters.
    """
    groups = config.instance_group
    devices = [number for group in groups for number in [*group.gpus] * (group.count or 1)]
    count = sum(group.count or 1 for group in groups) or default
    devices = devices or [*range(min(count, _MOST + 1))]
    if len(devices) > _MOST:
        _check_most(max(count, len(devices)), "worker processes")
    return devices


def _check_most(count: int, kind: str) -> None:
    if count > _MOST:
        raise SettingError(
            f"config.pbtxt: instance_group: a model can have up to {_MOST} {kind}, got {count}"
        )
