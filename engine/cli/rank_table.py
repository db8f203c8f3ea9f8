"""`engine rank-table`: makes rank tables, and shows one as a table."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Sequence
from pathlib import Path

import click

from engine.cli import options
from engine.cli.commands import Argument, Choice, Group
from engine.cli.files import written_whole
from engine.cli.hints import misuse
from engine.cli.output import as_json, attributes, counted, line, note, plain, table
from engine.distributed.new_table import new_table
from engine.distributed.rank_table import VERSIONS, read

EPILOG = """\b
Examples:
  engine rank-table make --devices 0,1 --out ranks.json
  engine rank-table make --hosts node1,node2 --devices 0-7 --out ranks.json
  engine rank-table show ranks.json
  engine launch --rank-table ranks.json main.py

A rank table is a JSON file that says which rank of a job runs on which device of which host, as
HCCL and MindSpore read it: [ascend_context] rank_table_file names it. Versions 1.0, 1.2 and 2.0."""

_MOST_RANKS = 65536
_ADDRESS = re.compile(r"\s*address_(\d+)\s*=\s*(\S+)\s*$")


@click.group("rank-table", cls=Group, epilog=EPILOG)
def rank_table() -> None:
    """Make a rank table, or show one and check it."""


@rank_table.command("make", epilog=EPILOG)
@click.option(
    "--hosts",
    default="127.0.0.1",
    metavar="HOST,...",
    help="The hosts by address or name, with commas between; the first has the lowest ranks.",
)
@click.option(
    "--devices",
    default="0",
    metavar="N,N-N,...",
    help="The devices of each host, as 0,1 or 0-7: a rank for each.",
)
@click.option(
    "--version",
    "version_",
    type=Choice(VERSIONS),
    default="1.0",
    help="The format's version: 1.2 for super pods, 2.0 for networks of levels.",
)
@click.option(
    "--hccn",
    "hccn_files",
    type=options.PATH,
    multiple=True,
    metavar="FILE",
    help="The hccn.conf of a host, which has its devices' addresses; once for each host, in the "
    "order of --hosts. NPUs of several hosts need them.",
)
@click.option("--out", type=options.PATH, metavar="FILE", help="Where to write it, if not here.")
def make(
    hosts: str, devices: str, version_: str, hccn_files: tuple[Path, ...], out: Path | None
) -> None:
    """Make a rank table: the same devices on each host, ranks numbered in that order."""
    names, numbers = _hosts(hosts), _devices(devices)
    if len(names) * len(numbers) > _MOST_RANKS:
        raise misuse("--devices", f"more than {_MOST_RANKS} ranks")
    if hccn_files and len(hccn_files) != len(names):
        raise misuse("--hccn", f"expected {len(names)}, one for each host, got {len(hccn_files)}")
    device_ips = {}
    for host, file in zip(names, hccn_files):
        found = _addresses(file)
        for device in numbers:
            if device not in found:
                raise ValueError(f"{file}: no address of device {device}: expected a line "
                                 f"address_{device}=IP; correct it, or --devices")  # fmt: skip
            device_ips[host, device] = found[device]
    text = json_module.dumps(new_table(names, numbers, version_, device_ips), indent=2)
    if out is None:
        line(text)
        return
    with written_whole(out) as written:
        written.write(f"{text}\n".encode())
    note(f"{plain(str(out))}: {counted(len(names) * len(numbers), 'rank')} on "
         f"{counted(len(names), 'host')}")  # fmt: skip


@rank_table.command("show", epilog=EPILOG)
@click.argument("file", cls=Argument, metavar="FILE", type=options.PATH, help="The rank table.")
@options.json
def show(file: Path, json: bool) -> None:
    """Show a rank table, and check it: an error names the entry that is wrong."""
    found = read(file)
    if json:
        places = [
            attributes(place, "rank", "host", "device", "device_ip") for place in found.places
        ]
        as_json({**attributes(found, "version", "world_size", "hosts"), "ranks": places})
        return
    table(
        "",
        (">rank", "host", ">device", "device address"),
        [
            (str(place.rank), place.host, str(place.device), place.device_ip)
            for place in found.places
        ],
    )
    line()
    line(f"version {found.version}: {counted(found.world_size, 'rank')} on "
         f"{counted(len(found.hosts), 'host')}")  # fmt: skip


def _hosts(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if "" in names or any(re.search(r"\s", name) for name in names):
        raise misuse("--hosts", f"expected names with commas between, got {text!r}")
    _require_once(names, "--hosts")
    return names


def _devices(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not all(re.fullmatch(r"[0-9]{1,4}", end) for end in (first, last)):
            raise misuse("--devices", f"expected numbers as 0,1 or 0-7, got {text!r}")
        if int(first) > int(last):
            raise misuse("--devices", f"{part.strip()} runs backwards; expected {last}-{first}")
        numbers += range(int(first), int(last) + 1)
    _require_once(numbers, "--devices")
    return numbers


def _require_once(values: Sequence[object], option: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise misuse(option, f"{value} is given twice")


def _addresses(file: Path) -> dict[int, str]:
    found = {}
    for text in file.read_text(errors="replace").splitlines():
        if match := _ADDRESS.match(text):
            found[int(match[1])] = match[2]
    return found
