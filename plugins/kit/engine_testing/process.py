"""Level of the kit: what belongs to the process or to its user, each in a process of its own.

A process that has run other tests is no witness: a variable that the backend sets is set already.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.types import Capability, ModelSource, Threads
from engine_testing import models
from engine_testing.level import Array, Level, Trial, run_child

LIMIT_S = 240


class Process(Level):
    """Settings of the process, secrets, and the number of threads."""

    def test_process_wide_settings_stay_as_they_are(self, trial: Trial) -> None:
        seen = _witness(trial, trial.source(models.affine), np.ones((2, 3), np.float32))
        for name, old in seen["before"].items():
            assert seen["after"][name] == old, f"the backend changed the process's {name}"

    @pytest.mark.parametrize("where", ["data", "files"])
    def test_a_secret_model_leaves_no_file(self, trial: Trial, where: str) -> None:
        if where == "files":
            self.require(trial, Capability.FILES_IN_MEMORY)
        model = models.heavy if where == "data" else models.external
        source = trial.source(model)
        assert source.path is not None
        # An encrypted model, as the core hands it on: contents in memory, and no file to go by.
        secret = replace(
            source,
            data=source.data if source.data is not None else source.path.read_bytes(),
            path=None,
            folder=None,
            is_secret=True,
            files={"external.bin": source.path.with_name("external.bin").read_bytes()}
            if where == "files"
            else {},
        )
        width = 1024 if where == "data" else 256
        seen = _witness(trial, secret, np.ones((2, width), np.float32))
        assert seen["written"] == [], "files were written while a secret model was built and run"
        assert seen["disk_bytes"] < 2**20, (
            f"{seen['disk_bytes']} bytes went to disk while a secret model was built and run"
        )

    def test_a_model_uses_the_threads_it_is_given(self, trial: Trial) -> None:
        x = np.ones((256, 1024), np.float32)
        seen = _witness(
            trial, trial.source(models.heavy), x, repeat_s=0.6, threads=Threads(intra_op=1)
        )
        # Of the CPU time in predict all is one thread's, whichever it is: the caller's or another.
        # A pool may hand predicts around, if one thread at a time is busy with them.
        others_s = seen["process_s"] - seen["busiest_s"]
        assert others_s < 0.3 * seen["process_s"] + 0.05 or seen["several"] < 0.2, (
            f"one thread is allowed, and of {seen['process_s']:.2f} s of CPU time "
            f"{others_s:.2f} s are other threads'; at {seen['several']:.0%} of the moments "
            "several were running"
        )


def _witness(
    trial: Trial, source: ModelSource, x: Array, repeat_s: float = 0.0, **changes: Any
) -> dict[str, Any]:
    """Build and run a model in a fresh process, and return what that saw of itself.

    before, after: the process's settings. written: files that were opened for writing, or that
    came into its own folders, while the model was built and run. disk_bytes: what it wrote to disk
    by any means. process_s, busiest_s: CPU time in predict of all threads and of the busiest one;
    several: at which part of the moments more than one was ready to run. Threads that there were
    before the backend was opened (numpy's) do not count.
    """
    folder = trial.folder / "witness"
    own = [folder / name for name in ("work", "tmp", "home", "cache")]
    for path in own:
        path.mkdir(parents=True, exist_ok=True)
    tmp, home, cache = map(str, own[1:])
    order = folder / "order.pickle"
    options = trial.options(**{"shapes": trial.shapes(source, [x]), **changes})
    # A first model, for what a runtime does once whatever the model (its log, its telemetry).
    first = trial.source(models.scalar), trial.options(), np.array(1, np.float32)
    order.write_bytes(pickle.dumps((trial.backend.name, first, (source, options, x), repeat_s)))
    answer = folder / "answer.json"
    child = run_child(
        "-m", "engine_testing.witness", str(order), str(answer), *map(str, own), cwd=own[0],
        limit_s=LIMIT_S, TMPDIR=tmp, HOME=home, XDG_CACHE_HOME=cache, PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
    assert child.returncode == 0, f"a fresh process failed:\n{child.stdout}{child.stderr}"
    seen: dict[str, Any] = json.loads(Path(answer).read_text())
    return seen
