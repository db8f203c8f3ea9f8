"""A backend's groups of nodes stay together, and small segments go to the next backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from plan_models import chain, long_chain, refusing, save

import engine
from engine.errors import ModelError

Install = Callable[..., ModuleType]
X = np.linspace(-1, 1, 7, dtype=np.float32)

GROUPS = """
from engine.types import NodeGroups

plain_load, asked = engine_load, []

@hookimpl
def engine_load(source, options):
    loaded = plain_load(source, options)
    asked.append(len(source.graph.nodes))
    loaded.groups = NodeGroups({groups})
    return loaded
"""
CAPABILITIES = (
    "dynamic_shapes", "deadlines", "cancel_compile", "cancel_predict", "mixed_placement",
    "files_in_memory", "node_groups",
)  # fmt: skip


@pytest.fixture
def grouped(install: Install, second: ModuleType) -> Callable[[str], ModuleType]:
    """Install a backend "first" with these groups, completed by nobody."""

    def make(groups: str) -> ModuleType:
        extra = GROUPS.format(groups=groups)
        return install("first", extra=extra, capabilities=frozenset(CAPABILITIES))

    return make


def where(model: engine.Model) -> str:
    return " ".join(placed.backend for placed in model.placement)


def load(path: Path, refused: str = "Tanh", target: tuple[str, ...] = ("first", "second")):
    return engine.load(path, target=[*target], config=refusing(first=refused))


@pytest.mark.parametrize(
    ("least", "placed"),
    [
        (1, "first second first first first"),
        (2, "second second first first first"),
        (3, "second second first first first"),
        (4, "second second second second second"),
    ],
)
def test_a_segment_of_fewer_nodes_than_the_least_goes_to_the_next(
    least: int, placed: str, grouped: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    grouped(f"least_nodes={least}")
    with load(chain(tmp_path, "Neg", "Tanh", "Neg", "Abs", "Neg")) as model:
        assert where(model) == placed
        np.testing.assert_array_equal(model(x=X)["y"], -abs(-np.tanh(-X)))
        reasons = [each.reason for each in model.placement if each.backend == "second"]
    text = f"a segment of fewer than {least} nodes is not worth the way to backend 'first'"
    assert sum(text in reason for reason in reasons) == placed.count("second") - 1


def test_a_long_chain_of_short_segments_goes_whole_to_the_next(
    grouped: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    first = grouped("least_nodes=20")
    with load(long_chain(tmp_path)) as model:  # 10 or 19 nodes between two that it refuses
        assert where(model) == " ".join(["second"] * 200)
        model(x=X)
    assert first.calls == []


def test_a_small_segment_stays_where_nobody_else_runs_it(
    grouped: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    grouped("least_nodes=9")
    path = chain(tmp_path, "Neg", "Tanh", "Abs")
    config = refusing(first="Tanh", second="Abs")
    with engine.load(path, target=["first", "second"], config=config) as model:
        assert where(model) == "second second first"


@pytest.mark.parametrize(
    ("together", "placed"),
    [
        ("{0, 2}", "second second second first first"),  # a node between them is elsewhere
        ("{2, 3}", "first second first first first"),
        ("{1, 3}", "first second first second first"),  # one of them does not run here at all
        ("{2, 3}, {0, 4}", "second second first first second"),
    ],
)
def test_nodes_that_go_together_run_in_one_segment_or_elsewhere(
    together: str, placed: str, grouped: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    sets = ", ".join(f"frozenset({each})" for each in together.replace("}, {", "};{").split(";"))
    grouped(f"together=({sets},)")
    with load(chain(tmp_path, "Neg", "Tanh", "Neg", "Abs", "Neg")) as model:
        assert where(model) == placed
        np.testing.assert_array_equal(model(x=X)["y"], -abs(-np.tanh(-X)))
        for each in model.placement:
            if each.backend == "second" and each.op_type != "Tanh":
                assert "it runs only together with the nodes" in each.reason


def test_a_torn_group_that_nobody_else_runs_is_an_error(
    grouped: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    grouped("together=(frozenset({0, 2}),)")
    path = chain(tmp_path, "Neg", "Tanh", "Abs")
    config = refusing(first="Tanh", second="Abs")
    with pytest.raises(ModelError, match=r"'second' cannot run Abs .*only together with"):
        engine.load(path, target=["first", "second"], config=config)


def test_constants_and_unused_nodes_are_no_part_of_a_group(
    grouped: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    grouped("together=(frozenset({0, 1, 3}),), least_nodes=2")
    nodes = (
        "c = Constant <value_float = 2.0> (); a = Mul(x, c); d = Neg(x); b = Abs(a); y = Tanh(b)"
    )
    with load(save(tmp_path, nodes)) as model:
        assert where(model).split()[1] == where(model).split()[3] == "first"
        np.testing.assert_allclose(model(x=X)["y"], np.tanh(abs(2 * X)), rtol=1e-6)


def test_who_announces_no_groups_is_not_asked_for_them(install: Install, second, tmp_path) -> None:
    first = install("first", extra=GROUPS.format(groups="least_nodes=9"))
    with load(chain(tmp_path, "Neg", "Tanh", "Neg")) as model:
        assert where(model) == "first second first"
    assert first.asked == [3, 1, 1]


def test_a_model_that_runs_whole_is_not_asked_for_groups(
    grouped: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    first = grouped("least_nodes=9")
    with load(chain(tmp_path, "Neg", "Abs")) as model:
        assert where(model) == "first first"
    assert first.asked == [2]
