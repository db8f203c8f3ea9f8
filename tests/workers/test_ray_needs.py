"""Resources of an actor of Ray are stated in the configuration, or follow from the target."""

from __future__ import annotations

import sys

import pytest

from engine import BackendUnavailable, Context
from engine.workers import factory
from engine.workers.protocol import Assignment
from engine.workers.ray import Needs, needs_of


def assignment(target: str = "cpu", **needs: str) -> Assignment:
    context = Context()
    context.target = [target]
    return Assignment(
        place=0, count=1, device_id=0, model_path="", context=context, config={"ray_context": needs}
    )


@pytest.mark.parametrize(
    ("target", "needs"),
    [("cpu", Needs()), ("gpu", Needs(num_gpus=1)), ("ascend", Needs(resources={"NPU": 1}))],
)
def test_an_actor_takes_a_cpu_and_a_device_of_its_target(target: str, needs: Needs) -> None:
    assert needs_of(assignment(target)) == needs


def test_all_may_be_said() -> None:
    found = needs_of(
        assignment(num_cpus="4", num_gpus="0.5", resources="a=1, b = 0.25", start_timeout_s="3")
    )
    assert found == Needs(4, 0.5, {"a": 1, "b": 0.25}, 3)
    assert str(found) == "num_cpus=4, num_gpus=0.5, a=1, b=0.25"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("num_cpus", "many", r"\[ray_context\] num_cpus must be a number .* got 'many'"),
        ("num_gpus", "-1", "num_gpus must be a number of 0 or more"),
        ("num_gpus", "nan", "num_gpus must be a number"),
        ("start_timeout_s", "inf", "start_timeout_s must be a number"),
        ("resources", "NPU", "resources NPU must be a number .* got ''"),
        ("resources", "=1", "resources must be 'name=amount"),
    ],
)
def test_settings_that_are_none_are_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        needs_of(assignment(**{name: text}))


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendUnavailable, match=r'pip install "inference-engine\[ray\]"'):
        factory("ray")(assignment())
