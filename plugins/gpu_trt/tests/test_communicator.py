"""Groups of ranks that NCCL connects, emulated: one rank in this process, two in their own."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine_gpu_trt as plugin
from engine.distributed.store import GroupStore, StoreServer, connect
from engine.errors import BackendUnavailable, CommunicatorError
from engine.host.child import environment
from engine.types import CommunicatorOptions, Device, DeviceBuffer, DType, ReduceOp
from engine_gpu_trt import communicator, nccl
from engine_gpu_trt.communicator import NcclCommunicator

DEVICES = 2
LIMIT_S = 60
GPU = Device("gpu", 0)
STEPS = Path(__file__).with_name("rank_steps.py")


@pytest.fixture
def join() -> Iterator[Callable[..., NcclCommunicator]]:
    """Join groups of one rank; what is left open is closed."""
    with StoreServer() as server:
        store = connect(server.address, server.key)
        joined: list[NcclCommunicator] = []

        def join(name: str = "world", **options: Any) -> NcclCommunicator:
            given = {"rank": 0, "world_size": 1, "device": GPU, "timeout_s": 5.0} | options
            comm = NcclCommunicator(
                CommunicatorOptions(store=GroupStore(store, name), group=name, **given)
            )
            joined.append(comm)
            return comm

        yield join
        for comm in joined:
            comm.close()


def put(array: np.ndarray[Any, Any]) -> DeviceBuffer:
    buffer = plugin.engine_buffer(GPU, DType.from_numpy(array.dtype), array.shape, False)
    assert isinstance(buffer, DeviceBuffer)
    plugin.engine_copy(array, buffer, None)
    return buffer


def back(buffer: DeviceBuffer) -> np.ndarray[Any, Any]:
    array = np.zeros(buffer.shape, buffer.dtype.numpy)
    plugin.engine_copy(buffer, array, None)
    return array


@pytest.mark.parametrize("deterministic", [False, True])
def test_every_collective_of_one_rank_is_a_copy(
    join: Callable[..., NcclCommunicator], deterministic: bool
) -> None:
    comm = join()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    send = put(x)
    for call in (
        lambda to: plugin.engine_allreduce(comm, send, to, ReduceOp.SUM, None, deterministic, None),
        lambda to: plugin.engine_reduce_scatter(
            comm, send, to, ReduceOp.MAX, None, deterministic, None
        ),
        lambda to: plugin.engine_allgather(comm, send, to, None, None),
        lambda to: plugin.engine_alltoall(comm, send, to, None, None),
    ):
        receive = put(np.zeros_like(x))
        assert call(receive) is True
        np.testing.assert_array_equal(back(receive), x)
    assert plugin.engine_broadcast(comm, send, 0, None, None) is True
    np.testing.assert_array_equal(back(send), x)


def test_a_stream_of_nobody_here_is_waited_for(join: Callable[..., NcclCommunicator]) -> None:
    comm, send, receive = join(), put(np.ones(4, np.float32)), put(np.zeros(4, np.float32))
    plugin.engine_allreduce(comm, send, receive, ReduceOp.SUM, 0, False, None)
    np.testing.assert_array_equal(back(receive), np.ones(4, np.float32))


def test_joining_and_leaving_again_and_again_leaves_nothing(
    join: Callable[..., NcclCommunicator], emulated: Any
) -> None:
    join("first").close()
    gc.collect()
    before = emulated.live()
    for number in range(12):
        comm = join(f"again {number}")
        buffer = put(np.ones(4, np.float32))
        plugin.engine_allreduce(comm, buffer, buffer, ReduceOp.SUM, None, False, None)
        if number % 3:
            comm.close()
            comm.close()
        else:
            comm.abort()
            comm.close()
        del buffer
    assert emulated.live() == before


def test_a_group_that_nobody_closes_is_freed_with_its_object(emulated: Any) -> None:
    with StoreServer() as server:
        store = GroupStore(connect(server.address, server.key), "lost")
        comm = NcclCommunicator(
            CommunicatorOptions(rank=0, world_size=1, store=store, device=GPU, timeout_s=5.0)
        )
        assert emulated.live()["communicators"] == 1
        del comm
        gc.collect()
        assert "communicators" not in emulated.live()


def test_after_an_abort_everything_says_so(join: Callable[..., NcclCommunicator]) -> None:
    comm = join()
    comm.abort()
    buffer = put(np.ones(4, np.float32))
    for call in (
        comm.check,
        lambda: plugin.engine_allreduce(comm, buffer, buffer, ReduceOp.SUM, None, False, None),
    ):
        with pytest.raises(CommunicatorError, match=r"group 'world', rank 0: .* was aborted$"):
            call()


def test_a_group_is_left_without_waiting_for_its_idle_watcher(
    join: Callable[..., NcclCommunicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicator, "_LINGER_S", 2 * LIMIT_S)
    monkeypatch.setattr(communicator, "_LOOK_S", 0.2)  # it is between two looks when told to end
    comm, buffer = join(), put(np.ones(4, np.float32))
    plugin.engine_allreduce(comm, buffer, buffer, ReduceOp.SUM, comm._stream.handle, False, None)
    begin_s = time.monotonic()
    comm.close()
    assert time.monotonic() - begin_s < LIMIT_S


def test_what_nccl_cannot_reduce_is_named(join: Callable[..., NcclCommunicator]) -> None:
    comm, buffer = join(), put(np.array([True]))
    with pytest.raises(CommunicatorError, match=r"cannot reduce bool; it takes int8, .*cast"):
        plugin.engine_allreduce(comm, buffer, buffer, ReduceOp.SUM, None, False, None)
    plugin.engine_broadcast(comm, buffer, 0, None, None)  # it only moves it
    with pytest.raises(CommunicatorError, match="device memory, but got a value of ndarray"):
        plugin.engine_broadcast(comm, np.ones(3), 0, None, None)  # type: ignore[arg-type]
    comm.check()


def test_reductions_inside_the_switch_are_not_called_deterministic(
    join: Callable[..., NcclCommunicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert join("a").deterministic is False  # compute capability 9.0
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    assert join("b").deterministic is True


def test_an_error_of_nccls_is_said_and_ends_the_group(
    join: Callable[..., NcclCommunicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    comm, buffer = join(), put(np.ones(4, np.float32))
    monkeypatch.setattr(comm.library, "ncclAllReduce", lambda *given: 1)
    for _ in range(2):
        with pytest.raises(CommunicatorError, match="NCCL refused all-reduce: UnhandledCudaError"):
            plugin.engine_allreduce(comm, buffer, buffer, ReduceOp.SUM, None, False, None)
    with pytest.raises(CommunicatorError, match="UnhandledCudaError"):
        comm.check()


def test_without_the_library_the_command_is_given(
    join: Callable[..., NcclCommunicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.engine_devices()
    monkeypatch.setenv("ENGINE_EMULATED_NCCL", "none")
    nccl.library.cache_clear()
    try:
        with pytest.raises(
            BackendUnavailable, match=r"libnccl\.so\.2.*pip install nvidia-nccl-cu13"
        ):
            join()
        found = plugin.engine_devices().found
        expected = ["collectives", "graph_collectives"]
        assert [list(device.lacks) for device in found] == [expected] * DEVICES
        [check] = [check for check in plugin.engine_diagnose() if check.name == "NCCL"]
        assert check.ok
        assert "host memory" in check.detail
        assert check.fix
    finally:
        nccl.library.cache_clear()


@pytest.fixture(scope="module")
def said() -> list[dict[str, str]]:
    """The words of two ranks in each scenario of rank_steps.py; the second is killed last."""
    with StoreServer() as server:
        children = [
            subprocess.Popen(
                [sys.executable, str(STEPS), str(rank), server.address, *SCENARIOS],
                env=environment(KIT_STORE_KEY=server.key.hex()),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        outputs = [child.communicate(timeout=LIMIT_S) for child in children]
    assert [child.returncode for child in children] == [0, -signal.SIGKILL], outputs
    return [dict(line.split(": ", 1) for line in out.splitlines()) for out, _ in outputs]


SCENARIOS = {
    "large": "equal",
    "same": "Duplicate GPU detected",
    "leaves": "rank 1 of 2 has left: the communicator was aborted (1,)",
    "queued": "rank 1 of 2 did not come in time to all-reduce (1,)",
    "dies": "rank 1 of 2 has ended: its process crashed or was killed (1,)",
}


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "expected"), SCENARIOS.items(), ids=SCENARIOS)
def test_ranks_of_two_processes(said: list[dict[str, str]], scenario: str, expected: str) -> None:
    assert expected in said[0][scenario]
    if scenario != "dies":
        assert scenario in said[1], "its process has come to the end of it"
