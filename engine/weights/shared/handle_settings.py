"""The settings by which weights are shared between processes: see `handle`."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import SharingError

PIDS = "shareable_weight_pid_list"
HANDLE = "shareable_weight_mem_handle"

BITS = 63
"""A handle is a positive number of so many bits: scripts pass it on in a signed 64-bit integer."""

_MOST_DIGITS = 10  # of a pid


def setting_of(config: Mapping[str, Mapping[str, str]], key: str) -> str | None:
    """Return the value of a key in the sections that have it; None where none has."""
    given = {
        name: keys[key]
        for name, keys in config.items()
        if name.endswith("_context") and key in keys
    }
    if len(set(given.values())) > 1:
        said = " and ".join(f"[{name}] {text!r}" for name, text in given.items())
        raise SharingError(f"{key} has several values: {said}; set it in one section")
    return next(iter(given.values()), None)


def pids_of(text: str) -> tuple[int, ...]:
    """Return the processes of a list as "12, 34". Raises SharingError.

    0 is left out: the tutorial's script lists one for the master itself.
    """
    pids = []
    for part in map(str.strip, text.split(",")):
        if not (part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS):
            raise SharingError(
                f"{PIDS} must be numbers of processes, as '1234, 5678', but got {text!r}; take "
                "them from Model().get_model_info('current_pid') in the slaves"
            )
        pids.append(int(part))
    listed = tuple(dict.fromkeys(pid for pid in pids if pid))
    if not listed:
        raise SharingError(
            f"{PIDS} names no process, but got {text!r}; take the numbers from "
            "Model().get_model_info('current_pid') in the slaves"
        )
    return listed


def handle_of(text: str) -> int:
    """Return a handle from its decimal text. Raises SharingError for what is none."""
    number = text.strip()
    is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(1 << BITS))
    if not is_number or not 0 < int(number) < 1 << BITS:
        raise SharingError(
            f"{HANDLE} must be the number that get_model_info('{HANDLE}') gives in the master, "
            f"but got {text!r}; it gives one once the master is built with {PIDS}"
        )
    return int(number)
