"""Weights shared by handle: listed processes build on the master's compiled form, no others."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import mmap
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node
from other_process import Other, X, forked, started

import engine
from engine import Context, Model, ModelType
from engine.errors import SharingError, SharingRefused
from engine.weights.shared.broker import Broker, PidList, ask
from engine.weights.shared.private import PrivateFolder
from engine_testing import models, null_run
from engine_testing.making import tensor, write
from engine_testing.plugins import install

Y = [[3.0, 5.0, 7.0]]  # 2x + 1
PIDS, HANDLE = "shareable_weight_pid_list", "shareable_weight_mem_handle"
NOBODY = 65534

# Forking while a broker's thread runs is what some of these are about.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

Lend = Callable[..., Model]


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    install(folder, "null", "engine_testing.null_device")
    return folder


@pytest.fixture(scope="module")
def slave(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    """A process that masters list, with a compile cache folder of its own."""
    with started(plugins, tmp_path_factory.mktemp("slave")) as process:
        yield process


@pytest.fixture(scope="module")
def stranger(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    """A process that no master lists."""
    with started(plugins, tmp_path_factory.mktemp("stranger")) as process:
        yield process


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder beside whose cache this process lends."""
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def lend(folder: Path, null_backend: str, path: Path) -> Iterator[Lend]:
    """Build a model that lends its weights to the processes of these numbers."""
    masters = []

    def lend(*pids: int, target: str = null_backend, **common: str) -> Model:
        common[PIDS] = ", ".join(map(str, pids))
        master = engine.load(path, target, config={"common_context": common})
        masters.append(master)
        return master

    yield lend
    for master in masters:
        master.close()


def handle_of(master: Model) -> dict[str, dict[str, str]]:
    return {"common_context": {HANDLE: master.get_model_info(HANDLE)}}


def left(folder: Path) -> list[str]:
    """Return the remains of sharing beside a cache: private folders and their locks."""
    names = []
    for part in ("private", "locks", "entries"):
        here = folder / "v1" / part
        names += [f"{part}/{name}" for name in os.listdir(here)] if here.exists() else []
    return names


def sockets() -> list[str]:
    """The brokers' sockets on this machine that are still named."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line.split()[-1] for line in lines if "@engine-weights-" in line]


def assert_refused(answer: dict[str, Any], text: str) -> None:
    assert {"SharingRefused", "PermissionError", "RuntimeError"} <= set(answer.get("error", ()))
    assert text in answer["text"]


def test_a_listed_process_builds_on_the_masters_form_and_outlives_it(
    slave: Other, lend: Lend, path: Path, folder: Path
) -> None:
    master = lend(slave.pid)
    [y] = master(x=np.array(X, np.float32)).values()
    assert y.tolist() == Y
    before = slave.tell(do="pid")
    answer = slave.build(path, handle_of(master), "null")
    assert answer["y"] == Y
    assert answer["compiled"] == 0, "it has compiled the model itself"
    assert answer["handle"] == ""
    assert before == {"pid": str(slave.pid)}
    assert len(left(folder)) == 2, "the slave's folder is gone; the master's and its lock are there"
    master.close()
    assert left(folder) == []
    assert slave.tell(do="predict")["y"] == Y


def test_two_slaves_build_by_one_handle(slave, stranger, lend, path) -> None:
    master = lend(0, slave.pid, stranger.pid)  # 0: the tutorial's own place in the list
    for other in (slave, stranger, slave):
        assert other.build(path, handle_of(master), "null")["y"] == Y


def test_a_process_that_is_not_listed_is_refused(slave, stranger, lend, path) -> None:
    master = lend(slave.pid)
    answer = stranger.build(path, handle_of(master), "null")
    assert_refused(answer, f"process {stranger.pid} is not in the master's {PIDS}")
    assert answer["text"].startswith(f"process {stranger.pid} ")


def test_a_forked_child_of_a_listed_process_is_refused(slave, lend, path) -> None:
    master = lend(slave.pid)
    config = handle_of(master)
    order = {"do": "build in a child", "path": path, "target": "null", "config": config}
    assert_refused(slave.tell(**order), f"is not in the master's {PIDS}")
    assert slave.build(path, config, "null")["y"] == Y


def test_a_guessed_handle_opens_nothing(slave: Other, lend: Lend, path: Path) -> None:
    handle = int(lend(slave.pid).get_model_info(HANDLE))
    for guess in (handle ^ 1, 1, (1 << 63) - 1):
        answer = slave.build(path, {"common_context": {HANDLE: str(guess)}}, "null")
        assert "SharingError" in answer["error"]
        assert "nobody lends weights" in answer["text"]


def test_a_process_that_got_the_number_of_a_listed_one_is_refused(lend: Lend) -> None:
    last = Path("/proc/sys/kernel/ns_last_pid")
    try:
        last.write_text(last.read_text())
    except OSError:
        pytest.skip("only who may write ns_last_pid can choose a process's number")
    with forked() as listed:
        handle = lend(listed).get_model_info(HANDLE)
    for _ in range(300):  # other processes start meanwhile
        last.write_text(str(listed - 1))
        read, write = os.pipe()
        child = os.fork()
        if not child:
            text = ""
            if os.getpid() == listed:
                try:
                    ask(int(handle), 20)
                    text = "it was given"
                except SharingRefused as error:
                    text = str(error)
            os.write(write, text.encode())
            os._exit(0)
        os.close(write)
        text = os.read(read, 1000).decode()
        os.close(read)
        os.waitpid(child, 0)
        if child == listed:
            assert f"listed as {listed} has ended" in text
            return
    pytest.skip("the number went to others each time")


@needs_root
def test_another_user_is_refused_on_both_sides(lend: Lend) -> None:
    """Also where its process is listed."""
    read, write = os.pipe()
    answers, say = os.pipe()
    child = os.fork()
    if not child:
        handle = os.read(read, 100).decode()
        os.setuid(NOBODY)
        try:
            ask(int(handle), 20)
        except PermissionError as error:
            os.write(say, f"{error}\n".encode())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(20)
            connection.connect(f"\0engine-weights-{handle}")
            data, given, _, _ = socket.recv_fds(connection, 4096, 100)
            os.write(say, data + str(given).encode())
        os._exit(0)
    handle = lend(child).get_model_info(HANDLE)
    os.write(write, handle.encode())
    os.waitpid(child, 0)
    text, _, rest = os.read(answers, 4096).decode().partition("\n")
    assert "is not of a process of this user" in text
    assert json.loads(rest.partition("[")[0]) == {"refused": "user", "pid": child, "uid": NOBODY}
    assert rest.endswith("[]"), "it was given descriptors"
    for descriptor in (read, write, answers, say):
        os.close(descriptor)


def test_what_is_given_can_be_read_and_not_written(lend: Lend) -> None:
    master = lend(os.getpid())
    record, descriptors = ask(int(master.get_model_info(HANDLE)), 20)
    assert json.loads(record)["parts"][0]["names"] == ["digest", "model.onnx"]
    assert len(descriptors) == 2
    for descriptor in descriptors:
        status = os.fstat(descriptor)
        assert stat.S_IMODE(status.st_mode) == 0o400
        assert os.get_inheritable(descriptor) is False
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(descriptor, b"x", 0)
        with pytest.raises(OSError, match=r"Invalid argument|Bad file descriptor"):
            os.ftruncate(descriptor, 0)
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        if os.geteuid():  # root may write whatever a file's mode is
            with pytest.raises(PermissionError):
                os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        os.close(descriptor)


def test_the_caches_entry_is_lent_as_it_is_and_may_go_meanwhile(
    slave: Other, lend: Lend, path: Path, folder: Path, tmp_path: Path
) -> None:
    from engine.weights.store import Store

    cache = tmp_path / "named"
    engine.load(
        path, "null", config={"common_context": {"compile_cache": "on", "model_cache_dir": cache}}
    ).close()
    [entry] = Store(cache).entries()
    for _ in ("warm", "cold"):
        master = lend(slave.pid, compile_cache="on", model_cache_dir=str(cache))
        inodes = {file.stat().st_ino for file in (cache / "v1/entries").glob("*/form/*")}
        lent = {file.stat().st_ino for file in (cache / "v1/private").glob("*/0/*")}
        assert inodes == lent
        assert len(lent) == 2
        Store(cache).prune(0)
        assert Store(cache).entries() == []
        assert slave.build(path, handle_of(master), "null")["compiled"] == 0
        master.close()
    assert entry.nbytes
    assert left(cache) == []
    assert not folder.exists(), "nothing is made beside the default cache"


@pytest.mark.parametrize("has_entry", [True, False])
def test_what_lies_in_a_read_only_cache_is_lent_from_beside_another(
    slave: Other, lend: Lend, path: Path, folder: Path, tmp_path: Path, monkeypatch, has_entry
) -> None:
    """By the calls of the operating system: modes would not keep root from writing."""
    cache = tmp_path / "named"
    common = {"compile_cache": "on", "model_cache_dir": str(cache)}
    if has_entry:
        engine.load(path, "null", config={"common_context": common}).close()
    else:
        cache.mkdir()
    before = {file: file.stat().st_ino for file in cache.glob("v1/entries/*/form/*")}

    def refusing(name: str, number: int) -> None:
        really = getattr(os, name)

        def call(place: Any, *given: Any, **named: Any) -> Any:
            writes = name != "open" or given[0] & (os.O_CREAT | os.O_RDWR | os.O_WRONLY)
            if not isinstance(place, int) and cache in Path(place).parents and writes:
                if name == "access":
                    return not given[0] & os.W_OK
                if name != "mkdir" or not os.path.exists(place):
                    raise OSError(number, os.strerror(number), place)
            return really(place, *given, **named)

        monkeypatch.setattr(os, name, call)

    for name in ("open", "mkdir", "rename", "unlink", "utime", "access", "chmod"):
        refusing(name, errno.EROFS)
    refusing("link", errno.EXDEV)
    master = lend(slave.pid, **(common | {"compile_cache": "read"}))
    answer = slave.build(path, handle_of(master), "null")
    assert answer["y"] == Y
    assert answer["compiled"] == 0
    assert len(list((folder / "v1/private").glob("*/0/*"))) == 2
    master.close()
    assert left(folder) == []
    assert {file: file.stat().st_ino for file in cache.glob("v1/entries/*/form/*")} == before


@needs_cpu
def test_the_parts_of_a_model_on_several_backends_are_lent(
    slave: Other, path: Path, folder: Path, null_backend: str
) -> None:
    own = {"null_context": {"unsupported_ops": "Add"}}
    lent = {"common_context": {PIDS: f"{slave.pid}, {os.getpid()}"}}
    with engine.load(path, ["null", "cpu"], config={**own, **lent}) as master:
        assert [placement.backend for placement in master.placement] == ["null", "cpu"]
        record, descriptors = ask(int(master.get_model_info(HANDLE)), 20)
        for descriptor in descriptors:
            os.close(descriptor)
        names = {
            part["identity"]["key"]["backend"]: part["names"]
            for part in json.loads(record)["parts"]
        }
        assert names["null"] == ["digest", "model.onnx"]
        assert "model.onnx" in names["cpu"]
        answer = slave.build(path, {**own, **handle_of(master)}, ["null", "cpu"])
        assert (answer["y"], answer["compiled"]) == (Y, 0)
    assert left(folder) == []


def test_a_handle_goes_through_a_signed_64_bit_integer(lend: Lend) -> None:
    handles = {lend(os.getpid()).get_model_info(HANDLE) for _ in range(3)}
    assert len(handles) == 3
    for handle in handles:
        assert str(ctypes.c_int64(int(handle)).value) == handle
        assert int(handle) > 0


@needs_cpu
def test_slaves_on_the_cpu_map_the_masters_weights(
    slave: Other, stranger: Other, lend: Lend, tmp_path: Path, plugins: Path
) -> None:
    # Large enough to be mapped.
    weight = np.random.default_rng(0).standard_normal((3, 4096)).astype(np.float32)
    product = make_node("MatMul", ["x", "w"], ["y"])
    x, y = tensor("x", ["b", 3]), tensor("y", ["b", 4096])
    path = write(tmp_path, "wide", [x], [y], [product], {"w": weight})
    with started(plugins, tmp_path / "master") as master:
        listed = {"common_context": {PIDS: f"{slave.pid}, {stranger.pid}"}}
        first = master.build(path, listed, "cpu")
        config = {"common_context": {HANDLE: first["handle"]}}
        answers = [first, *(other.build(path, config, "cpu") for other in (slave, stranger))]
        maps = [other.tell(do="mapped")["files"] for other in (master, slave, stranger)]
        assert [answer["y"] for answer in answers] == [first["y"]] * 3
        inodes = [{inode for inode, _ in files} for files in maps]
        assert len(inodes[0]) == 1
        assert inodes[0] == inodes[1] == inodes[2]
        # Private: what one of them wrote there would be its own.
        assert all(access[3] == "p" for files in maps for _, access in files)
        assert left(tmp_path / "master")
        master.kill()
        assert [other.tell(do="predict")["y"] for other in (slave, stranger)] == [first["y"]] * 2
    # Files of a killed master go when the next one of that folder comes.
    with PrivateFolder(tmp_path / "master"):
        pass
    assert left(tmp_path / "master") == []


def test_another_model_is_refused(slave: Other, lend: Lend, tmp_path: Path) -> None:
    master = lend(slave.pid)
    other = tmp_path / "other"
    other.mkdir()
    answer = slave.build(models.polynomial(other), handle_of(master), "null")
    assert "SharingError" in answer["error"]
    assert "polynomial.onnx" in answer["text"]
    assert "a model with other content; build both from the same file" in answer["text"]


def test_another_device_is_refused(slave: Other, lend: Lend, path: Path) -> None:
    answer = slave.build(path, handle_of(lend(slave.pid)), "null", device_id=1)
    assert "it is on device 'null:0', and this model on 'null:1'" in answer["text"]


@needs_cpu
def test_another_backend_or_other_options_are_refused(slave: Other, lend: Lend, path: Path) -> None:
    master = lend(slave.pid, target="cpu")
    answer = slave.build(path, handle_of(master), "null")
    assert "it is of backend 'cpu', and this model of 'null'" in answer["text"]
    config = {**handle_of(master), "cpu_context": {"graph_optimization": "basic"}}
    answer = slave.build(path, config, "cpu")
    assert 'cpu: options is \'{"graph_optimization": "all"}\' there' in answer["text"]


def test_a_master_that_closed_its_model_or_ended_is_told(
    slave: Other, lend: Lend, path: Path, plugins: Path, tmp_path: Path
) -> None:
    master = lend(slave.pid)
    config = handle_of(master)
    master.close()
    assert "has closed the model" in slave.build(path, config, "null")["text"]
    with started(plugins, tmp_path / "killed") as other:
        listed = {"common_context": {PIDS: str(slave.pid)}}
        handle = other.build(path, listed, "null")["handle"]
        other.kill()
    answer = slave.build(path, {"common_context": {HANDLE: handle}}, "null")
    assert "its master has ended" in answer["text"]
    assert left(tmp_path / "killed")
    with PrivateFolder(tmp_path / "killed"):
        pass
    assert left(tmp_path / "killed") == []


NUMBERS, A_NUMBER = "must be numbers of processes", "must be the number"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({PIDS: "1", HANDLE: "1"}, "are both set"),
        ({PIDS: "12; 13"}, f"{NUMBERS}, as '1234, 5678', but got '12; 13'"),
        *(({PIDS: text}, NUMBERS) for text in ("-5", "²", "1" * 50, "")),
        ({PIDS: "0, 0"}, "names no process"),
        *(({PIDS: text}, f"lists {text}: no process of that number runs")
          for text in ("4194305", "9999999999")),
        ({HANDLE: ""}, f"{A_NUMBER} that get_model_info('{HANDLE}') gives"),
        *(({HANDLE: text}, A_NUMBER) for text in ("0", "0x12", str(1 << 63), "9" * 5000)),
        ({HANDLE: "12"}, "nobody lends weights under"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_told(path, folder, null_context, settings, text) -> None:
    for config in ({"ascend_context": settings}, {"common_context": settings}):
        with pytest.raises(SharingError, match=r"^build_from_file failed! Error is ") as caught:
            Model().build_from_file(str(path), ModelType.MINDIR, null_context, config_dict=config)
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
    assert left(folder) == []


def test_two_sections_that_differ_are_told(path: Path, null_context: Context) -> None:
    config = {"ascend_context": {HANDLE: "12"}, "common_context": {HANDLE: "13"}}
    with pytest.raises(RuntimeError, match=r"has several values.*set it in one section"):
        Model().build_from_file(str(path), ModelType.MINDIR, null_context, config_dict=config)


def test_the_flat_spelling_of_the_tutorial_is_taken(path, null_context, folder) -> None:
    def build(**config: Any) -> Model:
        model = Model()
        model.build_from_file(str(path), ModelType.MINDIR, null_context, config_dict=config)
        return model

    with build(pids=f"{os.getpid()}") as master:
        handle = master.get_model_info(HANDLE)
        assert build(shared_mem_handle=handle)(x=np.array(X, np.float32))["y"].tolist() == Y
    with pytest.raises(TypeError, match="config_dict_value must be dict"):
        build(shared_handle=handle)


def test_weights_of_a_device_are_told_not_to_be_shared_and_no_key_to_be_unused(
    lend: Lend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.backends.doors._warned", set())
    with caplog.at_level(logging.WARNING, "engine"):
        for _ in range(2):
            lend(os.getpid())
    # Nor anything else but that the null backend's weights are on a device.
    [said] = caplog.messages
    assert said.startswith("weights in the memory of 'null:0' are not shared: backend 'null' has")


def test_a_secret_model_is_not_lent(folder, path, tmp_path, null_backend) -> None:
    pytest.importorskip("cryptography")
    from engine.formats.encryption import encrypt

    secret = tmp_path / "secret.mindir"
    secret.write_bytes(encrypt(path.read_bytes(), b"0123456789abcdef"))
    config = {"common_context": {PIDS: str(os.getpid())}}
    with pytest.raises(SharingError, match="is encrypted, and nothing of it is written to disk"):
        engine.load(secret, null_backend, dec_key=b"0123456789abcdef", config=config)
    assert left(folder) == []


def test_a_model_without_a_compiled_form_is_not_lent(lend, folder, monkeypatch) -> None:
    monkeypatch.setattr(null_run, "write_compiled", lambda folder, loaded: None)
    with pytest.raises(SharingError, match=r"cannot be lent: backend 'null' has no compiled form"):
        lend(os.getpid())
    assert left(folder) == []


def test_what_a_master_lends_must_be_whole(slave, lend, path, folder) -> None:
    """A copy of its own, made in silence, is not what the slave's user asked for."""
    master = lend(slave.pid)
    [form] = (folder / "v1/private").glob("*/0/digest")
    form.chmod(0o600)
    form.write_text("another")
    answer = slave.build(path, handle_of(master), "null")
    assert "SharingError" in answer["error"]
    assert "the compiled form that the master lends cannot be used" in answer["text"]


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


def test_nothing_is_left_when_all_have_ended(slave, lend, path, folder) -> None:
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        master = lend(slave.pid, os.getpid())
        handle = master.get_model_info(HANDLE)
        assert f"@engine-weights-{handle}" in sockets()
        slave.build(path, handle_of(master), "null")
        with engine.load(path, "null", config=handle_of(master)):
            pass
        master.close()
        slave.tell(do="close")
        assert f"@engine-weights-{handle}" not in sockets()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert threading.active_count() == threads
    assert left(folder) == []


def test_a_process_that_never_closes_its_model_ends_and_leaves_nothing(
    path: Path, plugins: Path, tmp_path: Path
) -> None:
    code = (
        "import os, engine\n"
        f"config = {{'common_context': {{{PIDS!r}: str(os.getpid())}}}}\n"
        f"model = engine.load({str(path)!r}, 'null', config=config)\n"
        f"print(model.get_model_info({HANDLE!r}))\n"
    )
    paths = os.pathsep.join([str(plugins), *filter(None, sys.path)])
    environment = {"PYTHONPATH": paths, "ENGINE_CACHE_DIR": str(tmp_path / "ended")}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    [said] = done.stderr.splitlines()
    assert said.startswith("weights in the memory of 'null:0' are not shared")
    assert f"@engine-weights-{done.stdout.strip()}" not in sockets()
    assert left(tmp_path / "ended") == []


def test_a_model_that_is_resized_keeps_its_handle(slave, folder, null_backend, tmp_path) -> None:
    path = models.no_batch(tmp_path)
    config = {"common_context": {PIDS: str(slave.pid)}}
    with engine.load(path, null_backend, config=config) as master:
        handle = master.get_model_info(HANDLE)
        inputs = master.get_inputs()
        master.resize(inputs, [[4, 3]])
        assert master.get_model_info(HANDLE) == handle
        assert len(sockets()) >= 1
        x = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
        answer = slave.build(path, {"common_context": {HANDLE: handle}}, "null", x=x)
        assert answer["y"] == [[1.0, 4.0], [3.0, 6.0], [5.0, 8.0]]  # the file's own sizes
        assert answer["compiled"] == 0
    assert left(folder) == []
