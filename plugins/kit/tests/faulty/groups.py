"""Faults of groups of nodes."""

from __future__ import annotations

import itertools
from typing import Any

from engine.types import NodeGroups
from faulty import Faulty, caught_by
from faulty.answers import Changes


class _Groups(Faulty):
    """Gives these groups of a loaded model."""

    def load(self, source, options):
        loaded = super().load(source, options)
        loaded.groups = self.groups(loaded)
        return loaded

    def groups(self, loaded: Any) -> Any:
        raise NotImplementedError


@caught_by("test_groups_are_of_nodes_that_run_here", says="nodes, and none [")
class GroupsNodesCountedFromOne(_Groups):
    def groups(self, loaded):
        return NodeGroups(together=(frozenset(range(1, len(loaded.graph.nodes) + 1)),))


@caught_by("test_groups_are_of_nodes_that_run_here", says="are in `unsupported` too")
class GroupsWhatItCannotRun(_Groups):
    def groups(self, loaded):
        return NodeGroups(together=(frozenset(range(len(loaded.graph.nodes))),))


@caught_by("test_groups_are_of_nodes_that_run_here", says="least_nodes is 0")
class TakesSegmentsOfNoNodes(_Groups):
    def groups(self, loaded):
        return NodeGroups(least_nodes=0)


@caught_by(
    "test_groups_are_of_nodes_that_run_here",
    "test_a_node_is_in_one_group_at_most",
    "test_groups_are_the_same_in_every_load",
    "test_a_model_that_is_cut_by_groups_is_right",
    says="expected NodeGroups in LoadedModel.groups, got <class 'list'>",
)
class GivesGroupsAsLists(_Groups):
    def groups(self, loaded):
        return [[0, 1]]


@caught_by("test_a_node_is_in_one_group_at_most", says="are in two groups")
class GroupsPairsOfNeighbours(_Groups):
    def groups(self, loaded):
        runs = [i for i in range(len(loaded.graph.nodes)) if i not in loaded.unsupported]
        return NodeGroups(together=tuple(map(frozenset, itertools.pairwise(runs))))


@caught_by("test_groups_are_the_same_in_every_load", says="other groups")
class GroupsInTurns(_Groups):
    """As one that groups by what a cache holds at the moment."""

    loads = itertools.count()

    def groups(self, loaded):
        is_even = next(self.loads) % 2 == 0
        return NodeGroups(together=(frozenset({0}),) if is_even else ())


@caught_by("test_a_model_that_is_cut_by_groups_is_right", says="Not equal to tolerance")
class FusesByTheWholeModelsIndices(Changes):
    """Fuses the nodes that it grouped, by their indices, in parts where these are others."""

    def load(self, source, options):
        loaded = super().load(source, options)
        loaded.groups = NodeGroups(together=(frozenset({0, 1}),))
        return loaded

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        first = [node.op_type for node in loaded.graph.nodes[:2]]
        executable.notes["is_fused_wrongly"] = first == ["Sub", "Relu"]
        return executable

    def change(self, context, inputs, results):
        if context.executable.notes["is_fused_wrongly"]:
            return [y + 1 for y in results]
        return results
