"""An inference as both protocols see it: inputs, the outputs that are asked for, parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from engine_serve.errors import RequestError
from engine_serve.shared_memory import Place
from engine_serve.tensors import Array

_LONGEST_US = 1 << 50  # 35 years; a float holds it
_MOST_PRIORITY = 100  # of the engine's; the protocol's highest is 1


@dataclass(slots=True)
class Output:
    """An output that a request asks for.

    classes: how many of the highest elements, as text, in place of the tensor; 0 for the tensor.
    is_binary: over REST, raw bytes behind the JSON. place: where to write it, None for the answer.
    """

    name: str
    classes: int = 0
    is_binary: bool = False
    place: Place | None = None


@dataclass(slots=True)
class Inference:
    """One request. outputs: None for all of them. timeout_s: None without a deadline."""

    id: str
    inputs: dict[str, Array]
    outputs: list[Output] | None = None
    timeout_s: float | None = None
    priority: int = 0
    all_binary: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_text(self) -> bool:
        """Return whether an output is answered element by element, and not as raw bytes."""
        if self.outputs is None:
            return not self.all_binary
        return any(not output.is_binary and output.place is None for output in self.outputs)


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """Return the seconds that parameter `timeout`, in microseconds, gives; None without one."""
    wanted = parameters.get("timeout", 0)
    if not _is_whole(wanted) or wanted < 0:
        raise RequestError(
            f"parameter 'timeout' must be whole microseconds from 0, got {wanted!r}", "timeout"
        )
    return min(wanted, _LONGEST_US) / 1e6 if wanted else None


def priority_of(
    parameters: Mapping[str, Any], default_level: int = 0, highest_level: int = 1
) -> int:
    """Return the engine's priority for parameter `priority`, the protocol's level.

    Level 1 is the highest, 100 of the engine's; 2 is 99, and so on. 0 is the default: the
    engine's 0, or the configuration's default level. highest_level: that clients may ask for.
    """
    level = parameters.get("priority", 0)
    if not _is_whole(level) or level < 0:
        raise RequestError(
            f"parameter 'priority' must be a whole number from 0, got {level!r}", "priority"
        )
    if 0 < level < highest_level:
        raise RequestError(
            f"parameter 'priority' must be 0, for the default, or from {highest_level}, the "
            f"server's --highest-priority, got {level}",
            "priority",
        )
    level = level or default_level
    return max(-_MOST_PRIORITY, _MOST_PRIORITY + 1 - level) if level else 0


def classes_of(parameters: Mapping[str, Any], name: str) -> int:
    """Return how many classes an output's parameters ask for; 0 for the tensor itself."""
    count = parameters.get("classification", 0)
    if not _is_whole(count) or count < 0:
        raise RequestError(
            f"output {name!r}: 'classification' must be a whole number, got {count!r}", name
        )
    return int(count)


def _is_whole(value: object) -> TypeGuard[int]:
    return type(value) is int
