"""The candidate of each node of a model, as far as the candidates were asked."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence

from engine.errors import BackendError, ModelError
from engine.formats.collectives import AFTERWARDS, is_collective
from engine.plan.plan import Candidate
from engine.types import ModelSource, NodeInfo

COLLECTIVES, RESULTS = -1, -2
"""The level of nodes that the ranks run together: no other candidate is ever asked for them."""


class Partitioning:
    """The candidate of each node, as far as they have been asked.

    candidates: the first, and those that were asked; the index in this list is the level.
    levels: of each node. fallback_reasons: why a node is not on level 0. copied: constant nodes,
    which stand in every part that reads them.
    collectives: the candidate for these; None leaves them to the others.
    """

    def __init__(
        self,
        first: Candidate,
        source: ModelSource,
        further: Iterator[Candidate | BackendError],
        collectives: Candidate | None = None,
    ) -> None:
        self.source = source
        self.candidates = [first]
        self.nodes = source.graph.nodes if source.graph is not None else ()
        self.levels = [_level(node) if collectives else 0 for node in self.nodes]
        self._collectives = collectives
        self.fallback_reasons: dict[int, str] = {}
        self.copied = {
            node.index
            for node in self.nodes
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        }
        self._further = further
        self._missing: list[str] = []

    @property
    def names(self) -> list[str]:
        """Return the candidates, as messages call them."""
        return [f"backend {candidate.backend.name!r}" for candidate in self.candidates]

    def candidate(self, level: int) -> Candidate:
        """Return the candidate of a level."""
        if level < 0:
            assert self._collectives is not None, "no node is on this level otherwise"
            return self._collectives
        return self.candidates[level]

    def reaches(self, level: int) -> bool:
        """Return whether there is a candidate of that level; opens it where it is the next."""
        while len(self.candidates) <= level:
            candidate = next(self._further, None)
            if candidate is None:
                return False
            if isinstance(candidate, Candidate):
                self.candidates.append(candidate)
            else:
                self._missing.append(str(candidate))
        return True

    def refuse(self, level: int, nodes: Sequence[int], refused: Mapping[int, str]) -> None:
        """Move nodes to the next level, for the reasons that the backend of this one gave.

        refused: by index in `nodes`. ModelError where there is no further level.
        """
        by_index = {nodes[number]: reason for number, reason in refused.items()}
        self.copied -= by_index.keys()
        # A copy of a constant is on another level: the backend of that makes it for this one.
        falling = {i: reason for i, reason in by_index.items() if self.levels[i] == level}
        if falling and not self.reaches(level + 1):
            raise self.unplaceable(level, falling)
        name = self.names[level]
        self.move(level, {i: f"{name} cannot run it: {why}" for i, why in falling.items()})

    def move(self, level: int, reasons: Mapping[int, str]) -> None:
        """Move nodes of a level to the next, which is there. reasons: whole sentences, by index."""
        for index, reason in reasons.items():
            self.levels[index] = level + 1
            earlier = f"{self.fallback_reasons[index]}; " if index in self.fallback_reasons else ""
            self.fallback_reasons[index] = f"{earlier}{reason}"

    def unplaceable(self, level: int, refused: Mapping[int, str]) -> ModelError:
        """Return the error for nodes that the backend of the last level refuses, with reasons."""
        titles: dict[str, list[str]] = {}
        for index, reason in refused.items():
            earlier = self.fallback_reasons.get(index)
            titles.setdefault(f"{reason} ({earlier})" if earlier else reason, []).append(
                self._title(index)
            )
        lines = [f"{_listed(nodes)}: {reason}" for reason, nodes in titles.items()]
        more = f" and {len(lines) - 5} more reasons" if len(lines) > 5 else ""
        names = [candidate.backend.name for candidate in self.candidates]
        missing = "".join(f"; passed over: {text}" for text in self._missing)
        step = (
            "export the model without it, or list a further target that has it"
            if "cpu" in names
            else f"list a further target that can, for example {[*names, 'cpu']}"
        )
        return ModelError(
            f"{self.source.name}: {self.names[level]} cannot run {'; '.join(lines[:5])}{more}"
            f"{missing}; {step}",
            self.source.name,
        )

    def _title(self, index: int) -> str:
        if not self.nodes:
            return f"node {index}"
        node = self.nodes[index]
        return f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type}_{index}"

    def warn(self, used: Collection[int]) -> None:
        """Log which of the nodes that run do so on a backend that the user has not listed."""
        for level, candidate in enumerate(self.candidates):
            placed = sorted(index for index in used if self.levels[index] == level)
            if candidate.is_listed or not placed:
                continue
            shown = "; ".join(
                f"{self._title(index)}: {self.fallback_reasons[index]}" for index in placed[:3]
            )
            more = f"; and {len(placed) - 3} more" if len(placed) > 3 else ""
            logging.getLogger("engine").warning(
                f"{self.source.name}: {len(placed)} of {len(self.levels)} nodes run on "
                f"{self.names[level]}: {shown}{more}"
            )


def _listed(titles: Sequence[str]) -> str:
    more = f" and {len(titles) - 3} more nodes" if len(titles) > 3 else ""
    return f"{', '.join(titles[:3])}{more}"


def _level(node: NodeInfo) -> int:
    if not is_collective(node.op_type, node.domain):
        return 0
    return RESULTS if node.attributes.get(AFTERWARDS) else COLLECTIVES


def remembered(
    further: Iterator[Candidate | BackendError], asked: list[Candidate | BackendError]
) -> Iterator[Candidate | BackendError]:
    """Yield candidates, adding them to a list of those to be asked again."""
    for candidate in further:
        asked.append(candidate)
        yield candidate
