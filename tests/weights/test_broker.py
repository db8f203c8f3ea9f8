"""The master's broker answers whom it must, and nobody keeps it from the others."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import time
from contextlib import closing
from pathlib import Path

import pytest
from lending import HANDLE, Lend, Y, handle_of, left
from other_process import Other, forked

from engine.errors import SharingError
from engine.weights.shared.broker import Broker, PidList, ask

# Forking while a broker's thread runs is what some of these are about.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def test_peers_that_say_nothing_keep_nobody_out(slave: Other, lend: Lend, path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1000
    if hard != resource.RLIM_INFINITY and hard < wanted + 200:
        pytest.skip(f"this process may open {hard} files at most")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 200), hard))
    master = lend(slave.pid)
    name = f"\0engine-weights-{master.get_model_info(HANDLE)}"
    silent = []
    try:
        for _ in range(wanted):
            silent.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            silent[-1].settimeout(100)
            silent[-1].connect(name)
        assert slave.build(path, handle_of(master), "null")["y"] == Y
        begin = time.monotonic()
        master.close()
        assert time.monotonic() - begin < 60
    finally:
        for connection in silent:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_child_that_the_master_forks_does_not_keep_the_handle(slave, lend, path, folder) -> None:
    master = lend(slave.pid)
    config = handle_of(master)
    with forked():
        master.close()
        assert "nobody lends" in slave.build(path, config, "null")["text"]
        assert left(folder) == []


def test_a_child_that_the_master_has_just_forked_does_not_keep_the_handle(
    slave: Other, lend: Lend, path: Path
) -> None:
    """It has all descriptors until its first Python code has run."""
    master = lend(slave.pid)
    config = handle_of(master)
    libc = ctypes.PyDLL(None)
    child = libc.fork()  # not Python's, which tells the child to let go
    if not child:
        while True:
            libc.pause()
    try:
        master.close()
        assert "nobody lends" in slave.build(path, config, "null")["text"]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_stopped_master_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    read, write = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        try:
            broker = Broker(PidList([parent]), b"{}", [])
            os.write(write, str(broker.handle).encode())
            signal.pause()
        finally:
            os._exit(1)
    handle = int(os.read(read, 100))
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    try:
        with pytest.raises(SharingError, match=r"gave nothing within 0.3 s: .* is it stopped"):
            ask(handle, 0.3)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_many_files_come_in_several_messages(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}" for number in range(450)]
    for number, file in enumerate(files):
        file.write_text(str(number))
    with closing(Broker(PidList([os.getpid()]), b"record", files)) as broker:
        record, descriptors = ask(broker.handle, 20)
        assert record == b"record"
        assert [int(os.pread(descriptor, 9, 0)) for descriptor in descriptors] == [*range(450)]
        for descriptor in descriptors:
            os.close(descriptor)


def test_a_file_that_is_gone_is_told_and_the_next_one_is_served(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with closing(Broker(PidList([os.getpid()]), b"record", [file])) as broker:
        with pytest.raises(SharingError, match=r"gave nothing within 0.5 s: .*No such file"):
            ask(broker.handle, 0.5)
        file.write_bytes(b"x")
        _, [descriptor] = ask(broker.handle, 20)
        os.close(descriptor)
