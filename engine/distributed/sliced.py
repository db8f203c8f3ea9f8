"""A rank's part of a sliced model: cut at its collectives, which the ranks run together.

Or whole, where its backend runs them inside what it compiles (Capability.GRAPH_COLLECTIVES); the
core still compares them, brings the ranks together, and ends all predicts where one fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from engine.backends import Backend
from engine.distributed.micro_batches import MicroBatched
from engine.distributed.ranks import Ranks
from engine.distributed.sequence import sequence
from engine.errors import BackendError, CommunicatorError, ModelError
from engine.formats.collectives import is_collective, part_of
from engine.formats.micro_batches import micro_batches_of
from engine.formats.opened import digest_of
from engine.plan.compile import NOWHERE, compile_whole
from engine.plan.contexts import ContextPool, close
from engine.plan.mixed.fallback import compile_parts, plan_of
from engine.plan.mixed.partition_cache import read
from engine.plan.mixed.partitioning import Partitioning, remembered
from engine.plan.mixed.parts import Refused, compile_segments
from engine.plan.plan import Candidate, Opener, Plan
from engine.plan.segments import SegmentedExecutable
from engine.types import (
    Capability,
    Device,
    Executable,
    ModelSource,
    TensorSpec,
)

HOST = Device("cpu")


def compile_rank(
    first: Candidate,
    source: ModelSource,
    further: Iterator[Candidate | BackendError],
    open_ranks: Callable[[int, int, str, Backend, Device], Ranks] | None,
) -> Plan:
    """Compile one rank's part of a model, and join the other ranks.

    further: see `compile_plan`. open_ranks(rank, world_size, model, backend, device): returns the
        ranks for a plan whose other segments run there; messages call it by `model`.
    Raises CommunicatorError where ranks do not come or do not fit together, and ModelError where
    this process is no rank of a job.
    """
    graph = source.graph
    assert graph is not None, "it has nodes"
    try:
        if open_ranks is None:
            raise CommunicatorError(
                "nothing here runs ranks together; run the model that was sliced"
            )
        options = first.options
        batches = micro_batches_of(graph.metadata)
        # The parts of a batch are put together on the host.
        device = options.device if batches is None else HOST
        ranks = open_ranks(options.rank, options.world_size, source.name, first.backend, device)
    except CommunicatorError as error:
        waiting = next(node for node in graph.nodes if is_collective(node.op_type, node.domain))
        raise ModelError(
            f"{source.name}: is one rank's part of a sliced model, {waiting.op_type} "
            f"{waiting.name!r} waits for the other ranks, and {error}",
            source.name,
        ) from error
    if first.forms is not None:
        source = first.forms.identified(source)  # its parts are kept
    if batches is None:
        plan = _compile_whole(first, source, ranks)
        if plan is not None:
            return plan
    collectives = Candidate(ranks.backend, replace(first.options, device=ranks.device, provider=""))
    partitioning, executable = _compile(first, source, further, collectives)
    try:
        ranks.join(sequence(graph, _specs(executable)), part_of(graph.metadata))
        if batches is not None:
            executable = MicroBatched(executable, batches)
        plan = plan_of(partitioning, executable)
        if batches is not None:
            plan = replace(plan, devices=())
        return replace(plan, predict=ranks.guarded(plan.wrappable), refuse=ranks.refuse)
    except BaseException:
        close(executable)
        raise


def _compile_whole(first: Candidate, source: ModelSource, ranks: Ranks) -> Plan | None:
    """Compile a part whose backend runs its collectives inside; None where it leaves them."""
    backend, options, graph = first.backend, first.options, source.graph
    assert graph is not None, "it has nodes"
    on_device = ranks.device == options.device
    if not on_device or backend.lacks(Capability.GRAPH_COLLECTIVES, options.device):
        return None
    options = replace(options, communicators=ranks.communicators)
    plan, unsupported = compile_whole(first._replace(options=options), source)
    if plan is None:
        logging.getLogger("engine").info(
            "%s: the ranks' collectives run between its segments: %s",
            source.name,
            next(iter(unsupported.values())),
        )
        return None
    try:
        inside = ("inside", backend.name)
        collectives = [
            replace(collective, attributes=(*collective.attributes, inside))
            for collective in sequence(graph)
        ]
        ranks.join(collectives, part_of(graph.metadata))
    except BaseException:
        plan.pool.close()
        raise
    predict = ranks.guarded(ranks.met(plan.wrappable, "a predict with collectives inside"))
    whole = InRanks(plan.executable, ranks)
    return replace(
        plan,
        predict=predict,
        refuse=ranks.refuse,
        executable=whole,
        pool=ContextPool(Opener(backend, whole)),
    )


class InRanks:
    """An executable with collectives inside, which leaves the other ranks when it is closed."""

    def __init__(self, executable: Executable, ranks: Ranks) -> None:
        self._executable = executable
        self._ranks = ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def close(self) -> None:
        """See Executable. Contexts that use the groups are closed before these."""
        self._executable.close()
        self._ranks.close()


def _compile(
    first: Candidate,
    source: ModelSource,
    further: Iterator[Candidate | BackendError],
    collectives: Candidate,
) -> tuple[Partitioning, SegmentedExecutable]:
    """Compile a rank's part as it was partitioned before, or else cut it and ask the backends."""
    forms, options = first.forms or NOWHERE, first.options
    rank = {  # what comes back depends on it
        "rank": f"{options.rank} of {options.world_size}",
        "collectives": str(collectives.options.device),
    }
    if digest_of(source):
        asked: list[Candidate | BackendError] = []
        partitioning = Partitioning(first, source, remembered(further, asked), collectives)
        try:
            parts = forms.find(source, {**first.key(), **rank}, partial(read, partitioning))
            if parts:
                return partitioning, compile_segments(partitioning, parts)
        except Refused:
            pass
        further = chain(asked, further)
    partitioning = Partitioning(first, source, further, collectives)
    return partitioning, compile_parts(partitioning, forms, rank)


def _specs(executable: SegmentedExecutable) -> dict[str, TensorSpec]:
    """Return what the segments know of the tensors between them."""
    return {
        spec.name: spec
        for segment in executable.segments
        for spec in (*segment.executable.inputs, *segment.executable.outputs)
    }
