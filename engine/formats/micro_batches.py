"""Micro-batches of a pipeline stage, as its file's metadata tells of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

KEY = "engine.micro_batches"


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Division of a stage's batch into parts.

    rows: of a part, along axis 0. inputs: the names of those that have a batch; all outputs do.
    """

    rows: int
    inputs: tuple[str, ...]

    def text(self) -> str:
        """Return it as a file's metadata has it under `KEY`."""
        return json.dumps(asdict(self))


def micro_batches_of(metadata: Mapping[str, str]) -> MicroBatches | None:
    """Read how a model runs its batch; None where it runs it as one, or that is not legible."""
    try:
        said: Any = json.loads(metadata.get(KEY, "null"))
        found = MicroBatches(int(said["rows"]), tuple(map(str, said["inputs"]))) if said else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return found if found is not None and found.rows > 0 else None
