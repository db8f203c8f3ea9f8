"""The ranks of one plan: how they meet, and what they tell each other of a failure.

    ranks = Ranks(this_job(), rank, world_size, name)
    ...                            # the plan compiles its segments, those of ranks.backend too
    ranks.join(sequence)           # all ranks compare what they will do, and connect
    predict = ranks.guarded(predict)

Its collectives run in rank_segments.py.
"""

from __future__ import annotations

import atexit
import logging
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet, finalize, ref

from engine.backends import Backend
from engine.distributed.agreement import agree
from engine.distributed.compose import Collectives, host_collectives
from engine.distributed.device import DeviceGroups, has_collectives
from engine.distributed.job import Job, this_job
from engine.distributed.local import LocalCommunicator
from engine.distributed.mpi_start import forget_segments
from engine.distributed.nodes import Call
from engine.distributed.own_transports import LocalRendezvous
from engine.distributed.rank_segments import HOST, backend_of
from engine.distributed.sequence import Collective
from engine.distributed.transport import LOCAL, HostCommunicator, faults_of, join, name_for
from engine.errors import Cancelled, CommunicatorError, ModelError, one_line
from engine.formats.collectives import Part
from engine.host.interrupts import pass_interrupt
from engine.types import Communicator, Device, Predict, Values

_LOOK_S = 0.1
"""Time after which a rank that waits in a collective on the device hears of another's failure."""

# The plans that a rank of a job has joined; every rank joins its plans in the same order.
_plans: Counter[Job] = Counter()


_open: WeakSet[Ranks] = WeakSet()


def _tell_of_failure() -> None:
    """Tell the other ranks why, where an exception has ended this process's script."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        for ranks in list(_open):
            ranks.abort(one_line(error))


class Ranks:
    """The other ranks, as the plan of one sees them.

    name: how messages call the model. backend, device: of the segments beside the collectives;
    these stay in the device's memory where the backend runs them there. Raises CommunicatorError
    where this process is no rank of a job.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        world_size: int,
        name: str,
        backend: Backend | None = None,
        device: Device = HOST,
    ) -> None:
        if not job.is_started:
            raise CommunicatorError(
                "this process was not started as a rank of several: start all of them with engine "
                "launch -n N, with mpirun -n N, or with a rank table each; or run the model that "
                "was sliced"
            )
        if not 0 <= rank < world_size:
            raise CommunicatorError(
                f"this process is rank {rank} of {world_size}; look at rank_id, and at how many "
                "ranks were started"
            )
        if world_size == 1:
            logging.getLogger("engine").warning(
                "%s is one rank's part of a sliced model, and this job has one rank: the results "
                "are those of the part alone", name,
            )  # fmt: skip
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = job.timeout_s
        self.on_device: DeviceGroups | None = None
        self._watch: Watch | None = None
        self._transport = name_for(replace(job, rank=rank))
        is_here = self._transport == LOCAL  # devices meet by way of one host
        if backend is not None and world_size > 1 and is_here and has_collectives(backend, device):
            self.on_device = DeviceGroups(backend, device)
        self.device = device if self.on_device is not None else HOST
        self.backend = backend_of(self, self.on_device)
        self._job = job
        self._name = name
        self._members: dict[str, tuple[int, ...]] = {"": tuple(range(world_size))}
        self._groups: dict[str, tuple[HostCommunicator, Collectives]] = {}
        self._ended = ""
        self._is_running = False
        self._refused: list[str] = []  # while one was running
        self._meets = True  # on the host before each collective, as Send and Receive do not
        self._lock = threading.RLock()

    def add_group(self, name: str, members: tuple[int, ...], op_type: str = "") -> None:
        """Note a group that a node of this rank belongs to, to be joined."""
        self._meets &= op_type not in ("Send", "Receive")
        if self._members.setdefault(name, members) != members:
            raise ModelError(
                f"{self._name}: group {name!r} is of ranks {list(members)} in one node, and of "
                f"{list(self._members[name])} in another",
                self._name,
            )

    def join(self, collectives: Sequence[Collective], part: Part | None = None) -> None:
        """Compare this rank's collectives with those of all others, and connect to them.

        part: whose part of a sliced model this rank's file says that it is. Raises
        CommunicatorError naming the ranks that do not come or that do something else.
        """
        if part is None:
            self._warn_of_anothers_file()
        job = replace(self._job, rank=self.rank)
        _plans[job] += 1
        with faults_of(self._transport):
            rendezvous = join(self._transport, job, _plans[job])
            try:
                self._expect_failure()
                agree(rendezvous.exchange, collectives, self.timeout_s, part)
                # In one order on all ranks, so that no two of them wait for each other in a circle.
                for name, members in sorted(self._members.items()):
                    comm = rendezvous.group(name, members, self.timeout_s)
                    self._groups[name] = comm, host_collectives()
                    if self.on_device is not None and len(members) > 1:
                        assert isinstance(rendezvous, LocalRendezvous), (
                            "devices meet on one machine"
                        )
                        place = " on the device"
                        options = rendezvous.options(name, members, self.timeout_s, place)
                        self.on_device.join(name, options)
                if self.on_device is not None:
                    self._watch = Watch(self)
                forget_segments()
            except BaseException:
                self.close()
                raise
            finally:
                rendezvous.close()

    def _expect_failure(self) -> None:
        """Have the other ranks told when an exception ends this process."""
        _open.add(self)
        atexit.unregister(_tell_of_failure)  # it is to run before what was registered since
        atexit.register(_tell_of_failure)

    def _warn_of_anothers_file(self) -> None:
        """Warn where this rank was given another one's file, by upstream's naming, and has one.

        It may be meant so: ranks of one file are told apart by their inputs.
        """
        path = Path(self._name)
        named = re.fullmatch(r"(.*?)(\d+)", path.stem)
        if named is None or named[2] == str(self.rank) or int(named[2]) >= self.world_size:
            return
        own = path.with_name(f"{named[1]}{self.rank}{path.suffix}")
        if own.is_file():
            logging.getLogger("engine").warning(
                "rank %d of %d runs %s, and there is %s", self.rank, self.world_size, path, own
            )

    def call(self, group: str, deadline_s: float) -> Call:
        """Return what a node of a group needs to run until `deadline_s`."""
        comm, do = self._groups[group]
        return Call(comm, do, deadline_s)

    def meet(self, group: str, what: str, deadline_s: float) -> None:
        """Wait until all ranks of a group have come to the same collective on the device.

        A device cannot tell who has not come, or has come with another tensor.
        """
        comm = self._groups[group][0]
        assert isinstance(comm, LocalCommunicator), "all ranks are on this machine"
        comm.meet(what, deadline_s)

    @property
    def communicators(self) -> Mapping[str, Communicator]:
        """The groups on the device, by name, once joined: for collectives inside a graph."""
        return {} if self.on_device is None else self.on_device.communicators

    def met(self, predict: Predict, what: str) -> Predict:
        """Return `predict` such that it begins when all ranks have come to `what`.

        It always gets a deadline: that of the ranks, or an earlier one.
        """

        def met(
            context: Any, inputs: Values, outputs: Values | None, deadline_s: float | None
        ) -> Values:
            end_s = time.monotonic() + self.timeout_s
            if deadline_s is not None:
                end_s = min(end_s, deadline_s)
            self.meet("", what, end_s)
            try:
                return predict(context, inputs, outputs, end_s)
            except CommunicatorError as error:
                self.raise_known(error)
                raise

        return met

    def raise_known(self, error: CommunicatorError) -> None:
        """Raise what the other ranks have said of a failure on the device, if anything."""
        try:
            self.world_check()
        except CommunicatorError as known:
            raise known from error

    def world_check(self) -> None:
        """Raise CommunicatorError where another rank has ended or has said that it failed."""
        world = self._groups.get("")
        if world is not None:
            comm = world[0]
            assert isinstance(comm, LocalCommunicator), "all ranks are on this machine"
            comm.check(may_leave=self._meets)

    def guarded(self, predict: Predict) -> Predict:
        """Return `predict` such that what it raises ends the groups of this plan.

        The other ranks do not wait for one that has failed, and are told why.
        """

        def together(
            context: Any, inputs: Values, outputs: Values | None, deadline_s: float | None
        ) -> Values:
            if self._ended:
                raise CommunicatorError(
                    "the ranks of this model are out of step since an earlier predict failed: "
                    f"{self._ended}; build it anew in every rank"
                )
            self._is_running = True  # predicts take turns
            try:
                if self._watch is not None:
                    self._watch.begin()
                return self._predicted(predict, context, inputs, outputs, deadline_s)
            except BaseException as error:
                self.abort(one_line(error))
                raise
            finally:
                if self._watch is not None:
                    self._watch.end()
                with self._lock:
                    self._is_running = False
                    refused, self._refused = self._refused, []
                for why in refused:
                    self.refuse(why)

        return together

    def _predicted(
        self,
        predict: Predict,
        context: Any,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
    ) -> Values:
        """Predict, and wait for what is queued on the device: its errors come no earlier."""
        groups = self.on_device
        if groups is None:
            return predict(context, inputs, outputs, deadline_s)
        # Of a rank that has left nobody knows whether a queued Receive still waits for it.
        groups.begin(may_queue=self._meets)
        try:
            return groups.finish(predict(context, inputs, outputs, deadline_s), outputs)
        except Exception as error:
            if groups.stream is None or isinstance(error, Cancelled):
                raise
            known = self._known_failure(error)
            if known is error:
                raise
            raise known from error

    def _known_failure(self, error: Exception) -> Exception:
        """Return why a predict with queued collectives failed: who waits for a stream is told less.

        Of a failure in a group the other ranks may know more than this one's device does.
        """
        try:
            if not isinstance(error, CommunicatorError) and self.on_device is not None:
                self.on_device.check()
                return error
        except CommunicatorError as ended:
            error = ended
        try:
            self.world_check()
        except CommunicatorError as known:
            return known
        return error

    def refuse(self, why: str) -> None:
        """Tell the other ranks that this one refuses a predict before it begins."""
        with self._lock:
            if self._is_running:  # in another thread: the others are in that one with this rank
                self._refused.append(why)
                return
            groups = [] if self._ended else list(self._groups.values())
        for comm, _ in groups:
            comm.refuse(why)

    def abort(self, why: str) -> None:
        """End what runs and what comes in all groups, here and on the other ranks. Any thread."""
        with self._lock:
            self._ended = self._ended or why
            groups = list(self._groups.values())
        for comm, _ in groups:
            comm.abort(why)
        if self.on_device is not None:
            self.on_device.abort()

    def close(self) -> None:
        """Leave all groups; twice does nothing."""
        with self._lock:
            groups, self._groups = self._groups, {}
        if self._watch is not None:
            self._watch.close()
        if self.on_device is not None:
            self.on_device.close()
        for comm, _ in groups.values():
            comm.close()


class Watch:
    """Hears of the other ranks' failures while a predict runs, and ends its collectives.

    It does not keep the ranks alive, and ends with them.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ref(ranks)
        self._is_running = self._is_over = False
        # Bare locks, which are released to wake the thread: when the process ends it stops wherever
        # it is, and inside an Event it may have the lock that `close`, called once more as the
        # model is dropped, would wait for.
        self._begun, self._ended = _taken_lock(), _taken_lock()
        finalize(ranks, self.close)
        threading.Thread(target=self._look, name="engine-ranks", daemon=True).start()

    def begin(self) -> None:
        """A predict begins."""
        self._is_running = True
        _release(self._begun)

    def end(self) -> None:
        """It is over."""
        self._is_running = False

    def close(self) -> None:
        """End the thread; twice does nothing."""
        self._is_over = True
        _release(self._ended)
        _release(self._begun)

    def _look(self) -> None:
        while not self._is_over:
            if not self._is_running:
                self._begun.acquire()
            self._ended.acquire(timeout=_LOOK_S)
            ranks = self._ranks()
            if ranks is not None and self._is_running and not self._is_over:
                try:
                    ranks.world_check()
                except CommunicatorError as error:
                    with suppress(CommunicatorError):
                        ranks.abort(str(error))
                    return
            del ranks  # or waiting would keep them alive


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _release(lock: threading.Lock) -> None:
    try:
        lock.release()
    except RuntimeError as error:  # it is released already
        pass_interrupt(error)


def open_ranks(
    job: Job | None, rank: int, world_size: int, name: str, backend: Backend, device: Device
) -> Ranks:
    """Return the ranks of a plan. job: None for that which this process was launched for.

    See `sliced.compile_rank`.
    """
    return Ranks(job or this_job(), rank, world_size, name, backend, device)
