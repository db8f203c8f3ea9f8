"""The other ranks of a group, as a backend's collectives see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from engine.errors import CommunicatorError
from engine.host import members as members_module
from engine.host import peers
from engine.host.members import Members


class DictStore:
    """A store in one process: what is not there times out at once."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str, timeout_s: float) -> bytes:
        if key not in self.values:
            raise CommunicatorError(f"no {key!r} within {timeout_s:g} s", timed_out=True)
        return self.values[key]


def test_ranks_that_do_not_come_are_returned() -> None:
    store = DictStore()
    store.set("here 2", json.dumps(["another machine", 1]).encode())
    assert Members(store, 1, 4).join(time.monotonic()) == [0, 3]


def test_a_rank_of_this_machine_has_ended_when_its_process_has() -> None:
    store = DictStore()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        Members(store, 0, 1).join(0.0)
        machine, own = json.loads(store.values["here 0"])
        assert own == os.getpid()
        store.set("here 1", json.dumps([machine, process.pid]).encode())
        members = Members(store, 0, 2)
        assert members.join(time.monotonic() + 10) == []
        assert members.ended() == []
        assert not members.has_ended(1)
        process.communicate(b"\n")
        assert members.ended() == [1]
        assert members.has_ended(1)
    members.close()
    members.close()
    assert not members.has_ended(1)


def test_a_rank_whose_process_ended_before_it_was_looked_at_has_ended() -> None:
    store = DictStore()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    store.set("here 1", json.dumps([members_module._machine(), process.pid]).encode())
    members = Members(store, 0, 2)
    assert members.join(time.monotonic() + 10) == []
    assert members.ended() == [1]
    members.close()
    assert members.ended() == []


def test_ranks_that_are_let_go_of_meanwhile_have_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine_of = json.dumps([members_module._machine(), os.getppid()]).encode()
    store = DictStore()
    store.values = {f"here {rank}": machine_of for rank in (1, 2)}
    members = Members(store, 0, 3)
    assert members.join(time.monotonic() + 10) == []

    def has_ended(process: int) -> bool:  # another thread closes just before the look
        members.close()
        return peers.has_ended(process)

    monkeypatch.setattr(members_module, "has_ended", has_ended)
    assert members.ended() == []
    assert not members.has_ended(1)


def test_a_store_that_is_gone_is_no_missing_rank() -> None:
    class Gone(DictStore):
        def get(self, key: str, timeout_s: float) -> bytes:
            raise CommunicatorError("the store is gone")

    with pytest.raises(CommunicatorError, match="the store is gone"):
        Members(Gone(), 0, 2).join(time.monotonic())
