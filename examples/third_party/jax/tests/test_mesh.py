"""A mesh of several devices: XLA makes two of this host's processor, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = """
import numpy as np

import engine
from engine_testing.several_devices import SeveralDevices


class TestMesh(SeveralDevices):
    backend = "jax"


def test_a_users_model_is_divided(tmp_path):
    from engine_testing import models

    config = {"jax_context": {"device_ids": "1,0"}}
    x = np.arange(96, dtype=np.float32).reshape(3, 32)
    path = models.dense(tmp_path)
    with engine.load(path, target="jax", config=config) as both, engine.load(path) as cpu:
        for rows in (3, 2):
            [y], [expected] = both.predict([x[:rows]]), cpu.predict([x[:rows]])
            np.testing.assert_allclose(
                y.get_data_to_numpy(), expected.get_data_to_numpy(), rtol=1e-5
            )
        assert {node.device for node in both.placement} == {"jax:1,jax:0"}
        assert [part.device for part in both.memory().parts] == ["jax:1", "jax:0"]
        [y] = both.predict([x[:2]], [engine.Tensor(device="jax:1")])
        np.testing.assert_allclose(
            y.get_data_to_numpy(), expected.get_data_to_numpy(), rtol=1e-5
        )
"""


def test_several_devices_of_the_host_run_one_executable(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(SOURCE)
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "test_two.py"],
        cwd=tmp_path,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == 0, child.stdout[-4000:] + child.stderr[-2000:]
    assert "6 passed" in child.stdout, child.stdout[-4000:]
