"""Threads of a cut model, and effects of a process's one pool on its sessions.

Each in a process of its own: ONNX Runtime's global pool is for good.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import onnxruntime
import pytest

from engine_testing import models

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc"),
    pytest.mark.skipif(
        not hasattr(onnxruntime, "set_global_thread_pool_sizes"),
        reason=f"onnxruntime {onnxruntime.__version__} has no global pool",
    ),
]

PREPARE = """
    import os, sys, time
    from pathlib import Path
    import numpy as np
    import onnxruntime
    from engine.backends import open_backend
    from engine.formats import open_source
    from engine.types import CompileOptions, Device, Threads

    backend, x = open_backend("cpu"), np.arange(6, dtype=np.float32).reshape(2, 3)

    def count():
        return len(os.listdir("/proc/self/task"))

    def compiled(threads=2, plan="", cores=(), **settings):
        options = CompileOptions(
            device=Device("cpu"), threads=Threads(threads, cores=cores), plan=plan, options=settings
        )
        executable = backend.compile(backend.load(open_source(Path(sys.argv[1])), options), options)
        [y] = backend.predict(executable.open_context(), [x], None, None)
        assert (y == 2 * x + 1).all()
        return executable

    compiled(threads=1)
    before = count()
"""


def run(folder: Path, code: str) -> str:
    text = textwrap.dedent(PREPARE) + textwrap.dedent(code)
    command = [sys.executable, "-c", text, str(models.affine(folder))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_25_segments_share_the_two_threads_of_the_process(tmp_path: Path) -> None:
    errors = run(
        tmp_path,
        """
        segments = [compiled(plan="p", thread_pool="process") for _ in range(25)]
        assert count() - before == 1, count() - before  # beside the caller's own
        """,
    )
    assert errors == ""


def test_what_is_loaded_after_the_pool_is_made_uses_it(tmp_path: Path) -> None:
    errors = run(
        tmp_path,
        """
        first = compiled(thread_pool="process")
        first.placement()
        until = time.monotonic() + 60  # the thread that looked for that stays for a second
        while count() - before > 1 and time.monotonic() < until:
            time.sleep(0.05)
        others = [compiled(threads=1), compiled(threads=2), compiled(threads=2, plan="p")]
        assert count() - before == 1
        compiled(threads=3, thread_pool="process")
        assert count() - before == 1
        for _ in range(2):
            compiled(cores=(0, 0), spin_us="9", **{"session.dynamic_block_base": "4"})
        """,
    )
    expected = [
        "the process has one pool of 2 and 1 threads",
        "[cpu_context] spin_us has no effect",
    ]
    expected += ["[cpu_context] session.dynamic_block_base has no effect"]
    expected += ["thread affinity has no effect"]
    for line, text in zip(errors.splitlines(), expected, strict=True):
        assert text in line


def test_a_pool_that_somebody_else_has_made_is_used(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        onnxruntime.set_global_thread_pool_sizes(2, 1)
        models = [compiled(), compiled(thread_pool="process")]
        assert count() - before == 1
        """,
    )


def test_by_default_other_sessions_of_the_process_are_left_alone(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        segments = [compiled(plan="p") for _ in range(3)]
        assert count() - before == 3
        onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
        """,
    )
