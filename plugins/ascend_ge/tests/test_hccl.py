"""Groups of ranks by HCCL (emulated): here two threads of one process, each with its device."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import engine_ascend_ge as plugin
from engine.distributed.store import GroupStore, StoreServer, connect
from engine.errors import BackendUnavailable, CommunicatorError, InputError
from engine.types import CommunicatorOptions, Device, DeviceBuffer, DType, ReduceOp
from engine_ascend_ge import hccl, streams

SOON_S = 40.0
Main = Callable[[Any, int], Any]


@pytest.fixture
def on_all(machine: Any) -> Iterator[Callable[..., list[Any]]]:
    """on_all(main, ranks=2, **options): main(group, rank) of each rank, each in its thread.

    Returns what the calls gave; raises the error of one. is_refused: gives the errors instead.
    """
    with StoreServer() as server:

        def run(
            main: Main = lambda comm, rank: None, *, ranks: int = 2, is_refused: bool = False,
            **fields: Any,
        ) -> list[Any]:  # fmt: skip
            results: list[Any] = [None] * ranks
            group = uuid4().hex

            def work(rank: int) -> None:
                options = CommunicatorOptions(
                    rank=rank, world_size=ranks, ranks=tuple(range(ranks)),
                    store=GroupStore(connect(server.address, server.key), group),
                    device=Device("ascend", rank % 2), timeout_s=60.0, **fields,
                )  # fmt: skip
                try:
                    with closing(plugin.engine_communicator(options)) as comm:
                        results[rank] = main(comm, rank)
                except BaseException as error:
                    results[rank] = error

            threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
                assert not thread.is_alive(), "a rank hangs"
            for result in results:
                if isinstance(result, BaseException) and not is_refused:
                    raise result
            return results

        yield run


@pytest.fixture
def refusal(on_all: Any) -> Callable[..., str]:
    """refusal(main, **options) -> the error of a rank that is alone."""

    def run(*main: Main, **fields: Any) -> str:
        [error] = on_all(*main, ranks=1, is_refused=True, **fields)
        assert isinstance(error, CommunicatorError | BackendUnavailable)
        return str(error)

    return run


def put(array: np.ndarray[Any, Any], device: int) -> DeviceBuffer:
    where, dtype = Device("ascend", device), DType.from_numpy(array.dtype)
    buffer: Any = plugin.engine_buffer(where, dtype, array.shape, False)
    plugin.engine_copy(array, buffer, None)
    return buffer


def zeros(device: int, *shape: int) -> DeviceBuffer:
    return put(np.zeros(shape or 4, np.float32), device)


def get(buffer: DeviceBuffer) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.empty(buffer.shape, buffer.dtype.numpy)
    plugin.engine_copy(buffer, array, None)
    return array


def allreduce(
    comm: Any, send: Any, receive: Any = None, op: Any = ReduceOp.SUM, **when: Any
) -> None:
    plugin.engine_allreduce(
        comm, send, receive or send, op, when.get("stream"), when.get("deadline_s")
    )


def rank_table(folder: Path, ranks: int) -> Path:
    """A table of a host that no other job has."""
    devices = [{"device_id": str(rank), "rank_id": str(rank)} for rank in range(ranks)]
    server = {"server_id": uuid4().hex, "device": devices}
    table = {"version": "1.0", "server_count": "1", "status": "completed", "server_list": [server]}
    path = folder / "rank_table.json"
    path.write_text(json.dumps(table))
    return path


@pytest.mark.parametrize("by_table", [False, True])
def test_ranks_join_by_root_info_or_by_rank_table(
    on_all: Any, machine: Any, tmp_path: Path, by_table: bool
) -> None:
    # In one process HCCL has one group by a table: the second rank of a thread is refused it.
    ranks = 1 if by_table else 2
    table = rank_table(tmp_path, 1) if by_table else None

    def main(comm: Any, rank: int) -> Any:
        buffer = put(np.full(3, rank + 1, np.float32), rank)
        allreduce(comm, buffer)
        assert comm.deterministic
        return get(buffer)

    for result in on_all(main, ranks=ranks, rank_table=table):
        np.testing.assert_array_equal(result, 3 if ranks == 2 else 1)
    assert machine.calls["HcclCommInitClusterInfo"] == (1 if by_table else 0)
    assert machine.calls["HcclCommInitRootInfo"] == (0 if by_table else 2)


def test_a_second_group_while_the_first_of_a_rank_table_lives_is_joined_by_root_info(
    on_all: Any, machine: Any, tmp_path: Path
) -> None:
    alone = {"ranks": 1, "rank_table": rank_table(tmp_path, 1)}
    on_all(lambda comm, rank: on_all(lambda inner, _: inner.check(), **alone), **alone)
    assert machine.calls["HcclCommInitRootInfo"] == 1
    on_all(lambda comm, rank: comm.check(), **alone)
    assert machine.calls["HcclCommInitClusterInfo"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the ranktable is invalid"),
        ('{"server_list": []}', "the ranktable has ranks [], this is 0"),
        (None, "No such file"),
    ],
)
def test_what_hccl_says_of_a_rank_table_is_in_the_error(
    refusal: Any, tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "table.json"
    if text is not None:
        path.write_text(text)
    error = refusal(rank_table=path)
    for part in (f"by rank table {str(path)!r}", "HCCL_E_", message):
        assert part in error


def test_a_table_of_more_ranks_than_were_started_is_refused(
    refusal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "0.5")
    assert "HCCL_E_TIMEOUT 9" in refusal(rank_table=rank_table(tmp_path, 2))


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        (ReduceOp.MEAN, np.float16, [1.5, 2.5]),
        (ReduceOp.MAX, np.int8, [2, 3]),
        (ReduceOp.PROD, np.uint16, [2, 6]),
        (ReduceOp.MIN, np.float64, [1, 2]),
    ],
)
def test_reductions_of_any_type_are_numpys(
    on_all: Any, op: ReduceOp, dtype: Any, expected: list[float]
) -> None:
    def main(comm: Any, rank: int) -> Any:
        buffer = put(np.array([rank + 1, rank + 2], dtype), rank)
        result = put(np.zeros(2, dtype), rank)
        allreduce(comm, buffer, result, op)
        return get(result)

    for result in on_all(main):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, expected)


def test_what_is_not_reduced_may_be_of_any_type(on_all: Any) -> None:
    def main(comm: Any, rank: int) -> Any:
        result = put(np.zeros((2, 3), np.bool_), rank)
        part = put(np.array([[rank == 0, True, False]]), rank)
        plugin.engine_allgather(comm, part, result, None, None)
        refused = None
        try:
            allreduce(comm, part, op=ReduceOp.MAX)
        except InputError as error:
            refused = str(error)
        return get(result), refused

    for result, refused in on_all(main):
        np.testing.assert_array_equal(result, [[True, True, False], [False, True, False]])
        assert "HCCL does not reduce bool tensors; it reduces bfloat16" in refused


def test_nothing_is_sent_of_tensors_without_elements(on_all: Any, machine: Any) -> None:
    on_all(lambda comm, rank: allreduce(comm, zeros(rank, 0, 3)))
    assert machine.calls["HcclAllReduce"] == 0


def test_a_collective_on_a_models_stream_is_waited_for_with_it(on_all: Any) -> None:
    import acl

    def main(comm: Any, rank: int) -> Any:
        acl.rt.set_context(comm.home)
        stream, _ = acl.rt.create_stream()
        first, second = put(np.full(4, rank, np.int32), rank), put(np.zeros(4, np.int32), rank)
        allreduce(comm, first, second, stream=stream)
        queued = DeviceBuffer(second.pointer, (4,), DType.INT32, second.device, stream, second)
        allreduce(comm, queued, first, stream=stream)
        assert streams.wait(acl, stream) == 0
        results = get(first), get(second)
        acl.rt.destroy_stream(stream)
        return results

    for first, second in on_all(main):
        np.testing.assert_array_equal(second, 1)
        np.testing.assert_array_equal(first, 2)


def test_whoever_waits_for_a_stream_hears_that_its_collective_was_aborted(on_all: Any) -> None:
    import acl

    done = threading.Event()

    def main(comm: Any, rank: int) -> Any:
        if rank == 1:
            done.wait(90)
            return None
        acl.rt.set_context(comm.home)
        stream, _ = acl.rt.create_stream()
        buffer = zeros(rank)
        allreduce(comm, buffer, stream=stream)
        threading.Timer(0.2, comm.abort).start()
        began_s = time.monotonic()
        try:
            streams.wait(acl, stream)
        except CommunicatorError as error:
            assert time.monotonic() - began_s < SOON_S
            return str(error)
        finally:
            done.set()
            acl.rt.destroy_stream(stream)

    error, _ = on_all(main)
    assert error == "group 'world': it was aborted"


def test_a_rank_that_does_not_come_is_named_among_three(on_all: Any) -> None:
    done = threading.Event()

    def main(comm: Any, rank: int) -> Any:
        if rank == 1:
            done.wait(90)
            return None
        buffer = zeros(rank % 2)
        try:
            allreduce(comm, buffer, deadline_s=time.monotonic() + 0.6)
        except CommunicatorError as error:
            done.set()
            return error.ranks, str(error)

    first, _, third = on_all(main, ranks=3)
    for ranks, text in (first, third):
        assert ranks == (1,)
        assert "rank 1 did not come to collective 1 (all-reduce) in time; look at its own" in text


def test_an_error_of_a_link_is_found_by_check(on_all: Any, machine: Any) -> None:
    def main(comm: Any, rank: int) -> None:
        comm.check()
        if rank == 0:
            machine.link_error = 21
            try:
                comm.check()
            finally:
                machine.link_error = 0

    error, _ = on_all(main, is_refused=True)
    assert isinstance(error, CommunicatorError)
    assert "could not go on in group 'world': HCCL_E_REMOTE 21" in str(error)


def test_a_machine_without_hccl_says_what_to_do(refusal: Any) -> None:
    from emulated_ascend import libraries

    libraries.missing.add(hccl.LIBRARY)
    error = refusal()
    assert error.startswith("libhccl.so cannot be loaded: libhccl.so: cannot open shared")
    assert error.endswith("source CANN's set_env.sh, and look at: engine doctor ascend_ge")


def test_an_hccl_without_a_function_is_too_old(
    refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emulated_ascend import libraries

    monkeypatch.delattr(libraries.find(hccl.LIBRARY), "HcclAlltoAll")
    assert "libhccl.so lacks HcclAlltoAll: this CANN is too old" in refusal()


def test_others_do_not_wait_for_a_rank_0_that_cannot_begin(on_all: Any, machine: Any) -> None:
    machine.fail("HcclGetRootInfo", 15)
    began_s = time.monotonic()
    _, other = on_all(is_refused=True)
    assert time.monotonic() - began_s < SOON_S
    assert isinstance(other, CommunicatorError)
    assert other.ranks == (0,)
    assert "rank 0 could not begin: could not give root info: HCCL_E_RUNTIME 15" in str(other)


CALLS = ("HcclGetRootInfo", "HcclCommInitRootInfo", "HcclAllReduce", "rt.create_stream")


@pytest.mark.parametrize("name", CALLS)
def test_every_call_may_fail_and_nothing_stays(machine: Any, refusal: Any, name: str) -> None:
    machine.fail(name, 4)
    assert " 4" in refusal(lambda comm, rank: allreduce(comm, zeros(rank)))


def test_a_group_that_is_busy_is_left_when_it_can_be(on_all: Any, machine: Any) -> None:
    machine.fail("HcclCommDestroy", hccl.AGAIN, times=3)
    on_all(ranks=1)
    assert machine.calls["HcclCommDestroy"] == 4


def test_every_function_has_the_emulated_ones_arguments(machine: Any) -> None:
    from emulated_ascend import libraries

    library = libraries.find(hccl.LIBRARY)
    for name, arguments in {**hccl.FUNCTIONS, **hccl.OPTIONAL}.items():
        theirs = getattr(library, name)
        original = type(theirs)._argtypes_
        sizes = [getattr(kind, "__name__", str(kind)) for kind in arguments]
        assert [getattr(kind, "__name__", str(kind)) for kind in original] == sizes, name
