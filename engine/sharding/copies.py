"""Checkpoints of ranks that are to hold the same, whole weights: compared before one is taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from engine.errors import ModelError
from engine.sharding.reshard import are_equal
from engine.sharding.stored import Checkpoint, Stored
from engine.types import Progress

_log = logging.getLogger(__name__)

_OF_OWN_BATCHES = ("moving_mean", "moving_variance")
"""Ends of the names of BatchNorm's statistics: data parallel training leaves others per rank."""


def require_copies(
    held: Checkpoint,
    files: Mapping[int, Path],
    open_file: Callable[[Path], Checkpoint],
    advice: str,
    progress: Progress | None = None,
    names: Iterable[str] | None = None,
) -> None:
    """Raise ModelError where ranks hold other weights than rank 0: nobody says how to join them.

    held: of rank 0. files: of the ranks; one is open at a time. advice: what to give instead.
    names: the parameters that count; None for all that the other ranks have.
    """
    differing = set[str]()
    wanted = None if names is None else list(names)
    for rank, file in files.items():
        if file == held.path:
            continue
        other = open_file(file)
        compared = list(other.tensors) if wanted is None else wanted
        for done, name in enumerate(compared, 1):
            zero, own = held.tensors.get(name), other.tensors.get(name)
            if zero is None or own is None or not are_equal(zero, own):
                is_like = zero and own and _described(zero) == _described(own)
                if not (is_like and name.endswith(_OF_OWN_BATCHES)):
                    raise ModelError(
                        f"{file}: parameter {name!r} of rank {rank} "
                        f"{_how(zero, own, held.path)}; {advice}",
                        str(file),
                    )
                differing.add(name)
            if progress is not None:
                progress(f"comparing rank {rank}", done, len(compared))
    if differing:
        _log.warning(
            "%d statistics that each rank has of its own batches are taken from rank 0: %s",
            len(differing),
            ", ".join(sorted(differing)[:3]),
        )


def _how(zero: Stored | None, own: Stored | None, path: Path) -> str:
    if own is None:
        return f"is missing, and is in rank 0's {path}"
    if zero is None:
        return f"is not in rank 0's {path}"
    if (zero.dtype, zero.shape) != (own.dtype, own.shape):
        return f"is {_described(own)}, and {_described(zero)} in {path}"
    return f"differs from rank 0's in {path}"


def _described(stored: Stored) -> str:
    return stored.kind if stored.dtype is None else f"{stored.dtype}{list(stored.shape)}"
