"""Level of the kit: nodes that go together, and the least size of a segment (`node_groups`)."""

from __future__ import annotations

from itertools import chain

import pytest

import engine
from engine.types import Capability, ModelSource, NodeGroups
from engine_testing import groups_helper as helper
from engine_testing import mixed_models, models, plugins
from engine_testing.level import Level, Maker, Trial, floats

MODELS: tuple[Maker, ...] = (
    models.affine, models.unknown_operator, models.around_unknown, *mixed_models.MODELS
)  # fmt: skip


class Groups(Level):
    """`LoadedModel.groups`, alone and where the core cuts a model by it."""

    def test_groups_are_of_nodes_that_run_here(self, trial: Trial) -> None:
        self.require(trial, Capability.NODE_GROUPS)
        for model in MODELS:
            source = trial.source(model)
            groups, refused = _groups(trial, source)
            assert source.graph is not None
            count = len(source.graph.nodes)
            for group in groups.together:
                assert isinstance(group, frozenset), f"expected a frozenset, got {type(group)}"
                absent = sorted(group - set(range(count)))
                assert not absent, f"{model.__name__} has {count} nodes, and none {absent}"
                left = sorted(group & refused)
                assert not left, f"{model.__name__}: the nodes {left} are in `unsupported` too"
            assert type(groups.least_nodes) is int
            assert groups.least_nodes >= 1, f"least_nodes is {groups.least_nodes}"

    def test_a_node_is_in_one_group_at_most(self, trial: Trial) -> None:
        self.require(trial, Capability.NODE_GROUPS)
        for model in MODELS:
            groups, _ = _groups(trial, trial.source(model))
            nodes = sorted(chain(*groups.together))
            twice = sorted({node for node in nodes if nodes.count(node) > 1})
            assert not twice, f"{model.__name__}: the nodes {twice} are in two groups"

    def test_groups_are_the_same_in_every_load(self, trial: Trial) -> None:
        self.require(trial, Capability.NODE_GROUPS)
        for model in MODELS:
            source = trial.source(model)
            first, again = (_groups(trial, source)[0] for _ in range(2))
            assert set(first.together) == set(again.together), f"{model.__name__}: other groups"
            assert first.least_nodes == again.least_nodes

    def test_a_model_that_is_cut_by_groups_is_right(self, trial: Trial) -> None:
        """Node 2 is nobody's but the helper's: the others are placed as the groups allow."""
        self.require(trial, Capability.NODE_GROUPS)
        self.require(trial, Capability.MIXED_PLACEMENT)
        path = models.around_unknown(trial.folder)
        groups, refused = _groups(trial, trial.source(models.around_unknown))
        assert refused == {2}, f"node 2 alone is unknown, and not {sorted(refused)}"
        folder = trial.folder / "helper"
        folder.mkdir()
        plugins.install(folder, helper.NAME, helper.__name__)
        x = floats([-2, -1, 0, 1, 2])
        name = trial.backend.name
        with (
            plugins.installed(folder),
            engine.load(str(path), target=[name, helper.NAME]) as model,
        ):
            here = {index for index, placed in enumerate(model.placement) if placed.backend == name}
            for _ in range(3):
                self.assert_close(model(x=x)["y"], (-4 * x - 1).clip(0) + 2 * x)
        assert 2 not in here, "the unknown node was placed here"
        for group in groups.together:
            torn = group & here and group - here
            assert not torn, f"the nodes {sorted(group)} go together, and {sorted(torn)} do not"


def _groups(trial: Trial, source: ModelSource) -> tuple[NodeGroups, set[int]]:
    """Return the groups of a model and the nodes that it cannot run."""
    loaded = trial.load(source)
    groups = getattr(loaded, "groups", None)
    if not isinstance(groups, NodeGroups):
        pytest.fail(f"expected NodeGroups in LoadedModel.groups, got {type(groups)}")
    return groups, set(loaded.unsupported)
