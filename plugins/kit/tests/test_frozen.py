"""Backends written against an earlier state of the contract go on working, unchanged."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.backends import BackendState, record
from engine_testing import models
from engine_testing.check import Outcome, check
from engine_testing.plugins import install

FROZEN = Path(__file__).parent / "frozen"

# Of all files of a backend, in the order of their paths. It never changes: what a frozen backend
# needs changed, a third party's would need too.
DIGESTS = {
    "guide_2026_11": "245e4561257c887a2a5d70a4cbd660ade8168141715f3407d0171a8d7f51efb1",
    "guide_level_1": "e0c67e16e0da206e71bc8714c19d7e905a754d897aac3f0279cdcbdcfa5c19dd",
}


@pytest.fixture(params=DIGESTS)
def frozen(request: pytest.FixtureRequest, plugin_folder: Path) -> str:
    """The name of a frozen backend, installed while the test runs."""
    folder = FROZEN / request.param
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    for package in (path for path in folder.iterdir() if path.is_dir()):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, plugin_folder / package.name, ignore=ignored)
    for number, (group, points) in enumerate(project["entry-points"].items()):
        for name, value in points.items():
            install(plugin_folder, name, value, group=group, distribution=f"frozen-{number}")
    return next(iter(project["entry-points"]["engine.backends.v1"]))


@pytest.mark.parametrize("name", DIGESTS)
def test_a_frozen_backend_is_what_it_was(name: str) -> None:
    digest = hashlib.sha256()
    for path in sorted((FROZEN / name).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.read_bytes())
    assert digest.hexdigest() == DIGESTS[name]


def test_a_frozen_backend_is_found_and_runs(frozen: str, tmp_path: Path) -> None:
    found = record(frozen)
    assert found.state is BackendState.READY
    assert found.warnings == ()
    x = np.array([[1, 2, 3]], np.float32)
    with engine.load(models.affine(tmp_path), target=frozen) as model:
        assert model(x=x)["y"].tolist() == [[3, 5, 7]]
        assert {node.backend for node in model.placement} == {frozen}


def test_a_frozen_backend_still_reads_its_options(frozen: str, tmp_path: Path) -> None:
    config = {f"{frozen}_context": {"unsupported_ops": "Add"}}
    with pytest.raises(engine.ModelError, match="Add 'shift'"):
        engine.load(models.affine(tmp_path), target=frozen, config=config)


# The runtime of these, onnx's evaluator, is wrong there, and they stay as they are.
SOUND = "not (older_operator_sets) and not (index_out_of_range)"


@pytest.mark.slow
def test_a_frozen_backend_passes_the_kit(frozen: str) -> None:
    report = check(frozen, expression=SOUND)
    assert report.of(Outcome.FAILED) == []
    assert report.of(Outcome.GAP) == []
    assert report.of(Outcome.PASSED)
