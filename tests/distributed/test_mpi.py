"""Ranks on several machines exchange tensors over MPI.

Emulated: MPICH's launcher starts all of them here (`fork`), and takes them to be on two hosts.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import rank_models
import test_rendezvous
from test_rendezvous import FAULTS, LIMIT_S, MPIRUN, command, process, timeout_of

from engine.distributed.mpiexec import mpiexec_command
from engine.distributed.new_table import new_table
from engine.distributed.rank_table import parse
from engine.errors import CommunicatorError
from engine_testing.shared_memory import left_since, names

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
pytestmark = [pytest.mark.mpi, test_rendezvous.needs_mpi]

sliced = test_rendezvous.sliced

MPIEXEC = [MPIRUN, "-launcher", "fork"]

COLLECTIVES = """
import itertools, time
import ml_dtypes, numpy as np
from engine.distributed.compose import host_collectives
from engine.distributed.job import this_job
from engine.distributed.mpi import MpiCommunicator, MpiExchange, world
from engine.distributed.reduction import reduction
from engine.types import DType, ReduceOp

job = this_job()
assert job.is_of_machines, job
size, rank = job.world_size, job.rank
exchange = MpiExchange(world(job))
assert exchange.exchange(b"x" * rank, 10) == [b"x" * other for other in range(size)]
comm = MpiCommunicator(exchange.group(range(size)), "world", tuple(range(size)))
do = host_collectives()
soon = time.monotonic() + 60

def of(rank, shape, dtype):
    return np.asarray(np.random.default_rng(rank).standard_normal(shape) * 9, dtype)

dtypes = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int8]
shapes = [(), (0,), (1,), (3, 5), (size * 7, 3), (70_001,)]
for dtype, shape in itertools.product(dtypes, shapes):
    parts = [of(other, shape, dtype) for other in range(size)]
    own, expected = parts[rank], np.empty(shape, dtype)
    for op in ReduceOp:
        reduction(op, DType.from_numpy(np.dtype(dtype)))(*parts, out=expected)
        result = np.empty_like(own)
        comm.allreduce(own, result, op, soon)
        assert result.tobytes() == expected.tobytes(), (dtype, shape, op)
        same = own.copy()
        comm.allreduce(same, same, op, soon)  # in place
        assert same.tobytes() == expected.tobytes()
    joined = np.empty((size, *shape), dtype)
    comm.allgather(own, joined, soon)
    assert joined.tobytes() == np.stack(parts).tobytes()
    comm.send(own, (rank + 1) % size, soon)
    passed = np.empty_like(own)
    comm.receive(passed, (rank - 1) % size, soon)
    assert passed.tobytes() == parts[rank - 1].tobytes()
    root = own.copy()
    do.broadcast(comm, root, 1, None, soon)
    assert root.tobytes() == parts[1].tobytes()
parts = [of(other, (size * 2, 3), np.float32) for other in range(size)]
turned = np.empty_like(parts[0])
do.alltoall(comm, parts[rank], turned, None, soon)
assert (turned == np.concatenate([part[2 * rank : 2 * rank + 2] for part in parts])).all()
comm.close()
print("all well", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["127.0.0.1:1,127.0.0.2:1", "127.0.0.1:2,127.0.0.2:1"])
def test_collectives_give_every_rank_what_numpy_gives_in_rank_order(hosts: str) -> None:
    count = sum(int(host.partition(":")[2]) for host in hosts.split(","))
    words = [*MPIEXEC, "-hosts", hosts, "-n", str(count), sys.executable, "-c", COLLECTIVES]
    with process(words) as child:
        out, errors = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0, errors
    assert out.count("all well") == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "says"),
    [("well", ""), ("twice on all", ""), *((how, says) for how, _, says in FAULTS)],
)
def test_ranks_of_two_machines_predict_and_fail_together(how: str, says: str, sliced: Path) -> None:
    shared = names()
    wrapper = 'if [ $PMI_RANK = 1 ]; then how="$1"; else how="$2"; fi; shift 2; exec "$@" "$how"'
    other = "twice" if how == "twice on all" else "well"
    own = "twice" if how == "twice on all" else how
    words = command(sliced, "", how, "")[:-1]
    begin_s = time.monotonic()
    with process(
        [*MPIEXEC, "-hosts", "127.0.0.1:1,127.0.0.2:1", "-n", "2",
         "sh", "-c", wrapper, "sh", own, other, *words],
        timeout_of(says),
    ) as child:  # fmt: skip
        out, errors = child.communicate(timeout=LIMIT_S)
    if not says:
        assert child.returncode == 0, errors
        assert sorted(re.findall(r"([01]) 2 -?\d", out)) == ["0", "1"], out
    else:
        assert child.returncode != 0
        assert time.monotonic() - begin_s < 100, "the time-out was 120 s"
        if how == "raises":
            assert "rank 1 of 2 has aborted during all-reduce" in errors
        elif how in ("another model", "the same part"):
            assert says in errors
        elif how == "is late":
            assert "rank 1 of 2 did not come in time to all-reduce" in errors
    assert not left_since(shared)


KINDS = """
import sys
import numpy as np
import engine
context = engine.Context()
context.target = ["null"]
rank = context.gpu.rank_id
model = engine.Model()
model.build_from_file(sys.argv[1], engine.ModelType.MINDIR, context)
parts = np.load(sys.argv[2])
outputs = model.predict([parts[rank]])
np.savez(sys.argv[3].format(rank), **{o.name: o.get_data_to_numpy() for o in outputs})
"""


@pytest.mark.slow
def test_every_kind_of_collective_node_runs_on_several_machines(
    tmp_path: Path, null_backend: str
) -> None:
    path = rank_models.every_kind(tmp_path, 4)
    parts = np.random.default_rng(0).standard_normal((4, 8, 4)).astype(np.float32)
    np.save(tmp_path / "parts.npy", parts)
    words = [*MPIEXEC, "-hosts", "127.0.0.1:2,127.0.0.2:2", "-n", "4", sys.executable, "-c", KINDS]
    files = [str(path), str(tmp_path / "parts.npy"), str(tmp_path / "got{}.npz")]
    with process([*words, *files]) as child:
        _, errors = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0, errors
    for rank in range(4):
        got = np.load(tmp_path / f"got{rank}.npz")
        for name, value in rank_models.of_every_kind(list(parts), rank).items():
            np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("logs", [False, True])
def test_engine_launch_starts_the_ranks_of_other_hosts_by_mpiexec(logs: bool, sliced: Path) -> None:
    """The hosts of the table are nobody's (RFC 5737); the launcher does not look for them."""
    pytest.importorskip("click", reason="the command line is not installed")
    table = sliced / "two.json"
    table.write_text(json.dumps(new_table(["192.0.2.7", "192.0.2.8"], [0])))
    options = ["--log-dir", str(sliced / "logs")] if logs else []
    words = [sys.executable, "-m", "engine.cli", "launch", "--rank-table", str(table), *options]
    main = command(sliced, "", "well", "")[1:]
    with process([*words, *main], {"HYDRA_LAUNCHER": "fork"}) as child:
        out, errors = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0, errors
    for rank in range(2):
        if logs:
            assert f"{rank} 2 " in (sliced / "logs" / f"rank{rank}.out").read_text()
        else:
            assert f"[{rank}] {rank} 2 " in out


def test_the_hosts_of_a_table_are_given_to_mpiexec_in_the_order_of_their_ranks() -> None:
    table = parse(json.dumps(new_table(["b", "a"], [0, 1])).encode(), "t.json")
    words = mpiexec_command(table, ["run", "it"])
    assert words[1:] == ["-prepend-rank", "-hosts", "b:2,a:2", "-n", "4", "run", "it"]
    assert os.path.basename(words[0]) == "mpiexec"
    mixed = new_table(["b", "a"], [0, 1])
    one, other = (server["device"] for server in mixed["server_list"])
    one[0]["rank_id"], one[1]["rank_id"] = "0", "2"
    other[0]["rank_id"], other[1]["rank_id"] = "1", "3"
    with pytest.raises(CommunicatorError, match="ranks of a host do not follow each other"):
        mpiexec_command(parse(json.dumps(mixed).encode(), "t.json"), ["x"])
