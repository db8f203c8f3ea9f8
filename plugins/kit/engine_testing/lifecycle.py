"""Level of the kit: loading, compiling, opening and closing; what is reported, what leaks."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from dataclasses import replace
from operator import gt
from pathlib import Path

import numpy as np
import pytest

from engine.errors import EngineError
from engine.types import Capability, MemoryReport, NodeState
from engine_testing import models
from engine_testing.level import Level, Maker, Trial, floats, run_child

_SECOND_PROCESS = """
import sys
import numpy as np
from engine.backends import open_backend
from engine.formats import open_source
from engine.types import CompileOptions, ShapeRange
backend = open_backend(sys.argv[1])
source = open_source(sys.argv[2])
options = CompileOptions(
    device=backend.devices().found[0].device, shapes={"x": ShapeRange((2, 3), (2, 3), (2, 3))}
)
executable = backend.compile(backend.load(source, options), options)
context = executable.open_context()
[y] = backend.predict(context, [np.ones((2, 3), np.float32)], None, None)
assert y.tolist() == [[3, 3, 3], [3, 3, 3]], y
"""


class LifeCycle(Level):
    """Loading, compiling and closing, in the core's order and in others."""

    def test_closing_twice_does_nothing(self, trial: Trial) -> None:
        loaded = trial.load(models.scalar)
        executable = trial.backend.compile(loaded, trial.options())
        context = executable.open_context()
        for thing in (loaded, context, executable):
            thing.close()
            thing.close()

    def test_the_executable_outlives_the_loaded_model(self, trial: Trial) -> None:
        running = trial.open(models.scalar)  # closes the loaded model first, as the core does
        [y] = running.predict(np.array(3, np.float32))
        self.assert_close(y, np.array(7, np.float32))

    def test_closing_a_context_leaves_the_others(self, trial: Trial) -> None:
        running = trial.open(models.scalar)
        other = trial.context(running.executable)
        other.predict(np.array(1, np.float32))
        other.context.close()
        [y] = running.predict(np.array(3, np.float32))
        self.assert_close(y, np.array(7, np.float32))
        [y] = trial.context(running.executable).predict(np.array(4, np.float32))
        self.assert_close(y, np.array(9, np.float32))

    def test_executables_know_nothing_of_each_other(self, trial: Trial) -> None:
        first = trial.open(models.scalar)
        x = floats([[1, 2, 3], [4, 5, 6]])
        second = trial.open(models.no_batch)
        [y] = first.predict(np.array(3, np.float32))
        self.assert_close(y, np.array(7, np.float32))
        first.context.close()
        first.executable.close()
        [y] = second.predict(x)
        self.assert_close(y, x.T + floats([[0], [1], [2]]))

    def test_a_model_is_read_from_its_bytes_where_there_are_any(self, trial: Trial) -> None:
        source = trial.source(models.scalar)
        assert source.path is not None
        data = source.data if source.data is not None else source.path.read_bytes()
        gone = source.path.with_name("not_there.onnx")
        for path in (None, gone):
            [y] = trial.run(replace(source, data=data, path=path), np.array(3, np.float32))
            self.assert_close(y, np.array(7, np.float32))

    def test_a_model_is_read_from_its_file_where_there_are_no_bytes(self, trial: Trial) -> None:
        source = trial.source(models.scalar)
        [y] = trial.run(replace(source, data=None), np.array(3, np.float32))
        self.assert_close(y, np.array(7, np.float32))

    def test_weights_beside_the_model_are_found(
        self,
        trial: Trial,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
        x = np.ones((2, 256), np.float32)
        [y] = trial.run(models.external, x)
        self.assert_close(y, x + np.arange(256, dtype=np.float32))

    def test_weights_in_memory_are_found_and_kept_where_they_are_used(self, trial: Trial) -> None:
        """A backend may copy them, or go on using them where they are: then it refers to them."""
        self.require(trial, Capability.FILES_IN_MEMORY)
        source = trial.source(models.external)
        assert source.path is not None
        data = source.data if source.data is not None else source.path.read_bytes()
        ramp = _ErasedInTheEnd(source.path.with_name("external.bin").read_bytes())
        files = {"external.bin": memoryview(ramp).toreadonly()}
        running = trial.open(replace(source, data=data, path=None, folder=None, files=files))
        del files, ramp  # the core refers to them no more, once the model is compiled
        gc.collect()
        x = np.ones((2, 256), np.float32)
        [y] = running.predict(x)
        self.assert_close(y, x + np.arange(256, dtype=np.float32))

    def test_nothing_is_printed(self, trial: Trial, capfd: pytest.CaptureFixture[str]) -> None:
        running = trial.open(models.scalar)
        running.predict(np.array(1, np.float32))
        running.context.close()
        running.executable.close()
        assert tuple(capfd.readouterr()) == ("", ""), "the backend printed something"

    def test_a_second_process_can_use_the_backend_too(self, trial: Trial) -> None:
        trial.run(models.scalar, np.array(1, np.float32))
        path = str(models.affine(trial.folder))
        child = run_child("-c", _SECOND_PROCESS, self.backend, path)
        # It also ended with everything open, as scripts do.
        assert child.returncode == 0, f"a second process failed:\n{child.stdout}{child.stderr}"
        assert child.stdout + child.stderr == "", "a second process printed something"


class _ErasedInTheEnd(bytearray):
    """Memory that nobody finds as it was after the last reference to it is gone."""

    def __del__(self) -> None:
        self[:] = bytes(len(self))


class Reports(Level):
    """Placement and memory, as an executable reports them."""

    @pytest.mark.parametrize("model", [models.affine, models.foldable, models.branch])
    def test_placement_has_one_entry_for_each_node(self, trial: Trial, model: Maker) -> None:
        source = trial.source(model)
        assert source.graph is not None
        inputs = [
            np.ones(
                [dim if isinstance(dim, int) else 3 for dim in spec.shape or ()], spec.dtype.numpy
            )
            for spec in source.graph.inputs
        ]
        placement = trial.compile(source, *inputs).placement()
        nodes = source.graph.nodes
        assert [node.index for node in placement] == list(range(len(nodes)))
        assert [(entry.node, entry.op_type) for entry in placement] == [
            (node.name, node.op_type) for node in nodes
        ]

    def test_placement_names_backend_device_provider_and_reason(self, trial: Trial) -> None:
        x = np.ones((1, 3), np.float32)
        for node in trial.compile(models.affine, x).placement():
            assert node.backend == self.backend
            assert node.device == str(trial.device), "placement names another device"
            known = trial.backend.info.providers
            # "provider:detail" is fine: what a user may ask for, and what the runtime made of it.
            provider = node.provider.partition(":")[0]
            assert not known or provider in known, f"provider {provider!r} is not in {known}"
            assert node.reason, f"node {node.index} has no reason"

    def test_states_of_nodes_are_possible(self, trial: Trial) -> None:
        x = np.ones((1, models.SLOW_WIDTH), np.float32)
        placement = trial.compile(models.slow, x).placement()
        fused = [node.index for node in placement if node.state is NodeState.FUSED]
        for node in placement:
            assert isinstance(node.state, NodeState), f"node {node.index}: state {node.state!r}"
            into = node.fused_into
            if into is None:
                continue
            assert node.state is NodeState.FUSED, f"node {node.index} is fused and {node.state}"
            assert 0 <= into < len(placement), f"node {node.index} is fused into node {into}"
            assert into != node.index, f"node {node.index} is fused into itself"
            assert into not in fused, f"node {node.index} is fused into {into}, which has no kernel"
        assert len(fused) < len(placement), "every node is fused into another, and none runs"

    def test_memory_is_reported_in_bytes(self, trial: Trial) -> None:
        x = np.ones((1, 1024), np.float32)
        running = trial.open(models.heavy, x)
        running.predict(x)
        report = running.executable.memory()
        assert isinstance(report, MemoryReport)
        parts = (
            report.weights_bytes,
            report.shared_bytes,
            report.mapped_bytes,
            report.workspace_bytes,
        )
        assert all(type(part) is int and part >= 0 for part in parts), report
        held = sum(parts[:3])
        size = 4 * 1024 * 1024
        # Weights may be packed, kept twice or quantised, but not be a thousandth of themselves.
        assert held == 0 or size // 8 <= held <= size * 8, (
            f"{held} bytes are reported for weights of {size} bytes"
        )


class Leaks(Level):
    """Opening and closing over and over takes nothing that it does not give back."""

    def test_contexts_leave_no_files_threads_or_memory(self, trial: Trial) -> None:
        x = np.ones((2**15, 3), np.float32)  # 384 KiB in, 384 KiB out
        executable = trial.compile(models.affine, x)

        def once() -> None:
            context = executable.open_context()
            trial.backend.predict(context, [x], None, None)
            context.close()

        expect_no_growth(once, times=100)

    def test_executables_leave_no_files_threads_or_memory(self, trial: Trial) -> None:
        x = np.ones((1, 1024), np.float32)
        source = trial.source(models.heavy)  # 4 MiB of weights
        options = trial.options(shapes=trial.shapes(source, [x]))

        def once() -> None:
            executable = trial.build(source, options)
            context = executable.open_context()
            trial.backend.predict(context, [x], None, None)
            context.close()
            executable.close()

        expect_no_growth(once, times=12)

    def test_refused_models_leave_no_files_threads_or_memory(self, trial: Trial) -> None:
        source = replace(trial.source(models.heavy), path=models.truncated(trial.folder), data=None)
        options = trial.options(shapes=trial.shapes(source, [np.ones((1, 1024), np.float32)]))

        def once() -> None:
            with pytest.raises(EngineError):
                trial.build(source, options).close()

        expect_no_growth(once, times=20)


# Two each for what a runtime keeps for itself; a leak would be as many as times.
_MOST = (2, 2, 16 << 20)
_ROUNDS = 3


def expect_no_growth(once: Callable[[], None], times: int) -> None:
    """Do it `times` times; after a warm-up, files, threads and memory must stay as they are.

    A leak grows in every round. In one alone, a process may also get pages back that the system had
    taken from it.
    """
    if not Path("/proc/self/fd").exists():
        pytest.skip("counts open files and threads in /proc, which is not there")
    for _ in range(3):
        once()
    for _ in range(_ROUNDS):
        before = _held()
        for _ in range(times):
            once()
        growth = [after - start for after, start in zip(_held(), before, strict=True)]
        if not any(map(gt, growth, _MOST)):
            return
    files, threads, resident = growth
    assert files <= _MOST[0], f"{files} more files are open after {times} times"
    assert threads <= _MOST[1], f"{threads} more threads run after {times} times"
    raise AssertionError(f"{resident / 2**20:.0f} MiB more are held after {times} times")


def _held() -> tuple[int, int, int]:
    """Return open files, threads and resident bytes, with all that is free given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's: it keeps freed memory else
    if trim is not None:
        trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return (
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
        pages * os.sysconf("SC_PAGE_SIZE"),
    )
