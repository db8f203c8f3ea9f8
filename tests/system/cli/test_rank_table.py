"""`engine rank-table` makes tables and shows them."""

from __future__ import annotations

import json

import pytest


def test_a_table_that_was_made_is_shown(cli, tmp_path):
    file = tmp_path / "ranks.json"
    made = cli("rank-table", "make", "--hosts", "10.0.0.5,node6", "--devices", "0,2-3",
               "--out", file)  # fmt: skip
    assert (made.status, made.out) == (0, "")
    assert made.err == f"{file}: 6 ranks on 2 hosts\n"
    shown = cli("rank-table", "show", file)
    assert [row.split() for row in shown.out.splitlines()][1:-2] == [
        ["0", "10.0.0.5", "0"], ["1", "10.0.0.5", "2"], ["2", "10.0.0.5", "3"],
        ["3", "node6", "0"], ["4", "node6", "2"], ["5", "node6", "3"],
    ]  # fmt: skip
    assert shown.out.endswith("version 1.0: 6 ranks on 2 hosts\n")
    values = cli("rank-table", "show", file, "--json").json
    assert (values["version"], values["world_size"]) == ("1.0", 6)
    assert values["hosts"] == ["10.0.0.5", "node6"]
    assert values["ranks"][4] == {"rank": 4, "host": "node6", "device": 2, "device_ip": ""}


def test_a_table_is_printed_and_has_what_a_host_knows_of_its_devices(cli, tmp_path):
    conf = tmp_path / "hccn.conf"
    conf.write_text(
        "address_0=192.168.100.101\nnetmask_0=255.255.255.0\naddress_1 = 192.168.100.102\n"
    )
    made = cli("rank-table", "make", "--devices", "0-1", "--version", "1.2", "--hccn", conf)
    [server] = json.loads(made.out)["server_list"]
    assert server["server_id"] == "127.0.0.1"
    assert [entry["device_ip"] for entry in server["device"]] == [
        "192.168.100.101",
        "192.168.100.102",
    ]
    cli("rank-table", "make", "--devices", "2", "--hccn", conf).fails(
        "no address of device 2: expected a line address_2=IP"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--devices", "a"), "expected numbers as 0,1 or 0-7, got 'a'"),
        (("--devices", "1-"), "expected numbers as 0,1 or 0-7"),
        (("--devices", "3-1"), "3-1 runs backwards; expected 1-3"),
        (("--devices", "0,0-2"), "0 is given twice"),
        (("--hosts", "a,"), "expected names with commas between, got 'a,'"),
        (("--hosts", "a,a"), "a is given twice"),
        (("--version", "3"), "'3' is not one of '1.0', '1.2', '2.0'"),
        (("--devices", "0-9999", "--hosts", ",".join(f"h{i}" for i in range(9))),
         "more than 65536"),
        (("--hosts", "a,b", "--hccn", "x"), "expected 2, one for each host, got 1"),
    ],
)  # fmt: skip
def test_wrong_use_is_named(cli, arguments, says):
    cli("rank-table", "make", *arguments).fails(says, 2, out="")


def test_a_table_that_is_wrong_is_refused_in_one_line(cli, tmp_path):
    file = tmp_path / "ranks.json"
    file.write_text('{"version": "1.0", "server_list": [{"server_id": "a", "device": 1}]}')
    done = cli("rank-table", "show", file)
    assert (done.status, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert "server_list[0].device: expected a list with one entry or more, got 1" in line


def test_without_a_command_the_help_page_is_shown(cli):
    done = cli("rank-table")
    assert (done.status, done.err) == (2, "")
    assert done.out == cli("rank-table", "--help").out
    assert done.out.startswith("Usage: engine rank-table ")
