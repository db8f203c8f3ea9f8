"""`engine launch`: ranks start together, are heard apart, and end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import rank_models
from processes import JOIN
from waiting import is_alive, wait_until

from engine.distributed.mpiexec import mpiexec_command
from engine.distributed.new_table import new_table
from engine.distributed.rank_table import parse
from engine.errors import CommunicatorError
from engine.host.child import environment
from engine_testing.shared_memory import left_since, names

pytest.importorskip("click", reason="the command line is not installed")

LIMIT_S = 150
TOOL = [sys.executable, "-m", "engine.cli", "launch"]


@contextmanager
def started(*arguments: object, **more: Any) -> Iterator[subprocess.Popen[str]]:
    more["env"] = {**os.environ, **more.get("env", {})}
    more["env"] = {name: value for name, value in more["env"].items() if value is not None}
    child = subprocess.Popen(
        [*TOOL, *map(str, arguments)],
        stdin=more.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def launch(*arguments: object, **more: Any) -> tuple[int, list[str], list[str]]:
    """Return the exit status, and the lines of stdout and stderr."""
    with started(*arguments, **more) as child:
        out, errors = child.communicate(timeout=LIMIT_S)
    return child.returncode, out.splitlines(), errors.splitlines()


def written(folder: Path, text: str, name: str = "main.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def wait_until_ended(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids)))


SPEAKS = """
import os, sys
names = ("ENGINE_RANK", "ENGINE_WORLD_SIZE", "ENGINE_LOCAL_SIZE", "OMP_NUM_THREADS")
print(*(os.environ.get(name) for name in names), sys.argv[1:], __name__)
print("to stderr", file=sys.stderr)
print("no end of line", end="")
"""


def test_each_line_has_its_rank_before_it_and_each_stream_stays_itself(tmp_path: Path) -> None:
    script = written(tmp_path, SPEAKS)
    status, out, errors = launch("-n", 2, script, "--a=b", "-n", 7, env={"OMP_NUM_THREADS": "3"})
    assert status == 0
    assert sorted(out) == sorted(
        line
        for rank in range(2)
        for line in (
            f"[{rank}] {rank} 2 2 3 ['--a=b', '-n', '7'] __main__",
            f"[{rank}] no end of line",
        )
    )
    assert sorted(errors) == ["[0] to stderr", "[1] to stderr"]


@pytest.mark.slow
def test_a_module_and_any_program_can_be_launched(tmp_path: Path) -> None:
    written(tmp_path, SPEAKS, "spoken.py")
    env = {"OMP_NUM_THREADS": None}
    status, out, _ = launch("-n", 1, "-m", "spoken", "x", cwd=tmp_path, env=env)
    cpus = len(os.sched_getaffinity(0))
    assert status == 0
    assert out[0].startswith("[0] 0 1 1 ")
    assert out[0].endswith(" ['x'] __main__")
    assert 1 <= int(out[0].split()[4]) <= cpus, "all CPUs are for the one rank"
    status, out, _ = launch("-n", 2, "sh", "-c", "echo $ENGINE_RANK")
    assert (status, sorted(out)) == (0, ["[0] 0", "[1] 1"])


@pytest.mark.slow
def test_the_first_rank_reads_what_is_piped_in(tmp_path: Path) -> None:
    file = written(tmp_path, "from outside\n", "in.txt")
    with file.open() as piped:
        status, out, _ = launch("-n", 2, "cat", stdin=piped)
    assert (status, out) == (0, ["[0] from outside"])


@pytest.mark.slow
def test_much_output_comes_whole(tmp_path: Path) -> None:
    script = written(tmp_path, "import sys\nfor i in range(30000): print(i, 'x' * 20)\n"
                     "sys.stdout.buffer.write(b'\\xff' * 300_000)")  # fmt: skip
    with started("-n", 2, script) as child:
        assert child.stdout is not None
        data = child.stdout.buffer.read()
    for rank in (b"[0] ", b"[1] "):
        lines = [line for line in data.splitlines() if line.startswith(rank)]
        assert [int(line.split()[1]) for line in lines[:30000]] == list(range(30000))
        assert sum(line.count(b"\xff") for line in lines) == 300_000


HINTED = "sys.exit('error: cannot go on\\nhelp: tool --help' if sys.argv[1:] else 0)"


def test_with_a_log_folder_each_rank_has_files_of_its_own(tmp_path: Path) -> None:
    script = written(tmp_path, SPEAKS + HINTED)
    logs = tmp_path / "deep" / "logs"
    assert launch("-n", 2, "--log-dir", logs, script) == (0, [], [])
    for rank in range(2):
        assert (logs / f"rank{rank}.out").read_text().startswith(f"{rank} 2 2 ")
        assert (logs / f"rank{rank}.err").read_text() == "to stderr\n"
    status, out, errors = launch("-n", 1, "--log-dir", logs, script, "fails")
    assert (status, out) == (1, [])
    assert errors == [
        f"error: rank 0 of 1 ended with status 1: cannot go on; {logs} has what it printed"
    ]


def test_the_failure_quotes_an_error_and_not_the_hint_below_it(tmp_path: Path) -> None:
    _, _, errors = launch("-n", 1, written(tmp_path, "import sys\n" + HINTED), "fails")
    assert errors[-1].startswith("error: rank 0 of 1 ended with status 1: cannot go on")


def test_a_rank_table_says_how_many_ranks_there_are(tmp_path: Path) -> None:
    table = written(tmp_path, json.dumps(new_table(["10.9.9.9"], [4, 5])), "ranks.json")
    program = ("sh", "-c", "echo $ENGINE_RANK $ENGINE_WORLD_SIZE $RANK_TABLE_FILE")
    status, out, _ = launch("--rank-table", table, *program)
    assert (status, sorted(out)) == (0, [f"[{rank}] {rank} 2 {table}" for rank in range(2)])
    table.write_text(json.dumps(new_table(["127.0.0.1", "localhost"], [4, 5])))
    status, out, _ = launch("--rank-table", table, *program)
    assert status == 0
    assert len(out) == 4, "both names are this machine's"


def test_hosts_of_a_table_that_are_other_machines_need_mpiexec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ["localhost", "192.0.2.7"]  # the latter is nobody's: RFC 5737
    table = parse(json.dumps(new_table(hosts, [0])).encode(), "ranks.json")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommunicatorError, match=r"'192\.0\.2\.7'.*pip install .*\[mpi\]"):
        mpiexec_command(table, ["run"])


PREDICTS = """
import os, signal, sys, time
import numpy as np
import engine as mslite
path, how = sys.argv[1:]
context = mslite.Context()
context.target = ["null"]
rank = context.gpu.rank_id
fault = how if rank == 1 else ""
if fault == "never comes":
    time.sleep(200)
if fault == "raises before":
    raise ValueError("boom")
if fault == "ends before":
    sys.exit(0)
name = "_other" if fault == "another model" else 0 if how == "the same part" else rank
model = mslite.Model()
model.build_from_file(path.format(rank=name), mslite.ModelType.MINDIR, context)
x = np.ones((2, 6), np.float32)
model.predict([x])
if fault == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if fault == "raises":
    raise ValueError("boom")
if fault == "late":
    time.sleep(200)
model.predict([x])
print("all well")
"""

FAULTS = [
    ("killed", 137, "rank 1 of 2 was killed with SIGKILL", "rank 1 of 2 has ended"),
    ("raises", 1, "rank 1 of 2 ended with status 1: ValueError: boom", "rank 1 of 2 has "),
    ("raises before", 1, "rank 1 of 2 ended with status 1: ValueError: boom",
     "rank 1 of 2 ended with status 1: ValueError: boom"),
    ("another model", 1, "the models of rank 0 and rank 1 do not fit together",
     "the models of rank 0 and rank 1 do not fit together"),
    ("the same part", 1, "rank 1 of 2 was given the part that was sliced for rank 0 of 2",
     "rank 1 of 2 was given the part that was sliced for rank 0 of 2"),
    ("ends before", 1, "rank 1 of 2 has ended and did not join", "rank 1 of 2 has ended"),
    ("never comes", 1, "rank 1 of 2 did not join within 2 s", "rank 1 of 2 did not join"),
    ("late", 1, "rank 0 of 2 ended with status 1: engine.errors.CommunicatorError",
     "rank 1 of 2 did not come in time"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "status", "says", "other"),
    [pytest.param(*row, marks=() if row[0] == "killed" else pytest.mark.slow) for row in FAULTS],
)
def test_a_rank_that_fails_ends_all_with_an_error_that_names_it(
    how: str, status: int, says: str, other: str, tmp_path: Path, null_backend: str
) -> None:
    rank_models.marked(rank_models.sliced_mlp(tmp_path))
    rank_models.other_model(tmp_path)
    script = written(tmp_path, PREDICTS)
    shared = names()
    # That of "late" is one in which both must have started.
    timeout = {"never comes": "2", "late": "20"}.get(how, "120")
    begin_s = time.monotonic()
    got, out, errors = launch(
        "-n", 2, script, tmp_path / "mlp{rank}.onnx", how,
        env={"ENGINE_RANKS_TIMEOUT_S": timeout, "PYTHONPATH": environment()["PYTHONPATH"]},
    )  # fmt: skip
    assert time.monotonic() - begin_s < 100, "the time-out was 120 s"
    assert got == status
    assert out == []
    assert errors[-1].startswith("error: ")
    assert says in errors[-1]
    own = [line for line in errors if line.startswith("[0] ") and "CommunicatorError" in line]
    assert own, "rank 0 says so itself"
    assert other in own[-1]
    assert not left_since(shared)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp{rank}.onnx", "mlp.onnx"])
def test_ranks_whose_predicts_end_well_end_well_and_find_their_own_file(
    name: str, tmp_path: Path, null_backend: str
) -> None:
    rank_models.sliced_mlp(tmp_path)
    script = written(tmp_path, PREDICTS)
    env = {"PYTHONPATH": environment()["PYTHONPATH"]}  # the null backend is there
    status, out, errors = launch("-n", 2, script, tmp_path / name, "well", env=env)
    assert (status, sorted(out), errors) == (0, ["[0] all well", "[1] all well"], [])


WAITS = """
import os, subprocess, sys, time
below = subprocess.Popen(["sleep", "200"])
print(os.getpid(), below.pid, flush=True)
time.sleep(200)
"""


DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@pytest.mark.parametrize(
    ("number", "status", "before"),
    [
        pytest.param(signal.SIGINT, 130, "", marks=pytest.mark.slow),
        (signal.SIGTERM, 143, ""),
        (signal.SIGKILL, -9, ""),
        pytest.param(signal.SIGTERM, 143, DEAF, marks=pytest.mark.slow, id="deaf ranks"),
    ],
)
def test_ranks_end_with_the_launcher_however_it_ends(
    number: signal.Signals, status: int, before: str, tmp_path: Path
) -> None:
    with started("-n", 2, written(tmp_path, before + WAITS)) as child:
        assert child.stdout is not None
        pids = [int(word) for _ in range(2) for word in child.stdout.readline().split()[1:]]
        assert len(pids) == 4, "two ranks, and what each has started"
        child.send_signal(number)
        _, errors = child.communicate(timeout=LIMIT_S)
    assert child.returncode == status
    if not before:
        assert errors == ("" if status < 0 else "interrupted\n")
    wait_until_ended(pids)


STOPPED = """
import os, signal, subprocess, sys, time
if os.environ["ENGINE_RANK"] == "1":
    if sys.argv[1] == "continued":
        subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
    if sys.argv[1] == "slow":
        time.sleep(3)
    else:
        os.kill(os.getpid(), signal.SIGSTOP)
print("well")
"""


@pytest.mark.parametrize(
    "how",
    ["stopped", *(pytest.param(how, marks=pytest.mark.slow) for how in ("continued", "slow"))],
)
def test_a_rank_that_is_stopped_when_the_others_have_ended_is_named_and_a_slow_one_waited_for(
    how: str, tmp_path: Path
) -> None:
    script = written(tmp_path, STOPPED)
    patience = {"ENGINE_RANKS_TIMEOUT_S": "60" if how == "continued" else "1"}
    status, out, errors = launch("-n", 2, script, how, env=patience)
    if how != "stopped":
        assert (status, sorted(out), errors) == (0, ["[0] well", "[1] well"], [])
        return
    assert (status, out) == (1, ["[0] well"])
    assert errors == [
        "error: rank 1 of 2 was stopped by a signal for longer than 1 s after the others had "
        "ended, and was killed"
    ]


@pytest.mark.slow
def test_what_a_rank_leaves_running_ends_with_it(tmp_path: Path) -> None:
    script = written(tmp_path, WAITS.replace("time.sleep(200)\n", ""))
    status, out, _ = launch("-n", 2, script)
    assert status == 0
    wait_until_ended([int(word) for line in out for word in line.split()[1:]])


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_ranks(tmp_path: Path) -> None:
    script = written(tmp_path, "import os\nprint(os.getpid(), flush=True)\nwhile True: print('x')")
    with started("-n", 2, script) as child:
        assert child.stdout is not None
        pid = next(int(line.split()[1]) for line in child.stdout if line.split()[1].isdigit())
        child.stdout.close()
        child.wait(LIMIT_S)
    wait_until_ended([pid])


def test_ranks_that_join_by_themselves_find_each_other(tmp_path: Path) -> None:
    script = written(tmp_path, JOIN + """
total = np.full(3, job.rank + 1.0)
comm.allreduce(total, total, ReduceOp.SUM, time.monotonic() + 60)
tell(total=total.tolist())
""")  # fmt: skip
    status, out, errors = launch("-n", 3, script)
    assert (status, errors) == (0, [])
    assert sorted(out) == [f'[{rank}] {{"total": [6.0, 6.0, 6.0]}}' for rank in range(3)]
