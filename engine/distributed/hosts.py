"""This machine among the hosts of a rank table."""

from __future__ import annotations

import socket
from functools import lru_cache

from engine.distributed.rank_table import RankTable


@lru_cache
def is_this_machine(host: str) -> bool:
    """Return whether a host's address or name is one of this machine."""
    if host in (socket.gethostname(), "localhost"):
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # a name that nothing resolves, or that is none
        return False
    return any(_has_address(family, address) for family, *_, address in found)


def _has_address(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((*address[:1], 0, *address[2:]))  # only an address of one's own can be
        except OSError:
            return False
    return True


def ranks_here(table: RankTable) -> list[int]:
    """Return the ranks that a table has on this machine.

    A table of one host is tried out wherever it is.
    """
    if len(table.hosts) == 1:
        return list(range(table.world_size))
    return [place.rank for place in table.places if is_this_machine(place.host)]
