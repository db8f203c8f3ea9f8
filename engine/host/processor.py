"""The processor of this machine: its name, and all by which kernels and packing are chosen."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from itertools import takewhile

from engine.host.interrupts import pass_interrupt

CPUINFO = "/proc/cpuinfo"
# x86 has names and flags; ARM has Features, and numbers in place of a name. The rest varies.
_DESIGN = (
    "model name", "flags", "Features", "CPU implementer", "CPU architecture", "CPU part",
    "CPU variant",
)  # fmt: skip


def name() -> str:
    """Return the processor's name, as its maker has it where that is known."""
    return fields(CPUINFO).get("model name") or platform.processor() or platform.machine()


def features() -> str:
    """Return the processor's name, and a digest of its design and instruction sets."""
    import hashlib  # most processes need no more than the name

    said = repr([platform.machine(), *map(fields(CPUINFO).get, _DESIGN)])
    return f"{name()} {hashlib.sha256(said.encode()).hexdigest()[:16]}"


@cache
def fields(path: str) -> Mapping[str, str]:
    """Return what Linux says of the first processor, as /proc/cpuinfo has it; {} elsewhere."""
    try:
        with open(path, encoding="utf-8") as lines:
            pairs = (line.partition(":") for line in takewhile(str.strip, lines))
            return {key.strip(): value.strip() for key, _, value in pairs}
    except (OSError, ValueError) as error:
        pass_interrupt(error)
        return {}
