"""Ranks without a store find each other: by the rank table that they have, by their mpirun."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pytest
import rank_models
from waiting import wait_until

import engine
from engine.distributed import rendezvous
from engine.distributed.job import Job, in_table, this_job
from engine.distributed.new_table import new_table
from engine.distributed.rank_table import read
from engine.distributed.rendezvous import address_of
from engine.distributed.store import connect
from engine.errors import CommunicatorError, ModelError
from engine.host.child import environment
from engine_testing.shared_memory import left_since, names

LIMIT_S = 150

SCRIPT = """
import os, signal, sys, time
import numpy as np
import engine as mslite
path, rank_id, table, how = sys.argv[1:5]
context = mslite.Context()
context.target = ["null"]
if rank_id:
    context.ascend.rank_id = int(rank_id)
rank = context.ascend.rank_id
if how == "late":
    time.sleep(200)
if how == "raises before":
    raise ValueError("boom")
if how == "ends before":
    sys.exit(0)
name = {"another model": "_other", "the same part": 0}.get(how, rank)
model = mslite.Model()
config = {"ascend_context": {"rank_table_file": table}} if table else None
model.build_from_file(
    path.format(rank=name), mslite.ModelType.MINDIR, context, config_dict=config
)
x = np.ones((2, 6), np.float32)
y = model.predict([x])[0].get_data_to_numpy()
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "raises":
    raise ValueError("boom")
print("built", flush=True)
if how in ("stays", "is late"):
    time.sleep(200)
if how == "ends":
    sys.exit(0)
if how == "twice":
    again = mslite.Model()
    again.build_from_file(
        path.format(rank=rank), mslite.ModelType.MINDIR, context, config_dict=config
    )
model.predict([x])
sys.stdout.write(f"{rank} {context.gpu.group_size} {y.sum()}{os.linesep}")  # in one piece
sys.stdout.flush()
if how == "exits late":
    time.sleep(4)
"""


@pytest.fixture
def sliced(tmp_path: Path, null_backend: str) -> Path:
    rank_models.marked(rank_models.sliced_mlp(tmp_path))
    rank_models.other_model(tmp_path)
    (tmp_path / "main.py").write_text(SCRIPT)
    write_table(tmp_path, 2)
    return tmp_path


def write_table(folder: Path, ranks: int) -> None:
    """Write a table that no test beside this one has: ranks meet by its content."""
    table = new_table([f"host-{uuid4().hex}"], list(range(ranks)))
    (folder / "ranks.json").write_text(json.dumps(table))


def command(folder: Path, rank: int | str, how: str, table: str = "ranks.json") -> list[str]:
    path = str(folder / table) if table else ""
    model = str(folder / "mlp{rank}.onnx")
    return [sys.executable, str(folder / "main.py"), model, str(rank), path, how]


@contextmanager
def process(
    words: list[str], env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), "ENGINE_RANKS_TIMEOUT_S": "120", **(env or {})},
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def wait_for_sockets(folder: Path, count: int) -> None:
    """Wait until so many sockets of the job of a table are in use."""
    address = address_of(f"table-{read(folder / 'ranks.json').digest}")
    wait_until(lambda: Path("/proc/net/unix").read_text().count(address) >= count)


def results(*children: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    found = []
    for child in children:
        out, errors = child.communicate(timeout=LIMIT_S)
        lines = errors.splitlines() or [""]
        found.append((child.returncode, (out.splitlines() or [""])[-1], lines[-1]))
    return found


@contextmanager
def two(folder: Path, *hows: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start rank 0 and rank 1, what each does is said."""
    with process(command(folder, 0, hows[0])) as one, process(command(folder, 1, hows[1])) as other:
        yield [one, other]


def test_two_plain_processes_meet_by_their_rank_table(sliced: Path) -> None:
    shared = names()
    with two(sliced, "twice", "twice") as ranks:
        (status, one, errors), (_, other, _) = results(*ranks)
    assert status == 0, errors
    # The group's size is the launch's: only the model knows of the table in its configuration.
    assert one.split()[:2] == ["0", "1"]
    assert other.split()[0] == "1"
    assert one.split()[2] == other.split()[2]
    assert not left_since(shared)


@pytest.mark.slow
def test_the_table_may_be_in_the_environment(sliced: Path) -> None:
    def env(rank: int) -> dict[str, str]:
        return {"RANK_TABLE_FILE": str(sliced / "ranks.json"), "RANK_ID": str(rank)}

    with (
        process(command(sliced, "", "well", ""), env(0)) as first,
        process(command(sliced, "", "well", ""), env(1)) as second,
    ):
        [(_, one, errors), (_, other, _)] = results(first, second)
    assert one.split()[:2] == ["0", "2"], errors
    assert other.split()[:2] == ["1", "2"]


@pytest.mark.slow
def test_a_job_with_a_rank_that_is_taken_says_by_which_process(sliced: Path) -> None:
    with two(sliced, "stays", "stays") as ranks:
        for child in ranks:
            assert child.stdout is not None
            assert child.stdout.readline() == "built\n"
        for rank, holder in enumerate(ranks):
            with process(command(sliced, rank, "well")) as third:
                [(status, _, error)] = results(third)
            assert status == 1
            table = sliced / "ranks.json"
            assert f"rank {rank} of rank table '{table}' is process {holder.pid} " in error
            assert "a table of its own" in error


@pytest.mark.slow
def test_a_job_that_ends_makes_way_for_the_next_with_its_table(sliced: Path) -> None:
    with two(sliced, "exits late", "well") as (first, second):
        assert [status for status, _, _ in results(second)] == [0]
        with two(sliced, "well", "well") as ranks:
            ended = results(first, *ranks)
            assert [status for status, _, _ in ended] == [0, 0, 0], ended


def test_a_holder_that_ends_in_the_middle_of_an_answer_makes_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(server: rendezvous._RendezvousServer, *_: object) -> Iterator[bytes]:
        yield rendezvous._TAKEN
        server.close()

    name = f"test-{uuid4().hex}"
    address = address_of(name)
    earlier = rendezvous._RendezvousServer(
        address, sha256(f"engine job {address}".encode()).digest(), 0, 2
    )
    monkeypatch.setattr(rendezvous._RendezvousServer, "_join", half)
    met = rendezvous._meet(Job(1, 2, "", b"", 60.0), name, "a test")
    assert earlier._closed
    assert met.server is not None, "the next holds the store"
    met.server.close()


FAULTS = [
    ("killed", -9, "rank 1 of 2 has ended: its process crashed or was killed"),
    ("raises", 1, "rank 1 of 2 has "),
    ("ends", 0, "rank 1 of 2 has left the group"),
    ("is late", -15, "rank 1 of 2 did not come in time to all-reduce"),
    ("raises before", 1, "rank 1 of 2 did not join within 3 s"),
    ("ends before", 0, "rank 1 of 2 did not join within 3 s"),
    ("late", -15, "rank 1 of 2 did not join within 3 s"),
    ("another model", 1, "the models of rank 0 and rank 1 do not fit together"),
    ("the same part", 1, "rank 1 of 2 was given the part that was sliced for rank 0 of 2"),
]
"""Steps of rank 1, its end, and the words of rank 0 on it."""


def timeout_of(says: str) -> dict[str, str]:
    if "in time" in says:
        return {"ENGINE_RANKS_TIMEOUT_S": "20"}  # in which both must have started
    return {"ENGINE_RANKS_TIMEOUT_S": "3" if "3 s" in says else "120"}


def test_a_holder_that_ends_does_not_wait_for_its_own_models() -> None:
    """They are open as long as the script's variables are: past the end of the job."""
    address = address_of(uuid4().hex)
    with rendezvous._RendezvousServer(address, b"key", 0, 1) as server:
        own = connect(address, b"key")
        begin_s = time.monotonic()
        server.drain(2 * LIMIT_S)
        assert time.monotonic() - begin_s < LIMIT_S
        own.close()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "ends", "says"), FAULTS)
def test_a_rank_that_fails_is_named_by_the_other(
    how: str, ends: int, says: str, sliced: Path
) -> None:
    shared = names()
    begin_s = time.monotonic()
    with (
        process(command(sliced, 0, "well"), timeout_of(says)) as first,
        process(command(sliced, 1, how), timeout_of(says)) as second,
    ):
        [(status, _, error)] = results(first)
        if ends == -signal.SIGTERM:  # it sleeps on
            second.terminate()
        [(other, _, _)] = results(second)
    assert (status, other) == (1, ends)
    assert says in error
    assert time.monotonic() - begin_s < 100, "the time-out was 120 s"
    assert not left_since(shared)


@pytest.mark.slow
def test_a_rank_that_ends_before_its_second_model_is_named_at_once(sliced: Path) -> None:
    """Whoever of the two holds the store."""
    with two(sliced, "twice", "ends") as ranks:
        [(status, _, error), (other, _, _)] = results(*ranks)
    assert (status, other) == (1, 0)
    assert "rank 1 of 2 has ended and did not join" in error or "rank 1 that held it" in error


@pytest.mark.slow
@pytest.mark.parametrize(("held_by", "killed"), [(0, 1), (1, 0)])
def test_a_rank_that_is_killed_before_all_have_joined_is_named_at_once(
    held_by: int, killed: int, sliced: Path
) -> None:
    write_table(sliced, 3)
    rank_models.sliced_mlp(sliced, 4)
    with process(command(sliced, held_by, "well")) as first:
        wait_for_sockets(sliced, 1)
        with process(command(sliced, killed, "well")) as second:
            # That of the store, and one end of: the membership and two waits.
            wait_for_sockets(sliced, 4)
            second.kill()
            begin_s = time.monotonic()
            [(status, _, error)] = results(first)
    assert status == 1
    assert f"rank {killed} of 3 has ended: its process crashed, was killed or failed" in error
    assert time.monotonic() - begin_s < 100, "the time-out is 120 s"


def test_a_rank_that_never_comes_is_named_after_the_time_out(sliced: Path) -> None:
    with process(command(sliced, 0, "well"), {"ENGINE_RANKS_TIMEOUT_S": "1"}) as first:
        [(status, _, error)] = results(first)
    assert status == 1
    assert "rank 1 of 2 did not join within 1 s" in error


@pytest.mark.parametrize(
    ("table", "rank", "says"),
    [
        ("none.json", 0, "no such file or directory"),
        ("other.json", 0, r"host '192\.0\.2\.7' is not this machine"),
        ("ranks.json", 5, "this process is rank 5 of 2"),
    ],
)
def test_a_table_that_cannot_serve_is_an_error(
    table: str, rank: int, says: str, sliced: Path
) -> None:
    hosts = ["127.0.0.1", "192.0.2.7"]  # the latter is nobody's: RFC 5737
    (sliced / "other.json").write_text(json.dumps(new_table(hosts, [0])))
    context, model = engine.Context(), engine.Model()
    context.target = ["null"]
    context.ascend.rank_id = rank
    config = {"ascend_context": {"rank_table_file": str(sliced / table)}}
    path = str(sliced / "mlp0.onnx")
    with pytest.raises((CommunicatorError, ModelError), match=says):
        model.build_from_file(path, engine.ModelType.MINDIR, context, config_dict=config)


def test_mpiruns_variables_say_which_rank_this_is() -> None:
    hydra = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}
    assert this_job(hydra) == Job(1, 4, local_size=4)
    assert this_job({**hydra, "MPI_LOCALNRANKS": "2"}).local_size == 2
    assert this_job({"PMI_RANK": "0", "PMI_SIZE": "1"}) == Job(), "alone"
    ompi = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}
    assert this_job(ompi) == Job(2, 3, local_size=3)
    assert this_job({**hydra, "ENGINE_RANK": "0", "ENGINE_WORLD_SIZE": "2"}) == Job(0, 2)
    with pytest.raises(CommunicatorError, match="PMI_RANK=4 and PMI_SIZE=4: expected a rank from"):
        this_job({**hydra, "PMI_RANK": "4"})


def test_a_table_and_a_launch_must_agree_on_the_number_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(new_table(["a"], [0, 1])))
    assert in_table(Job(), str(path), 1) == Job(1, 2, table=str(path))
    launched = Job(1, 2, "@x", b"k")
    assert in_table(launched, str(path), 0) == Job(1, 2, "@x", b"k", table=str(path))
    with pytest.raises(CommunicatorError, match=r"has 2 ranks, but 3 were started"):
        in_table(Job(0, 3, "@x", b"k"), str(path), 0)
    assert this_job({"RANK_TABLE_FILE": str(path), "RANK_ID": "1"}) == Job(1, 2, table=str(path))
    path.write_text(json.dumps(new_table(["a"], [0, 1, 2])))
    assert this_job({"RANK_TABLE_FILE": str(path)}).world_size == 3, "it was read anew"


@pytest.mark.slow
def test_a_model_without_collectives_needs_no_other_rank(tmp_path: Path, null_backend: str) -> None:
    rank_models.mlp(tmp_path)
    (tmp_path / "main.py").write_text(SCRIPT)
    words = [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "mlp.onnx"), "", "", "well"]
    with process(words, {"PMI_RANK": "0", "PMI_SIZE": "2"}) as child:
        [(status, out, error)] = results(child)
    assert status == 0, error
    assert out.split()[:2] == ["0", "2"]


BIN = Path(sys.executable).parent
MPIRUN = shutil.which("mpirun", path=f"{BIN}:{os.environ.get('PATH', '')}") or ""
needs_mpi = pytest.mark.skipif(not MPIRUN, reason='no mpirun: pip install "inference-engine[mpi]"')


@pytest.mark.slow
def test_a_foreign_mpiruns_ranks_meet_too(sliced: Path) -> None:
    """Emulated: a shell that sets Open MPI's variables and starts the ranks, one by a wrapper."""
    words = " ".join(f"'{word}'" for word in command(sliced, "", "well", ""))
    ranks = [
        f'OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK={rank} sh -c "{words}; exit $?" '
        for rank in range(2)
    ]
    with process(["bash", "-c", f"{ranks[0]} & {ranks[1]}; wait"]) as child:
        out, errors = child.communicate(timeout=LIMIT_S)
    assert sorted(re.findall(r"([01]) 2 -?\d", out)) == ["0", "1"], errors


@pytest.mark.slow
@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("well", ""),
        *((how, "rank 1 of 2 has aborted" if how == "raises" else says) for how, _, says in FAULTS),
    ],
)
def test_ranks_of_mpirun_meet_and_fail_together(how: str, says: str, sliced: Path) -> None:
    shared = names()
    wrapper = 'if [ $PMI_RANK = 1 ]; then how="$1"; else how=well; fi; shift; "$@" "$how"; exit $?'
    words = command(sliced, "", how, "")[:-1]
    begin_s = time.monotonic()
    with process(
        [MPIRUN, "-n", "2", "sh", "-c", wrapper, "sh", how, *words],
        timeout_of(says),
    ) as child:
        out, errors = child.communicate(timeout=LIMIT_S)
    if how == "well":
        assert child.returncode == 0, errors
        assert sorted(re.findall(r"([01]) 2 -?\d", out)) == ["0", "1"], out
    else:
        assert child.returncode != 0
        assert how == "killed" or says in errors  # mpirun may end the other before it can speak
        assert time.monotonic() - begin_s < 100, "the time-out was 120 s"
    assert not left_since(shared)


@pytest.mark.slow
@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("how", ["well", "killed"])
def test_a_script_that_uses_mpi_itself_leaves_no_memory_of_mpi_behind(
    how: str, sliced: Path
) -> None:
    """MPICH leaves a named segment of 2 MB when a rank is killed."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    shared = names()
    script = sliced / "main.py"
    script.write_text("from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n" + script.read_text())
    words = [MPIRUN, "-n", "2", *command(sliced, "", how, "")]
    with process(words) as child:
        _, errors = child.communicate(timeout=LIMIT_S)
    assert (child.returncode == 0) == (how == "well"), errors
    assert not left_since(shared)
