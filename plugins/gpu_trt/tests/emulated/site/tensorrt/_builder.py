"""The emulated compiler: optimisation profiles, configuration, builder, plans."""

from __future__ import annotations

import json
import sys
import threading
import zlib
from typing import Any

from emulated_gpu.graphs import InvalidShapes
from emulated_gpu.machine import MACHINE, OutOfMemory

from ._base import ENUMS, VERSION, Callback, IHostMemory, ILogger, Made, Null
from ._network import INetworkDefinition, ITensor

MAGIC = b"emulated TensorRT plan\n"
CACHE_MAGIC = b"emulated timing cache\n"
_BUILD = "IBuilder::buildSerializedNetwork"
BuilderFlag, PreviewFeature = ENUMS["BuilderFlag"], ENUMS["PreviewFeature"]
ProfilingVerbosity = ENUMS["ProfilingVerbosity"]


class IProgressMonitor(Callback):
    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        raise NotImplementedError("Tried to call pure virtual function")

    def step_complete(self, phase_name: str, step: int) -> bool:
        raise NotImplementedError("Tried to call pure virtual function")

    def phase_finish(self, phase_name: str) -> None:
        raise NotImplementedError("Tried to call pure virtual function")


class IOptimizationProfile(Made):
    @classmethod
    def _of(cls, builder: Builder) -> IOptimizationProfile:
        profile = cls._new(builder._logger)
        profile._shapes: dict[str, tuple[tuple[int, ...], ...]] = {}
        return profile

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        shapes = tuple(tuple(int(dim) for dim in dims) for dims in (min, opt, max))
        for which, dims in zip(("min", "opt", "max"), shapes, strict=True):
            if any(dim < 0 for dim in dims):
                self._error("IOptimizationProfile::setDimensions", 3, "Parameter check failed")
                raise RuntimeError(f"Shape provided for {which} is inconsistent with other shapes.")
        self._shapes[input] = shapes

    def __bool__(self) -> bool:
        for name, (low, opt, high) in self._shapes.items():
            rising = len(low) == len(opt) == len(high) and all(
                a <= b <= c for a, b, c in zip(low, opt, high, strict=True)
            )
            if not rising:
                self._error(
                    "IOptimizationProfile::isValid",
                    4,
                    f"Invalid optimization profiles for input tensors {name}, please ensure that "
                    "the optimization profiles satisfy MIN<=OPT<=MAX.",
                )
                return False
        return True


class ITimingCache(Made):
    """Times of tactics, by layer; of one version and kind of device."""

    _counted = "timing caches"

    @classmethod
    def _of(cls, config: IBuilderConfig, data: bytes) -> ITimingCache | None:
        try:
            content = json.loads(data[len(CACHE_MAGIC) :]) if data else {}
            sound = not data or data.startswith(CACHE_MAGIC)
        except ValueError:
            sound = False
        if not sound:
            config._error("IBuilderConfig::createTimingCache", 1, "Cache header is damaged.")
            return None
        cache = cls._new(config._logger)
        cache._version = content.get("version", VERSION)
        cache._times: dict[str, int] = content.get("times", {})
        return cache

    def serialize(self) -> IHostMemory:
        content = {"version": self._version, "times": self._times}
        return IHostMemory(CACHE_MAGIC + json.dumps(content, sort_keys=True).encode())

    def combine(self, input_cache: ITimingCache, ignore_mismatch: bool) -> bool:
        if input_cache._version != self._version and not ignore_mismatch:
            return False
        self._times.update(input_cache._times)
        return True


class IBuilderConfig(Made):
    _counted = "builder configs"

    @classmethod
    def _of(cls, builder: Builder) -> IBuilderConfig:
        config = cls._new(builder._logger)
        config._builder = builder
        config._flags = {BuilderFlag.TF32}
        config._pools: dict[Any, int] = {}
        config._profiles: list[IOptimizationProfile] = []
        config._monitor: IProgressMonitor | None = None
        config._level = 3
        config._verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        config._cache: ITimingCache | None = None
        config._previews: set[Any] = set()
        return config

    def set_preview_feature(self, feature: Any, enable: bool) -> None:
        (self._previews.add if enable else self._previews.discard)(PreviewFeature(feature))

    def create_timing_cache(self, serialized_timing_cache: Any) -> ITimingCache | None:
        return ITimingCache._of(self, bytes(serialized_timing_cache))

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        if cache._version != VERSION and not ignore_mismatch:
            return False
        self._cache = cache
        return True

    def set_flag(self, flag: Any) -> None:
        self._flags.add(BuilderFlag(flag))

    def clear_flag(self, flag: Any) -> None:
        self._flags.discard(BuilderFlag(flag))

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        self._pools[pool] = int(pool_size)

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        if not profile:
            self._error(
                "IBuilderConfig::addOptimizationProfile",
                3,
                "Parameter check failed, condition: profile->isValid().",
            )
            return -1
        self._profiles.append(profile)
        return len(self._profiles) - 1

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._profiles)

    @property
    def profiling_verbosity(self) -> Any:
        return self._verbosity

    @profiling_verbosity.setter
    def profiling_verbosity(self, verbosity: Any) -> None:
        self._verbosity = ProfilingVerbosity(verbosity)

    @property
    def builder_optimization_level(self) -> int:
        return self._level

    @builder_optimization_level.setter
    def builder_optimization_level(self, level: int) -> None:
        if level < 0:
            self._error("IBuilderConfig::setBuilderOptimizationLevel", 3, "Parameter check failed")
        else:
            self._level = min(level, 5)

    @property
    def progress_monitor(self) -> IProgressMonitor | None:
        return self._monitor

    @progress_monitor.setter
    def progress_monitor(self, monitor: IProgressMonitor) -> None:
        if not isinstance(monitor, IProgressMonitor):
            raise TypeError("incompatible function arguments")
        self._monitor = monitor


class Builder(Null):
    _counted = "builders"

    def __init__(self, logger: ILogger) -> None:
        self._make(logger)

    def create_network(self, flags: int = 0) -> INetworkDefinition | None:
        if flags >= 1 << (max(ENUMS["NetworkDefinitionCreationFlag"]) + 1):
            self._error("IBuilder::createNetworkV2", 3, "Parameter check failed: unknown flags")
            return None
        return INetworkDefinition._of(self, self._logger, flags)

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig._of(self)

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile._of(self)

    def build_serialized_network(
        self, network: INetworkDefinition, config: IBuilderConfig
    ) -> IHostMemory | None:
        device = self._enter()
        graph = network._graph
        if graph is None:
            self._error(_BUILD, 4, "Network must have at least one output.")
            return None
        multi = getattr(PreviewFeature, "MULTIDEVICE_RUNTIME_10_16", None)
        if graph.collectives() and multi is not None and multi not in config._previews:
            self._error(_BUILD, 4, "IDistCollectiveLayer needs kMULTIDEVICE_RUNTIME_10_16.")
            return None
        profiles = _check_profiles(self, network, config)
        if profiles is None or not _report(self, config):
            return None
        needed = graph.weights_bytes() + activation_bytes(network, profiles)
        try:
            if MACHINE.faulty("build"):
                raise OutOfMemory
            device.free(device.allocate(needed, backed=False))
        except OutOfMemory:
            self._error(_BUILD, 2, f"Requested size was {needed} bytes.", "OutOfMemory")
            return None
        MACHINE.counted["builds"] += 1
        times = config._cache._times if config._cache is not None else {}
        for layer in graph.layer_kinds():
            if layer not in times:
                MACHINE.counted["timed tactics"] += 1
                times[layer] = len(times)
        return IHostMemory(_plan(network, config, profiles, needed))


def _check_profiles(
    builder: Builder, network: INetworkDefinition, config: IBuilderConfig
) -> list[dict[str, Any]] | None:
    """Return the shapes of every profile by input; None, with an error logged if unfit."""
    graph = network._graph
    assert graph is not None

    def refuse(text: str, kind: str = "API Usage Error") -> None:
        builder._error(_BUILD, 4, text, kind)

    dynamic = [tensor for tensor in network._inputs if -1 in tensor.shape or tensor.is_shape_tensor]
    if dynamic and not config._profiles:
        return refuse(
            "Network has dynamic or shape inputs, but no optimization profile has been defined."
        )
    result = []
    for index, profile in enumerate(config._profiles or [None]):
        shapes: dict[str, Any] = {}
        for tensor in network._inputs:
            name, dims = tensor.name, tuple(tensor.shape)
            given = profile._shapes.get(name) if profile is not None else None
            if given is None and -1 in dims:
                return refuse(
                    f"Dynamic input tensor {name} is missing dimensions in profile {index}."
                )
            given = given or (dims,) * 3
            if len(given[0]) != len(dims):
                return refuse(
                    f"Dynamic-shaped input tensor {name} has {len(dims)} dimensions but profile "
                    f"{index} has {len(given[0])} dimensions."
                )
            for axis, dim in enumerate(dims):
                low, opt, high = (ends[axis] for ends in given)
                if dim not in (-1, low) or (dim != -1 and not low == opt == high):
                    return refuse(
                        f"Dimension mismatch for tensor {name} and profile {index}. At dimension "
                        f"axis {axis}, profile has min={low}, opt={opt}, max={high} but tensor has "
                        f"{dim}."
                    )
            shapes[name] = given
        try:
            graph.shapes({graph.original(name): given[1] for name, given in shapes.items()})
        except InvalidShapes as error:
            return refuse(
                f"kOPT values for profile {index} violate shape constraints: {error}",
                "Internal Error",
            )
        result.append(shapes)
    return result


def activation_bytes(network: INetworkDefinition, profiles: list[dict[str, Any]]) -> int:
    """Return the bytes that a context holds: a stand-in, room for the largest inputs."""
    most = 0
    for profile in profiles:
        total = 0
        for tensor in network._inputs:
            size = 8
            for dim in profile[tensor.name][2]:
                size *= max(dim, 1)
            total += size
        most = max(most, total)
    return most


def _report(builder: Builder, config: IBuilderConfig) -> bool:
    """Go through the phases of a build, telling the monitor from another thread, as happens."""
    monitor = config._monitor
    if monitor is None:
        return True
    go_on: list[bool] = []

    def tell() -> None:
        def call(name: str, *arguments: Any) -> Any:
            try:
                return getattr(monitor, name)(*arguments)
            except Exception as error:
                sys.stderr.write(f"[ERROR] Exception caught in {name}(): {error}\n")
                return False

        call("phase_start", "Building engine", None, 2)
        for number, (phase, steps) in enumerate((("Preparing graph", 2), ("Timing tactics", 4))):
            call("phase_start", phase, "Building engine", steps)
            for step in range(steps):
                if not call("step_complete", phase, step):
                    go_on.append(False)
                    break
            call("phase_finish", phase)
            if go_on or not call("step_complete", "Building engine", number):
                go_on.append(False)
                break
        call("phase_finish", "Building engine")

    thread = threading.Thread(target=tell, name="emulated TensorRT builder")
    thread.start()
    thread.join()
    if go_on:
        builder._error(_BUILD, 7, "Build canceled by user", "BuildCanceled")
        return False
    return True


def _plan(
    network: INetworkDefinition,
    config: IBuilderConfig,
    profiles: list[dict[str, Any]],
    needed: int,
) -> bytes:
    graph = network._graph
    assert graph is not None

    def describe(tensor: ITensor) -> dict[str, Any]:
        return {"name": tensor.name, "dtype": tensor.dtype.name, "shape": tuple(tensor.shape)}

    weights = graph.weights_bytes()
    header = json.dumps(
        {
            "version": VERSION,
            "capability": "9.0",
            "inputs": [
                {**describe(tensor), "decides": tensor.is_shape_tensor}
                for tensor in network._inputs
            ],
            "outputs": [describe(tensor) for tensor in network._outputs],
            "profiles": profiles,
            "weights_bytes": weights,
            "activation_bytes": needed - weights,
            "tf32": BuilderFlag.TF32 in config._flags,
            "layers": graph.layers(),
            "is_detailed": config._verbosity is ProfilingVerbosity.DETAILED,
            "ranks": graph.ranks,
            "refittable": _refittable(network, config),
        }
    ).encode()
    body = len(header).to_bytes(8, "little") + header + graph.model.SerializeToString()
    return MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def _refittable(network: INetworkDefinition, config: IBuilderConfig) -> list[str]:
    assert network._graph is not None
    if BuilderFlag.REFIT in config._flags:
        return sorted(network._graph.weight_names())
    if BuilderFlag.REFIT_INDIVIDUAL in config._flags:
        return sorted(network._refittable)
    return []
