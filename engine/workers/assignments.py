"""Devices, and this machine's CPUs, divided among workers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from engine.formats.opened import FileVersion
from engine.host.cpus import usable_cpus
from engine.host.paths import absolute
from engine.plan.targets import AUTO
from engine.workers.protocol import Assignment

if TYPE_CHECKING:
    from engine.context import Context
    from engine.typing import DecMode


def assignments(
    model_path: str,
    device_ids: Sequence[int],
    context: Context,
    config: Mapping[str, Mapping[str, str]],
    dec_key: bytes | None = None,
    dec_mode: DecMode = "AES-GCM",
    *,
    is_local: bool = True,
    batch_axes: Mapping[str, int | None] | None = None,
    is_proving: bool = False,
) -> list[Assignment]:
    """Return what the worker of each device is to build, in the order of the devices.

    On cpu a device is a group of CPUs: this machine's are divided, and more workers than there are
    CPUs share them. is_local: the workers are on this machine, whose CPUs are to be divided, and
    read this very file. is_proving: the first one says whether requests may be cut along the
    batch, which is at `batch_axes`.
    """
    count = len(device_ids)
    groups: list[tuple[int, ...]] = [()] * count
    if is_local and _target(context) == "cpu":
        groups = core_groups(count)
    version = FileVersion.of(os.stat(model_path)) if is_local else None
    found = []
    for place, (device_id, cores) in enumerate(zip(device_ids, groups)):
        own = copy(context)
        own.gpu.device_id = own.ascend.device_id = device_id
        threads = own.cpu.thread_num
        if own.cpu.thread_affinity_mode or own.cpu.thread_affinity_core_list:
            cores = ()  # the user has placed the threads
        elif threads > len(cores):
            cores = ()  # and wants more than the group has
        if is_local and not threads:
            share = max(1, usable_cpus() // count)  # a quota may be less than the CPUs
            own.cpu.thread_num = min(share, len(cores)) if cores else share
        found.append(
            Assignment(
                place=place,
                count=count,
                device_id=device_id,
                model_path=str(absolute(Path(model_path))),
                context=own,
                config=config,
                dec_key=dec_key,
                dec_mode=dec_mode,
                cores=cores,
                version=version,
                batch_axes=batch_axes,
                is_proving=is_proving and not place,
            )
        )
    return found


def core_groups(count: int) -> list[tuple[int, ...]]:
    """Return the CPUs that this process may use in `count` groups of nearly equal size.

    Groups of more workers than CPUs have one each, in turn. () each where the system has no
    affinity.
    """
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return [()] * count
    if count >= len(cores):
        return [(cores[place % len(cores)],) for place in range(count)]
    size, larger = divmod(len(cores), count)
    ends = [size * place + min(place, larger) for place in range(count + 1)]
    return [tuple(cores[begin:end]) for begin, end in pairwise(ends)]


def _target(context: Context) -> str:
    target = context.target[0].partition(":")[0].lower()
    return "cpu" if target == AUTO else target
