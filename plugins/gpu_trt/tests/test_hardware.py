"""On a real GPU, with the real libraries; skipped with the reason where there is none.

The conformance kit shows what every backend must do; the steps are the rest. Some need the driver
and pycuda or cuda-bindings alone. Each is a process of its own, which never sees the emulated
modules: a crash in the driver is then one failed test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.distributed.job import environment
from engine.distributed.store import StoreServer
from engine_testing.check import LEVELS

pytestmark = [pytest.mark.device("gpu_trt"), pytest.mark.slow]

HERE = Path(__file__).parent
LIMIT_S = 600


@pytest.fixture(scope="module", autouse=True)
def _a_real_device() -> None:
    child = _process(
        "-c",
        "from engine_gpu_trt import vendor\n"
        "try: vendor.device_count(vendor.cuda_driver())\n"
        "except vendor.Missing as error: print(error, error.fix, sep='; ')",
    )
    if child.returncode or child.stdout.strip():
        pytest.skip(f"no CUDA device: {(child.stdout or child.stderr).strip()}")


def _real_path() -> str:
    """Return PYTHONPATH without the emulated modules."""
    emulated, path = str(HERE / "emulated"), os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(part for part in path.split(os.pathsep) if emulated not in part)


def _process(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": _real_path()},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def do(step: str) -> None:
    """Run a step on the real device; its assertions are the test's, and what it lacks a skip."""
    child = _process(HERE / "hardware_steps.py", *step.split())
    if child.returncode == 77:
        pytest.skip(child.stdout.strip())
    assert child.returncode == 0, child.stdout + child.stderr


STEPS = (
    "threads_share_the_primary_context", "a_stream_waits_for_another",
    "what_is_allocated_is_freed_in_whatever_thread_it_ends",
    "memory_is_opened_by_another_process", "copies_are_recorded_as_a_graph",
    "memory_copies_and_order", "collectives_of_one_rank",
    "buffers_are_arrays_of_another_library torch", "buffers_are_arrays_of_another_library cupy",
    "tensorrt_for_rtx", "float16", "engines_are_saved_and_read",
    "threads_run_in_the_profiles_that_fit", "nothing_leaks",
    "too_little_memory_is_said_and_survived", "times_of_tactics_are_kept",
    "an_engine_is_loaded_once_for_all_models_of_a_process", "recorded_executions",
    "times_of_layers",
)  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_step(step: str) -> None:
    do(step)


@pytest.mark.parametrize("level", LEVELS)
def test_the_conformance_kit(level: str) -> None:
    """Of the level of ranks, NCCL's tests skip where there is one GPU."""
    do("with_tensorrt")
    child = _process("-m", "engine", "plugins", "check", "gpu_trt", "--level", level)
    assert child.returncode == 0, child.stdout + child.stderr


@pytest.mark.parametrize("scenario", ["results", "inside"])
@pytest.mark.parametrize("count", [2, 4])
def test_models_in_ranks_on_their_gpus(count: int, scenario: str, tmp_path: Path) -> None:
    """As test_model_ranks.py has it: every kind of collective, float16 and bfloat16, groups.

    And collectives inside one engine, by TensorRT's own layers.
    """
    do("with_tensorrt")
    found = _process("-c", "from engine_gpu_trt import engine_devices as d; print(len(d().found))")
    if int(found.stdout) < count:
        pytest.skip(f"{found.stdout.strip()} GPUs are here, and {count} ranks need one each")
    words = [HERE / "model_ranks.py", scenario, tmp_path, *(["inside"] * (scenario == "inside"))]
    with StoreServer() as server:
        children = [
            subprocess.Popen(
                [sys.executable, *map(str, words)],
                env={**environment(server, rank, count), "PYTHONPATH": _real_path()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        outputs = [child.communicate(timeout=LIMIT_S) for child in children]
    for child, (_, errors) in zip(children, outputs, strict=True):
        assert child.returncode == 0, errors
