"""Threads and processes that build one model at once, isolated and killed ones among them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caching import X, check, needs_cpu, run
from graphs import written

import engine
from engine.model.model import model_state
from engine.weights.store import Store
from engine_testing import models


def test_threads_that_build_the_same_model_wait_for_one_of_them(path, load, compiles) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: run(load(path)), range(8)))
    assert len(compiles) == 1


def test_an_isolated_model_shares_its_entry_with_others(path, load, cache, compiles) -> None:
    run(load(path, common_context={"isolate": "true"}))  # the worker has made it
    assert len(list(cache.iterdir())) == 1
    run(load(path))
    run(load(path, common_context={"isolate": "true"}))
    assert compiles == []


@pytest.mark.parametrize("is_warm", [True, False])
def test_the_worker_after_one_that_died_needs_no_entry(path, load, cache, store, is_warm) -> None:
    if is_warm:
        run(load(path))
    with load(path, common_context={"isolate": "true"}) as model:
        worker = model_state(model).plan.executable.process().worker
        store.prune(0)
        os.kill(worker.pid, signal.SIGKILL)
        with suppress(engine.ModelError):  # unless the end was seen before
            model(x=X)
        check(model)
    assert list(cache.iterdir()) == []


BUILD = """
import sys
import numpy as np, engine
folder, count, *paths = sys.argv[1:]
config = {
    "common_context": {"model_cache_dir": folder}, "null_context": {"unsupported_ops": "Tanh"}
}
for _ in range(int(count)):
    for path in paths:
        target = ["null", "cpu"] if "mixed" in path else "cpu"
        with engine.load(path, target, threads=1, config=config) as model:
            inputs = [np.ones([d if isinstance(d, int) else 2 for d in spec.shape], str(spec.dtype))
                      for spec in model.inputs]
            y = model.predict(inputs)[0].get_data_to_numpy()
            print(np.asarray(y).tobytes().hex()[:32], end=" ", flush=True)
    print(flush=True)
"""


@pytest.fixture
def builder(plugin_folder: Path, null_backend: str) -> Callable[..., subprocess.Popen[str]]:
    """Start a process that builds models so many times, and prints what each of them gives."""

    def start(folder: Path, paths: list[Path], count: int, mode: str = "on") -> Any:
        return subprocess.Popen(
            [sys.executable, "-c", BUILD, str(folder), str(count), *map(str, paths)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(plugin_folder), "ENGINE_CACHE": mode},
        )

    return start


@needs_cpu
def test_processes_that_build_the_same_model_leave_one_entry(tmp_path, builder) -> None:
    paths = [models.external(tmp_path)]
    children = [builder(tmp_path / "cache", paths, 2) for _ in range(3)]
    outputs = [child.communicate(timeout=120) for child in children]
    # y = x + 0, 1, 2, .., of x = 1
    expected = np.arange(1, 5, dtype=np.float32).tobytes().hex()
    assert [out.split() for out, _ in outputs] == [[expected] * 2] * 3, outputs
    assert len(list((tmp_path / "cache/v1/entries").iterdir())) == 1


def mixed_model(folder: Path) -> Path:
    """y = tanh(x @ w) + 1, which null and cpu run together where null refuses the Tanh."""
    text = """g (float[n, 64] x) => (float[n, 64] y) <float one = {1}>
        { a = MatMul(x, w) b = Tanh(a) y = Add(b, one) }"""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    return written(folder / "mixed.onnx", text, w=w)


@needs_cpu
@pytest.mark.parametrize(
    "kills", [1, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(2400)])]
)
def test_a_builder_that_is_killed_leaves_nothing_that_is_believed(tmp_path, builder, kills) -> None:
    """Of compiled forms, lowered ones, partitions, and what models share."""
    mindir = Path(__file__).parents[1] / "data/mindir/lenet_bn.mindir"
    paths = [models.external(tmp_path), mindir, mixed_model(tmp_path)]
    folder = tmp_path / "cache"
    random = np.random.default_rng(0)
    out, err = builder(folder, paths, 1, "off").communicate(timeout=120)
    expected = out.split()
    assert len(expected) == 3, err
    child = builder(folder, paths, 10**6)
    for _ in range(kills):
        assert child.stdout is not None
        first = child.stdout.readline()  # it has built all; the entries are there
        assert first.split() == expected, child.stderr and child.stderr.read()
        # So that the next ones write again, killed at a random moment of that.
        shutil.rmtree(folder / "v1" / "entries", ignore_errors=True)
        (folder / "v1" / "entries").mkdir(mode=0o700, exist_ok=True)
        with suppress(subprocess.TimeoutExpired):
            child.wait(random.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        child = builder(folder, paths, 10**6)
    child.kill()
    child.communicate()
    out, err = builder(folder, paths, 2).communicate(timeout=120)
    assert out.split() == expected * 2, err
    store = Store(folder)
    kinds = {entry.identity.key["backend"].partition(",")[0] for entry in store.entries()}
    assert kinds == {"cpu", "null", "(lowered)", "(partition"}
    for entry in store.entries():
        store.verify(entry, anew=True)
    store.prune(10**12)
    assert list((folder / "v1/building").iterdir()) == []
    for entry in store.entries():
        with store.locked(entry.folder.name, wait=False) as is_free:
            assert is_free
