"""Runners of y = 2x + 1, x float32[batch, 3], in processes, for the tests of this folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from operator import le
from pathlib import Path
from typing import Any

import pytest

from engine import Context, MultiDeviceRunner
from engine_testing import models
from engine_testing.plugins import installed
from engine_testing.shared_memory import left_since, names

sys.path.insert(0, str(Path(__file__).parent))
import odd_backend as odd
from waiting import wait_until
from worker_steps import Make, left, states


@pytest.fixture(scope="module")
def odd_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The model's file, while the backends "odd" and "stubborn" are installed."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "plugins").mkdir()
    odd.install_odd(folder / "plugins")
    with installed(folder / "plugins"), pytest.MonkeyPatch.context() as environment:
        environment.setenv(odd.FLAG, str(folder / "flag"))
        yield models.affine(folder)


@pytest.fixture(scope="module")
def make(odd_model: Path) -> Make:
    """Build a runner; the test closes it. common: keys of the configuration's common_context."""

    def build(
        workers: int = 2,
        backend: str = "odd",
        path: Any = odd_model,
        common: Any = None,
        **more: Any,
    ) -> MultiDeviceRunner:
        context = Context()
        context.target = [backend]
        if common:
            context.parallel.config_info = {"common_context": common}
        return MultiDeviceRunner(path, range(workers), context, **more)

    return build


@pytest.fixture(scope="module")
def shared(make: Make) -> Iterator[MultiDeviceRunner]:
    """A runner of two workers for many tests; nothing is left of it in the end."""
    before, files = left(), names()
    steps: list[tuple[str, int, int | None]] = []
    with make(progress=lambda *step: steps.append(step)) as runner:
        runner.steps = steps
        yield runner
    check_left(before, files)


@pytest.fixture
def runner(shared: MultiDeviceRunner) -> MultiDeviceRunner:
    """The shared runner, with both of its workers ready."""
    wait_until(lambda: states(shared) == ["ready", "ready"])
    return shared


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Check that a test leaves no descriptor, thread, process or file in /dev/shm."""
    before, files = left(), names()
    yield
    check_left(before, files)


def check_left(before: tuple[Any, ...], files: frozenset[str]) -> None:
    end = time.monotonic() + 100
    while not all(map(le, after := left(), before)) and time.monotonic() < end:
        time.sleep(0.01)
    assert after[0] <= before[0], "descriptors"
    assert after[1] <= before[1], "threads"
    assert after[2] <= before[2], "processes"
    assert not left_since(files), "files in /dev/shm"
