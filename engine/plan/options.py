"""CompileOptions: for a model, from what the user has set; for a part of it, from the model's.

Rank, world size, threads and devices are resolved once a plan, whatever its target turns out to
be: a fallback or ENGINE_TARGET does not change which rank this process is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from engine.backends import OFFICIAL, installed, open_backend, warn_once
from engine.errors import InputError
from engine.host.cpus import preferred_cores, usable_cpus
from engine.host.threads import threads_per_worker
from engine.options import BOOLEANS, CONSUMED, is_declared
from engine.types import (
    Arithmetic,
    CancelToken,
    Capability,
    CompileOptions,
    Device,
    ModelSource,
    Progress,
    ShapeRange,
    Threads,
)
from engine.wings import wing

if TYPE_CHECKING:
    from pathlib import Path

    from engine.backends import Backend, Target
    from engine.context import Context, CpuSettings


class BuildOptions:
    """A user's wishes for one build, resolved once.

    progress, cancel: see `engine.types.CompileOptions`. share_workspace: with other models of this
    process, where the backend has an option for it. place: this process's rank and the number of
    ranks; None for those of the context. open_ranks: what a model with collectives gets the other
    ranks from; None where it cannot run. profile_to: an empty folder, for a plan whose predicts
    are measured (`Plan.profile`); None for any other.
    progress_error: an exception of the progress callback, for which no backend is to blame.
    """

    def __init__(
        self,
        context: Context,
        config: Mapping[str, Mapping[str, str]],
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
        *,
        share_workspace: bool = False,
        place: tuple[int, int] | None = None,
        open_ranks: Callable[..., Any] | None = None,
        profile_to: Path | None = None,
    ) -> None:
        self.context = context
        self.config = config
        self.cancel = cancel
        self.open_ranks = open_ranks
        self.profile_to = profile_to
        self.progress_error: Exception | None = None
        self._progress = progress
        self.threads = _threads(context.cpu)
        self.rank, self.world_size = place or (context.ascend.rank_id, context.gpu.group_size)
        self.is_isolated = _is_true(config, "common_context", "isolate")
        self.shares_workspace = share_workspace

    @property
    def is_watched(self) -> bool:
        """True where the user has given a progress callback."""
        return self._progress is not None

    def check_cancelled(self) -> None:
        """Raise Cancelled where the build was cancelled."""
        if self.cancel is not None:
            self.cancel.check()

    def unwatched(self) -> BuildOptions:
        """Return the same wishes for a build that nobody waits for."""
        options = copy(self)
        options._progress = options.cancel = None
        return options

    def varied(self, context: Context, config: Mapping[str, Mapping[str, str]]) -> BuildOptions:
        """Return the same wishes for another context and configuration."""
        options = copy(self)
        options.context, options.config = context, config
        if self._progress is not None:
            options._progress = self._note_progress  # what it raises is known here too
        options.threads = _threads(context.cpu)
        return options

    def note_progress(self, phase: str, done: int, total: int | None) -> None:
        """Tell who watches the build how far it is, if anybody does."""
        if self._progress is not None:
            self._note_progress(phase, done, total)

    def _note_progress(self, phase: str, done: int, total: int | None) -> None:
        assert self._progress is not None
        try:
            self._progress(phase, done, total)
        except Exception as error:
            self.progress_error = error
            raise

    def opened(self, name: str) -> Backend:
        """Open a backend, with its models in processes of their own if the user asks for that."""
        backend = open_backend(name)
        if not self.is_isolated:
            return backend
        found: Backend = wing("isolated")(backend)
        return found

    def of(
        self, backend: Backend, target: Target, source: ModelSource, is_listed: bool = True
    ) -> CompileOptions:
        """Return how to compile `source` for `target`, which `backend` serves.

        is_listed: the user named the target. If not, a provider that it does not have is the wish
            for another backend of that device type.
        Raises ValueError for a setting that cannot be read or does not fit the model,
        BackendUnavailable for a provider that the backend does not have.
        """
        settings = getattr(self.context, target.device_type, None)
        given = self._section(backend, target, is_listed)
        graph = source.graph
        shapes: Mapping[str, ShapeRange] = {}
        profiles: tuple[Mapping[str, ShapeRange], ...] = ()
        if given:
            from engine.config.shapes import read_shapes  # rare

            read = read_shapes(given, graph.inputs if graph else None, target.device_type)
            shapes, profiles = read.shapes, read.profiles
        provider = target.provider or getattr(settings, "provider", "") or given.get("provider", "")
        if not is_listed and provider.lower() not in map(str.lower, backend.info.providers):
            provider = ""
        device_id = getattr(settings, "device_id", None) or _device_id(given.get("device_id", "0"))
        declared = backend.info.options
        devices: tuple[Device, ...] = ()
        text = given.get("device_ids", "")
        own = {"device_ids"} if text and has_own_device_ids(backend) else set()
        if text and not own:
            is_chosen = bool(device_id or given.get("device_id"))
            several = wing("devices_of")
            device_id, devices = several(backend, target.device_type, text, device_id, is_chosen)
        if given.get("arithmetic") and given.get("precision_mode", "").strip():
            raise ValueError(
                "arithmetic and precision_mode say the same in two ways; set one of them"
            )
        arithmetic, precision = _arithmetic(
            given.get("arithmetic", ""), target.device_type, getattr(settings, "precision_mode", "")
        )
        if self.shares_workspace:
            given = {**self._workspace(backend), **given}
        return CompileOptions(
            device=Device(target.device_type, device_id),
            devices=devices,
            provider=backend.check_provider(provider),
            precision=precision,
            arithmetic=arithmetic,
            threads=self.threads,
            shapes=shapes,
            profiles=profiles,
            options={
                key: value
                for key, value in given.items()
                if (key not in CONSUMED or key in own)
                and (not declared or is_declared(key, declared))
            },
            config=self.config,
            rank=self.rank,
            world_size=self.world_size,
            profile_to=self.profile_to if backend.can(Capability.PROFILE) else None,
            progress=self._note_progress if self._progress is not None else None,
            cancel=self.cancel,
        )

    def _section(self, backend: Backend, target: Target, is_listed: bool) -> dict[str, str]:
        """Return what the user set for a backend; a word, once, on what nobody reads."""
        config = self.config
        if not config:
            return {}
        from engine.config.schema import unused_settings  # rare

        read = sections_read(target)
        for unused in unused_settings(
            config, target.backend, read, backend.info.options, _with_sections
        ):
            warn_once(unused.text)
        unread = f"{target.device_type}_context"
        if is_listed and config.get(unread) and unread not in read and not self._asks_own(target):
            warn_once(
                f"configuration section [{unread}] is not read: backend {target.backend!r} serves "
                f"the target {target.device_type!r}, and reads [{read[0]}]"
            )
        return {key: value for name in read for key, value in config.get(name, {}).items()}

    def _asks_own(self, target: Target) -> bool:
        """Return whether this project's own backend of a target's device type is a target too."""
        own = OFFICIAL.get(target.device_type, "")
        asked = map(str.lower, overriding() or self.context.target)
        return own in installed() and not {own, target.device_type}.isdisjoint(asked)

    def _workspace(self, backend: Backend) -> dict[str, str]:
        """Return the settings by which a backend shares workspace; a word, once, if it cannot."""
        lacks = ""
        if "workspace" not in backend.info.options:
            lacks = f"backend {backend.name!r} gives each model its own"
        elif self.is_isolated:
            lacks = "with [common_context] isolate each model is in a process of its own"
        if lacks:
            warn_once(f"the models of a group do not share workspace: {lacks}")
            return {}
        return {"workspace": "process"}


def overriding() -> list[str]:
    """Return the targets of ENGINE_TARGET, which go before the context's; none if it is unset."""
    parts = os.environ.get("ENGINE_TARGET", "").split(",")
    return [name for part in parts if (name := part.strip())]


def has_own_device_ids(backend: Backend) -> bool:
    """Return whether `device_ids` is an option of the backend, which had it before the core."""
    declared = backend.info.options
    can = open_backend(backend.name).can(Capability.SEVERAL_DEVICES)  # isolated or not
    return "device_ids" in declared or not (declared or can)


def sections_read(target: Target) -> list[str]:
    """Return the sections that the backend of a target reads."""
    # A device type's section is for this project's own backend of that type: another backend of
    # the same type has other options.
    own = OFFICIAL.get(target.device_type) == target.backend
    types = (target.device_type,) if own and target.device_type != target.backend else ()
    return [f"{name}_context" for name in (*types, target.backend)]


def unknown_setting(
    candidates: Sequence[tuple[Backend, Target]], config: Mapping[str, Mapping[str, str]]
) -> str:
    """Return a line on the first section or key that none of the backends knows; "" for none.

    A section is for those of them to judge that read it, if there are such.
    """
    for section, keys in config.items():
        judges = [pair for pair in candidates if section in sections_read(pair[1])] or candidates
        found = [_unknown_to(backend, target, {section: keys}) for backend, target in judges]
        if found and all(found):
            return found[0]
    return ""


def _unknown_to(backend: Backend, target: Target, config: Mapping[str, Mapping[str, str]]) -> str:
    from engine.config.schema import unused_settings

    unused = unused_settings(
        config, target.backend, sections_read(target), backend.info.options, _with_sections
    )
    return next((each.text for each in unused if each.is_unknown), "")


def _with_sections() -> tuple[str, ...]:
    return (*OFFICIAL, *OFFICIAL.values(), *installed())


def _is_true(config: Mapping[str, Mapping[str, str]], section: str, key: str) -> bool:
    text = config.get(section, {}).get(key, "false")
    if text.lower() not in BOOLEANS:
        raise ValueError(f"[{section}] {key}: expected true or false, got {text!r}")
    return BOOLEANS[text.lower()]


_BY_PRECISION = {
    "enforce_fp32": Arithmetic.EXACT,
    "enforce_origin": Arithmetic.EXACT,
    "preferred_fp32": Arithmetic.FLOAT16,  # where an operator has no float32
    "preferred_fp16": Arithmetic.FLOAT16,
    "enforce_fp16": Arithmetic.FLOAT16,
    "preferred_optimal": Arithmetic.FLOAT16,
}
"""The API's words for the precision of one device type, in those for any device."""

_EXACT = {"cpu": "enforce_fp32", "gpu": "enforce_fp32", "ascend": "enforce_origin"}


def _arithmetic(given: str, device_type: str, precision: str) -> tuple[Arithmetic | None, str]:
    """Return how exactly to compute, and the API's word for that on this type of device.

    given: what the user said for any device, "" for nothing.
    """
    if not given:
        return _BY_PRECISION.get(precision), precision
    try:
        arithmetic = Arithmetic(given)
    except ValueError:
        known = ", ".join(Arithmetic)
        raise ValueError(f"arithmetic must be one of {known}, but got {given!r}") from None
    if device_type not in _EXACT:
        return arithmetic, precision
    is_half = arithmetic is Arithmetic.FLOAT16
    return arithmetic, "preferred_fp16" if is_half else _EXACT[device_type]


def _device_id(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"device_id must be a non-negative int, but got {text!r}")
    return int(text)


def _threads(cpu: CpuSettings) -> Threads:
    intra_op = _bounded("cpu_thread_num", cpu.thread_num) or threads_per_worker()
    inter_op = _bounded("cpu_inter_op_parallel_num", cpu.inter_op_parallel_num) or 1
    cores = tuple(cpu.thread_affinity_core_list)
    for core in cores:
        if not 0 <= core < (os.cpu_count() or 1):
            raise InputError(
                f"cpu_thread_affinity_core_list: core {core} is outside "
                f"0..{(os.cpu_count() or 1) - 1}"
            )
    if cores and cpu.thread_num and len(cores) != cpu.thread_num:
        raise InputError(
            f"cpu_thread_affinity_core_list names {len(cores)} cores for {cpu.thread_num} threads; "
            "give one core a thread, or leave thread_num at 0"
        )
    if not cores and cpu.thread_affinity_mode:
        cores = preferred_cores(cpu.thread_affinity_mode, min(intra_op, usable_cpus()))
    return Threads(
        intra_op=len(cores) or intra_op,
        inter_op=inter_op,
        cores=cores,
        is_counted=not cores and cpu.thread_num == 0,
    )


def _bounded(name: str, count: int) -> int:
    """Return a number of threads that the user asked for: as in MindSpore Lite, at most 5 a CPU."""
    used = at_most(count)
    if count > used:
        import logging  # rare

        logging.getLogger("engine").warning(
            "%s %d is more than five threads a CPU; %d are used", name, count, used
        )
    return used


def at_most(threads: int) -> int:
    """Return how many threads are used of those that were asked for; 0 remains 0."""
    return threads if threads <= 5 else min(threads, 5 * (os.cpu_count() or 1))
