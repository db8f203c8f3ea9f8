"""A tuning in processes: backends that crash or hang there cost their setups and nothing else.

The default takes 20 ms more than the others, whatever the machine does beside.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from choices import Install

import engine
from engine.backends import installed
from engine.report.choice import apart
from engine.report.tuning import tuning

pytestmark = pytest.mark.slow

SLOW = """
import time
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    time.sleep(0.02)
    return context.run(inputs, outputs, deadline_s)
"""
CRASHING = """
import os
@hookimpl
def engine_compile(loaded, options):
    if str(os.getpid()) != os.environ["TEST_PROCESS"]:
        os.abort()
    return loaded.compile(options)
"""
CRASHING_LATER = """
import os
left = [40]
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    left[0] -= 1
    if left[0] < 0 and str(os.getpid()) != os.environ["TEST_PROCESS"]:
        os.abort()
    return context.run(inputs, outputs, deadline_s)
"""


COMPILING_FOR_EVER = """
import os, time
@hookimpl
def engine_compile(loaded, options):
    while str(os.getpid()) != os.environ["TEST_PROCESS"]:
        time.sleep(1)
    return loaded.compile(options)
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, install: Install) -> Install:
    """Backend `base`, the default, alone on this machine."""
    monkeypatch.setenv("TEST_PROCESS", str(os.getpid()))
    strange = set(installed())
    install("base", extra=SLOW)
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", ",".join(strange - {"base"}))
    monkeypatch.setattr(tuning, "default_target", lambda: "base")
    return install


@pytest.mark.parametrize("extra", [CRASHING, CRASHING_LATER])
def test_a_backend_that_crashes_costs_its_setup_alone(
    alone: Install, path: Path, tmp_path: Path, extra: str
) -> None:
    alone("abandoned", extra=extra)
    alone("quick")
    found = engine.tune(path, budget_s=20, out=tmp_path / "t.ini")
    assert found.evidence.chosen.targets == ("quick", "base"), str(found)
    [lost] = [t for t in found.evidence.trials if t.setup.targets[0] == "abandoned" and t.why_not]
    assert "SIGABRT" in lost.why_not
    with engine.load(path, config=found.path) as model:
        assert model.placement[0].backend == "quick"


def test_a_setup_that_takes_too_long_to_build_leaves_the_time_for_the_last_comparison(
    alone: Install, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended when the time for trying is over, and what was best until then is proven."""
    monkeypatch.setattr(apart, "_PATIENCE_S", 0.5)
    alone("quick")
    alone("slow", extra=COMPILING_FOR_EVER)
    found = engine.tune(
        path, budget_s=30, out=tmp_path / "t.ini", targets=["base", "quick", "slow"]
    )
    assert found.evidence.chosen.targets == ("quick", "base"), str(found)
    [lost] = [t for t in found.evidence.trials if t.setup.targets[0] == "slow"]
    assert "was ended after" in lost.why_not


def test_several_clients_share_the_process(alone: Install, path: Path, tmp_path: Path) -> None:
    alone("quick")
    found = engine.tune(path, budget_s=40, clients=4, out=tmp_path / "t.ini")
    assert found.evidence.chosen.targets == ("quick", "base"), str(found)
    assert found.gain > 1.5
    [default] = [trial for trial in found.evidence.trials if trial.setup == found.evidence.default]
    assert default.figures is not None
    assert default.figures.p50_s >= 0.02
