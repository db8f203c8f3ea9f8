"""A handle opens nothing to strangers, for other models, or where settings contradict it."""

from __future__ import annotations

import json
import mmap
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from lending import HANDLE, PIDS, Lend, Y, by_handle, handle_of, left, listed
from other_process import Other, forked, started

import engine
from engine import Context, Model, ModelType
from engine.errors import SharingError, SharingRefused
from engine.weights.shared.broker import ask
from engine.weights.shared.private import PrivateFolder
from engine_testing import models, null_run

NOBODY = 65534

# Forking while a broker's thread runs is what some of these are about.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def assert_refused(answer: dict[str, Any], text: str) -> None:
    assert {"SharingRefused", "PermissionError", "RuntimeError"} <= set(answer.get("error", ()))
    assert text in answer["text"]


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
        answer = slave.build(path, by_handle(str(guess)), "null")
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


def test_a_master_that_closed_its_model_or_ended_is_told(
    slave: Other, lend: Lend, path: Path, plugins: Path, tmp_path: Path
) -> None:
    master = lend(slave.pid)
    config = handle_of(master)
    master.close()
    assert "has closed the model" in slave.build(path, config, "null")["text"]
    with started(plugins, tmp_path / "killed") as other:
        handle = other.build(path, listed(slave.pid), "null")["handle"]
        other.kill()
    answer = slave.build(path, by_handle(handle), "null")
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


def test_a_secret_model_is_not_lent(folder, path, tmp_path, null_backend) -> None:
    pytest.importorskip("cryptography")
    from engine.formats.encryption import encrypt

    secret = tmp_path / "secret.mindir"
    secret.write_bytes(encrypt(path.read_bytes(), b"0123456789abcdef"))
    config = listed(os.getpid())
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
