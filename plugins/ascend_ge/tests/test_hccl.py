"""Groups of ranks by HCCL (emulated): here two threads of one process, each with its device."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from engine.distributed.store import GroupStore, StoreServer, connect
from engine.errors import BackendUnavailable, CommunicatorError, InputError
from engine.types import CommunicatorOptions, Device, DeviceBuffer, DType, ReduceOp
from engine_ascend_ge import hccl, streams

SOON_S = 40.0


@contextmanager
def joined(
    backend: Any, ranks: int = 2, timeout_s: float = 60.0, **fields: Any
) -> Iterator[Callable[[Callable[[Any, int], Any]], list[Any]]]:
    """Lend `on_all`, which calls a function with each rank's group, in a thread for each.

    It returns what the calls gave, or the exceptions that ended them.
    """
    with StoreServer() as server:

        def on_all(main: Callable[[Any, int], Any]) -> list[Any]:
            results: list[Any] = [None] * ranks

            def work(rank: int) -> None:
                comm = None
                try:
                    comm = backend.bind("engine_communicator")(
                        CommunicatorOptions(
                            rank=rank,
                            world_size=ranks,
                            store=GroupStore(connect(server.address, server.key), uuid),
                            ranks=tuple(range(ranks)),
                            device=Device("ascend", rank % 2),
                            timeout_s=timeout_s,
                            **fields,
                        )
                    )
                    results[rank] = main(comm, rank)
                except BaseException as error:
                    results[rank] = error
                finally:
                    if comm is not None:
                        comm.close()

            uuid = uuid4().hex
            threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
                assert not thread.is_alive(), "a rank hangs"
            return results

        yield on_all


def values(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.fixture
def put(backend: Any) -> Callable[..., DeviceBuffer]:
    def make(array: np.ndarray[Any, Any], device: int) -> DeviceBuffer:
        where = Device("ascend", device)
        dtype = DType.from_numpy(array.dtype)
        buffer: DeviceBuffer = backend.bind("engine_buffer")(where, dtype, array.shape, False)
        backend.bind("engine_copy")(array, buffer, None)
        return buffer

    return make


@pytest.fixture
def get(backend: Any) -> Callable[[DeviceBuffer], np.ndarray[Any, Any]]:
    def fetch(buffer: DeviceBuffer) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = np.empty(buffer.shape, buffer.dtype.numpy)
        backend.bind("engine_copy")(buffer, array, None)
        return array

    return fetch


def rank_table(folder: Path, ranks: int = 2) -> Path:
    """A table of a host that no other job has."""
    devices = [{"device_id": str(rank), "rank_id": str(rank)} for rank in range(ranks)]
    server = {"server_id": uuid4().hex, "device": devices}
    table = {"version": "1.0", "server_count": "1", "status": "completed", "server_list": [server]}
    path = folder / "rank_table.json"
    path.write_text(json.dumps(table))
    return path


@pytest.mark.parametrize("by_table", [False, True])
def test_ranks_join_by_root_info_or_by_rank_table(
    machine: Any, backend: Any, put: Any, get: Any, tmp_path: Path, by_table: bool
) -> None:
    table = rank_table(tmp_path) if by_table else None

    def main(comm: Any, rank: int) -> Any:
        buffer = put(np.full(3, rank + 1, np.float32), rank)
        backend.bind("engine_allreduce")(comm, buffer, buffer, ReduceOp.SUM, None, True, None)
        assert comm.deterministic
        return get(buffer)

    # In one process HCCL has one group by a table: the second rank of a thread is refused it.
    ranks = 1 if by_table else 2
    with joined(backend, ranks, rank_table=table) as on_all:
        if table is not None:
            table.write_text(rank_table(tmp_path, 1).read_text())
        for result in values(on_all(main)):
            np.testing.assert_array_equal(result, 3 if ranks == 2 else 1)
    assert machine.calls["HcclCommInitClusterInfo"] == (1 if by_table else 0)
    assert machine.calls["HcclCommInitRootInfo"] == (0 if by_table else 2)


def test_a_second_group_while_the_first_of_a_rank_table_lives_is_joined_by_root_info(
    machine: Any, backend: Any, tmp_path: Path
) -> None:
    table = rank_table(tmp_path, 1)
    with joined(backend, 1, rank_table=table) as on_all:
        values(on_all(lambda comm, rank: values(on_all(lambda inner, _: inner.check()))))
        assert machine.calls["HcclCommInitRootInfo"] == 1
        values(on_all(lambda comm, rank: comm.check()))
    assert machine.calls["HcclCommInitClusterInfo"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the ranktable is invalid"),
        ('{"server_list": []}', r"the ranktable has ranks \[\], this is 0"),
        (None, "No such file"),
    ],
)
def test_what_hccl_says_of_a_rank_table_is_in_the_error(
    backend: Any, tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "table.json"
    if text is not None:
        path.write_text(text)
    with joined(backend, 1, rank_table=path) as on_all:
        [error] = on_all(lambda comm, rank: None)
    assert isinstance(error, CommunicatorError)
    assert f"by rank table {str(path)!r}" in str(error)
    assert "HCCL_E_" in str(error)
    with pytest.raises(CommunicatorError, match=message):
        raise error


def test_a_table_of_more_ranks_than_were_started_is_refused(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "1")
    with joined(backend, 1, rank_table=rank_table(tmp_path, 2)) as on_all:
        [error] = on_all(lambda comm, rank: None)
    assert isinstance(error, CommunicatorError)
    assert "HCCL_E_TIMEOUT 9" in str(error)


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        (ReduceOp.MEAN, np.float16, [1.5, 2.5]),
        (ReduceOp.MEAN, np.float32, [1.5, 2.5]),
        (ReduceOp.MAX, np.int8, [2, 3]),
        (ReduceOp.PROD, np.uint16, [2, 6]),
        (ReduceOp.MIN, np.float64, [1, 2]),
    ],
)
def test_reductions_of_any_type_are_numpys(
    backend: Any, put: Any, get: Any, op: ReduceOp, dtype: Any, expected: list[float]
) -> None:
    def main(comm: Any, rank: int) -> Any:
        buffer = put(np.array([rank + 1, rank + 2], dtype), rank)
        result = put(np.zeros(2, dtype), rank)
        backend.bind("engine_allreduce")(comm, buffer, result, op, None, True, None)
        return get(result)

    with joined(backend) as on_all:
        for result in values(on_all(main)):
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, expected)


def test_what_is_not_reduced_may_be_of_any_type(backend: Any, put: Any, get: Any) -> None:
    def main(comm: Any, rank: int) -> Any:
        result = put(np.zeros((2, 3), np.bool_), rank)
        part = put(np.array([[rank == 0, True, False]]), rank)
        backend.bind("engine_allgather")(comm, part, result, None, None)
        refused = None
        try:
            backend.bind("engine_allreduce")(comm, part, part, ReduceOp.MAX, None, True, None)
        except InputError as error:
            refused = str(error)
        return get(result), refused

    with joined(backend) as on_all:
        for result, refused in values(on_all(main)):
            np.testing.assert_array_equal(result, [[True, True, False], [False, True, False]])
            assert "HCCL does not reduce bool tensors; it reduces bfloat16" in refused


def test_nothing_is_sent_of_tensors_without_elements(machine: Any, backend: Any, put: Any) -> None:
    def main(comm: Any, rank: int) -> None:
        empty = put(np.zeros((0, 3), np.float32), rank)
        backend.bind("engine_allreduce")(comm, empty, empty, ReduceOp.SUM, None, True, None)

    with joined(backend) as on_all:
        values(on_all(main))
    assert machine.calls["HcclAllReduce"] == 0


def test_a_collective_on_a_models_stream_is_waited_for_with_it(
    machine: Any, backend: Any, put: Any, get: Any
) -> None:
    import acl

    def main(comm: Any, rank: int) -> Any:
        acl.rt.set_context(comm.home)
        stream, _ = acl.rt.create_stream()
        first, second = put(np.full(4, rank, np.int32), rank), put(np.zeros(4, np.int32), rank)
        allreduce = backend.bind("engine_allreduce")
        allreduce(comm, first, second, ReduceOp.SUM, stream, True, None)
        queued = DeviceBuffer(second.pointer, (4,), DType.INT32, second.device, stream, second)
        allreduce(comm, queued, first, ReduceOp.SUM, stream, True, None)
        assert streams.wait(acl, stream) == 0
        results = get(first), get(second)
        acl.rt.destroy_stream(stream)
        return results

    with joined(backend) as on_all:
        for first, second in values(on_all(main)):
            np.testing.assert_array_equal(second, 1)
            np.testing.assert_array_equal(first, 2)


def test_whoever_waits_for_a_stream_hears_that_its_collective_was_aborted(
    machine: Any, backend: Any, put: Any
) -> None:
    import acl

    done = threading.Event()

    def main(comm: Any, rank: int) -> Any:
        if rank == 1:
            done.wait(90)
            return None
        acl.rt.set_context(comm.home)
        stream, _ = acl.rt.create_stream()
        buffer = put(np.zeros(4, np.float32), rank)
        backend.bind("engine_allreduce")(comm, buffer, buffer, ReduceOp.SUM, stream, True, None)
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

    with joined(backend) as on_all:
        error, _ = values(on_all(main))
    assert error == "group 'world': it was aborted"


def test_a_rank_that_does_not_come_is_named_among_three(backend: Any, put: Any) -> None:
    done = threading.Event()

    def main(comm: Any, rank: int) -> Any:
        if rank == 1:
            done.wait(90)
            return None
        buffer = put(np.zeros(4, np.float32), rank % 2)
        try:
            backend.bind("engine_allreduce")(
                comm, buffer, buffer, ReduceOp.SUM, None, True, time.monotonic() + 0.6
            )
        except CommunicatorError as error:
            done.set()
            return error.ranks, str(error)

    with joined(backend, 3) as on_all:
        first, _, third = values(on_all(main))
    for ranks, text in (first, third):
        assert ranks == (1,)
        assert (
            "rank 1 did not come to collective 1 (all-reduce) in time; look at its own messages"
            in text
        )


def test_an_error_of_a_link_is_found_by_check(machine: Any, backend: Any) -> None:
    def main(comm: Any, rank: int) -> None:
        comm.check()
        if rank == 0:
            machine.link_error = 21
            try:
                comm.check()
            finally:
                machine.link_error = 0

    with joined(backend) as on_all:
        error, _ = on_all(main)
    assert isinstance(error, CommunicatorError)
    assert "could not go on in group 'world': HCCL_E_REMOTE 21" in str(error)


def test_a_machine_without_hccl_says_what_to_do(machine: Any, backend: Any) -> None:
    from emulated_ascend import libraries

    libraries.missing.add(hccl.LIBRARY)
    with joined(backend, 1) as on_all:
        [error] = on_all(lambda comm, rank: None)
    assert isinstance(error, CommunicatorError)
    assert str(error).startswith("libhccl.so cannot be loaded: libhccl.so: cannot open shared")
    assert str(error).endswith("source CANN's set_env.sh, and look at: engine doctor ascend_ge")


def test_an_hccl_without_a_function_is_too_old(
    machine: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emulated_ascend import libraries

    library = libraries.find(hccl.LIBRARY)
    monkeypatch.delattr(library, "HcclAlltoAll")
    with joined(backend, 1) as on_all:
        [error] = on_all(lambda comm, rank: None)
    assert "libhccl.so lacks HcclAlltoAll: this CANN is too old" in str(error)


def test_others_do_not_wait_for_a_rank_0_that_cannot_begin(machine: Any, backend: Any) -> None:
    machine.fail("HcclGetRootInfo", 15)
    with joined(backend) as on_all:
        began_s = time.monotonic()
        _, other = on_all(lambda comm, rank: None)
        assert time.monotonic() - began_s < SOON_S
    assert isinstance(other, CommunicatorError)
    assert other.ranks == (0,)
    assert "rank 0 could not begin: could not give root info: HCCL_E_RUNTIME 15" in str(other)


CALLS = ("HcclGetRootInfo", "HcclCommInitRootInfo", "HcclAllReduce", "rt.create_stream")


@pytest.mark.parametrize("name", CALLS)
def test_every_call_may_fail_and_nothing_stays(
    machine: Any, backend: Any, put: Any, name: str
) -> None:
    def main(comm: Any, rank: int) -> None:
        buffer = put(np.zeros(4, np.float32), rank)
        backend.bind("engine_allreduce")(comm, buffer, buffer, ReduceOp.SUM, None, True, None)

    machine.fail(name, 4)
    with joined(backend, 1) as on_all:
        [error] = on_all(main)
    assert isinstance(error, CommunicatorError | BackendUnavailable)
    assert " 4" in str(error)


def test_a_group_that_is_busy_is_left_when_it_can_be(machine: Any, backend: Any) -> None:
    machine.fail("HcclCommDestroy", hccl.AGAIN, times=3)
    with joined(backend, 1) as on_all:
        values(on_all(lambda comm, rank: None))
    assert machine.calls["HcclCommDestroy"] == 4


def test_every_function_has_the_emulated_ones_arguments(machine: Any) -> None:
    from emulated_ascend import libraries

    library = libraries.find(hccl.LIBRARY)
    for name, arguments in {**hccl.FUNCTIONS, **hccl.OPTIONAL}.items():
        theirs = getattr(library, name)
        original = type(theirs)._argtypes_
        sizes = [getattr(kind, "__name__", str(kind)) for kind in arguments]
        assert [getattr(kind, "__name__", str(kind)) for kind in original] == sizes, name
