"""Rank tables of all three versions are read; a rule that is broken is named with its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from engine.distributed.hosts import is_this_machine
from engine.distributed.job import Job, in_table, table_job, this_job
from engine.distributed.new_table import new_table
from engine.distributed.rank_table import Place, parse, read
from engine.errors import CommunicatorError

Table = dict[str, Any]


def device(number: int, rank: int, **more: str) -> Table:
    return {"device_id": str(number), "rank_id": str(rank), **more}


def v1() -> Table:
    return {
        "version": "1.0",
        "server_count": "2",
        "status": "completed",
        "server_list": [
            {"server_id": "10.0.0.5", "host_nic_ip": "reserve", "device": [
                device(0, 2, device_ip="192.168.100.10"), device(1, 3, device_ip="192.168.100.11"),
            ]},
            {"server_id": "10.0.0.6", "device": [device(4, 0), device(5, 1)]},
        ],
    }  # fmt: skip


def v12() -> Table:
    return {
        "version": "1.2",
        "server_count": "2",
        "status": "completed",
        "server_list": [
            {"server_id": "s0", "host_ip": "10.0.0.5", "device": [
                device(0, 0, super_device_id="0", device_ip="192.168.100.10"),
            ]},
            {"server_id": "s1", "device": [device(0, 1, super_device_id="1")]},
        ],
        "super_pod_list": [
            {"super_pod_id": "pod0", "server_list": [{"server_id": "s0"}, {"server_id": "s1"}]},
        ],
    }  # fmt: skip


def v2() -> Table:
    def rank(number: int, host: str, device: int, addr: str) -> Table:
        eid = {"addr_type": "EID", "addr": 3 * "0" + 29 * "a", "ports": ["0/1"], "plane_id": "0"}
        ip = {"addr_type": "IPV4", "addr": addr, "ports": ["1/0"]}
        return {
            "rank_id": number, "local_id": device, "device_id": device,
            "level_list": [
                {"net_layer": 0, "net_instance_id": host, "net_type": "TOPO_FILE_DESC",
                 "net_attr": "", "rank_addr_list": [eid]},
                {"net_layer": 1, "net_instance_id": "az0", "net_type": "CLOS",
                 "rank_addr_list": [ip]},
            ],
        }  # fmt: skip

    return {
        "version": "2.0",
        "status": "completed",
        "rank_count": 2,
        "rank_list": [rank(0, "pod0", 3, "172.16.0.1"), rank(1, "pod1", 3, "172.16.0.2")],
    }


def parsed(table: object) -> list[Place]:
    return list(parse(json.dumps(table).encode(), "t.json").places)


def test_version_1_0_gives_each_rank_its_host_and_device() -> None:
    assert parsed(v1()) == [
        Place(0, "10.0.0.6", 4), Place(1, "10.0.0.6", 5),
        Place(2, "10.0.0.5", 0, "192.168.100.10"), Place(3, "10.0.0.5", 1, "192.168.100.11"),
    ]  # fmt: skip


def test_version_1_2_prefers_a_hosts_address_to_its_name() -> None:
    assert parsed(v12()) == [Place(0, "10.0.0.5", 0, "192.168.100.10"), Place(1, "s1", 0)]


def test_version_2_0_tells_hosts_by_their_innermost_network() -> None:
    assert parsed(v2()) == [Place(0, "pod0", 3, "172.16.0.1"), Place(1, "pod1", 3, "172.16.0.2")]


def test_a_table_has_its_hosts_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(v1()))
    table = read(path)
    assert (table.world_size, table.hosts) == (4, ("10.0.0.6", "10.0.0.5"))
    assert (table.path, table.version) == (str(path), "1.0")


def test_numbers_may_be_numbers_and_what_is_optional_may_be_absent() -> None:
    table = {
        "version": "1.0",
        "server_list": [{"server_id": "a", "device": [{"device_id": 0, "rank_id": 0}]}],
    }
    assert parsed(table) == [Place(0, "a", 0)]
    shared = [device(0, 0, device_port="60001"), device(0, 1, device_port="60002")]
    table["server_list"] = [{"server_id": "a", "device": shared}]
    assert parsed(table) == [Place(0, "a", 0), Place(1, "a", 0)], "two ranks on one device"


def edited(table: Table, where: str, value: object) -> Table:
    """Return the table with one entry set; None removes it."""
    table = deepcopy(table)
    at: Any = table
    *path, last = where.split("/")
    for step in path:
        at = at[int(step) if isinstance(at, list) else step]
    key: Any = int(last) if isinstance(at, list) else last
    if value is None:
        del at[key]
    else:
        at[key] = value
    return table


MALFORMED: list[tuple[Callable[[], Table], str, object, str, str]] = [
    (v1, "version", None, "version", "expected '1.0' or '1.2' or '2.0', got nothing"),
    (v1, "version", "3", "version", "expected '1.0' or '1.2' or '2.0', got \"3\""),
    (v1, "status", "initializing", "status", "what makes the table has not finished"),
    (v1, "status", "done", "status", "expected 'completed', got \"done\""),
    (v1, "server_count", "3", "server_count", "expected 2, the entries of server_list, got \"3\""),
    (v1, "server_count", "two", "server_count", 'a whole number from 0 to 1048576, got "t'),
    (v1, "server_list", [], "server_list", "expected a list with one entry or more, got []"),
    (v1, "server_list", None, "server_list", "expected a list with one entry or more, got nothing"),
    (v1, "server_list", {"a": 1}, "server_list", 'got {"a": 1}'),
    (v1, "server_list/1", "x", "server_list[1]", 'expected an object {...}, got "x"'),
    (v1, "server_list/1/server_id", None, "server_list[1].server_id", "a text, got nothing"),
    (v1, "server_list/1/server_id", "", "server_list[1].server_id", 'expected a text, got ""'),
    (v1, "server_list/1/server_id", "10.0.0.5", "server_list[1].server_id",
     "expected another server than in server_list[0].server_id"),
    (v1, "server_list/1/device", None, "server_list[1].device", "expected a list"),
    (v1, "server_list/1/device/0", 7, "server_list[1].device[0]", "an object {...}, got 7"),
    (v1, "server_list/0/device/1/device_id", "0", "server_list[0].device[1].device_id",
     'expected another device than in server_list[0].device[0].device_id, got "0"'),
    (v1, "server_list/0/device/1/device_id", "-1", "server_list[0].device[1].device_id",
     'expected a whole number from 0 to 1023, got "-1"'),
    (v1, "server_list/0/device/1/device_id", True, "server_list[0].device[1].device_id", "t true"),
    (v1, "server_list/0/device/1/rank_id", None, "server_list[0].device[1].rank_id", "got nothing"),
    (v1, "server_list/0/device/1/rank_id", "1.5", "server_list[0].device[1].rank_id", 'got "1.5"'),
    (v1, "server_list/0/device/1/rank_id", "4", "server_list[0].device[1].rank_id",
     "expected a rank from 0 to 3, as the table has 4 devices, got \"4\"; number the ranks"),
    (v1, "server_list/1/device/1/rank_id", "2", "server_list[1].device[1].rank_id",
     'expected another rank than in server_list[0].device[0].rank_id, got "2"'),
    (v1, "server_list/0/device/0/device_ip", "300.1.1.1", "server_list[0].device[0].device_ip",
     'expected an IP address, got "300.1.1.1"'),
    (v12, "server_list/0/host_ip", "s0", "server_list[0].host_ip", "expected an IP address"),
    (v12, "super_pod_list/0/server_list/1/server_id", "s7",
     "super_pod_list[0].server_list[1].server_id", "expected a server of server_list, 's0', 's1'"),
    (v12, "super_pod_list/0/server_list/1/server_id", "s0",
     "super_pod_list[0].server_list[1].server_id",
     "expected another server than in super_pod_list[0].server_list[0].server_id"),
    (v12, "super_pod_list/0/server_list/1", None, "super_pod_list",
     "expected every server of server_list, got [\"s0\"]; add 's1'"),
    (v12, "super_pod_list/0/super_pod_id", None, "super_pod_list[0].super_pod_id", "got nothing"),
    (v12, "super_pod_list", [], "super_pod_list", "expected a list with one entry or more"),
    (v2, "rank_count", None, "rank_count", "a whole number from 0 to 1048576, got nothing"),
    (v2, "rank_count", 3, "rank_count", "expected 2, the entries of rank_list, got 3"),
    (v2, "rank_list", None, "rank_list", "expected a list"),
    (v2, "rank_list/1/rank_id", 0, "rank_list[1].rank_id",
     "expected another rank than in rank_list[0].rank_id, got 0"),
    (v2, "rank_list/1/local_id", None, "rank_list[1].local_id", "got nothing"),
    (v2, "rank_list/1/device_id", 5000, "rank_list[1].device_id", "got 5000"),
    (v2, "rank_list/1/level_list", None, "rank_list[1].level_list", "expected a list"),
    (v2, "rank_list/1/level_list", [{"net_layer": 0}] * 9, "rank_list[1].level_list",
     "expected 8 levels at most, got 9"),
    (v2, "rank_list/1/level_list/1/net_layer", 0, "rank_list[1].level_list[1].net_layer",
     "expected more than 0, that of the level before, got 0"),
    (v2, "rank_list/1/level_list/0/net_instance_id", None,
     "rank_list[1].level_list[0].net_instance_id", "expected a text, got nothing"),
    (v2, "rank_list/1/level_list/1/rank_addr_list/0/addr_type", "MAC",
     "rank_list[1].level_list[1].rank_addr_list[0].addr_type", "expected 'EID', 'IPV4', 'IPV6'"),
    (v2, "rank_list/1/level_list/1/rank_addr_list/0/addr", "172.16",
     "rank_list[1].level_list[1].rank_addr_list[0].addr", "expected an IP address"),
    (v2, "rank_list/1/level_list/0/rank_addr_list/0/addr", "00",
     "rank_list[1].level_list[0].rank_addr_list[0].addr", "expected 32 hexadecimal digits"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "where", "value", "entry", "says"), MALFORMED)
def test_a_malformed_table_is_refused_with_the_entry_that_is_wrong(
    table: Callable[[], Table], where: str, value: object, entry: str, says: str
) -> None:
    with pytest.raises(CommunicatorError) as caught:
        parsed(edited(table(), where, value))
    message = str(caught.value)
    assert message.startswith(f"rank table 't.json': {entry}: ")
    assert says in message
    assert "; " in message, "what to do"
    assert "\n" not in message


def test_every_way_to_start_ranks_refuses_a_malformed_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """engine launch, mpirun with a table in the configuration, and plain processes with one."""
    pytest.importorskip("click", reason="the command line is not installed")
    from engine import cli

    path = tmp_path / "t.json"
    for table, where, value, entry, _ in MALFORMED[::6]:  # of each version
        path.write_text(json.dumps(edited(table(), where, value)))
        says = f"rank table {str(path)!r}: {entry}: "
        for start in (
            lambda: table_job(str(path), 0, 1.0),
            lambda: in_table(Job(), str(path), 0),
            lambda: in_table(Job(0, 2, local_size=2), str(path), 0),
            lambda: this_job({"RANK_TABLE_FILE": str(path), "RANK_ID": "0"}),
        ):
            with pytest.raises(CommunicatorError, match=re.escape(says)):
                start()
        status = cli.main(["launch", "--rank-table", str(path), "sh", "-c", "echo started"])
        out, errors = capfd.readouterr()
        assert (status, out) == (1, "")
        assert says in " ".join(errors.split())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON: expecting value at line 1, column 1"),
        (b'{"version": "1.0",\n "status": }', "not JSON: expecting value at line 2, column 12"),
        (b"\xff\xfe", "not JSON in UTF-8"),
        (b"[" * 100_000, "not JSON in UTF-8"),
        (b'{"version": ' + b"1" * 5000 + b"}", "not JSON"),
        (b"[1]", "expected an object {...}, got [1]"),
        (b'{"version": "1.0", "version": "1.2"}', "version: stands there twice"),
        (b'{"version": "1.0", "server_list": [{"server_id": "' + b"x" * 99 + b'"}]}', "device: "),
    ],
)
def test_what_is_no_json_or_no_table_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(CommunicatorError) as caught:
        parse(data, "t.json")
    assert says in str(caught.value)


def oldest(*instances: tuple[int, str, int]) -> Table:
    """A table of the form that came before versions: (rank, server, device)."""
    listed = [
        {"devices": [{"device_id": str(device), "device_ip": f"192.168.1.{rank}"}],
         "rank_id": str(rank), "server_id": server}
        for rank, server, device in instances
    ]  # fmt: skip
    group = {"device_num": str(len(listed)), "server_num": "1", "group_name": "",
             "instance_count": str(len(listed)), "instance_list": listed}  # fmt: skip
    return {"board_id": "0x0020", "chip_info": "910", "deploy_mode": "lab", "group_count": "1",
            "group_list": [group], "para_plane_nic_location": "device",
            "para_plane_nic_name": ["eth0"], "status": "completed"}  # fmt: skip


def test_a_table_of_the_form_before_versions_is_read() -> None:
    table = oldest((1, "10.0.0.5", 0), (0, "10.0.0.5", 1), (2, "10.0.0.6", 0))
    assert parsed(table) == [
        Place(0, "10.0.0.5", 1, "192.168.1.0"), Place(1, "10.0.0.5", 0, "192.168.1.1"),
        Place(2, "10.0.0.6", 0, "192.168.1.2"),
    ]  # fmt: skip
    assert parse(json.dumps(table).encode(), "t.json").version == "group_list"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda group: group.update(instance_count="3"), "instance_count: expected 2"),
        (lambda group: group.update(instance_list=[]), "instance_list: expected a list"),
        (lambda group: group["instance_list"][1].update(rank_id="0"), "another rank than in"),
        (lambda group: group["instance_list"][0].update(devices=[]), "devices: expected a list"),
        (lambda group: group["instance_list"][1].update(group["instance_list"][0], rank_id="1"),
         "instance_list[1].devices: expected another device than in"),
    ],
)  # fmt: skip
def test_a_broken_rule_of_that_form_is_named(change: Callable[[Table], None], says: str) -> None:
    table = oldest((0, "10.0.0.5", 0), (1, "10.0.0.5", 1))
    change(table["group_list"][0])
    with pytest.raises(CommunicatorError) as caught:
        parse(json.dumps(table).encode(), "t.json")
    assert says in str(caught.value)


@pytest.mark.parametrize("port", [[], {"a": []}, None, 16666])
def test_a_port_may_be_anything(port: object) -> None:
    table = v1()
    table["server_list"][0]["device"][0]["device_port"] = port
    assert len(parsed(table)) == 4


@pytest.mark.parametrize("host", ["a" * 100, "a..b", "\ud800", "."])
def test_what_is_no_name_of_a_host_is_not_this_machine(host: str) -> None:
    assert not is_this_machine(host)


def test_a_table_that_is_not_there_is_named() -> None:
    with pytest.raises(CommunicatorError, match="null byte"):
        read("a\0b")
    with pytest.raises(CommunicatorError, match=r"rank table '/nowhere/t\.json': no such file"):
        read("/nowhere/t.json")


@pytest.mark.parametrize("version", ["1.0", "1.2", "2.0"])
def test_a_new_table_is_read_as_it_was_wanted(version: str) -> None:
    ips = {("10.0.0.5", 2): "192.168.1.2", ("10.0.0.5", 3): "192.168.1.3"}
    table = new_table(["10.0.0.5", "node6"], [2, 3], version, ips)
    assert parsed(table) == [
        Place(0, "10.0.0.5", 2, "192.168.1.2"), Place(1, "10.0.0.5", 3, "192.168.1.3"),
        Place(2, "node6", 2), Place(3, "node6", 3),
    ]  # fmt: skip


def test_a_new_table_of_version_1_has_only_strings_as_hccl_wants() -> None:
    def scalars(value: object) -> list[object]:
        if isinstance(value, dict):
            return [found for inside in value.values() for found in scalars(inside)]
        if isinstance(value, list):
            return [found for inside in value for found in scalars(inside)]
        return [value]

    for version in ("1.0", "1.2"):
        found = scalars(new_table(["a", "b"], [0, 1], version))
        assert all(isinstance(value, str) for value in found)
