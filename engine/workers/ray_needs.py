"""Resources of a Ray node that an actor takes, as the configuration says it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.workers.protocol import Assignment

SECTION = "ray_context"


@dataclass(frozen=True, slots=True)
class Needs:
    """CPUs, GPUs and other resources by name; how long to wait for a node that has room."""

    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    start_timeout_s: float = 120

    def __str__(self) -> str:
        amounts = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, **self.resources}
        return ", ".join(f"{name}={amount:g}" for name, amount in amounts.items())


def needs_of(assignment: Assignment) -> Needs:
    """Return what a worker takes: by [ray_context], else by its target.

    Raises ValueError for a setting that is none.
    """
    given = assignment.config.get(SECTION, {})
    target = assignment.context.target[0].partition(":")[0].lower()
    pairs = given.get("resources", "NPU=1" if target == "ascend" else "").split(",")
    resources = dict(_pair(pair) for pair in pairs if pair.strip())
    return Needs(
        _amount("num_cpus", given.get("num_cpus", "1")),
        _amount("num_gpus", given.get("num_gpus", "1" if target == "gpu" else "0")),
        resources,
        _amount("start_timeout_s", given.get("start_timeout_s", "120")),
    )


def _pair(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    if not name.strip():
        raise ValueError(f"[{SECTION}] resources must be 'name=amount, ...', but got {text!r}")
    return name.strip(), _amount(f"resources {name.strip()}", amount)


def _amount(name: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise ValueError(f"[{SECTION}] {name} must be a number of 0 or more, but got {text!r}")
    return amount
