"""The words of weights that are lent by handle, and what is left of a loan."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from engine import Model

Y = [[3.0, 5.0, 7.0]]  # 2x + 1
PIDS, HANDLE = "shareable_weight_pid_list", "shareable_weight_mem_handle"

Lend = Callable[..., Model]


def listed(*pids: int) -> dict[str, dict[str, str]]:
    """Return the configuration of a master that lends to these processes."""
    return {"common_context": {PIDS: ", ".join(map(str, pids))}}


def by_handle(handle: str) -> dict[str, dict[str, str]]:
    """Return the configuration of a slave."""
    return {"common_context": {HANDLE: handle}}


def handle_of(master: Model) -> dict[str, dict[str, str]]:
    """Return that of a slave of this master."""
    return by_handle(master.get_model_info(HANDLE))


def left(folder: Path) -> list[str]:
    """Return the remains of sharing beside a cache: private folders and their locks."""
    places = [folder / "v1" / part for part in ("private", "locks", "entries")]
    return [f"{here.name}/{name}" for here in places if here.exists() for name in os.listdir(here)]


def sockets() -> list[str]:
    """Return the brokers' sockets on this machine that are still named."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line.split()[-1] for line in lines if "@engine-weights-" in line]
