"""Nodes that a backend takes only together, or in segments of some size: `LoadedModel.groups`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.backends.attribution import attribute_errors_to
from engine.errors import BackendError, ModelError
from engine.host.interrupts import pass_interrupt
from engine.plan.compile import load
from engine.plan.contexts import close
from engine.plan.mixed.partitioning import Partitioning
from engine.plan.partition import Segment
from engine.types import Capability, NodeGroups


class _Asked(NamedTuple):
    """Answer of a backend for the whole model. refused: nodes that it cannot run."""

    groups: NodeGroups
    refused: Mapping[int, str]


class Grouping:
    """Moves nodes to the next candidate where segments are not as a backend wants them.

    Candidates are asked when it matters, once each.
    """

    def __init__(self, partitioning: Partitioning) -> None:
        self._partitioning = partitioning
        self._asked: dict[int, _Asked] = {}

    def move(self, cut: Sequence[Segment]) -> bool:
        """Move nodes that `cut` would have run where they must not; False where all may stay.

        Raises ModelError where a backend has to leave nodes and nobody else is there.
        """
        if len(cut) == 1:
            return False
        before = list(self._partitioning.levels)
        placed = {index for segment in cut for index in segment.nodes}
        for segment in cut:
            if segment.level >= 0 and (groups := self._groups(segment.level)) is not None:
                self._move(segment, groups, placed)
        return before != self._partitioning.levels

    def _move(self, segment: Segment, groups: NodeGroups, placed: set[int]) -> None:
        """Move what of a segment must not be there. placed: the nodes of all segments."""
        partitioning, level = self._partitioning, segment.level
        own = {i for i in segment.nodes if i not in partitioning.copied}
        torn: dict[int, str] = {}
        for group in groups.together:
            missing = (group & placed) - own - partitioning.copied
            if missing and (inside := group & own):
                shown = ", ".join(map(str, sorted(missing)[:3]))
                torn |= dict.fromkeys(inside, f"it runs only together with the nodes {shown}")
        if torn:
            self._refuse(level, torn)
        elif len(own) < groups.least_nodes and own and self._can_take(level + 1, own):
            name = partitioning.names[level]
            text = (
                f"a segment of fewer than {groups.least_nodes} nodes is not worth the way to {name}"
            )
            partitioning.move(level, dict.fromkeys(sorted(own), text))

    def _refuse(self, level: int, torn: Mapping[int, str]) -> None:
        indices = sorted(torn)
        reasons = {place: torn[index] for place, index in enumerate(indices)}
        self._partitioning.refuse(level, indices, reasons)

    def _groups(self, level: int) -> NodeGroups | None:
        """Return the limits of a level's backend; None where it has none."""
        candidate = self._partitioning.candidate(level)
        if candidate.backend.lacks(Capability.NODE_GROUPS, candidate.options.device):
            return None
        return self._ask(level).groups

    def _can_take(self, level: int, nodes: set[int]) -> bool:
        """Return whether a further backend says that it runs these nodes."""
        if not self._partitioning.reaches(level):
            return False
        try:
            return nodes.isdisjoint(self._ask(level).refused)
        except (BackendError, ModelError) as error:  # it cannot read the whole model
            pass_interrupt(error)
            return False

    def _ask(self, level: int) -> _Asked:
        if level not in self._asked:
            backend, options = self._partitioning.candidate(level)[:2]
            loaded, refused = load(backend, self._partitioning.source, options)
            try:
                with attribute_errors_to(backend, "engine_load"):
                    groups = getattr(loaded, "groups", None) or NodeGroups()
            finally:
                close(loaded)
            self._asked[level] = _Asked(groups, refused)
        return self._asked[level]
