"""Isolated workers: messages, time limits, how an end is told, and that nothing is left behind."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from waiting import is_alive

from engine.errors import ModelError
from engine.host.child import command, environment
from engine.host.folder import temporary_folder
from engine.host.worker import Ended, Worker, ready, receive_fds

LEFT_OPEN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
"""


# ------------------------------------------------------------------------ what runs in a worker


def echo(request: object, parent: Connection) -> int:
    """Send the request, then each message, back; end with the first int as status."""
    parent.send(request)
    while True:
        message = parent.recv()
        if isinstance(message, int):
            return message
        parent.send(message)


def act(code: str, parent: Connection) -> None:
    """Run a piece of Python."""
    exec(code, {"parent": parent})


def write_to_file(request: None, parent: Connection) -> None:
    """Write to the file whose descriptor comes."""
    assert parent.recv() == "take it"
    [descriptor] = receive_fds(parent, 1)
    assert not os.get_inheritable(descriptor)
    parent.send(os.write(descriptor, b"written"))


HERE = f"{__name__}:"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(sys.modules[__name__], "HERE", f"{Path(__file__).stem}:")


def acting(code: str) -> Worker:
    return Worker(HERE + "act", code)


def descriptors() -> set[str]:
    """Those that this process has open."""
    return set(os.listdir("/proc/self/fd"))


def soon(claim: Callable[[], bool], limit_s: float = 60) -> bool:
    """Return True once it comes true."""
    until = time.monotonic() + limit_s
    while not claim():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


# ------------------------------------------------------------------------------------- messages


def test_messages_of_any_size_go_both_ways() -> None:
    large = os.urandom(3_000_000)
    with Worker(HERE + "echo", {"large": large}) as worker:
        assert worker.receive(60) == {"large": large}
        worker.send([large, None])
        assert worker.receive(60) == [large, None]
        worker.send(0)
        with pytest.raises(Ended, match=r"^ended with status 0$"):
            worker.receive(60)


def test_descriptors_follow_a_message(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, Worker(HERE + "write_to_file") as worker:
        worker.send("take it", [file.fileno()])
        assert worker.receive(60) == 7
    assert (tmp_path / "file").read_bytes() == b"written"


def test_several_are_waited_for_at_once() -> None:
    with acting("import time; time.sleep(60)") as slow, Worker(HERE + "echo", 1) as quick:
        assert ready([slow, quick], time.monotonic() + 60) == [quick]
        assert quick.receive() == 1
        assert ready([slow, quick], time.monotonic() + 0.05) == []
        quick.signal(signal.SIGKILL)
        assert ready([slow, quick]) == [quick]


def test_what_takes_longer_than_its_limit_is_told_and_goes_on() -> None:
    with acting("import time; time.sleep(1.5); parent.send('done')") as worker:
        with pytest.raises(TimeoutError, match=r"no message within 0\.1 s"):
            worker.receive(0.1)
        assert worker.receive(60) == "done"


# ----------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import ctypes; ctypes.string_at(0)", "crashed with SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGFPE)", "crashed with SIGFPE"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed with SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", "was killed with SIGINT"),
        (
            "import os; os.write(2, b'first\\nlast\\n'); os.abort()",
            r"crashed with SIGABRT \(last\)",
        ),
        ("import os; os._exit(7)", "ended with status 7"),
        ("raise ValueError('deep inside')", r"status 1 \(ValueError: deep inside\)"),
        ("import no_such_module", r"status 1 \(ModuleNotFoundError: .*no_such_module"),
    ],
)
def test_an_end_says_the_signal_and_the_last_line(code: str, said: str) -> None:
    with acting(f"parent.send('one'); {code}") as worker:
        assert worker.receive(60) == "one"  # what was sent before it is not lost
        for _ in range(2):
            with pytest.raises(Ended, match=said):
                worker.receive(60)


def test_an_end_is_seen_while_what_was_left_running_holds_the_messages_open() -> None:
    begin = time.monotonic()
    with acting(LEFT_OPEN + "else: parent.send('well')") as worker:
        assert list(worker.messages()) == ["well"]
    assert time.monotonic() - begin < 45


# Says all, and takes its time to end, as runtimes do: until a file is there.
SLOW_END = """
import os, time
parent.send("all")
parent.close()
while not os.path.exists({flag!r}):
    time.sleep(0.01)
open({flag!r} + ".seen", "w").close()
"""


def test_a_worker_that_ends_slowly_is_no_end_and_is_not_killed(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with acting(SLOW_END.format(flag=str(flag))) as worker:
        assert worker.receive(60) == "all"
        for _ in range(2):
            with pytest.raises(TimeoutError, match=r"its process has not ended within 0\.1 s"):
                worker.receive(0.1)
        flag.touch()
        with pytest.raises(Ended, match=r"^ended with status 0$"):
            worker.receive()


def test_a_worker_that_is_left_ends_by_itself_and_is_freed_then(tmp_path: Path) -> None:
    flag, seen = tmp_path / "flag", tmp_path / "flag.seen"
    before = descriptors(), threading.active_count()
    worker = acting(SLOW_END.format(flag=str(flag)))
    assert worker.receive(60) == "all"
    pid = worker.pid
    worker.leave()
    del worker
    gc.collect()
    assert is_alive(pid)
    flag.touch()
    assert soon(lambda: not Path(f"/proc/{pid}").exists())  # nor a zombie
    assert seen.exists()
    assert soon(lambda: (descriptors(), threading.active_count()) == before)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_worker_that_was_told_to_end_is_waited_for(tmp_path: Path, is_stopped: bool) -> None:
    flag = tmp_path / "flag"
    with acting(SLOW_END.format(flag=str(flag))) as worker:
        assert worker.receive(60) == "all"
        if is_stopped:
            worker.signal(signal.SIGSTOP)
        flag.touch()
        worker.finish()
        assert worker.has_ended
        assert Path(f"{flag}.seen").exists()


@pytest.mark.slow  # it waits for the rest
def test_half_a_message_is_an_end() -> None:
    half = "os.write(parent.fileno(), (1000).to_bytes(4, 'big') + b'half')"
    ended = pytest.raises(Ended, match="stopped in the middle of a message")
    with acting(LEFT_OPEN + f"else: {half}") as worker, ended:
        worker.receive(45)


def test_what_cannot_be_read_is_an_end() -> None:
    with acting("parent.send_bytes(b'no pickle'); parent.recv()") as worker:
        with pytest.raises(Ended, match="sent what cannot be read: UnpicklingError"):
            worker.receive(60)
        assert worker.has_ended


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC])
@pytest.mark.parametrize("step", ["memfd_create", "pipe", "Popen", "Thread"])
def test_a_machine_that_lacks_something_is_an_error_that_says_what(
    step: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        if step == "Thread":
            raise RuntimeError("can't start new thread")
        raise OSError(number, os.strerror(number))

    place = {"Popen": subprocess, "Thread": threading}.get(step, os)
    before = descriptors()
    monkeypatch.setattr(place, step, refuse)
    with pytest.raises(
        ModelError, match=r"^a worker process cannot be started: .*; .* (raise|end|free|make) "
    ):
        acting("pass")
    monkeypatch.undo()
    gc.collect()
    assert descriptors() == before


# -------------------------------------------------------------------------- nothing is left behind

PARENT = """
import signal, sys, time
# A shell that runs the tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from engine.host.worker import Worker
workers = [Worker("{module}:act", {code!r}) for _ in range(2)]
pids = [worker.receive() for worker in workers]
print(*[pid for pair in pids for pid in pair], flush=True)
time.sleep(600)
"""
# A worker with a process of its own that computes where no signal handler and no thread runs.
BUSY = """
import os, re
pid = os.fork()
if pid:
    parent.send((os.getpid(), pid))
re.match('(a?){40}a{40}', 'a' * 40)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGABRT])
def test_workers_and_what_they_started_end_with_their_parent(number: signal.Signals) -> None:
    source = PARENT.format(module=Path(__file__).stem, code=BUSY)
    with subprocess.Popen(
        command("-c", source), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=environment(),
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 4
        assert all(map(is_alive, pids))
        parent.send_signal(number)
        parent.wait(60)
    assert soon(lambda: not any(map(is_alive, pids)))


def test_closing_ends_a_worker_and_what_it_started_and_frees_its_descriptors() -> None:
    before = descriptors()
    pids: list[int] = []
    for ended in (True, False):
        worker = acting(BUSY)
        pids += worker.receive(60)
        if ended:
            worker.close()
            worker.close()
        del worker  # forgotten is closed, too
        gc.collect()
    assert soon(lambda: not any(map(is_alive, pids)))
    assert descriptors() == before


def test_a_worker_in_a_cycle_closes_no_descriptor_that_the_collector_has_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Finalizers run in the order in which objects were made; its messages are the older here."""
    made = [connection.Pipe()]
    number = made[0][0].fileno()
    reused: list[int] = []

    class Taker:
        """Takes the number that the collector has freed, as another thread may."""

        def __del__(self) -> None:
            reused.append(os.open(os.devnull, os.O_RDONLY))

    taker: list[object] = [Taker()]
    monkeypatch.setattr(connection, "Pipe", made.pop)
    worker = Worker(f"{HERE}echo", "hello")
    monkeypatch.undo()
    assert worker.receive() == "hello"
    cycle = [worker, taker]
    cycle.append(cycle)  # type: ignore[arg-type]
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hooked: lost.append(hooked.exc_value))
    del worker, taker, cycle
    gc.collect()
    assert lost == []
    assert reused == [number], "the number of its messages was free"
    os.close(number)  # raises where the worker has closed it


def test_a_worker_has_no_descriptor_of_its_parent_nor_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENGINE_DEC_KEY", "00112233445566778899aabbccddeeff")
    ask = """
import os
links = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
parent.send((links, [fd for fd in range(3, 100) if os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(fd)], dict(os.environ)))
"""  # noqa: E501
    with (tmp_path / "open").open("wb") as file, acting("pass"):
        os.set_inheritable(file.fileno(), True)
        with acting(ask) as worker:
            links, inheritable, variables = worker.receive(60)
    assert str(tmp_path / "open") not in links
    assert inheritable == []
    assert "ENGINE_DEC_KEY" not in variables
    assert "00112233" not in "".join(variables.values())


def test_a_forked_child_does_not_keep_its_parents_workers_alive() -> None:
    with acting("parent.recv()") as worker:
        child = os.fork()
        if child == 0:
            worker.close()
            os._exit(0 if worker._lifeline < 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not worker.has_ended
        worker.send(None)
        assert list(worker.messages(time.monotonic() + 60)) == []


# ------------------------------------------------------------------------------ temporary folders

FOLDER = """
import signal, time
from pathlib import Path
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
from engine.host.folder import temporary_folder
with temporary_folder("engine-test-", Path({parent!r})) as folder:
    (folder / "inside").mkdir()
    (folder / "inside" / "secret").write_text("in clear")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_folder_goes_with_its_process(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        command("-c", FOLDER.format(parent=str(tmp_path))), stdout=subprocess.PIPE, text=True,
        env=environment(), start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "inside" / "secret").exists()
        assert folder.stat().st_mode & 0o777 == 0o700
        os.killpg(process.pid, number)  # as a terminal or a batch system does
        process.wait(60)
    assert soon(lambda: not list(tmp_path.iterdir()))


@pytest.fixture
def children() -> Iterator[None]:
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.usefixtures("children")
def test_a_folder_goes_with_its_block(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), temporary_folder("a-", tmp_path) as path:
        (path / "file").write_text("x")
        _ = 1 / 0
    with suppress(FileNotFoundError), temporary_folder("a-", tmp_path / "nowhere"):
        pytest.fail("there is no such folder")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("children")
def test_a_folder_does_not_wait_for_a_child_that_was_forked_meanwhile(tmp_path: Path) -> None:
    with temporary_folder("a-", tmp_path):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        begin = time.monotonic()
    took_s = time.monotonic() - begin
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert took_s < 30
    assert not list(tmp_path.iterdir())
