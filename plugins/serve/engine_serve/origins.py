"""Protection of a server from pages of other sites, which a user's browser may show.

Any page can have a browser send requests to 127.0.0.1: to unload a model, say. The browser names
the page's site in `Origin`. A site can also give its own name the address 127.0.0.1 (DNS
rebinding); the browser then names it in `Host`, and shows it the answers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

_FIX = "; if it is yours: --allow-host {host}"


class Origins:
    """Says which requests are refused. allowed: names that this server goes by elsewhere.

    checks_hosts: requests must name the server by an address, localhost or an allowed name. For a
    server that only this host reaches and that asks for no token.
    """

    def __init__(self, allowed: Iterable[str] = (), *, checks_hosts: bool = False) -> None:
        self._allowed = {name.lower() for name in allowed}
        self._checks_hosts = checks_hosts

    def fault(self, headers: list[tuple[bytes, bytes]]) -> str:
        """Return why a request is refused; "" for one that is not. headers: with small names."""
        host = origin = ""
        for key, value in headers:
            if key == b"host":
                host = value.decode("latin-1").lower()
            elif key == b"origin":
                origin = value.decode("latin-1").lower()
        if origin:
            site = origin.partition("://")[2]
            if site != host and _name_of(site) not in self._allowed:
                return f"the request comes from a page of {origin}" + _FIX.format(
                    host=_name_of(site) or "NAME"
                )
        if self._checks_hosts and host:
            name = _name_of(host)
            if not _is_own(name) and name not in self._allowed:
                return f"this server is not {name}" + _FIX.format(host=name)
        return ""


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this host alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _name_of(address: str) -> str:
    """Return "h" of "h:80", and "::1" of "[::1]:80"."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if ":" in address else address


def _is_own(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
