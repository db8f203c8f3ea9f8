"""Faults of collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.errors import CommunicatorError
from engine.hookspecs import hookimpl
from engine.types import DeviceBuffer, ReduceOp
from engine_testing.null_device import fake_device
from faulty import Faulty, caught_by


@caught_by("test_collectives_match_numpy", says="Not equal to tolerance")
class TakesTheSumForTheMean(Faulty):
    def allreduce(self, comm, send, receive, op, stream, deadline_s):
        op = ReduceOp.SUM if op is ReduceOp.MEAN else op
        return super().allreduce(comm, send, receive, op, stream, deadline_s)


@caught_by("test_composed_or_own_collectives_match_numpy", says="Not equal to tolerance")
class BroadcastsFromRank0(Faulty):
    """Has a hook of its own for what the core would have composed rightly."""

    @hookimpl
    def engine_broadcast(self, comm: Any, buffer: Any, deadline_s: Any) -> bool:
        for rank in range(1, comm.world_size):
            if comm.rank == 0:
                self.send(comm, buffer, rank, None)
            elif comm.rank == rank:
                self.receive(comm, buffer, 0, None, deadline_s)
        return True


@caught_by("test_every_rank_gets_the_same_bits", says="different bits")
class AddsInAnOrderOfItsOwn(Faulty):
    def allreduce(self, comm, send, receive, op, stream, deadline_s):
        super().allreduce(comm, send, receive, op, stream, deadline_s)
        if stream is None and comm.rank and receive.dtype == "float32":
            sums = fake_device().read(receive)
            fake_device().write(receive, np.nextafter(sums, np.float32(np.inf)))
        return True


@caught_by("test_a_queued_collective_comes_in_its_streams_order", says="Not equal to tolerance")
class ReducesAtOnce(Faulty):
    """Reads what the stream has not brought yet."""

    def allreduce(self, comm, send, receive, op, stream, deadline_s):
        send = replace(send, stream=None) if isinstance(send, DeviceBuffer) else send
        return super().allreduce(comm, send, receive, op, None, deadline_s)


CHAIN = "test_segments_and_queued_collectives_need_one_wait"
LETS_GO = "test_a_queued_collective_that_cannot_end_lets_go_of_its_stream"


@caught_by(CHAIN, says="Not equal to tolerance")
class IgnoresTheStream(Faulty):
    """Takes the buffers as they are when it is called, and is done on return."""

    def allreduce(self, comm, send, receive, op, stream, deadline_s):
        send, receive = replace(send, stream=None), replace(receive, stream=None)
        return super().allreduce(comm, send, receive, op, None, deadline_s)


@caught_by(CHAIN, says="Not equal to tolerance")
class QueuesOnAStreamOfItsOwn(Faulty):
    """Begins in the stream's order, but nothing on that comes after its result."""

    def allreduce(self, comm, send, receive, op, stream, deadline_s):
        if stream is not None:
            device = fake_device()
            own = device.open_stream()
            device.order(stream, own)
            stream, receive = own, replace(receive, stream=None)
        return super().allreduce(comm, send, receive, op, stream, deadline_s)


@caught_by(LETS_GO, says="check() says nothing of a queued collective")
class ForgetsHowAQueuedCollectiveEnded(Faulty):
    def communicator(self, options):
        comm = super().communicator(options)
        comm.check = lambda: None
        return comm


@caught_by(LETS_GO, says="the stream was let go of only after")
class HoldsTheStreamOfWhatCannotEnd(Faulty):
    def allreduce(self, comm, send, receive, op, stream, deadline_s):
        if stream is not None and deadline_s is not None:
            deadline_s += 10
        return super().allreduce(comm, send, receive, op, stream, deadline_s)


@caught_by("test_an_abort_ends_a_collective_that_waits", says="the collective ended only after")
class CannotBeAborted(Faulty):
    def communicator(self, options):
        comm = super().communicator(options)
        comm.abort = lambda: None
        return comm


@caught_by(
    "test_a_rank_that_does_not_come_to_a_collective_is_named", says="expected (1,)",
    control="test_an_abort_ends_a_collective_that_waits",
)  # fmt: skip
class NamesNoRank(Faulty):
    def allreduce(self, comm, send, receive, op, stream, deadline_s):
        try:
            return super().allreduce(comm, send, receive, op, stream, deadline_s)
        except CommunicatorError as error:
            raise CommunicatorError(str(error)) from error


@caught_by("test_a_rank_that_does_not_join_is_named", says="expected (1,)")
class NamesNobodyWhoIsMissing(Faulty):
    def communicator(self, options):
        try:
            return super().communicator(options)
        except CommunicatorError as error:
            raise CommunicatorError("not all ranks have joined") from error


@caught_by("test_two_groups_do_not_mix", says="the communicator is closed")
class HasOneGroup(Faulty):
    joined: Any = None

    def communicator(self, options):
        self.joined = self.joined or super().communicator(options)
        return self.joined
