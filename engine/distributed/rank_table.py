"""Rank tables: which rank runs on which device of which host, as HCCL and MindSpore write it.

    table = read(Path("rank_table_file.json"))  # version 1.0, 1.2 or 2.0, or the form before
    table.world_size, table.hosts

Every rule that is broken is an error that says where: the file and the entry's path in the JSON.
Numbers may be written as strings, which is the format's own way up to version 1.2, or as numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from engine.errors import CommunicatorError

__all__ = ["VERSIONS", "Place", "RankTable", "parse", "read"]

VERSIONS = ("1.0", "1.2", "2.0")
OLDEST = "group_list"
"""The key that names the form without a version."""
_MOST_BYTES = 64 * 1024 * 1024
_MOST_DEVICE = 1023
_MOST_LEVELS = 8
_ADDRESS_TYPES = ("EID", "IPV4", "IPV6")
_MAKE = "or make a new table: engine rank-table make --help"


@dataclass(frozen=True, slots=True)
class Place:
    """A rank and where it runs. host: as the table names it. device_ip: "" where it has none."""

    rank: int
    host: str
    device: int
    device_ip: str = ""


@dataclass(frozen=True, slots=True)
class RankTable:
    """A valid rank table.

    version: "group_list" for the form that came before versions. places: by rank, 0 to the world
    size less 1. digest: of the file's bytes.
    """

    path: str
    version: str
    places: tuple[Place, ...]
    digest: str

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.places)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts, in the order of their lowest ranks."""
        return tuple(dict.fromkeys(place.host for place in self.places))


def read(path: str | Path) -> RankTable:
    """Read and check a rank table.

    Raises CommunicatorError naming the file, the entry, what was wanted and what is there.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = (getattr(error, "strerror", "") or str(error)).lower()
        raise CommunicatorError(f"rank table {str(path)!r}: {why}; give the path of the table, "
                                f"{_MAKE}") from error  # fmt: skip
    return parse(data, str(path))


def parse(data: bytes, path: str) -> RankTable:
    """Return the rank table that a file's bytes hold. See `read`."""
    whole = _Entry("", _loaded(data, path), path)
    if whole.at("version").found is None and whole.at(OLDEST).found is not None:
        version = OLDEST
    else:
        version = whole.text("version", one_of=VERSIONS)
    status = whole.text("status", "completed")
    if status == "initializing":
        raise whole.at("status").wrong(
            "expected 'completed'", status, "what makes the table has not finished: wait for it"
        )
    if status != "completed":
        raise whole.at("status").wrong("expected 'completed'", status, "correct it")
    read_places = {"2.0": _of_ranks, OLDEST: _of_groups}.get(version, _of_servers)
    places = read_places(whole)
    if version == "1.2":
        _check_super_pods(whole)
    return RankTable(path, version, _ordered(places), sha256(data).hexdigest())


# ------------------------------------------------------------------------------------ reading JSON


def _loaded(data: bytes, path: str) -> Any:
    if len(data) > _MOST_BYTES:
        raise _error(path, "", f"larger than {_MOST_BYTES} bytes; is it a rank table?")
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_Object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _error(
            path, "", f"not JSON: {error.msg.lower()} at {where}; correct it, {_MAKE}"
        ) from error
    except (ValueError, RecursionError) as error:  # no UTF-8, or a number of 5,000 digits
        raise _error(path, "", f"not JSON in UTF-8; give a rank table, {_MAKE}") from error


class _Object(dict[str, Any]):
    """A JSON object that knows which of its keys stood in it twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice = [key for key, _ in pairs] if len(self) < len(pairs) else []


def _error(path: str, where: str, what: str) -> CommunicatorError:
    return CommunicatorError(f"rank table {path!r}: {where + ': ' if where else ''}{what}")


class _Entry:
    """A value of the JSON, and its path there: "server_list[0].device[1].rank_id"."""

    def __init__(self, where: str, found: Any, file: str) -> None:
        self.where, self.found, self._file = where, found, file

    def wrong(self, wanted: str, got: object, do: str) -> CommunicatorError:
        """Return the error that this entry is."""
        shown = "nothing" if got is None else _shown(got)
        return _error(self._file, self.where, f"{wanted}, got {shown}; {do}")

    def at(self, key: str) -> _Entry:
        """Return the entry of a key; its value is None where there is none."""
        where = f"{self.where}.{key}" if self.where else key
        if not isinstance(self.found, _Object):
            raise self.wrong("expected an object {...}", self.found, f"correct it, {_MAKE}")
        if self.found.twice.count(key) > 1:
            raise _error(self._file, where, "stands there twice; remove one of them")
        return _Entry(where, self.found.get(key), self._file)

    def items(self, key: str) -> list[_Entry]:
        """Return the entries of a list that is not empty."""
        entry = self.at(key)
        if not isinstance(entry.found, list) or not entry.found:
            raise entry.wrong(
                "expected a list with one entry or more", entry.found, f"add it, {_MAKE}"
            )
        return [
            _Entry(f"{entry.where}[{place}]", found, self._file)
            for place, found in enumerate(entry.found)
        ]

    def text(self, key: str, default: str = "", one_of: Sequence[str] = ()) -> str:
        """Return a text; a number is one, too. Without a default it must be there."""
        entry = self.at(key)
        wanted = f"expected {' or '.join(map(repr, one_of))}" if one_of else "expected a text"
        if entry.found is None and default:
            return default
        found = entry.found
        text = str(found) if isinstance(found, int | float) and found is not True else found
        if not isinstance(text, str) or not text or (one_of and text not in one_of):
            raise entry.wrong(wanted, found, f"correct it, {_MAKE}")
        return text

    def count(self, key: str, most: int, least: int = 0) -> int:
        """Return a whole number, which may be written as a string."""
        entry = self.at(key)
        found = entry.found
        text = str(found) if isinstance(found, int) and not isinstance(found, bool) else found
        is_number = isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 10
        if not is_number or not least <= int(text) <= most:
            wanted = f"expected a whole number from {least} to {most}"
            raise entry.wrong(wanted, found, "correct it")
        return int(text)

    def address(self, key: str) -> str:
        """Return an IP address; "" where there is none, or only a word that stands for none."""
        entry = self.at(key)
        if entry.found is None or entry.found in ("", "reserve"):
            return ""
        try:
            return str(ip_address(entry.found if isinstance(entry.found, str) else "?"))
        except ValueError:
            raise entry.wrong("expected an IP address", entry.found, "correct it, or leave it out "
                              "where the devices of one host suffice") from None  # fmt: skip


def _shown(got: object) -> str:
    """Return a value as JSON, shortened."""
    text = json.dumps(got)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --------------------------------------------------------------------------------------- the rules


def _of_servers(whole: _Entry) -> list[tuple[_Entry, Place]]:
    """Return the places of version 1: devices of servers."""
    servers = whole.items("server_list")
    _check_count(whole, "server_count", "server_list", len(servers))
    places: list[tuple[_Entry, Place]] = []
    names: dict[str, _Entry] = {}
    for server in servers:
        name = server.text("server_id")
        entry = server.at("server_id")
        if name in names:
            raise entry.wrong("expected another server than in " + names[name].where, name,
                              "give each server once, with all its devices")  # fmt: skip
        names[name] = entry
        devices: dict[tuple[int, str], _Entry] = {}
        for device in server.items("device"):
            number = device.count("device_id", _MOST_DEVICE)
            # Several ranks on a device have ports each. As text: it may be anything.
            port = str(device.at("device_port").found)
            if (number, port) in devices:
                raise device.at("device_id").wrong(
                    f"expected another device than in {devices[number, port].where}",
                    device.at("device_id").found,
                    "give each rank a device of its own",
                )
            devices[number, port] = device.at("device_id")
            rank = device.count("rank_id", 2**20)
            host = server.address("host_ip") or name
            places.append((device, Place(rank, host, number, device.address("device_ip"))))
    return places


def _of_groups(whole: _Entry) -> list[tuple[_Entry, Place]]:
    """Return the places of the form before versions: groups of instances, each a rank."""
    places = []
    groups = whole.items(OLDEST)
    _check_count(whole, "group_count", OLDEST, len(groups))
    for group in groups:
        instances = group.items("instance_list")
        _check_count(group, "instance_count", "instance_list", len(instances))
        for instance in instances:
            devices = instance.items("devices")
            if len(devices) > 1:
                raise instance.at("devices").wrong(
                    "expected one device, that of the rank", len(devices),
                    "give each rank an instance of its own",
                )  # fmt: skip
            [device] = devices
            place = Place(
                instance.count("rank_id", 2**20),
                instance.text("server_id"),
                device.count("device_id", _MOST_DEVICE),
                device.address("device_ip"),
            )
            places.append((instance, place))
    used: dict[tuple[str, int], _Entry] = {}
    for instance, place in places:
        before = used.setdefault((place.host, place.device), instance)
        if before is not instance:
            raise instance.at("devices").wrong(
                f"expected another device than in {before.where}", place.device,
                "give each rank a device of its own",
            )  # fmt: skip
    return places


def _check_super_pods(whole: _Entry) -> None:
    """Check that super pods, where there are any, have each server once."""
    if whole.at("super_pod_list").found is None:
        return
    servers = {server.text("server_id") for server in whole.items("server_list")}
    seen: dict[str, str] = {}
    for pod in whole.items("super_pod_list"):
        pod.text("super_pod_id")
        for server in pod.items("server_list"):
            name, entry = server.text("server_id"), server.at("server_id")
            if name not in servers:
                raise entry.wrong(
                    f"expected a server of server_list, {_listed(sorted(servers))}", name,
                    "correct it, or add that server",
                )  # fmt: skip
            if name in seen:
                raise entry.wrong(f"expected another server than in {seen[name]}", name,
                                  "a server is in one super pod")  # fmt: skip
            seen[name] = entry.where
    if missing := sorted(servers - seen.keys()):
        raise whole.at("super_pod_list").wrong(
            "expected every server of server_list", sorted(seen), f"add {_listed(missing)}"
        )


def _of_ranks(whole: _Entry) -> list[tuple[_Entry, Place]]:
    """Return the places of version 2: a list of ranks, with the networks that each is in."""
    ranks = whole.items("rank_list")
    _check_count(whole, "rank_count", "rank_list", len(ranks))
    places = []
    for rank in ranks:
        number = rank.count("rank_id", 2**20)
        rank.count("local_id", _MOST_DEVICE)
        device = rank.count("device_id", _MOST_DEVICE)
        address = _check_levels(rank)
        places.append((rank, Place(number, _host_of(rank), device, address)))
    return places


def _host_of(rank: _Entry) -> str:
    """Return the host of a rank: the innermost network that it is in is that of its host."""
    if rank.at("server_id").found is not None:
        return rank.text("server_id")
    return rank.items("level_list")[0].text("net_instance_id")


def _check_levels(rank: _Entry) -> str:
    """Check the networks of a rank; returns the first address that is an IP address, or ""."""
    levels = rank.items("level_list")
    if len(levels) > _MOST_LEVELS:
        raise rank.at("level_list").wrong(
            f"expected {_MOST_LEVELS} levels at most", len(levels), "remove some"
        )
    before, found = -1, ""
    for level in levels:
        layer = level.count("net_layer", _MOST_LEVELS - 1)
        if layer <= before:
            raise level.at("net_layer").wrong(
                f"expected more than {before}, that of the level before", layer, "put them in order"
            )
        before = layer
        level.text("net_instance_id")
        for address in level.items("rank_addr_list") if level.at("rank_addr_list").found else ():
            kind = address.text("addr_type").upper()
            if kind not in _ADDRESS_TYPES:
                raise address.at("addr_type").wrong(
                    f"expected {_listed(_ADDRESS_TYPES)}", address.at("addr_type").found,
                    "correct it",
                )  # fmt: skip
            if kind == "EID":
                text = address.text("addr")
                if len(text) != 32 or not all(digit in "0123456789abcdefABCDEF" for digit in text):
                    raise address.at("addr").wrong("expected 32 hexadecimal digits", text,
                                                   "correct it")  # fmt: skip
            else:
                found = found or address.address("addr")
    return found


def _check_count(whole: _Entry, key: str, of: str, count: int) -> None:
    if whole.at(key).found is None and key != "rank_count":  # some write none
        return
    if whole.count(key, 2**20) != count:
        raise whole.at(key).wrong(
            f"expected {count}, the entries of {of}", whole.at(key).found,
            "correct it, or complete the list",
        )  # fmt: skip


def _ordered(places: Sequence[tuple[_Entry, Place]]) -> tuple[Place, ...]:
    """Return the places by rank; each rank from 0 on has to be there once."""
    count, seen = len(places), dict[int, _Entry]()
    for entry, place in places:
        rank = entry.at("rank_id")
        if place.rank >= count:
            raise rank.wrong(f"expected a rank from 0 to {count - 1}, as the table has {count} "
                             "devices", rank.found, "number the ranks without gaps")  # fmt: skip
        if place.rank in seen:
            raise rank.wrong(f"expected another rank than in {seen[place.rank].where}", rank.found,
                             "give each device a rank of its own")  # fmt: skip
        seen[place.rank] = rank
    return tuple(sorted((place for _, place in places), key=lambda place: place.rank))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
