"""Ranks as users start them: processes, each with its device. All of it emulated."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from engine.distributed.job import environment
from engine.distributed.store import StoreServer

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "distributed"
SLICED = ROOT / "tests" / "data" / "mindir" / "sliced"
LIMIT_S = 120

pytestmark = pytest.mark.usefixtures("emulated_path")

SCRIPT = """
import json, sys, time
import numpy as np
import engine as mslite

path, rank, config, inputs = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
context = mslite.Context()
context.target = ["ascend"]
context.ascend.provider = "ge"
context.ascend.device_id = rank
context.ascend.rank_id = rank
model = mslite.Model()
model.build_from_file(path, mslite.ModelType.MINDIR, context, config)

from emulated_ascend import machine

tensors = model.get_inputs()
for tensor, array in zip(tensors, np.load(inputs).values()):
    tensor.set_data_from_numpy(array)
print(json.dumps({"built": True}), flush=True)
for count in range(1000 if sys.argv[5:] == ["on"] else 2):
    before = dict(machine.copied)
    try:
        outputs = model.predict(tensors)
    except RuntimeError as error:
        print(json.dumps({"error": str(error), "ranks": error.ranks}), flush=True)
        sys.exit()
    print(json.dumps({
        "outputs": [output.get_data_to_numpy().tolist() for output in outputs],
        "copied": {kind: machine.copied[kind] - before.get(kind, 0) for kind in machine.copied},
        "placed": sorted({(p.op_type, p.device, p.reason) for p in model.placement}),
    }), flush=True)
    time.sleep(0.01)
assert not machine.faults, machine.faults
"""


def config_of(folder: Path, ranks: int = 2) -> Path:
    """A configuration that names a rank table of a host that no other job has."""
    devices = [{"device_id": str(rank), "rank_id": str(rank)} for rank in range(ranks)]
    server = {"server_id": uuid4().hex, "device": devices}
    table = {"version": "1.0", "server_count": "1", "status": "completed", "server_list": [server]}
    (folder / "rank_table.json").write_text(json.dumps(table))
    config = folder / "config.ini"
    config.write_text(f"[ascend_context]\nrank_table_file={folder / 'rank_table.json'}\n")
    return config


def started(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(rank: subprocess.Popen[str]) -> str:
    out, errors = rank.communicate(timeout=LIMIT_S)
    assert rank.returncode == 0, errors
    return out


def test_the_tutorials_two_background_processes_give_the_whole_product(tmp_path: Path) -> None:
    subprocess.run([sys.executable, EXAMPLE / "make_model.py", tmp_path], check=True, timeout=60)
    table = tmp_path / "rank_table.json"
    table.write_text(table.read_text().replace("127.0.0.1", uuid4().hex))
    ranks = [
        started(
            EXAMPLE / "main.py", f"--model_path={tmp_path}/Matmul{rank}.onnx",
            f"--device_id={rank}", f"--rank_id={rank}", f"--config_file={tmp_path}/config.ini",
        )
        for rank in range(2)
    ]  # fmt: skip
    whole = onnx.load(tmp_path / "Matmul.onnx")
    weight = numpy_helper.to_array(whole.graph.initializer[0])
    expected = (np.ones((4, 128), np.float32) @ weight).flatten()[:10]
    printed = [output_of(rank).splitlines()[-1] for rank in ranks]
    assert printed[0] == printed[1], "the same bits on both ranks"
    found = [float(word) for word in printed[0].partition("is: ")[2].split()]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def sliced(tmp_path: Path, *more: str) -> list[subprocess.Popen[str]]:
    whole = np.load(SLICED / "full.npz")
    np.savez(tmp_path / "inputs.npz", x=whole["in_0"])
    config = config_of(tmp_path)
    return [
        started("-c", SCRIPT, SLICED / f"rank{rank}.mindir", rank, config,
                tmp_path / "inputs.npz", *more)
        for rank in range(2)
    ]  # fmt: skip


def test_mindspores_sliced_example_equals_the_unsliced_model_and_stays_on_the_devices(
    tmp_path: Path,
) -> None:
    expected = np.load(SLICED / "full.npz")
    for rank in sliced(tmp_path):
        _, *runs = map(json.loads, output_of(rank).splitlines())
        for run in runs:
            [y] = run["outputs"]
            np.testing.assert_allclose(y, expected["out_0"], rtol=1e-5, atol=1e-6)
            x_bytes, y_bytes = expected["in_0"].nbytes, expected["out_0"].nbytes
            assert run["copied"]["to device"] <= x_bytes, "only the input goes there"
            assert run["copied"]["to host"] == y_bytes, "only the output comes back"
            assert any(
                op == "AllReduce" and device.startswith("ascend:") and "'ascend_ge'" in reason
                for op, device, reason in run["placed"]
            ), run["placed"]


CHAIN = """
import gc, json, os, signal, sys, threading, time
import numpy as np, onnx
from onnx import helper
import engine, engine_ascend_ge.runtime
from engine.distributed.ranks import _open
from engine.errors import CommunicatorError
from engine.types import Device
from emulated_ascend import machine

rank = int(os.environ["ENGINE_RANK"])
domains = dict(AllReduce="com.microsoft")
nodes = [helper.make_node(op, [a], [b], domain=domains.get(op, ""), **more) for op, a, b, more in (
    ("Neg", "x", "a", {}), ("AllReduce", "a", "b", {}), ("Neg", "b", "c", {}),
    ("AllReduce", "c", "d", {"reduction": "max"}), ("Neg", "d", "y", {}))]
ends = [helper.make_tensor_value_info(name, 1, [8, 3]) for name in "xy"]
graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
path = f"{sys.argv[1]}/chain{rank}.onnx"
onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)

def tell(**facts):
    print(json.dumps(facts), flush=True)

x = np.full((8, 3), rank + 1, np.float32)
model = engine.load(path, target="ascend", device_id=rank)
for _ in range(5):
    before = machine.waits, machine.calls["HcclAllReduce"]
    y = model(x=x)["y"]
    np.testing.assert_array_equal(y, np.full((8, 3), -3))
    tell(waits=machine.waits - before[0], reduced=machine.calls["HcclAllReduce"] - before[1])
given = engine.Tensor(x, device=f"ascend:{rank}")
taken = engine.Tensor(np.zeros_like(x), device=f"ascend:{rank}")
for _ in range(3):
    before = machine.waits
    model.predict([given], [taken])
    tell(on_device=machine.waits - before)
    np.testing.assert_array_equal(taken.get_data_to_numpy(), y)
if sys.argv[2] == "stalls":
    for ranks in list(_open):
        ranks.timeout_s = 2.0
    if rank == 1:  # its device takes longer for the first segment than the others wait
        machine.slow(3600)
    for key in ("error", "again"):
        try:
            model(x=x)
        except CommunicatorError as error:
            tell(**{key: str(error)})
if sys.argv[2] in ("is interrupted", "is cancelled"):
    queued = machine.calls["mdl.execute_async"] + 3, machine.calls["HcclAllReduce"] + 2
    mark = f"{sys.argv[1]}/rank 1 waits"
    token = engine.CancelToken()

    def stop_once_both_wait():
        calls = machine.calls
        while calls["mdl.execute_async"] < queued[0] or calls["HcclAllReduce"] < queued[1]:
            time.sleep(0.01)
        turns = calls["rt.synchronize_stream_with_timeout"] + 2  # of the wait, which has begun then
        while calls["rt.synchronize_stream_with_timeout"] < turns:
            time.sleep(0.01)
        if rank == 1:
            open(mark, "x").close()
            return
        while not os.path.exists(mark):
            time.sleep(0.01)
        token.cancel() if sys.argv[2] == "is cancelled" else os.kill(os.getpid(), signal.SIGINT)

    stop = threading.Thread(target=stop_once_both_wait)
    stop.start()
    if rank == 1:  # its device takes longer for a segment than the test waits
        machine.slow(3600)
    try:
        model.predict([engine.Tensor(x)], cancel=token if rank == 0 else None)
    except BaseException as error:
        tell(error=repr(error))
    stop.join()
if sys.argv[2] == "cannot be ended":
    for ranks in list(_open):
        ranks.timeout_s = 2.0
    machine.fail("rt.stream_abort", 207000, times=1000)
    machine.slow(3600)
    try:
        model(x=x)
    except CommunicatorError as error:
        tell(error=str(error))
    del given, taken
    model.close()
    del model
    gc.collect()
    engine_ascend_ge.runtime.stop()
    assert not machine.faults, machine.faults
    tell(closed=True)
    os._exit(0)  # Python would wait for the threads of the emulator
del given, taken
model.close()
del model
gc.collect()
assert not machine.faults, machine.faults
live = machine.live()
tell(left={kind: live[kind] for kind in ("Event", "Stream", "Comm", "Memory") if kind in live})
"""


def chained(tmp_path: Path, scenario: str) -> list[list[dict[str, Any]]]:
    """Return the reports of two ranks on three segments with two collectives between them.

    Before the scenario they predict; each predict is waited for once.
    """
    with StoreServer() as server:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", CHAIN, str(tmp_path), scenario],
                env=environment(server, rank, 2),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            told = [[*map(json.loads, output_of(rank).splitlines())] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    for lines in told:
        runs = [line for line in lines if "waits" in line]
        assert runs[2:] == [{"waits": 1, "reduced": 2}] * 3
        assert [line["on_device"] for line in lines if "on_device" in line] == [1, 1, 1]
    return told


def test_a_device_that_does_not_get_to_a_queued_collective_ends_it_at_the_deadline(
    tmp_path: Path,
) -> None:
    for lines in chained(tmp_path, "stalls"):
        [error] = [line for line in lines if "error" in line]
        assert "all-reduce" in error["error"]
        [again] = [line for line in lines if "again" in line]
        assert "out of step" in again["again"], "the next predict fails at once"
        assert lines[-1] == {"left": {}}


@pytest.mark.parametrize(
    ("scenario", "raised"),
    [
        ("is interrupted", "KeyboardInterrupt"),
        pytest.param("is cancelled", "Cancelled", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_waits_for_its_device_hears_that_another_was_stopped(
    tmp_path: Path, scenario: str, raised: str
) -> None:
    stopped, other = chained(tmp_path, scenario)
    [error] = [line["error"] for line in stopped if "error" in line]
    assert error.startswith(raised)
    [error] = [line["error"] for line in other if "error" in line]
    assert f"rank 0 of 2 has aborted: {raised}" in error
    assert stopped[-1] == other[-1] == {"left": {}}


def test_a_model_is_closed_though_what_it_has_queued_cannot_be_ended(tmp_path: Path) -> None:
    for lines in chained(tmp_path, "cannot be ended"):
        [error] = [line["error"] for line in lines if "error" in line]
        assert "all-reduce" in error
        assert lines[-1] == {"closed": True}


def test_a_rank_that_is_killed_is_named_by_the_other_at_once(tmp_path: Path) -> None:
    survivor, victim = sliced(tmp_path, "on")
    for rank in (survivor, victim):
        assert rank.stdout is not None
        assert json.loads(rank.stdout.readline()) == {"built": True}
        rank.stdout.readline()
    victim.send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    last: Any = json.loads(output_of(survivor).splitlines()[-1])
    assert time.monotonic() - killed_s < 30
    assert last["ranks"] == [1]
    assert "rank 1 of 2 has ended: its process crashed or was killed" in last["error"]
    victim.communicate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table["server_list"][0]["device"].pop(), "rank 1"),
        (lambda table: table.pop("server_list"), "server_list"),
        (lambda table: table["server_list"][0]["device"][1].update(rank_id="7"), "rank"),
    ],
)
def test_a_malformed_rank_table_is_an_error_that_names_it(
    machine: Any, tmp_path: Path, change: Any, message: str
) -> None:
    import engine

    config = config_of(tmp_path)
    path = tmp_path / "rank_table.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    context = engine.Context()
    context.target = ["ascend"]
    context.ascend.rank_id = 1
    model = engine.Model()
    with pytest.raises(RuntimeError, match=message) as caught:
        model.build_from_file(
            str(SLICED / "rank1.mindir"), engine.ModelType.MINDIR, context, str(config)
        )
    assert "rank_table.json" in str(caught.value) or "rank" in str(caught.value)
