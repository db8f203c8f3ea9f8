"""Ranks that are processes: one is killed, and the others say so at once."""

from __future__ import annotations

import re
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import rank_models
from processes import JOIN, facts_of, started

import engine
from engine_testing.shared_memory import left_since, names

needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)
SLICED = Path(__file__).parents[1] / "data" / "mindir" / "sliced"

WAITS = (
    JOIN
    + """
buffer = np.ones(4)
comm.allreduce(buffer, buffer, ReduceOp.SUM, time.monotonic() + 60)
if job.rank == 2:
    if sys.argv[1] == "forks" and os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(30)  # and holds its parent's sockets open
        os._exit(0)
    tell(sum=buffer[0])
    comm.receive(buffer, 1, time.monotonic() + 60)  # inside a collective that never ends
tell(sum=buffer[0])
begin_s = time.monotonic()
try:
    # Rank 1 waits for the killed one, rank 0 for rank 1: both are told of the same.
    if job.rank == 1:
        comm.receive(buffer, 2, time.monotonic() + 60)
    else:
        comm.allreduce(buffer, buffer, ReduceOp.SUM, time.monotonic() + 60)
except CommunicatorError as error:
    tell(error=str(error), ranks=error.ranks, spent_s=time.monotonic() - begin_s)
"""
)


@pytest.mark.parametrize("how", ["plain", pytest.param("forks", marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_inside_a_collective_is_named_by_all_others_at_once(how: str) -> None:
    before = names()
    with started(WAITS, 3, how) as ranks:
        victim = ranks[2]
        assert victim.stdout is not None
        assert "3.0" in victim.stdout.readline()
        for other in ranks[:2]:
            assert other.stdout is not None
            other.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        for other in ranks[:2]:
            [end] = facts_of(other)
            assert end["ranks"] == [2], end
            assert "rank 2 of 3 has ended: its process crashed or was killed" in end["error"]
            assert end["spent_s"] < 40, "the deadline was 60 s"
    assert not left_since(before)


WORKS = (
    JOIN
    + """
random = np.random.default_rng(7)  # the same on all ranks
tell(ready=True)
try:
    while True:
        size = int(random.choice([1, 1000, 100_000, 3_000_000]))
        total = np.full(size, job.rank + 1.0, np.float32)
        comm.allreduce(total, total, ReduceOp.SUM, time.monotonic() + 60)
        assert (total == 6).all()
except CommunicatorError as error:
    tell(error=str(error), ranks=error.ranks)
"""
)


@pytest.mark.slow
def test_a_rank_may_be_killed_at_any_moment() -> None:
    random = np.random.default_rng()
    for turn in range(12):
        with started(WORKS, 3) as ranks:
            for rank in ranks:
                assert rank.stdout is not None
                rank.stdout.readline()
            time.sleep(random.uniform(0, 0.3))
            ranks[turn % 3].send_signal(signal.SIGKILL)
            for number, rank in enumerate(ranks):
                if number != turn % 3:
                    [end] = facts_of(rank)
                    assert end["ranks"] == [turn % 3], end


LEAVES = (
    JOIN
    + """
def held():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # the folder's own
            pass
    with open("/proc/self/maps") as maps:
        mapped = sum("engine-rank" in line for line in maps)
    files = sum("engine-rank" in link for link in links)
    return [mapped, files, sum("pidfd" in link for link in links)]

def gathered():
    ranks = np.zeros(2, int)
    comm.allgather(np.array([job.rank]), ranks, time.monotonic() + 60)
    return ranks.tolist()

assert gathered() == [0, 1]
child = os.fork()
if child == 0:  # what it closes is its own, and its end is not its parent's
    comm.abort()
    comm.close()
    sys.exit(0)
os.waitpid(child, 0)
comm.check()
assert gathered() == [0, 1]
inside = held()
comm.close()
del comm
tell(inside=inside, after=held())
"""
)


def test_a_rank_that_leaves_gives_back_its_memory_and_descriptors() -> None:
    with started(LEAVES, 2) as ranks:
        for rank in ranks:
            assert facts_of(rank) == [{"inside": [2, 2, 1], "after": [0, 0, 0]}]


USES = """
import json, sys
import numpy as np
import engine as mslite

context = mslite.Context()
context.target = [sys.argv[1]]
rank = context.gpu.rank_id
model = mslite.Model()
model.build_from_file(sys.argv[2].format(rank=rank), mslite.ModelType.MINDIR, context)
with np.load(sys.argv[3]) as arrays:
    inputs = [arrays["in_0"]]
for _ in range(4):
    [result] = model.predict(inputs)
y = result.get_data_to_numpy()
print(json.dumps({"rank": rank, "ranks": context.gpu.group_size, "y": y.tolist(),
                  "ascend": context.ascend.rank_id}))
"""


@pytest.mark.parametrize(
    "target", [pytest.param("null", marks=pytest.mark.slow), pytest.param("cpu", marks=needs_cpu)]
)
def test_a_mindir_that_mindspore_sliced_gives_the_whole_models_output_on_both_ranks(
    target: str, null_backend: str
) -> None:
    whole = SLICED / "full.npz"  # what MindSpore gives for the whole model
    with started(USES, 2, target, str(SLICED / "rank{rank}.mindir"), str(whole)) as ranks:
        [[first], [second]] = [facts_of(rank) for rank in ranks]
    assert [first["rank"], second["rank"], first["ranks"]] == [0, 1, 2]
    assert [first["ascend"], second["ascend"]] == [0, 1]
    assert first["y"] == second["y"]
    with np.load(whole) as arrays:
        np.testing.assert_allclose(first["y"], arrays["out_0"], rtol=1e-5, atol=1e-6)


@needs_cpu
@pytest.mark.slow
@pytest.mark.parametrize("form", ["slices", "stages"])
def test_an_onnx_model_in_two_ranks_gives_the_whole_models_output(
    form: str, tmp_path: Path
) -> None:
    (rank_models.sliced_mlp if form == "slices" else rank_models.staged_mlp)(tmp_path)
    x = np.random.default_rng(5).standard_normal((3, 6)).astype(np.float32)
    np.savez(tmp_path / "x.npz", in_0=x)
    path = tmp_path / ("mlp{rank}.onnx" if form == "slices" else "stage{rank}.onnx")
    with started(USES, 2, "cpu", str(path), str(tmp_path / "x.npz")) as ranks:
        [[first], [second]] = [facts_of(rank) for rank in ranks]
    assert first["y"] == second["y"]
    whole = engine.load(rank_models.mlp(tmp_path), target="cpu")
    np.testing.assert_allclose(first["y"], whole(x=x)["y"], rtol=1e-5, atol=1e-6)


BUILDS = """
import os, signal, sys
import numpy as np
import engine as mslite
context = mslite.Context()
context.target = ["null"]
rank = context.gpu.rank_id
model = mslite.Model()
model.build_from_file(sys.argv[1].format(rank=rank), mslite.ModelType.MINDIR, context)
good, bad = np.ones((2, 6), np.float32), np.ones((2, 7), np.float32)
model.predict([good])
"""


def last_lines(folder: Path, script: str) -> list[str]:
    """Run two ranks of a model, which fail; returns the last line of what each said."""
    rank_models.sliced_mlp(folder)
    with started(BUILDS + script, 2, str(folder / "mlp{rank}.onnx")) as ranks:
        said = [rank.communicate(timeout=60)[1] for rank in ranks]
        assert ranks[0].returncode == 1
    return [(lines.splitlines() or [""])[-1] for lines in said]


def test_a_rank_that_is_killed_ends_the_predict_of_the_other_with_its_name(
    null_backend: str, tmp_path: Path
) -> None:
    killed = "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\nmodel.predict([good])"
    said, _ = last_lines(tmp_path, killed)
    assert "CommunicatorError" in said
    assert "rank 1 of 2 has ended: its process crashed or was killed" in said


@pytest.mark.slow
def test_a_rank_with_a_bad_input_tells_the_other_that_waits_for_it(
    null_backend: str, tmp_path: Path
) -> None:
    refused = """
for _ in range(2):  # refused by both, which changes nothing
    try:
        model.predict([bad])
    except mslite.InputError:
        model.predict([good])
model.predict([bad if rank == 1 else good])
"""
    waiting, refusing = last_lines(tmp_path, refused)
    assert "CommunicatorError" in waiting
    # Its process may have ended with that, which it tells too.
    assert re.search("rank 1 of 2 (did not begin its predict|has aborted)", waiting)
    assert "float32[n, 6], got float32[2, 7]" in waiting.replace("rows", "n")
    assert "InputError" in refusing


def test_a_process_may_end_wherever_the_thread_is_that_watches_its_other_ranks() -> None:
    """The model is dropped as the process ends, and closes the watch once more."""
    script = """
import sys
from engine.distributed.ranks import Watch

class Ranks:
    def __init__(self):
        self.watch = Watch(self)
        self.watch.begin()

    def world_check(self):
        pass

    def __del__(self):
        self.watch.close()

sys.setswitchinterval(1e-6)  # threads change anywhere
every = [Ranks() for _ in range(100)]
"""
    with started(script, 2) as ranks:
        assert [facts_of(rank) for rank in ranks] == [[]] * 2
